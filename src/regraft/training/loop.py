"""The training loop. `steps` yields a record after every optimizer step; the caller logs and saves.

Batches, learning rates and dropout are pure functions of (seed, step), so a resumed run equals an
uninterrupted one exactly.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regraft.config import TrainSettings
from regraft.data import Rows, budget_batches, epoch_order
from regraft.errors import ConfigError, DivergedError, TrainingError
from regraft.models import Model
from regraft.runtime import (
    autocast,
    duration,
    fastest_threads,
    in_percent,
    is_out_of_memory,
    seeded,
    world,
)
from regraft.training.masking import Moment
from regraft.training.objectives import Objective
from regraft.training.optim import (
    add_to_mean,
    build_optimizer,
    gradient_rows,
    learning_rate,
    newest_weight,
    rising_steps,
    thaw,
)
from regraft.training.sharding import build_runner, gradient_sync, whole

# With a time budget, the learning rate stays at its peak for this share of the time; then the pace
# sets the number of remaining steps, over which the rate decays to zero. Set from the first steps,
# a run on a machine that became idle ended after 13 of 20 minutes (2026-11-15). The pace is a mean:
# by the median of unequal steps, two runs of 20 and 30 minutes ended 10 % late and with a fifth of
# the learning rate left (2026-11-18).
SETTLED_SHARE = 0.6
PACE_STEPS = 100

# Steps until the pace is steady enough for an estimate.
PLAN_STEPS = 10

# Copies of the weights: the average over steps, and those of the best epoch.
MEAN, BEST = "mean", "best"

# If the machine slows down after that, the budget is exceeded by at most this share.
OVERRUN = 1.1


@dataclass
class TrainState:
    """Everything needed to resume a run; `checkpoint.py` saves and loads exactly this.

    There are no generators in it: order, rates and dropout follow from the seed and the step.
    `copies` are weights to come back to, by what they are (MEAN, BEST) and by parameter.
    """

    model: Model
    runner: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    total_steps: int | None = None
    decay_from: int = 0
    num_tokens: int = 0
    num_slots: int = 0
    seconds: float = 0.0
    num_threads: int | None = None
    settled_at: int | None = None
    recent_seconds: list[float] = field(default_factory=list)
    num_averaged: int = 0
    copies: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @property
    def moving(self) -> dict[str, nn.Parameter]:
        """The parameters that training changes, now or later, by name."""
        held = {p for group in self.optimizer.param_groups for p in group["params"]}
        return {name: p for name, p in self.model.named_parameters() if p in held}

    @property
    def padding_share(self) -> float:
        """Share of padding among the positions so far."""
        return 1 - self.num_tokens / max(self.num_slots, 1)


@dataclass(frozen=True)
class StepRecord:
    """The result of one optimizer step."""

    step: int
    epoch: int
    loss: float
    lr: float
    gradient_norm: float
    num_tokens: int
    tokens_per_second: float
    seconds: float
    is_epoch_end: bool
    total_steps: int | None


def build_state(model: Model, *, settings: TrainSettings, num_rows: int) -> TrainState:
    """The state before the first step, with the number of steps unless it is a time budget."""
    if settings.freeze_base:
        model.backbone.requires_grad_(False)
    for name in ("unfreeze_every", "layers_after"):
        value = getattr(settings, name)
        if value is not None and world().size > 1:
            raise ConfigError(
                f"train.{name} is {value}, but {world().size} processes train together.",
                "They need the same trainable weights from the first step on.",
                remedy=f"Train in one process, or omit train.{name}.",
            )
    total_steps = settings.steps
    if settings.epochs is not None:
        per_epoch = steps_per_epoch(num_rows, settings=settings)
        total_steps = num_epochs(num_rows, settings=settings) * per_epoch
    if settings.compile:
        model.backbone.compile()
    # The optimizer comes last: it needs the sharded parameters.
    runner = build_runner(model, parallel=settings.parallel)
    return TrainState(
        model=model,
        runner=runner,
        optimizer=build_optimizer(model, settings=settings),
        total_steps=total_steps,
        decay_from=rising_steps(settings, total_steps=total_steps),
        num_threads=None if settings.threads == "auto" else settings.threads,
    )


def num_epochs(num_rows: int, *, settings: TrainSettings) -> int:
    """The number of epochs, increased if needed to reach `least_steps`."""
    assert settings.epochs is not None, "the length is in epochs"
    per_epoch = steps_per_epoch(num_rows, settings=settings)
    return max(settings.epochs, math.ceil((settings.least_steps or 0) / per_epoch))


def steps_per_epoch(num_rows: int, *, settings: TrainSettings) -> int:
    """Optimizer steps per epoch; the last batch may be smaller."""
    return math.ceil(num_rows / settings.batch_size)


def steps(
    state: TrainState, *, rows: Rows, objective: Objective, settings: TrainSettings
) -> Iterator[StepRecord]:
    """Train from the current step to the end; yields one record per step."""
    per_epoch = steps_per_epoch(len(rows.lengths), settings=settings)

    @lru_cache(maxsize=1)
    def order(epoch: int) -> list[NDArray[np.int64]]:
        return epoch_order(
            rows.lengths, batch_size=settings.batch_size, seed=settings.seed, epoch=epoch
        )

    while not _is_done(state, settings=settings):
        step_start = time.perf_counter()
        epoch, place = divmod(state.step, per_epoch)
        numbers = order(epoch)[place]
        lr = learning_rate(
            state.step,
            settings=settings,
            decay_from=state.decay_from,
            total_steps=state.total_steps,
        )
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group["rate_share"]
        done = _done_share(state, settings=settings)
        thaw(state.model, epoch=epoch, done=done, settings=settings)

        with seeded(settings.seed, stream=f"dropout of step {state.step} in {world().rank}"):
            update = _update(
                state, rows=rows, numbers=numbers, objective=objective, settings=settings, lr=lr
            )

        # The mean over processes, so that all of them end at the same step.
        seconds = world().sums(time.perf_counter() - step_start)[0] / world().size
        state.step += 1
        state.num_tokens += update.num_tokens
        state.num_slots += update.num_slots
        state.seconds += seconds
        _average(state, settings=settings)
        _settle(state, seconds=seconds, settings=settings)
        yield StepRecord(
            step=state.step,
            epoch=epoch,
            loss=update.loss,
            lr=lr,
            gradient_norm=update.gradient_norm,
            num_tokens=update.num_tokens,
            tokens_per_second=update.num_tokens / seconds,
            seconds=seconds,
            is_epoch_end=place == per_epoch - 1,
            total_steps=state.total_steps,
        )


def use_threads(
    state: TrainState, *, rows: Rows, objective: Objective, settings: TrainSettings
) -> None:
    """Set the number of threads: that of the state, or the fastest on one of its batches.

    Small matrices lose more by waking threads than they win by sharing work. The number is kept in
    the state: another one would round sums differently, and a resumed run must not.
    """
    if state.num_threads is None:
        numbers = epoch_order(
            rows.lengths, batch_size=settings.batch_size, seed=settings.seed, epoch=0
        )[0]

        def work() -> None:
            with seeded(settings.seed, stream="threads"):
                _backward(state, rows=rows, numbers=numbers, objective=objective, settings=settings)

        state.model.train()
        state.num_threads = fastest_threads(work) if world().size == 1 else torch.get_num_threads()
        state.optimizer.zero_grad(set_to_none=True)
    torch.set_num_threads(state.num_threads)


@dataclass(frozen=True)
class _Update:
    loss: float
    gradient_norm: float
    num_tokens: int
    num_slots: int


def _update(
    state: TrainState,
    *,
    rows: Rows,
    numbers: NDArray[np.int64],
    objective: Objective,
    settings: TrainSettings,
    lr: float,
) -> _Update:
    """One optimizer step over the rows of all processes."""
    state.model.train()
    state.optimizer.zero_grad(set_to_none=True)
    try:
        sums = _backward(state, rows=rows, numbers=numbers, objective=objective, settings=settings)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise _too_large(rows, numbers=numbers, settings=settings) from error
    total, count, num_tokens, num_slots = world().sums(*sums)
    if count == 0:
        raise TrainingError(
            f"The rows of step {state.step + 1} have nothing to predict.",
            "They consist of special tokens only.",
            remedy="Look for empty documents, or take larger batches (train.batch_size).",
        )

    # Divide once by the count of the whole step, over all micro-batches and processes, so that the
    # split of a batch cannot change the result. Gradients are a mean over processes.
    gradients = [gradient_rows(p)[1] for p in state.model.parameters() if p.grad is not None]
    divisor = count / world().size
    norm = float(whole(torch.nn.utils.get_total_norm(gradients))) / divisor
    # Raised before the update, so that the weights stay finite.
    if not (math.isfinite(total) and math.isfinite(norm)):
        what = "loss" if not math.isfinite(total) else "gradient"
        raise DivergedError(
            f"The {what} became {total if what == 'loss' else norm} at step {state.step + 1} "
            f"with learning rate {lr:.2g}.",
            "The weights were not updated.",
            remedy="Lower it (--set train.lr=...), or clip gradients (--set train.clip_norm=1).",
        )
    clip = 1.0 if settings.clip_norm is None else min(1.0, settings.clip_norm / (norm + 1e-6))
    torch._foreach_mul_(gradients, clip / divisor)
    state.optimizer.step()
    return _Update(total / count, norm, int(num_tokens), int(num_slots))


def _backward(
    state: TrainState,
    *,
    rows: Rows,
    numbers: NDArray[np.int64],
    objective: Objective,
    settings: TrainSettings,
) -> tuple[float, float, float, float]:
    """Gradients of the rows of this process: (summed loss, targets, real tokens, positions)."""
    here = next(state.model.parameters()).device
    total = torch.zeros((), device=here)
    count, num_tokens, num_slots = 0, 0, 0
    # Split before sharing: every process needs the same number of micro-batches.
    room = settings.micro_batch_tokens and settings.micro_batch_tokens * world().size
    groups = [numbers]
    if room is not None:
        groups = budget_batches(rows.lengths, numbers=numbers, max_tokens=room)
    for place, group in enumerate(groups):
        mine = world().part(group)
        # A process without rows computes one with weight zero: the others wait for its gradients.
        mine_or_any = mine if len(mine) else group[:1]
        batch = rows.batch(mine_or_any)
        moment = Moment(
            seed=settings.seed,
            step=state.step,
            rows=mine_or_any,
            done=_done_share(state, settings=settings),
        )
        with gradient_sync(state.runner, wanted=place == len(groups) - 1):
            with autocast():
                loss_sum = state.runner(objective, batch.to(here), moment)
            loss = loss_sum.total * bool(len(mine))
            loss.backward()
        total += loss.detach()
        if len(mine):
            count += loss_sum.count
            num_tokens += int(batch.real_BT.sum())
            num_slots += batch.real_BT.numel()
    return float(total), count, num_tokens, num_slots


def _average(state: TrainState, *, settings: TrainSettings) -> None:
    """Add the weights of this step to their average, if there is one."""
    if settings.average is None:
        return
    done = _done_share(state, settings=settings)
    weight = newest_weight(settings.average, num_averaged=state.num_averaged, done=done)
    if weight is not None:
        mean = state.copies.setdefault(MEAN, {})
        add_to_mean(mean, state.moving, weight=weight)
        state.num_averaged += 1


def _done_share(state: TrainState, *, settings: TrainSettings) -> float:
    """The share of training that is done, between 0 and 1."""
    if settings.minutes is not None:
        return min(state.seconds / (settings.minutes * 60), 1.0)
    assert state.total_steps is not None
    return state.step / state.total_steps


def _too_large(rows: Rows, *, numbers: NDArray[np.int64], settings: TrainSettings) -> TrainingError:
    longest = int(rows.lengths[numbers].max())
    positions = len(numbers) * longest
    half = max(min(positions, settings.micro_batch_tokens or positions) // 2, 8)
    return TrainingError(
        f"A batch of {len(numbers)} rows of up to {longest} tokens does not fit in memory.",
        "Smaller micro-batches give the same result.",
        remedy=f"Pass --set train.micro_batch_tokens={half}, or shorter rows (data.max_length).",
    )


def _settle(state: TrainState, *, seconds: float, settings: TrainSettings) -> None:
    """With a time budget: near its end, set the number of remaining steps."""
    if settings.minutes is None or state.total_steps is not None:
        return
    state.recent_seconds = [*state.recent_seconds, seconds][-PACE_STEPS:]
    budget_seconds = settings.minutes * 60
    if state.seconds >= SETTLED_SHARE * budget_seconds:
        pace = float(np.mean(state.recent_seconds))
        remaining = max(budget_seconds - state.seconds, 0.0)
        state.total_steps = state.step + max(int(remaining / pace), 1)
        rising = rising_steps(settings, total_steps=state.total_steps)
        state.decay_from = max(state.step, rising)
        state.settled_at = state.step


def budget_plan(state: TrainState, *, settings: TrainSettings, num_rows: int) -> str | None:
    """A message about the time budget, at the two steps where there is news."""
    if settings.minutes is None:
        return None
    if state.step == PLAN_STEPS and state.total_steps is None:
        pace = float(np.mean(state.recent_seconds))
        num_steps = settings.minutes * 60 / pace
        num_tokens = num_steps * state.num_tokens / state.step
        passes = num_steps / steps_per_epoch(num_rows, settings=settings)
        return (
            f"At this pace {duration(60 * settings.minutes)} are about {num_steps:,.0f} steps, "
            f"{num_tokens:,.0f} tokens, {passes:,.1f} epochs. "
            f"The learning rate rises over {settings.warmup_steps} steps, stays constant until "
            f"{in_percent(SETTLED_SHARE, digits=0)} of the time is over, then decays to zero."
        )
    if state.total_steps is not None and state.step == state.settled_at:
        num_left = state.total_steps - state.step
        return f"{num_left:,} steps are left; the learning rate decays from here."
    return None


def _is_done(state: TrainState, *, settings: TrainSettings) -> bool:
    if settings.minutes is not None and state.seconds > OVERRUN * settings.minutes * 60:
        return True
    return state.total_steps is not None and state.step >= state.total_steps
