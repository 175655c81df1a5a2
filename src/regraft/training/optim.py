"""Optimizers, parameter groups, the learning rate as a function of the step, weight averaging."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regraft.config import TrainSettings
from regraft.models import Model
from regraft.runtime import world

MOMENTUM = 0.95

# Of RowwiseAdam, as Adam's second beta and epsilon.
SQUARE_DECAY = 0.999
EPSILON = 1e-8


def build_optimizer(model: Model, *, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam as in the lab; AdamW, which decays matrices and leaves biases and norms alone; Muon or
    RowwiseAdam.

    Muon takes the matrices of the blocks; embedding and head are tables of tokens, not maps. The
    `rate_share` of a group is its part of the learning rate: with `layer_decay` lower layers, which
    know the language, move less than those above (Howard & Ruder 2018).
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    is_rowwise = settings.optimizer == "rowwise"
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            # Gradients of processes are exchanged as a whole.
            part.sparse = is_rowwise and world().size == 1
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    if is_rowwise:
        return _rowwise(model, settings=settings, fused=fused)
    maps: set[nn.Parameter] = set()
    if settings.optimizer == "muon":
        blocks = model.backbone.blocks.parameters()
        maps = {p for p in blocks if p.requires_grad and p.dim() == 2}
    decay = settings.layer_decay
    layers = [parameters] if decay is None else layers_from_top(model)
    map_groups, groups = [], []
    for depth, layer in enumerate(layers):
        share = {"rate_share": 1.0 if decay is None else decay**depth}
        moving = [p for p in layer if p.requires_grad]
        here, rest = [p for p in moving if p in maps], [p for p in moving if p not in maps]
        if settings.optimizer == "adam":
            groups.append({"params": rest, **share})
            continue
        matrices, others = [p for p in rest if p.dim() >= 2], [p for p in rest if p.dim() < 2]
        map_groups.append({"params": here, "weight_decay": settings.weight_decay, **share})
        groups.append({"params": matrices, "weight_decay": settings.weight_decay, **share})
        groups.append({"params": others, "weight_decay": 0.0, **share})
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=settings.lr, fused=fused)
    if not maps:
        return torch.optim.AdamW(groups, lr=settings.lr, fused=fused)
    return Muon(map_groups, groups, lr=settings.lr, fused=fused)


def _rowwise(model: Model, *, settings: TrainSettings, fused: bool) -> "RowwiseAdam":
    """Embedding tables by rows; what else there is as AdamW does."""
    tables = {part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
    moving = [p for p in model.parameters() if p.requires_grad]
    rest = [p for p in moving if p not in tables]
    matrices, others = [p for p in rest if p.dim() >= 2], [p for p in rest if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay, "rate_share": 1.0},
        {"params": others, "weight_decay": 0.0, "rate_share": 1.0},
    ]
    table_group = {"params": [p for p in moving if p in tables], "rate_share": 1.0}
    return RowwiseAdam(table_group, groups, lr=settings.lr, fused=fused)


def layers_from_top(model: Model) -> list[list[nn.Parameter]]:
    """All parameters by depth: the head, the layers from last to first, the embeddings.

    A norm behind the last block belongs to it.
    """
    backbone = model.backbone
    blocks = [list(block.parameters()) for block in reversed(list(backbone.blocks))]
    layers = [list(model.head.parameters()), *blocks, []]
    in_blocks = {parameter for block in blocks for parameter in block}
    is_behind = False
    for name, parameter in backbone.named_parameters():
        if parameter in in_blocks:
            is_behind = True
        else:
            is_last = blocks and (is_behind or name.startswith("final_norm."))
            layers[1 if is_last else -1].append(parameter)
    return layers


def thaw(model: Model, *, epoch: int, done: float, settings: TrainSettings) -> None:
    """With `unfreeze_every`, make the parameters of unfrozen layers trainable (ULMFiT).

    With `layers_after`, skip the layers until this share of the training is done.
    """
    model.backbone.skips_layers = done < (settings.layers_after or 0.0)
    if settings.unfreeze_every is None or settings.freeze_base:
        return
    num_layers = 1 + epoch // settings.unfreeze_every
    for depth, layer in enumerate(layers_from_top(model)):
        for parameter in layer:
            parameter.requires_grad_(depth < num_layers)


class Muon(torch.optim.AdamW):
    """Muon: updates along the orthogonal matrix nearest to the gradient (Jordan et al. 2024).

    The other groups are AdamW's. A step is as long as AdamW's would be (Liu et al. 2025), so one
    rate and one weight decay serve both, and one object holds the state of all.
    """

    def __init__(
        self, maps: list[dict[str, Any]], others: list[dict[str, Any]], *, lr: float, fused: bool
    ) -> None:
        super().__init__([*others, *maps], lr=lr, fused=fused)
        self._num_others = len(others)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        groups = self.param_groups
        for maps in groups[self._num_others :]:
            self._move(maps)
        self.param_groups = groups[: self._num_others]
        super().step()
        self.param_groups = groups

    def _move(self, maps: dict[str, Any]) -> None:
        for parameter in maps["params"]:
            if parameter.grad is not None:
                momentum = self._momentum(parameter)
                momentum.lerp_(parameter.grad, 1 - MOMENTUM)
                # Nesterov momentum.
                direction = orthogonal(parameter.grad.lerp(momentum, MOMENTUM))
                length = 0.2 * math.sqrt(max(parameter.shape))
                parameter.mul_(1 - maps["lr"] * maps["weight_decay"])
                parameter.add_(direction, alpha=-maps["lr"] * length)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum


class RowwiseAdam(torch.optim.AdamW):
    """Adam for large tables: one second moment per row, no first, and only rows read move.

    The other groups are AdamW's.

    Adam's momentum carries a rare token on for steps in which nobody reads it, about as far in all
    as its whole step would. Without it nothing is done for rows that a batch does not hold: of
    164,000 rows of a bag a step reads 27,000, and moves them in a fifth of the time. One moment per
    row is what recommenders use for their tables (Naumov et al. 2019).
    """

    def __init__(
        self, tables: dict[str, Any], others: list[dict[str, Any]], *, lr: float, fused: bool
    ) -> None:
        super().__init__([*others, tables], lr=lr, fused=fused)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the rows that have a gradient, and all other parameters."""
        *others, tables = self.param_groups
        for parameter in tables["params"]:
            if parameter.grad is not None:
                self._move(parameter, lr=tables["lr"])
        groups, self.param_groups = self.param_groups, others
        super().step()
        self.param_groups = groups

    def _move(self, parameter: nn.Parameter, *, lr: float) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["squares"] = torch.zeros(len(parameter), 1, device=parameter.device)
        state["step"] += 1
        rows, gradient = gradient_rows(parameter)
        if rows is None:
            # The same rows as a sparse gradient holds, so that processes change nothing.
            rows = gradient.view(len(gradient), -1).any(dim=1).nonzero().squeeze(1)
            gradient = gradient[rows]
        flat = gradient.flatten(1) if gradient.dim() > 1 else gradient.unsqueeze(1)
        means = torch.linalg.vector_norm(flat, dim=1, keepdim=True).square_().div_(flat.shape[1])
        squares = state["squares"][rows].lerp_(means, 1 - SQUARE_DECAY)
        state["squares"].index_copy_(0, rows, squares)
        correction = 1 - SQUARE_DECAY ** float(state["step"])
        flat = flat * (-lr / (squares / correction).sqrt_().add_(EPSILON))
        parameter.index_add_(0, rows, flat.view_as(gradient))


