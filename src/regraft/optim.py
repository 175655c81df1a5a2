"""How weights move: which parameters, by which optimiser, at which rate.

Comes in: a model and settings. Goes out: a torch optimiser, and the learning rate as a pure
function of the step. Knows no loop and no data.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regraft.config import TrainSettings
from regraft.heads import Model

MOMENTUM = 0.95


def build_optimizer(model: Model, *, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam as in the lab; AdamW, which decays matrices and leaves biases and norms alone; or Muon.

    Muon takes the matrices of the blocks; embedding and head are tables of tokens, not maps. The
    `rate_share` of a group is its part of the learning rate: with `layer_decay` lower layers, which
    know the language, move less than those above (Howard & Ruder 2018).
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
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


def layers_from_top(model: Model) -> list[list[nn.Parameter]]:
    """All parameters by depth: the head, the blocks from the last to the first, the embeddings.

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


def thaw(model: Model, *, epoch: int, settings: TrainSettings) -> None:
    """With `unfreeze_every`, train the layers whose turn has come, and no others (ULMFiT)."""
    if settings.unfreeze_every is None or settings.freeze_base:
        return
    num_layers = 1 + epoch // settings.unfreeze_every
    for depth, layer in enumerate(layers_from_top(model)):
        for parameter in layer:
            parameter.requires_grad_(depth < num_layers)


class Muon(torch.optim.AdamW):
    """Matrices move along the nearest orthogonal matrix to their gradient (Jordan et al. 2024).

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
        """Move every parameter that has a gradient."""
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
                # Nesterov: the gradient counts once more.
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


def orthogonal(matrix: Float[Tensor, "M N"]) -> Float[Tensor, "M N"]:
    """Nearly the matrix with its singular values set to 1: five Newton-Schulz iterations.

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


# A run that is short for its warm-up rises over this share of it: its rate must reach the peak.
LONGEST_RISE = 0.5


def rising_steps(settings: TrainSettings, *, total_steps: int | None) -> int:
    """Steps of the warm-up, fewer than asked where the whole run is short."""
    if total_steps is None:
        return settings.warmup_steps
    return min(settings.warmup_steps, int(LONGEST_RISE * total_steps))


def learning_rate(
    step: int, *, settings: TrainSettings, decay_from: int, total_steps: int | None
) -> float:
    """The rate of step 0, 1, ...: a rise, the peak until `decay_from`, then down to zero.

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
