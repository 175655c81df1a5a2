"""Contrast: what is summed over a group, that nothing else is, and that it can be learned."""

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from training.test_objectives import FAMILIES, Task, task, without_gradient

from regraft.config.resolution import replace
from regraft.data.rows import Batch
from regraft.data.tokens.store import TokenStore, offsets_of
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import numbered_tokenizer
from regraft.models.heads import Model, NoHead, pool
from regraft.training.checkpoint import Checkpoints
from regraft.training.loop import TrainState, build_state
from regraft.training.objectives import (
    TEMPERATURE,
    build_objective,
    build_validation,
    contrast,
    readings,
)

every_family = pytest.mark.parametrize("family", [*FAMILIES, "bag"])


def contrast_task(family: str = "bag", *given: Any, **changes: Any) -> Task:
    """Groups of four documents or more, unless told otherwise."""
    if family == "bag":
        changes = {"model__num_heads": 1, "model__num_pairs": 99, **changes, "model__num_layers": 0}
    return task(family, "contrast", *given, **{"objective__group_size": 4, **changes})


def new_model(given: Task) -> Model:
    """As pre-training begins: a bag knows the pairs of its text."""
    model = given.model()
    model.backbone.prepare(given.store)
    return model


def new_state(given: Task) -> TrainState:
    num_rows = len(given.rows.lengths)
    return build_state(new_model(given), settings=given.settings.train, num_rows=num_rows)


def vectors_of(model: Model, batch: Batch) -> torch.Tensor:
    hidden = model.backbone(batch.ids_BT, real_BT=batch.real_BT)
    return F.normalize(pool(hidden, real_BT=batch.real_BT, pooling="mean"), dim=1)


def test_equal_vectors_cost_the_logarithm_of_the_group():
    given = contrast_task()
    model, (batch, moment) = new_model(given).eval(), given.batch(0, 2)
    torch.nn.init.ones_(model.backbone.embedding.weight)
    found = contrast(model, batch, moment)
    sizes = torch.bincount(batch.targets[0::2])
    assert sizes.min() >= 4
    expected = sum(int(size) * math.log(int(size)) for size in sizes)
    assert found.total.item() == pytest.approx(expected, rel=1e-5)
    assert found.count == len(batch.targets) / 2


@every_family
def test_contrast_equals_a_plain_loop(family):
    given = contrast_task(family)
    model, (batch, moment) = new_model(given).eval(), given.batch(0, 2, 5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    found = contrast(model, batch, moment)
    vectors, groups = vectors_of(model, batch), batch.targets.tolist()
    firsts, seconds = vectors[0::2], vectors[1::2]
    total, num_found = 0.0, 0
    for number, group in enumerate(groups[0::2]):
        others = [n for n, other in enumerate(groups[0::2]) if other == group]
        for this, those in ((firsts, seconds), (seconds, firsts)):
            scores = {n: (this[number] @ those[n]).item() / TEMPERATURE for n in others}
            total += math.log(sum(math.exp(score) for score in scores.values())) - scores[number]
            num_found += this is firsts and max(scores, key=scores.__getitem__) == number
    assert found.total.item() == pytest.approx(total / 2, rel=1e-4)
    assert found.count == len(groups) / 2
    assert found.readings["halves_found"].count == found.count
    assert int(found.readings["halves_found"].total) == num_found


@every_family
def test_other_groups_of_a_batch_change_nothing(family):
    given = contrast_task(family)
    model = new_model(given).eval()
    apart = [contrast(model, *given.batch(number)) for number in (1, 3, 4)]
    together = contrast(model, *given.batch(1, 3, 4))
    torch.testing.assert_close(together.total, sum(loss.total for loss in apart))
    assert together.count == sum(loss.count for loss in apart)


@every_family
def test_gradients_reach_every_parameter(family):
    given = contrast_task(family)
    model, (batch, moment) = new_model(given), given.batch(0, 1)
    assert isinstance(model.head, NoHead)
    contrast(model, batch, moment).total.backward()
    assert without_gradient(model) == []


@every_family
def test_one_batch_can_be_overfitted(family):
    given = contrast_task(family, model__width=24, model__num_heads=2)
    model, (batch, moment) = new_model(given), given.batch(0, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        found = contrast(model, batch, moment)
        optimizer.zero_grad()
        (found.total / found.count).backward()
        optimizer.step()
        losses.append(found.total.item() / found.count)
    assert losses[0] > 0.5
    assert losses[-1] < 0.05
    assert int(found.readings["halves_found"].total) == found.count


@pytest.mark.parametrize("family", ["modern", "bag"])
def test_micro_batches_do_not_change_the_result(family):
    given = contrast_task(family, train__batch_size=8, train__lr=3e-5)
    whole, parts = new_state(given), new_state(given)
    expected = [record.loss for record in given.steps(whole)]
    settings = replace(given.settings, "train", micro_batch_tokens=24)
    split = dataclasses.replace(given, settings=settings)
    assert [record.loss for record in split.steps(parts)] == pytest.approx(expected, rel=1e-5)
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(parts.model.state_dict()[name], tensor, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("optimizer", ["rowwise", "adamw"])
def test_resumed_run_equals_one_never_stopped_bit_for_bit(dropout, optimizer, tmp_path: Path):
    given = contrast_task(model__dropout=dropout, train__threads=1, train__optimizer=optimizer)
    straight, first, second = new_state(given), new_state(given), new_state(given)
    # The pairs are among what is saved.
    second.model.backbone.know_pairs(torch.zeros(0, dtype=torch.int64))
    list(given.steps(straight))
    for record in given.steps(first):
        if record.step == 3:
            Checkpoints(tmp_path, keep=1).save(first, extra={})
            break
    Checkpoints(tmp_path, keep=1).load(second)
    list(given.steps(second))
    assert second.step == straight.step == 6
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor), name


def topics() -> tuple[Tokenizer, TokenStore]:
    """Documents of eight topics, whose halves have no word in common: that has to be learned."""
    tokenizer = numbered_tokenizer(6 + 8 * 4)
    source = np.random.default_rng(0)
    rows = []
    for number in range(64):
        halves = [2 * half + source.integers(2, size=9) for half in (0, 1)]
        words = 6 + 4 * (number % 8) + np.concatenate(halves)
        rows.append([tokenizer.start_id, *words.tolist(), tokenizer.end_id])
    offsets = offsets_of(np.array([len(row) for row in rows]))
    ids = np.concatenate(rows).astype(np.uint16)
    return tokenizer, TokenStore.from_arrays(ids, offsets, num_bytes=1)


def test_loss_curve_is_golden_and_halves_are_found(golden):
    given = contrast_task(
        "bag",
        topics(),
        model__width=32,
        train__steps=30,
        train__batch_size=2,
        train__lr=1e-2,
        train__optimizer="adamw",
    )
    state = new_state(given)
    losses = [record.loss for record in given.steps(state)]
    means = np.mean(np.reshape(losses, (-1, 5)), axis=1)
    golden("loss_contrast.txt", "".join(f"{loss:.2f}\n" for loss in means))
    (objective,) = build_validation(given.settings, tokenizer=given.tokenizer).values()
    found = readings(state.model, given.rows, objective=objective, max_tokens=10_000)
    assert losses[0] > math.log(4)
    # Of four documents, some are of one topic, and cannot be told apart.
    assert found["loss"] < 0.5
    assert found["halves_found"] > 0.7


def test_contrast_needs_no_mask_token():
    given = contrast_task()
    lacking = copy.copy(given.tokenizer)
    lacking.mask_id = None
    assert build_objective(given.settings, tokenizer=lacking) is contrast
    assert given.objective is contrast
