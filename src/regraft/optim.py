"""How weights move: which parameters, by which optimiser, at which rate.

Comes in: a model and settings. Goes out: a torch optimiser, and the learning rate as a pure
function of the step. Knows no loop and no data.
"""

import math

import torch

from regraft.config import TrainSettings
from regraft.heads import Model


def build_optimizer(model: Model, *, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam as in the lab, or AdamW that decays matrices and leaves biases and norms alone."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=settings.lr, fused=_fused(parameters))
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, fused=_fused(parameters))


def _fused(parameters: list[torch.nn.Parameter]) -> bool:
    return all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)


def learning_rate(
    step: int, *, settings: TrainSettings, decay_from: int, total_steps: int | None
) -> float:
    """The rate of step 0, 1, ...: a rise, the peak until `decay_from`, then down to zero.

    While `total_steps` is unknown (a time budget not yet settled) the rate rises, then stays.
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant" or total_steps is None or step < decay_from:
        return settings.lr
    done = min((step - decay_from) / max(total_steps - decay_from, 1), 1.0)
    if settings.schedule == "linear":
        return settings.lr * (1 - done)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * done))
