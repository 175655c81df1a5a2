"""What is learned: each objective is one function, (model, batch) -> LossSum.

The sum and the count stay apart: the trainer divides once by the count of the whole step, so that
micro-batches, padding and masking cannot change the result. Adding an objective touches nothing
but this file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regraft.batches import IGNORED, Batch
from regraft.heads import Model

# Positions whose scores over the vocabulary exist at once. Measured 2026-11-15 on two cores at
# V 50,001 and 8,192: 512 is the fastest of 128 ... 1024, and a fourth of the time of all at once.
CHUNK = 512


@dataclass(frozen=True)
class LossSum:
    """Summed loss in nats, and how many targets it is summed over."""

    total: Tensor
    count: int


Objective = Callable[[Model, Batch], LossSum]


def causal(model: Model, batch: Batch) -> LossSum:
    """Predict the next token from those before it (the lab's objective)."""
    hidden_BTD = model.backbone(batch.ids_BT, real_BT=batch.real_BT)
    wanted = batch.targets != IGNORED
    linear = model.head.linear
    total = linear_cross_entropy(
        hidden_BTD[wanted], linear.weight, linear.bias, batch.targets[wanted]
    )
    return LossSum(total, int(wanted.sum()))


def classify(class_weights_C: Float[Tensor, " C"] | None = None) -> Objective:
    """Predict the class of a row; with weights, a row counts as its class weighs."""

    def objective(model: Model, batch: Batch) -> LossSum:
        scores_BC = model(batch.ids_BT, real_BT=batch.real_BT)
        weights = None if class_weights_C is None else class_weights_C.to(scores_BC)
        total = F.cross_entropy(scores_BC, batch.targets, weight=weights, reduction="sum")
        return LossSum(total, len(batch.targets))

    return objective


def linear_cross_entropy(
    hidden_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    bias_V: Float[Tensor, " V"],
    targets_N: Int[Tensor, " N"],
) -> Float[Tensor, ""]:
    """Summed cross-entropy of a linear layer, without ever holding all N x V scores."""
    total: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, targets_N
    )
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients are made in the forward pass, chunk by chunk, while the scores are at hand.

    Scores are laid out V x N: for large V the product W h' runs faster than h W'.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor
    ) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad)
        total = hidden_ND.new_zeros(())
        grad_hidden = torch.empty_like(hidden_ND)
        grad_weight = torch.zeros_like(weight_VD)
        grad_bias = torch.zeros_like(bias_V)
        for start in range(0, len(hidden_ND), CHUNK):
            hidden = hidden_ND[start : start + CHUNK]
            targets = targets_N[start : start + CHUNK]
            scores_VN = torch.addmm(bias_V.unsqueeze(1), weight_VD, hidden.T)
            log_sum_N = scores_VN.logsumexp(dim=0)
            total += (log_sum_N - scores_VN.gather(0, targets.unsqueeze(0)).squeeze(0)).sum()
            if needs_gradient:
                # d loss / d scores = probabilities, less one at the target.
                grad_VN = scores_VN.sub_(log_sum_N).exp_()
                grad_VN[targets, torch.arange(len(targets), device=targets.device)] -= 1
                torch.mm(grad_VN.T, weight_VD, out=grad_hidden[start : start + CHUNK])
                grad_weight.addmm_(grad_VN, hidden)
                grad_bias += grad_VN.sum(dim=1)
        if needs_gradient:
            ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        return grad_hidden * grad_total, grad_weight * grad_total, grad_bias * grad_total, None
