"""The loop: what it divides by, where it stops, and that it can go on from anywhere."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from regraft.config.schema import ModelSettings, TrainSettings
from regraft.data.rows import StreamRows
from regraft.data.tokens.store import TokenStore
from regraft.errors import ConfigError, TrainingError
from regraft.models.heads import Model, build_language_model
from regraft.runtime.distributed import World
from regraft.runtime.hardware import seeded
from regraft.training import loop as trainer
from regraft.training.loop import (
    MEAN,
    StepRecord,
    _settle,
    budget_plan,
    build_state,
    steps,
    use_threads,
)
from regraft.training.objectives import LossSum, causal

VOCAB = 17
TRAIN = TrainSettings(steps=6, batch_size=4, lr=1e-2, warmup_steps=2, seed=3)


def rows(num_tokens: int = 200, *, row_length: int = 5) -> StreamRows:
    ids = np.random.default_rng(0).integers(2, VOCAB, size=num_tokens).astype(np.uint32)
    ids[0] = 0  # the start token
    store = TokenStore.from_arrays(ids, np.array([0, num_tokens]), num_bytes=num_tokens)
    return StreamRows(store, max_length=row_length)


def new_model(*, dropout: float = 0.2) -> Model:
    settings = ModelSettings(
        width=12,
        num_layers=2,
        num_heads=3,
        feedforward_width=7,
        dropout=dropout,
        attention_dropout=dropout,
        max_positions=16,
    )
    with seeded(0, stream="weights"):
        return build_language_model(settings, vocab_size=VOCAB)


def train(settings: TrainSettings, *, dropout: float = 0.2) -> tuple[Model, list[StepRecord]]:
    data = rows()
    state = build_state(new_model(dropout=dropout), settings=settings, num_rows=len(data.lengths))
    records = list(steps(state, rows=data, objective=causal, settings=settings))
    return state.model, records


def assert_same_weights(one: Model, other: Model, *, atol: float = 0.0) -> None:
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, atol=atol, rtol=0)


def test_loop_is_reproducible_bit_for_bit():
    assert_same_weights(train(TRAIN)[0], train(TRAIN)[0])


def test_seed_changes_the_result():
    other = dataclasses.replace(TRAIN, seed=4)
    assert train(TRAIN)[1][-1].loss != train(other)[1][-1].loss


@pytest.mark.parametrize("micro_batch_tokens", [8, 10])
def test_micro_batches_do_not_change_the_result(micro_batch_tokens):
    # A small rate: Adam turns rounding in a gradient near zero into a whole step of its size.
    settings = dataclasses.replace(TRAIN, lr=3e-5)
    split = dataclasses.replace(settings, micro_batch_tokens=micro_batch_tokens)
    whole_model, whole = train(settings, dropout=0.0)
    split_model, parts = train(split, dropout=0.0)
    assert [r.loss for r in parts] == pytest.approx([r.loss for r in whole], rel=1e-5)
    assert_same_weights(whole_model, split_model, atol=1e-5)


def test_loss_is_divided_by_all_targets_of_the_step():
    counts = []

    def objective(model: Model, batch, moment) -> LossSum:
        # Uneven counts: a mean of micro-batch means would give another number.
        loss = causal(model, batch, moment)
        counts.append(len(counts) % 2 + 1)
        return LossSum(loss.total * 0 + counts[-1] * 7.0, counts[-1])

    settings = dataclasses.replace(TRAIN, steps=1, micro_batch_tokens=10, clip_norm=None)
    data = rows()
    state = build_state(new_model(), settings=settings, num_rows=len(data.lengths))
    (record,) = steps(state, rows=data, objective=objective, settings=settings)
    assert counts == [1, 2]
    assert record.loss == pytest.approx(7.0)


def test_state_copied_midway_goes_on_exactly():
    straight, _ = train(TRAIN)
    data = rows()
    state = build_state(new_model(), settings=TRAIN, num_rows=len(data.lengths))
    loop = steps(state, rows=data, objective=causal, settings=TRAIN)
    next(loop), next(loop)
    loop.close()
    resumed = copy.deepcopy(state)
    list(steps(resumed, rows=data, objective=causal, settings=TRAIN))
    assert resumed.step == TRAIN.steps
    assert_same_weights(straight, resumed.model)


def test_non_finite_loss_stops_before_the_update():
    def objective(model: Model, batch, moment) -> LossSum:
        return LossSum(causal(model, batch, moment).total * float("nan"), 1)

    data = rows()
    state = build_state(new_model(), settings=TRAIN, num_rows=len(data.lengths))
    before = copy.deepcopy(state.model)
    with pytest.raises(TrainingError, match=r"became nan at step 1 with learning rate 0\.005"):
        next(steps(state, rows=data, objective=objective, settings=TRAIN))
    assert_same_weights(before, state.model)


def test_epochs_count_passes_and_mark_their_ends():
    settings = dataclasses.replace(TRAIN, steps=None, epochs=2)
    data = rows(100)
    state = build_state(new_model(), settings=settings, num_rows=len(data.lengths))
    records = list(steps(state, rows=data, objective=causal, settings=settings))
    assert len(data.lengths) == 19
    assert len(records) == 10
    assert [record.is_epoch_end for record in records] == ([False] * 4 + [True]) * 2
    assert [record.epoch for record in records] == [0] * 5 + [1] * 5


def test_least_steps_make_few_rows_a_longer_training():
    settings = dataclasses.replace(TRAIN, steps=None, epochs=2, least_steps=12)
    # Whole epochs: three of five steps are the fewest that make twelve.
    assert build_state(new_model(), settings=settings, num_rows=19).total_steps == 15
    assert build_state(new_model(), settings=settings, num_rows=40).total_steps == 20


def test_one_batch_can_be_overfitted():
    settings = TrainSettings(steps=250, batch_size=4, lr=1e-2, warmup_steps=5, seed=0)
    data = rows(21)
    state = build_state(new_model(dropout=0.0), settings=settings, num_rows=len(data.lengths))
    records = list(steps(state, rows=data, objective=causal, settings=settings))
    assert records[0].loss > 2.0
    assert records[-1].loss < 0.1


def test_time_budget_is_settled_by_the_pace_of_the_last_steps():
    settings = TrainSettings(minutes=1.0, warmup_steps=4)
    state = build_state(new_model(), settings=settings, num_rows=40)
    while state.total_steps is None:
        state.step += 1
        # A busy machine that becomes idle: what was slow at first must not count at the end.
        seconds = 2.0 if state.step <= 5 else 0.25
        state.seconds += seconds
        _settle(state, seconds=seconds, settings=settings)
    assert state.seconds == pytest.approx(0.6 * 60)
    assert state.decay_from == state.step == 5 + (36 - 10) * 4
    assert state.total_steps == state.step + 24 * 4
    assert len(state.recent_seconds) == 100


def test_frozen_base_does_not_move():
    settings = dataclasses.replace(TRAIN, freeze_base=True)
    model, _ = train(settings)
    fresh = new_model()
    assert_same_weights(fresh.backbone, model.backbone)
    assert not torch.equal(fresh.head.linear.weight, model.head.linear.weight)


def test_causal_loss_curve_is_golden(golden):
    settings = dataclasses.replace(TRAIN, steps=12)
    _, records = train(settings, dropout=0.0)
    golden("loss_causal.txt", "".join(f"{record.loss:.3f}\n" for record in records))


def test_time_budget_tells_its_plan_twice():
    settings = TrainSettings(minutes=1.0, warmup_steps=4)
    state = build_state(new_model(), settings=settings, num_rows=40)
    plans = []
    while state.total_steps is None:
        state.step += 1
        state.num_tokens += 100
        state.seconds += 0.5
        _settle(state, seconds=0.5, settings=settings)
        plans.append(budget_plan(state, settings=settings, num_rows=40))
    first, second = [plan for plan in plans if plan]
    start = "At this pace 1 min 00 s are about 120 steps, 12,000 tokens, 40.0 epochs."
    assert first.startswith(start)
    assert plans.index(first) == 9
    settings = dataclasses.replace(settings, minutes=0.900961)
    state = build_state(new_model(), settings=settings, num_rows=40)
    state.step, state.num_tokens, state.recent_seconds = 10, 1000, [0.5]
    plan = budget_plan(state, settings=settings, num_rows=40)
    assert plan is not None
    assert plan.startswith("At this pace 54 s are about")
    assert second == "48 steps are left; the learning rate decays from here."


def test_batch_that_does_not_fit_names_the_setting_to_lower():
    def too_large(model: Model, batch, moment) -> LossSum:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 TB")

    state = build_state(new_model(), settings=TRAIN, num_rows=len(rows().lengths))
    with pytest.raises(TrainingError) as caught:
        next(steps(state, rows=rows(), objective=too_large, settings=TRAIN))
    assert str(caught.value) == (
        "A batch of 3 rows of up to 5 tokens does not fit in memory. Smaller micro-batches give "
        "the same result. Pass --set train.micro_batch_tokens=8, or shorter rows "
        "(data.max_length)."
    )


def test_non_finite_gradient_stops_before_the_update():
    def steep(model: Model, batch, moment) -> LossSum:
        # The loss is 0, its slope is not finite.
        return LossSum(torch.sqrt(model.head.linear.weight.sum() * 0.0), 1)

    state = build_state(new_model(), settings=TRAIN, num_rows=len(rows().lengths))
    before = copy.deepcopy(state.model)
    with pytest.raises(TrainingError, match=r"The gradient became nan at step 1 .*not updated"):
        next(steps(state, rows=rows(), objective=steep, settings=TRAIN))
    assert_same_weights(before, state.model)


def test_padding_is_counted():
    data = rows()
    state = build_state(new_model(), settings=TRAIN, num_rows=len(data.lengths))
    list(steps(state, rows=data, objective=causal, settings=TRAIN))
    assert state.num_slots == state.num_tokens == (5 * 4 + 3) * 5
    assert state.padding_share == 0


def test_threads_are_measured_once_and_kept_in_the_state():
    data = rows()
    state = build_state(new_model(), settings=TRAIN, num_rows=len(data.lengths))
    before = copy.deepcopy(state.model)
    assert state.num_threads is None
    use_threads(state, rows=data, objective=causal, settings=TRAIN)
    assert state.num_threads == torch.get_num_threads()
    # Measuring leaves no trace: no gradient, no weight moved.
    assert all(parameter.grad is None for parameter in state.model.parameters())
    assert_same_weights(before, state.model)


def test_unfreezing_in_many_processes_is_refused(monkeypatch):
    monkeypatch.setattr(trainer, "world", lambda: World(rank=0, size=2))
    settings = dataclasses.replace(TRAIN, unfreeze_every=1)
    with pytest.raises(ConfigError) as caught:
        build_state(new_model(), settings=settings, num_rows=8)
    assert "train.unfreeze_every is 1" in caught.value.problem


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_mean_of_the_weights_is_kept_beside_them(kind):
    plain, _ = train(TRAIN)
    settings = dataclasses.replace(TRAIN, average=kind)
    data = rows()
    state = build_state(new_model(), settings=settings, num_rows=len(data.lengths))
    passed = []
    for _ in steps(state, rows=data, objective=causal, settings=settings):
        passed.append(state.model.head.linear.weight.detach().clone())
    # Averaging does not touch the training itself.
    assert_same_weights(plain, state.model)
    counted = passed[-state.num_averaged :]
    assert len(counted) == (6 if kind == "ema" else 2)
    mean = state.copies[MEAN]["head.linear.weight"]
    torch.testing.assert_close(mean, torch.stack(counted).mean(dim=0))
