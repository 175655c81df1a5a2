"""Shapes of tiny models of every family, and weights that would not hide a mistake."""

import torch
from torch import nn

from regraft.config.schema import ModelSettings


def small_settings(
    family: str = "lab", *, attention: str = "causal", num_layers: int = 2
) -> ModelSettings:
    return ModelSettings(
        family=family,
        attention=attention,
        width=12,
        num_layers=num_layers,
        num_heads=3,
        feedforward_width=7,
        dropout=0.0,
        attention_dropout=0.0,
        max_positions=64,
    )


def lively(model: nn.Module) -> nn.Module:
    """Weights far from their start: biases of zero and vectors near zero would hide mistakes."""
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.4)
    return model.eval()
