"""The one loop. `steps` yields a record after every optimiser step; the caller logs and saves.

Comes in: a TrainState, rows, an objective. Goes out: StepRecords, with the state moved on. Batches,
rates and dropout are pure functions of (seed, step), so a state that was saved and loaded goes on
exactly as if it had never stopped. Knows no files, no objective by name, no heads.
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

from regraft.averaging import add_to_mean, newest_weight
from regraft.batches import Rows, budget_batches, epoch_order
from regraft.config import TrainSettings
from regraft.corruption import Moment
from regraft.errors import ConfigError, DivergedError, TrainingError
from regraft.heads import Model
from regraft.objectives import Objective
from regraft.optim import build_optimizer, learning_rate, rising_steps, thaw
from regraft.parallel import build_runner, gradient_sync, whole, world
from regraft.runtime import autocast, fastest_threads, is_out_of_memory, seeded

# With a time budget, the rate stays at its peak until this share of the time is gone; then the pace
# of the last steps decides how many are left, and the rate falls to zero over them. Settled from
# the first steps instead, a run on a machine that became idle ended after 13 of 20 minutes
# (2026-11-15).
SETTLED_SHARE = 0.6
PACE_STEPS = 50

# Steps until the pace is steady enough to tell what a time budget will do.
PLAN_STEPS = 10

# Copies of the weights: the mean over steps, and those of the best epoch.
MEAN, BEST = "mean", "best"

# A machine that became busier after that may overrun its budget by this much, not more.
OVERRUN = 1.1


@dataclass
class TrainState:
    """All that a run needs to go on; `checkpoint.py` saves and loads exactly this.

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
        """The parameters that training moves, now or later, by name."""
        held = {p for group in self.optimizer.param_groups for p in group["params"]}
        return {name: p for name, p in self.model.named_parameters() if p in held}

    @property
    def padding_share(self) -> float:
        """Share of the positions computed so far that were padding."""
        return 1 - self.num_tokens / max(self.num_slots, 1)


@dataclass(frozen=True)
class StepRecord:
    """What one optimiser step did."""

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
    """The state before the first step. A length in epochs or steps is known here already."""
    if settings.freeze_base:
        model.backbone.requires_grad_(False)
    if settings.unfreeze_every is not None and world().size > 1:
        raise ConfigError(
            f"train.unfreeze_every is {settings.unfreeze_every}, and {world().size} processes "
            "train together.",
            "They agree on which weights have gradients once, before the first step.",
            remedy="Train in one process, or leave train.unfreeze_every away.",
        )
    total_steps = settings.steps
    if settings.epochs is not None:
        per_epoch = steps_per_epoch(num_rows, settings=settings)
        total_steps = num_epochs(num_rows, settings=settings) * per_epoch
    if settings.compile:
        model.backbone.compile()
    # The optimiser comes last: it must hold the parameters as they are sharded.
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
    """The length in whole epochs: those asked for, or as many as make the least steps."""
    assert settings.epochs is not None, "the length is in epochs"
    per_epoch = steps_per_epoch(num_rows, settings=settings)
    return max(settings.epochs, math.ceil((settings.least_steps or 0) / per_epoch))


def steps_per_epoch(num_rows: int, *, settings: TrainSettings) -> int:
    """Optimiser steps in one pass; the last batch may be smaller."""
    return math.ceil(num_rows / settings.batch_size)