def gradient_rows(parameter: nn.Parameter) -> tuple[Tensor | None, Tensor]:
    """The rows that a sparse gradient holds, each once, and their values; None if it holds all."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return None, gradient
    rows = gradient._indices()[0]
    # A single micro-batch asks for each row once, in order: nothing to sort and sum.
    if not bool((rows[1:] > rows[:-1]).all()):
        parameter.grad = gradient = gradient.coalesce()
    return gradient._indices()[0], gradient._values()


def orthogonal(matrix: Float[Tensor, "M N"]) -> Float[Tensor, "M N"]:
    """The matrix with singular values near 1, by five Newton-Schulz iterations.

    In bf16 on a GPU, as published; in fp32 on a CPU, where bf16 is many times slower.
    """
    x: Tensor = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    x = x / (x.norm() + 1e-7)
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    return x.to(matrix.dtype)


# Largest share of a run for the warm-up, so that short runs reach the peak.
LONGEST_RISE = 0.5


def rising_steps(settings: TrainSettings, *, total_steps: int | None) -> int:
    """Steps of the warm-up, fewer than in the settings if the run is short."""
    if total_steps is None:
        return settings.warmup_steps
    return min(settings.warmup_steps, int(LONGEST_RISE * total_steps))


def learning_rate(
    step: int, *, settings: TrainSettings, decay_from: int, total_steps: int | None
) -> float:
    """The learning rate of a step: warm-up, the peak until `decay_from`, then decay to zero.

    While `total_steps` is unknown (a time budget not yet settled) the rate rises, then stays.
    """
    rising = rising_steps(settings, total_steps=total_steps)
    if step < rising:
        return settings.lr * (step + 1) / rising
    if settings.schedule == "constant" or total_steps is None or step < decay_from:
        return settings.lr
    done = min((step - decay_from) / max(total_steps - decay_from, 1), 1.0)
    if settings.schedule == "linear":
        return settings.lr * (1 - done)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * done))


Averaging = Literal["ema", "swa"]

# Weight of the newest step in an exponential average: it spans about 100 steps.
EMA_NEWEST = 0.01

# Stochastic weight averaging (Izmailov et al. 2018) averages the last part of training evenly.
SWA_FROM = 0.75


def newest_weight(kind: Averaging, *, num_averaged: int, done: float) -> float | None:
    """The weight of the newest step in the average with `num_averaged` earlier ones; None if none.

    An exponential average starts as an even one, otherwise the first steps would dominate a short
    run. Depends on the share of training that is `done`, so that a resumed run averages the same.
    """
    if kind == "swa":
        return None if done < SWA_FROM else 1 / (num_averaged + 1)
    return max(1 / (num_averaged + 1), EMA_NEWEST)


@torch.no_grad()
def add_to_mean(
    mean: dict[str, Tensor], parameters: Mapping[str, nn.Parameter], *, weight: float
) -> None:
    """Update the running mean of each parameter, which is empty at first."""
    for name, parameter in parameters.items():
        if name in mean:
            mean[name].lerp_(parameter.detach(), weight)
        else:
            mean[name] = parameter.detach().clone()


@torch.no_grad()
def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set the parameters of these names."""
    parameters = dict(model.named_parameters())
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)


@contextlib.contextmanager
def holding(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the block the model has these weights; after it, its own again."""
    own = dict(model.named_parameters())
    before = {name: own[name].detach().clone() for name in weights}
    put(model, weights)
    try:
        yield
    finally:
        put(model, before)
