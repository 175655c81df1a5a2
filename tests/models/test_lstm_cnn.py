"""The networks that came before: blind to padding, and able to learn."""

import numpy as np
import pytest
import torch
from conftest import make_records

from regraft.classifiers.finetuning import train_classifier
from regraft.config.resolution import resolve
from regraft.data.rows import example_rows
from regraft.data.text.records import labels_of
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.models.lstm_cnn import BASELINES, WIDTH, build_baseline
from regraft.runtime.hardware import seeded
from regraft.training.inference import class_probabilities


@pytest.mark.parametrize("kind", BASELINES)
def test_padding_changes_nothing(kind: str) -> None:
    with seeded(1, stream="weights"):
        model = build_baseline(kind, vocab_size=40, num_classes=3).eval()
    ids_BT = torch.randint(0, 40, (2, 7), generator=torch.Generator().manual_seed(0))
    real_BT = torch.tensor([[True] * 7, [True] * 2 + [False] * 5])
    scores_BC = model(ids_BT, real_BT=real_BT)
    alone_BC = model(ids_BT[1:, :2])
    longer_BT = torch.cat([ids_BT, torch.ones_like(ids_BT)], dim=1)
    longer_real_BT = torch.cat([real_BT, torch.zeros_like(real_BT)], dim=1)
    longer_BC = model(longer_BT, real_BT=longer_real_BT)
    assert scores_BC.shape == (2, 3)
    torch.testing.assert_close(scores_BC[1:], alone_BC)
    torch.testing.assert_close(scores_BC, longer_BC)


@pytest.mark.parametrize("kind", BASELINES)
def test_order_of_words_matters(kind: str) -> None:
    with seeded(1, stream="weights"):
        model = build_baseline(kind, vocab_size=40, num_classes=3).eval()
    ids_BT = torch.arange(8)[None]
    hidden_BTD = model.backbone(ids_BT)
    assert hidden_BTD.shape == (1, 8, WIDTH)
    assert not torch.allclose(model(ids_BT), model(ids_BT.flip(1)))


@pytest.mark.parametrize("kind", BASELINES)
def test_rival_learns(kind: str) -> None:
    train, valid = make_records(64, seed=3), make_records(32, seed=4)
    settings = resolve(
        "finetune",
        overrides={
            "data.max_length": 32,
            "train.epochs": 4,
            "train.lr": 3e-3,
            "tokenizer.size": 300,
        },
    )
    tokenizer = train_tokenizer([e.text for e in train], settings=settings.tokenizer)
    labels = labels_of(train)
    rows, valid_rows = (
        example_rows(part, labels=labels, tokenizer=tokenizer, data=settings.data)
        for part in (train, valid)
    )
    with seeded(0, stream="weights"):
        model = build_baseline(kind, vocab_size=tokenizer.vocab_size, num_classes=2)
    records = list(train_classifier(model, rows=rows, valid_rows=valid_rows, settings=settings))
    assert records[-1].valid_accuracy > 0.8
    chances_NC = class_probabilities(model, valid_rows)
    assert np.mean(chances_NC.argmax(axis=1) == valid_rows.targets) > 0.8
