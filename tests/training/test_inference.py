"""Probabilities come back in the order of the rows, and losses are means over tokens."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regraft.classifiers.scoring import evaluation
from regraft.config.schema import DataSettings, ModelSettings, TokenizerSettings
from regraft.data.rows import ExampleRows, StreamRows
from regraft.data.text.records import Labels
from regraft.data.tokens.store import TokenStore
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.models.families import build_backbone
from regraft.models.heads import build_classifier, build_language_model
from regraft.training.inference import (
    EVALUATION_TOKENS,
    class_probabilities,
    pooled_vectors,
)
from regraft.training.objectives import causal, readings

SETTINGS = ModelSettings(
    width=12, num_layers=2, num_heads=3, feedforward_width=7, dropout=0.5, attention_dropout=0.5
)


def test_probabilities_keep_the_order_of_rows_whatever_their_length():
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["a good book"], settings=TokenizerSettings(size=280))
    texts = ["a book " * n for n in (30, 1, 7, 50, 3)] * 9  # more than one batch
    data = DataSettings(max_length=40)
    rows = ExampleRows(texts, targets=[0] * len(texts), tokenizer=tokenizer, data=data)
    model = build_classifier(
        SETTINGS, vocab_size=tokenizer.vocab_size, num_classes=3, pooling="last"
    )
    together = class_probabilities(model, rows)
    assert together.shape == (45, 3)
    assert together.sum(axis=1) == pytest.approx(np.ones(45))
    for number in (0, 3, 44):
        batch = rows.batch(np.array([number]))
        alone = model.eval()(batch.ids_BT, real_BT=batch.real_BT).softmax(dim=1)
        assert together[number] == pytest.approx(alone[0].detach().numpy(), abs=1e-5)
    too_long = [len(tokenizer.encode(text)) + 1 > data.max_length for text in texts]
    assert 0 < rows.cut_share < 1
    assert rows.cut_share == pytest.approx(sum(too_long) / len(texts))


def test_long_text_is_told_by_the_mean_of_its_windows():
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["a good book"], settings=TokenizerSettings(size=280))
    texts = ["a good book", "good " * 4 + "book " * 4 + "a " * 4, "a " * 70]
    data = DataSettings(max_length=16, windows=3)
    rows = ExampleRows(texts, targets=[0, 1, 0], tokenizer=tokenizer, data=data)
    model = build_classifier(
        SETTINGS, vocab_size=tokenizer.vocab_size, num_classes=3, pooling="last"
    )
    seen: list[int] = []
    found = class_probabilities(model, rows, on_batch=seen.append)
    assert found.sum(axis=1) == pytest.approx(np.ones(3))
    assert sum(seen) == 3
    room = 16 - tokenizer.num_framing
    for number, text in enumerate(texts):
        ids = tokenizer.encode(text)[: 3 * room]
        logs = []
        for start in range(0, len(ids), room):
            row = tokenizer.framed(ids[start : start + room], max_length=16)
            logs.append(model.eval()(torch.tensor([row]))[0].double().log_softmax(dim=0))
        mean = torch.stack(logs).mean(dim=0).softmax(dim=0)
        assert found[number] == pytest.approx(mean.detach().numpy(), abs=1e-6)
    # Training reads the first window; only the last text is not read to its end.
    assert rows.lengths.max() == 16
    assert (rows.num_long, rows.num_cut) == (2, 1)
    part = rows.subset(np.array([1]))
    assert class_probabilities(model, part) == pytest.approx(found[1:2], abs=1e-6)


def test_windows_change_nothing_for_short_texts():
    tokenizer = train_tokenizer(["a good book"], settings=TokenizerSettings(size=280))
    data = DataSettings(max_length=16, windows=3)
    rows = ExampleRows(["a good book", ""], targets=[0, 1], tokenizer=tokenizer, data=data)
    assert rows.windows is None
    assert rows.num_long == rows.num_cut == 0


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_vectors_keep_the_order_of_rows_and_know_no_padding(pooling):
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["a good book"], settings=TokenizerSettings(size=280))
    texts = [f"{n} a book " * n for n in (30, 1, 7, 50, 3)] * 60  # more than one batch
    data = DataSettings(max_length=40)
    rows = ExampleRows(texts, targets=[0] * len(texts), tokenizer=tokenizer, data=data)
    assert rows.lengths.sum() > EVALUATION_TOKENS
    backbone = build_backbone(SETTINGS, vocab_size=tokenizer.vocab_size)
    seen: list[int] = []
    together = pooled_vectors(backbone, rows, pooling=pooling, on_batch=seen.append)
    assert together.shape == (300, 12)
    assert together.dtype == np.float32
    assert len(seen) > 1
    assert sum(seen) == 300
    backbone.eval()
    for number in (0, 1, 3, 299):
        ids = torch.tensor([tokenizer.framed(tokenizer.encode(texts[number]), max_length=40)])
        hidden = backbone(ids)[0].detach().numpy()
        alone = {"mean": hidden.mean(axis=0), "first": hidden[0], "last": hidden[-1]}[pooling]
        assert together[number] == pytest.approx(alone, abs=1e-5)


def test_readings_are_means_over_the_first_tokens():
    torch.manual_seed(0)
    ids = np.random.default_rng(0).integers(0, 17, size=61).astype(np.uint32)
    rows = StreamRows(TokenStore.from_arrays(ids, np.array([0, 61]), num_bytes=61), max_length=6)
    model = build_language_model(SETTINGS, vocab_size=17)
    loss = readings(model, rows, objective=causal, max_tokens=20)["loss"]
    batch = rows.batch(np.arange(4))
    scores = model.eval()(batch.ids_BT)
    expected = F.cross_entropy(scores.flatten(0, 1), batch.targets.flatten())
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_evaluation_speaks_in_label_names():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    result = evaluation(
        probabilities,
        targets_N=np.array([0, 1, 1, 1]),
        labels=Labels(("bad", "good")),
        cut_share=0.25,
    )
    assert result.accuracy.mean == 0.75
    assert result.confusion == [[1, 0], [1, 2]]
    assert result.to_dict()["labels"] == ("bad", "good")
    assert result.cut_share == 0.25