def steps(
    state: TrainState, *, rows: Rows, objective: Objective, settings: TrainSettings
) -> Iterator[StepRecord]:
    """Train from where the state stands to its end, one record a step."""
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
        thaw(state.model, epoch=epoch, settings=settings)

        with seeded(settings.seed, stream=f"dropout of step {state.step} in {world().rank}"):
            update = _update(
                state, rows=rows, numbers=numbers, objective=objective, settings=settings, lr=lr
            )

        # The mean over processes, so that all of them settle and end at the same step.
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
    """Train on as many threads as the state says, or else as are fastest on one of its batches.

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
    """One optimiser step over the rows of all processes."""
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
            f"The rows of step {state.step + 1} hold nothing to predict.",
            "They consist of special tokens only.",
            remedy="Look for empty documents, or take larger batches (train.batch_size).",
        )

    # One division by the count of the whole step, over all micro-batches and processes: how the
    # batch was split cannot change the result. Gradients arrive as a mean over processes.
    gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
    divisor = count / world().size
    norm = float(whole(torch.nn.utils.get_total_norm(gradients))) / divisor
    # Refused before the update, so that the weights on disk and in memory stay good.
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
    """Gradients of this process's rows: (summed loss, targets, real tokens, positions)."""
    here = next(state.model.parameters()).device
    total = torch.zeros((), device=here)
    count, num_tokens, num_slots = 0, 0, 0
    # Split before it is dealt out: every process takes part in the same number of micro-batches.
    room = settings.micro_batch_tokens and settings.micro_batch_tokens * world().size
    groups = [numbers]
    if room is not None:
        groups = budget_batches(rows.lengths, numbers=numbers, max_tokens=room)
    for place, group in enumerate(groups):
        mine = world().part(group)
        # A process without a row computes one for nothing: the others wait for its part.
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
    """Count the weights of this step into their mean, if one is kept."""
    if settings.average is None:
        return
    done = _done_share(state, settings=settings)
    weight = newest_weight(settings.average, num_averaged=state.num_averaged, done=done)
    if weight is not None:
        mean = state.copies.setdefault(MEAN, {})
        add_to_mean(mean, state.moving, weight=weight)
        state.num_averaged += 1


def _done_share(state: TrainState, *, settings: TrainSettings) -> float:
    """How much of the training is over, between 0 and 1."""
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
        "Reading it in smaller parts gives the same result.",
        remedy=f"Pass --set train.micro_batch_tokens={half}, or shorter rows (data.max_length).",
    )


def _settle(state: TrainState, *, seconds: float, settings: TrainSettings) -> None:
    """With a time budget: when most of it is gone, settle how many steps are left."""
    if settings.minutes is None or state.total_steps is not None:
        return
    state.recent_seconds = [*state.recent_seconds, seconds][-PACE_STEPS:]
    budget_seconds = settings.minutes * 60
    if state.seconds >= SETTLED_SHARE * budget_seconds:
        pace = float(np.median(state.recent_seconds))
        remaining = max(budget_seconds - state.seconds, 0.0)
        state.total_steps = state.step + max(int(remaining / pace), 1)
        rising = rising_steps(settings, total_steps=state.total_steps)
        state.decay_from = max(state.step, rising)
        state.settled_at = state.step


def budget_plan(state: TrainState, *, settings: TrainSettings, num_rows: int) -> str | None:
    """What a time budget will do, told at the two steps where something is known."""
    if settings.minutes is None:
        return None
    if state.step == PLAN_STEPS and state.total_steps is None:
        pace = float(np.median(state.recent_seconds))
        num_steps = settings.minutes * 60 / pace
        num_tokens = num_steps * state.num_tokens / state.step
        passes = num_steps / steps_per_epoch(num_rows, settings=settings)
        return (
            f"At this pace {settings.minutes:g} min are about {num_steps:,.0f} steps, "
            f"{num_tokens:,.0f} tokens, {passes:,.1f} passes over the text. "
            f"The rate rises over {settings.warmup_steps} steps, stays until "
            f"{SETTLED_SHARE:.0%} of the time is gone, then falls to zero by the end."
        )
    if state.total_steps is not None and state.step == state.settled_at:
        return f"{state.total_steps - state.step:,} steps are left; the rate falls from here."
    return None


def _is_done(state: TrainState, *, settings: TrainSettings) -> bool:
    if settings.minutes is not None and state.seconds > OVERRUN * settings.minutes * 60:
        return True
    return state.total_steps is not None and state.step >= state.total_steps
