"""Sampled softmax: the loss over a large vocabulary, estimated from a few tokens drawn from it.

For training only; validation computes the exact loss. Knows no model and no batch.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class TokenSampler:
    """Draws negatives by frequency (Bengio & Senecal 2008). Made by `build_sampler`."""

    cumulative_V: NDArray[np.float64]
    log_shares_V: Float[Tensor, " V"]
    num_tokens: int

    def draw(self, key: int) -> Int[Tensor, " K"]:
        """Tokens for one optimiser step, with replacement: the key decides, and nothing else."""
        generator = np.random.Generator(np.random.Philox(key=key))
        draws_K = generator.random(self.num_tokens)
        ids_K = np.searchsorted(self.cumulative_V, draws_K, side="right")
        return torch.from_numpy(np.minimum(ids_K, len(self.cumulative_V) - 1))


def build_sampler(counts_V: NDArray[np.int64], *, num_tokens: int) -> TokenSampler:
    """A sampler that draws tokens as often as the text has them; unseen ones count as one."""
    shares_V = (counts_V + 1.0) / (counts_V + 1.0).sum()
    cumulative_V = np.cumsum(shares_V)
    log_shares_V = torch.from_numpy(np.log(shares_V)).float()
    return TokenSampler(cumulative_V / cumulative_V[-1], log_shares_V, num_tokens)


def sampled_cross_entropy(
    hidden_ND: Float[Tensor, "N D"],
    weight_VD: Float[Tensor, "V D"],
    bias_V: Float[Tensor, " V"],
    targets_N: Int[Tensor, " N"],
    *,
    negatives_K: Int[Tensor, " K"],
    log_shares_V: Float[Tensor, " V"],
) -> Float[Tensor, ""]:
    """Summed cross-entropy of each target against the same few negatives.

    A negative stands for all tokens as rare as itself: its score is corrected by the log of how
    often it is expected among those drawn, which makes the sum of exponentials unbiased. A
    negative that happens to be the target is left out. The target's own score stays as it is:
    corrected as well, the loss of rare tokens all but vanishes, and they are not learned.
    """
    num_targets = len(targets_N)
    negatives_K = negatives_K.to(targets_N.device)
    expected_K = log_shares_V.to(hidden_ND.device)[negatives_K] + math.log(len(negatives_K))
    # One gather for both: its gradient is one table, however many rows repeat.
    rows = torch.cat([targets_N, negatives_K])
    weights, biases = weight_VD.index_select(0, rows), bias_V.index_select(0, rows)
    target_scores_N = (hidden_ND * weights[:num_targets]).sum(dim=1) + biases[:num_targets]
    scores_NK = torch.addmm(biases[num_targets:] - expected_K, hidden_ND, weights[num_targets:].T)
    is_target_NK = targets_N.unsqueeze(1) == negatives_K
    scores_NK = scores_NK.masked_fill(is_target_NK, -math.inf)
    all_scores = torch.cat([target_scores_N.unsqueeze(1), scores_NK], dim=1).float()
    return (all_scores.logsumexp(dim=1) - target_scores_N).sum()
