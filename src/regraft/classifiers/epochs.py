"""The score on valid after every epoch, and which epoch's weights are kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from regraft.config import Settings


@dataclass(frozen=True)
class EpochRecord:
    """Accuracy on valid after an epoch; epoch 0 is before training and has no loss.

    For label sets it is the micro-F1 with the best threshold common to all labels.
    """

    epoch: int
    step: int
    train_loss: float | None
    valid_accuracy: float
    seconds: float


def kept_epoch(history: Sequence[EpochRecord], *, settings: Settings) -> int | None:
    """The epoch whose weights are kept, chosen on valid; None if it is simply the last.

    A head that starts from a regression can be the best before any training.
    """
    has_head_start = settings.head.start == "regression"
    if settings.train.patience is None and not has_head_start:
        return None
    return best_epoch(history, includes_start=has_head_start)


def best_epoch(history: Sequence[EpochRecord], *, includes_start: bool = False) -> int | None:
    """The first of the best epochs on valid; the one before training counts only if asked."""
    candidates = history if includes_start else history[1:]
    return max(candidates, key=lambda r: r.valid_accuracy).epoch if candidates else None
