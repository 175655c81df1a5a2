"""Fused linear layer and cross-entropy over a large vocabulary, in chunks.

The N x V scores never exist at once.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# Positions per chunk: as many as fit into the bytes, at most CHUNK. Forward and backward over 4,096
# positions on two cores, 2026-11-16, in chunks of 256 and of 512: V 50,001 (D 200) 1.95 and 2.12 s;
# V 16,384 (D 256) 0.85 and 0.72; V 8,192 (D 512) 0.78 and 0.73.
CHUNK = 512
CHUNK_BYTES = 52_000_000

# From this vocabulary size on, the scores are V x N in memory. The same runs, N x V against V x N
# in chunks of 256: V 50,001 2.98 and 1.95 s, 16,384 1.05 and 0.85, 8,192 0.84 and 0.78; below 4,096
# there is no difference.
TRANSPOSED_FROM = 4096


def chunk_rows(weight_VD: Float[Tensor, "V D"]) -> int:
    """Positions in one chunk, a multiple of 16, which is fastest."""
    fitting = CHUNK_BYTES // (len(weight_VD) * weight_VD.itemsize)
    return min(max(fitting // 16 * 16, 16), CHUNK)


def linear_cross_entropy(
    hidden_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    bias_V: Float[Tensor, " V"],
    targets_N: Int[Tensor, " N"],
) -> Float[Tensor, ""]:
    """Summed cross-entropy of a linear layer, without all N x V scores in memory.

    Beyond the inputs and their gradients it needs one chunk of scores, however large N is. Under
    autocast the products are made in its precision; the softmax and the sums stay in full.
    """
    if not torch.is_grad_enabled():
        # needs_input_grad is true for weights even under no_grad.
        hidden_ND, weight_VD, bias_V = hidden_ND.detach(), weight_VD.detach(), bias_V.detach()
    total: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, targets_N
    )
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes gradients in the forward pass, chunk by chunk, while the scores are in memory."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_N: Tensor
    ) -> Tensor:
        wants_hidden, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden_ND) if wants_hidden else None
        grad_weight = torch.zeros_like(weight_VD) if wants_weight else None
        grad_bias = torch.zeros_like(bias_V) if wants_bias else None
        total = bias_V.new_zeros(())
        weight, bias = _as_autocast(weight_VD), _as_autocast(bias_V)
        num_rows = chunk_rows(weight)
        buffer_NV = _score_buffer(min(len(hidden_ND), num_rows), like=weight)
        with torch.autocast(weight.device.type, enabled=False):
            for start in range(0, len(hidden_ND), num_rows):
                chunk = slice(start, start + num_rows)
                hidden = hidden_ND[chunk].to(weight)
                scores_NV = torch.addmm(bias, hidden, weight.T, out=buffer_NV[: len(hidden)])
                loss, grad_NV = _loss_and_gradient(scores_NV.to(total), targets_N[chunk])
                total += loss
                if grad_bias is not None:
                    grad_bias += grad_NV.sum(dim=0)
                grad_NV = grad_NV.to(weight)
                if grad_hidden is not None:
                    grad_hidden[chunk] = grad_NV @ weight
                if grad_weight is not None:
                    _add_product(grad_weight, grad_NV.T, hidden)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        # Is 1 in our training loop. Checking that on a GPU would synchronize.
        if grad_total.is_cpu and grad_total.item() == 1:
            return (*ctx.saved_tensors, None)
        return (*(None if grad is None else grad * grad_total for grad in ctx.saved_tensors), None)


def _loss_and_gradient(scores_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """(summed cross-entropy, its gradient by the scores); overwrites the scores."""
    targets_N1 = targets_N.unsqueeze(1)
    target_scores_N1 = scores_NV.gather(1, targets_N1)
    top_N1 = scores_NV.amax(dim=1, keepdim=True)
    exp_NV = scores_NV.sub_(top_N1).exp_()
    sum_N1 = exp_NV.sum(dim=1, keepdim=True)
    loss = (sum_N1.log() + top_N1 - target_scores_N1).sum()
    # Probabilities minus one at the target.
    grad_NV = exp_NV.div_(sum_N1)
    return loss, grad_NV.scatter_add_(1, targets_N1, -torch.ones_like(sum_N1))


def _score_buffer(num_rows: int, *, like: Tensor) -> Tensor:
    """A buffer for the scores, shared by all chunks: fresh memory costs page faults."""
    vocab_size = len(like)
    if vocab_size < TRANSPOSED_FROM:
        return like.new_empty(num_rows, vocab_size)
    return like.new_empty(vocab_size, num_rows).T


def _as_autocast(tensor: Tensor) -> Tensor:
    """The tensor in the precision of autocast, if it is on."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, accumulated in full precision."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
