"""Weights that are a mean over steps of training: calmer than any of those that were passed.

Comes in: the weights after each step. Goes out: a running mean of them, and a model that holds it
for a while. Which steps count is a function of how much of the training is over, so that a resumed
run averages what an uninterrupted one does. Knows no loop.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

Averaging = Literal["ema", "swa"]

# The newest weights count so much in the long run: the mean looks back over about 100 steps.
EMA_NEWEST = 0.01

# Stochastic weight averaging (Izmailov et al. 2018) takes the last part of training, evenly.
SWA_FROM = 0.75


def newest_weight(kind: Averaging, *, num_averaged: int, done: float) -> float | None:
    """What the newest weights count beside the mean of `num_averaged` before; None for not yet.

    The first mean is the weights themselves. An exponential mean begins as an even one, or it would
    remember its first steps for as long as a short training lasts.
    """
    if kind == "swa":
        return None if done < SWA_FROM else 1 / (num_averaged + 1)
    return max(1 / (num_averaged + 1), EMA_NEWEST)


@torch.no_grad()
def add_to_mean(
    mean: dict[str, Tensor], parameters: Mapping[str, nn.Parameter], *, weight: float
) -> None:
    """Move the mean of each parameter towards what it is now; at first the mean is empty."""
    for name, parameter in parameters.items():
        if name in mean:
            mean[name].lerp_(parameter.detach(), weight)
        else:
            mean[name] = parameter.detach().clone()


@torch.no_grad()
def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give the parameters of these names these values; others stay."""
    parameters = dict(model.named_parameters())
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)


@contextlib.contextmanager
def holding(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the model has these weights; behind, its own again, bit for bit."""
    own = dict(model.named_parameters())
    before = {name: own[name].detach().clone() for name in weights}
    put(model, weights)
    try:
        yield
    finally:
        put(model, before)
