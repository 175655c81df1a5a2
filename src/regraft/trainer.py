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

from regraft.batches import Batch, Rows, epoch_order
from regraft.config import TrainSettings
from regraft.errors import TrainingError
from regraft.heads import Model
from regraft.objectives import Objective
from regraft.optim import build_optimizer, learning_rate
from regraft.runtime import seeded

# With a time budget, the rate stays at its peak until this share of the time is gone; then the pace
# of the last steps decides how many are left, and the rate falls to zero over them. Settled from
# the first steps instead, a run on a machine that became idle ended after 13 of 20 minutes
# (2026-11-15).
SETTLED_SHARE = 0.6
PACE_STEPS = 50

# A machine that became busier after that may overrun its budget by this much, not more.
OVERRUN = 1.1


@dataclass
class TrainState:
    """All that a run needs to go on; `checkpoint.py` saves and loads exactly this."""

    model: Model
    optimizer: torch.optim.Optimizer
    step: int = 0
    total_steps: int | None = None
    decay_from: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    recent_seconds: list[float] = field(default_factory=list)


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
    total_steps = settings.steps
    if settings.epochs is not None:
        total_steps = settings.epochs * steps_per_epoch(num_rows, settings=settings)
    return TrainState(
        model=model,
        optimizer=build_optimizer(model, settings=settings),
        total_steps=total_steps,
        decay_from=settings.warmup_steps,
    )


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
            group["lr"] = lr

        with seeded(settings.seed, stream=f"dropout of step {state.step}"):
            loss, gradient_norm, num_tokens = _update(
                state, rows=rows, numbers=numbers, objective=objective, settings=settings, lr=lr
            )

        seconds = time.perf_counter() - step_start
        state.step += 1
        state.num_tokens += num_tokens
        state.seconds += seconds
        _settle(state, seconds=seconds, settings=settings)
        yield StepRecord(
            step=state.step,
            epoch=epoch,
            loss=loss,
            lr=lr,
            gradient_norm=gradient_norm,
            num_tokens=num_tokens,
            tokens_per_second=num_tokens / seconds,
            seconds=seconds,
            is_epoch_end=place == per_epoch - 1,
            total_steps=state.total_steps,
        )


def _update(
    state: TrainState,
    *,
    rows: Rows,
    numbers: NDArray[np.int64],
    objective: Objective,
    settings: TrainSettings,
    lr: float,
) -> tuple[float, float, int]:
    """One optimiser step: (mean loss, gradient norm, real tokens read)."""
    model = state.model
    model.train()
    state.optimizer.zero_grad(set_to_none=True)
    total, count, num_tokens = 0.0, 0, 0
    for batch in _micro_batches(rows, numbers=numbers, settings=settings):
        batch = batch.to(next(model.parameters()).device)
        loss_sum = objective(model, batch)
        loss_sum.total.backward()
        total += float(loss_sum.total.detach())
        count += loss_sum.count
        num_tokens += int(batch.real_BT.sum())

    # Refused before the update, so that the weights on disk and in memory stay good.
    if not math.isfinite(total):
        raise TrainingError(
            f"The loss became {total} at step {state.step + 1} with learning rate {lr:.2g}.",
            "The weights were not updated.",
            remedy="Lower it (--set train.lr=...), or clip gradients (--set train.clip_norm=1).",
        )
    # One division by the count of the whole step: micro-batches cannot change the result.
    trained = [p for p in model.parameters() if p.grad is not None]
    torch._foreach_div_([p.grad for p in trained if p.grad is not None], float(count))
    norm = torch.nn.utils.clip_grad_norm_(trained, settings.clip_norm or math.inf)
    state.optimizer.step()
    return total / count, float(norm), num_tokens


def _micro_batches(
    rows: Rows, *, numbers: NDArray[np.int64], settings: TrainSettings
) -> Iterator[Batch]:
    size = settings.micro_batch_size or len(numbers)
    for start in range(0, len(numbers), size):
        yield rows.batch(numbers[start : start + size])


def _settle(state: TrainState, *, seconds: float, settings: TrainSettings) -> None:
    """With a time budget: when most of it is gone, settle how many steps are left."""
    if settings.minutes is None or state.total_steps is not None:
        return
    state.recent_seconds = [*state.recent_seconds, seconds][-PACE_STEPS:]
    budget_seconds = settings.minutes * 60
    if state.seconds >= SETTLED_SHARE * budget_seconds:
        pace = float(np.median(state.recent_seconds))
        remaining = max(budget_seconds - state.seconds, 0.0)
        state.decay_from = max(state.step, settings.warmup_steps)
        state.total_steps = state.step + max(int(remaining / pace), 1)


def _is_done(state: TrainState, *, settings: TrainSettings) -> bool:
    if settings.minutes is not None and state.seconds > OVERRUN * settings.minutes * 60:
        return True
    return state.total_steps is not None and state.step >= state.total_steps
