"""The sampled softmax: it tends to the exact loss, and only the key decides what is drawn."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regraft.training.sampled_softmax import build_sampler, sampled_cross_entropy

V, D, N = 70, 5, 11


@pytest.fixture
def parts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(3)
    hidden_ND = torch.randn(N, D, generator=generator)
    weight_VD = torch.randn(V, D, generator=generator) / 2
    targets_N = torch.randint(V, (N,), generator=generator)
    counts_V = np.random.default_rng(1).integers(0, 50, V)
    bias_V = torch.from_numpy(np.log(counts_V + 1.0)).float()
    return hidden_ND, weight_VD, bias_V, targets_N, counts_V


def sampled(parts, *, num_tokens: int, key: int) -> torch.Tensor:
    hidden_ND, weight_VD, bias_V, targets_N, counts_V = parts
    sampler = build_sampler(counts_V, num_tokens=num_tokens)
    return sampled_cross_entropy(
        hidden_ND,
        weight_VD,
        bias_V,
        targets_N,
        negatives_K=sampler.draw(key),
        log_shares_V=sampler.log_shares_V,
    )


def test_many_negatives_give_the_exact_loss(parts):
    hidden_ND, weight_VD, bias_V, targets_N, _ = parts
    exact = F.cross_entropy(hidden_ND @ weight_VD.T + bias_V, targets_N, reduction="sum")
    found = [float(sampled(parts, num_tokens=4000, key=key)) for key in range(8)]
    assert np.mean(found) == pytest.approx(float(exact), rel=0.02)


def test_gradient_tends_to_the_exact_one(parts):
    hidden_ND, weight_VD, bias_V, targets_N, _ = parts
    weight_VD.requires_grad_(True)
    F.cross_entropy(hidden_ND @ weight_VD.T + bias_V, targets_N, reduction="sum").backward()
    exact, weight_VD.grad = weight_VD.grad.clone(), None
    for key in range(50):
        (sampled(parts, num_tokens=500, key=key) / 50).backward()
    assert F.cosine_similarity(weight_VD.grad.flatten(), exact.flatten(), dim=0) > 0.99


def test_key_alone_decides_what_is_drawn(parts):
    sampler = build_sampler(parts[-1], num_tokens=9)
    assert torch.equal(sampler.draw(5), sampler.draw(5))
    assert not torch.equal(sampler.draw(5), sampler.draw(6))
    assert len(sampler.draw(2**64 - 1)) == 9


def test_tokens_are_drawn_as_often_as_the_text_has_them():
    counts_V = np.array([0, 9, 99, 0])
    drawn = build_sampler(counts_V, num_tokens=200_000).draw(1).numpy()
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(shares, (counts_V + 1) / (counts_V + 1).sum(), atol=0.005)


def test_only_drawn_rows_and_targets_have_gradients(parts):
    _, weight_VD, _, targets_N, counts_V = parts
    weight_VD.requires_grad_(True)
    sampled(parts, num_tokens=6, key=0).backward()
    drawn = build_sampler(counts_V, num_tokens=6).draw(0)
    moved = weight_VD.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert set(moved) <= {*targets_N.tolist(), *drawn.tolist()}
