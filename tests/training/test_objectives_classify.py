"""Losses of fine-tuning: what is spread, what is pulled together, what is learned beside."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regraft.config.resolution import resolve
from regraft.config.schema import ModelSettings
from regraft.data.rows import Batch
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.models.heads import (
    LanguageModelHead,
    Model,
    build_classifier,
    build_language_model,
    graft,
)
from regraft.training.masking import Moment
from regraft.training.objectives import (
    LossSum,
    causal,
    classify,
    classify_each,
    disagreement,
    read_on,
    with_auxiliary,
)

VOCAB = 300
MODEL = ModelSettings(
    family="modern",
    attention="bidirectional",
    width=12,
    num_layers=2,
    num_heads=3,
    feedforward_width=7,
    dropout=0.3,
    attention_dropout=0,
    max_positions=16,
)


def batch(*, num_rows: int = 3) -> Batch:
    ids_BT = torch.randint(10, VOCAB, (num_rows, 5), generator=torch.Generator().manual_seed(0))
    real_BT = torch.arange(5) < torch.tensor([[5], [3], [4]])[:num_rows]
    return Batch(ids_BT, real_BT, torch.tensor([0, 3, 1])[:num_rows])


def moment(rows: list[int]) -> Moment:
    return Moment(seed=0, step=1, rows=np.array(rows), done=0.0)


def classifier() -> Model:
    torch.manual_seed(0)
    return build_classifier(MODEL, vocab_size=VOCAB, num_classes=4, pooling="mean")


def loss_of(objective, model: Model) -> LossSum:
    torch.manual_seed(1)
    return objective(model, batch(), moment([0, 1, 2]))


def test_smoothing_spreads_a_share_over_all_classes():
    model = classifier().eval()
    given = batch()
    log_probabilities = model(given.ids_BT, real_BT=given.real_BT).log_softmax(dim=1)
    right = -log_probabilities[torch.arange(3), given.targets].sum()
    even = -log_probabilities.mean(dim=1).sum()
    found = loss_of(classify(label_smoothing=0.2), model)
    assert found.count == 3
    torch.testing.assert_close(found.total, 0.8 * right + 0.2 * even)
    torch.testing.assert_close(loss_of(classify(), model).total, right)


def test_rdrop_without_dropout_is_the_plain_loss():
    model = classifier().eval()
    torch.testing.assert_close(
        loss_of(classify(rdrop=5.0), model).total, loss_of(classify(), model).total
    )


def test_rdrop_pulls_two_passes_together():
    model = classifier().train()
    given = batch()
    torch.manual_seed(1)
    one, other = (model(given.ids_BT, real_BT=given.real_BT) for _ in range(2))
    assert not torch.equal(one, other)
    losses = [F.cross_entropy(scores, given.targets, reduction="sum") for scores in (one, other)]
    expected = sum(losses) / 2 + 5.0 * disagreement(one, other)
    torch.testing.assert_close(loss_of(classify(rdrop=5.0), model).total, expected)


def test_disagreement_is_symmetric_and_zero_for_equals():
    torch.manual_seed(0)
    one, other = torch.randn(3, 4), torch.randn(3, 4)
    assert disagreement(one, other) > 0
    torch.testing.assert_close(disagreement(one, other), disagreement(other, one))
    assert float(disagreement(one, one.clone())) == pytest.approx(0, abs=1e-6)


@pytest.fixture(scope="module")
def tokenizer():
    settings = dataclasses.replace(resolve("pretrain").tokenizer, size=VOCAB)
    return train_tokenizer([f"word{n} and more of it" for n in range(200)], settings=settings)


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_base_reads_on_by_its_old_head(tokenizer, kind):
    settings = resolve("finetune", overrides={"objective.kind": kind})
    model = dataclasses.replace(MODEL, attention="causal" if kind == "causal" else MODEL.attention)
    base = build_language_model(model, vocab_size=VOCAB)
    assert isinstance(base.head, LanguageModelHead)
    grafted, _ = graft(base, num_classes=4, pooling="mean")
    base.head.requires_grad_(False)
    objective = read_on(base.head, settings=settings, tokenizer=tokenizer)
    loss = objective(grafted.eval(), batch(), moment([0, 1, 2]))
    loss.total.backward()
    assert all(p.grad is None for p in (*base.head.parameters(), *grafted.head.parameters()))
    assert grafted.backbone.embedding.weight.grad is not None
    if kind == "causal":
        # Every real token but the first of a row is predicted, and by the base as before.
        assert loss.count == 4 + 2 + 3
        given = batch()
        targets = torch.full_like(given.ids_BT, -100)
        targets[0, :4], targets[1, :2], targets[2, :3] = (
            given.ids_BT[0, 1:5],
            given.ids_BT[1, 1:3],
            given.ids_BT[2, 1:4],
        )
        expected = causal(
            base.eval(), dataclasses.replace(given, targets=targets), moment([0, 1, 2])
        )
        torch.testing.assert_close(loss.total, expected.total)


def test_auxiliary_does_not_depend_on_how_a_batch_is_split(tokenizer):
    settings = resolve("finetune", overrides={"objective.mask_rate": 0.4})
    base = build_language_model(MODEL, vocab_size=VOCAB)
    grafted, _ = graft(base, num_classes=4, pooling="mean")
    own = read_on(base.head, settings=settings, tokenizer=tokenizer)
    objective = with_auxiliary(classify(), own, weight=0.5, targets_per_row=1.6)
    whole = objective(grafted.eval(), batch(), moment([0, 1, 2]))
    given = batch()
    parts = [
        objective(
            grafted,
            Batch(given.ids_BT[n : n + 1], given.real_BT[n : n + 1], given.targets[n : n + 1]),
            moment([n]),
        )
        for n in range(3)
    ]
    assert whole.count == sum(part.count for part in parts) == 3
    torch.testing.assert_close(whole.total, sum(part.total for part in parts))
    plain = classify()(grafted, given, moment([0, 1, 2])).total
    beside = own(grafted, given, moment([0, 1, 2])).total
    torch.testing.assert_close(whole.total, plain + 0.5 / 1.6 * beside)


def test_every_class_is_predicted_by_itself():
    model = classifier().eval()
    targets_BC = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    given = dataclasses.replace(batch(), targets=targets_BC)
    chances_BC = model(given.ids_BT, real_BT=given.real_BT).sigmoid()
    right_BC = chances_BC.where(targets_BC == 1, 1 - chances_BC)
    found = classify_each()(model, given, moment([0, 1, 2]))
    assert found.count == 3
    torch.testing.assert_close(found.total, -right_BC.log().sum())
    weights_C = torch.tensor([3.0, 1.0, 1.0, 1.0])
    weighed = classify_each(weights_C)(model, given, moment([0, 1, 2]))
    more = -2 * chances_BC[:, 0].log()[targets_BC[:, 0] == 1].sum()
    torch.testing.assert_close(weighed.total, found.total + more)
    smooth = classify_each(label_smoothing=0.2)(model, given, moment([0, 1, 2]))
    losses_BC = -0.9 * right_BC.log() - 0.1 * (1 - right_BC).log()
    torch.testing.assert_close(smooth.total, losses_BC.sum())
