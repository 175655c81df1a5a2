"""Our tensors by other names: nothing is lost, and a bias goes into a norm without a trace."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import SHAPE, random_model
from torch import nn

from regraft.config.resolution import resolve
from regraft.export.renaming import (
    bert_tensors,
    decoder_tensors,
    modern_tensors,
    opt_tensors,
    without_bias,
)

V, D, C = 50, 12, 3


def normed_scores(norm: nn.LayerNorm, linear: nn.Linear, x_ND: torch.Tensor) -> torch.Tensor:
    return linear(norm(x_ND))


def folded_scores(norm: nn.LayerNorm, linear: nn.Linear, x_ND: torch.Tensor) -> torch.Tensor:
    shift_D, weight_CD = without_bias(linear, gain_D=norm.weight, shift_D=norm.bias)
    hidden_ND = nn.functional.layer_norm(x_ND, (D,), norm.weight, shift_D)
    return hidden_ND @ weight_CD.T


def random_parts(seed: int) -> tuple[nn.LayerNorm, nn.Linear, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    norm, linear = nn.LayerNorm(D), nn.Linear(D, C)
    for parameter in (*norm.parameters(), *linear.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return norm, linear, torch.randn(20, D, generator=generator)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
@torch.no_grad()
def test_without_bias_gives_the_same_scores(seed):
    norm, linear, x_ND = random_parts(seed)
    # A gain of almost 0 is no gain of 0: the smallest that training leaves behind.
    norm.weight.data = norm.weight.sign() * norm.weight.abs().clamp(min=1e-3)
    expected = normed_scores(norm, linear, x_ND)
    assert (folded_scores(norm, linear, x_ND) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("num_zeros", [1, 3, D])
@torch.no_grad()
def test_without_bias_copes_with_gains_of_zero(num_zeros):
    norm, linear, x_ND = random_parts(0)
    norm.weight[:num_zeros] = 0
    expected = normed_scores(norm, linear, x_ND)
    assert (folded_scores(norm, linear, x_ND) - expected).abs().max() < 1e-5


@torch.no_grad()
def test_without_bias_copes_with_shifts_that_cancel():
    norm, linear, x_ND = random_parts(0)
    # sum(shift / gain) = -D: shifting by the gain towards 0 would divide by 0.
    norm.bias.copy_(-norm.weight)
    expected = normed_scores(norm, linear, x_ND)
    assert (folded_scores(norm, linear, x_ND) - expected).abs().max() < 1e-5


def tensors_of(preset: str) -> tuple[dict[str, torch.Tensor], nn.Module]:
    objective = {"lab": "causal"}.get(preset, "masked")
    settings = resolve("pretrain", preset=preset, overrides={**SHAPE, "objective.kind": objective})
    model = random_model(settings, vocab_size=V, is_classifier=False)
    if preset == "lab":
        return opt_tensors(model, model.head.linear, head_name="lm_head"), model
    if preset == "bert":
        return bert_tensors(model.backbone, "bert"), model.backbone
    return modern_tensors(model.backbone), model.backbone


def test_opt_knows_positions_and_the_factor_of_the_embedding():
    tensors, model = tensors_of("lab")
    positions = tensors["model.decoder.embed_positions.weight"]
    assert positions[:2].abs().max() == 0
    assert torch.equal(positions[2:], model.backbone.positions_TD)
    embedding = tensors["model.decoder.embed_tokens.weight"]
    assert torch.equal(embedding, model.backbone.embedding.weight * 24**0.5)


@pytest.mark.parametrize("preset", ["bert", "modern"])
def test_every_weight_of_the_backbone_has_a_name(preset):
    tensors, backbone = tensors_of(preset)
    assert sum(map(torch.numel, tensors.values())) == sum(
        parameter.numel() for parameter in backbone.parameters()
    )


def test_decoder_has_queries_keys_and_values_apart():
    _, backbone = tensors_of("modern")
    joint = modern_tensors(backbone)["model.layers.1.attn.Wqkv.weight"]
    apart = decoder_tensors(backbone)
    names = [f"model.layers.1.attn.{letter}_proj.weight" for letter in "qkv"]
    assert torch.equal(torch.cat([apart[name] for name in names]), joint)
