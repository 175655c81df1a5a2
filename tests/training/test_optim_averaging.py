"""Means of weights: which steps count how much, and that a model gets its own weights back."""

import pytest
import torch
from torch import nn

from regraft.training.optim import (
    EMA_NEWEST,
    SWA_FROM,
    add_to_mean,
    holding,
    newest_weight,
    put,
)


def layer(value: float) -> nn.Linear:
    linear = nn.Linear(3, 2)
    nn.init.constant_(linear.weight, value)
    nn.init.constant_(linear.bias, -value)
    return linear


def mean_of(values: list[float], *, kind: str) -> float:
    """The mean weight after steps that gave these values, over the whole of a training."""
    mean: dict[str, torch.Tensor] = {}
    num_averaged = 0
    for step, value in enumerate(values, start=1):
        done = step / len(values)
        weight = newest_weight(kind, num_averaged=num_averaged, done=done)
        if weight is not None:
            add_to_mean(mean, dict(layer(value).named_parameters()), weight=weight)
            num_averaged += 1
    assert torch.equal(mean["bias"], -mean["weight"][:, 0])
    return float(mean["weight"][0, 0])


def test_swa_is_the_even_mean_of_the_last_quarter():
    values = [float(step) for step in range(1, 41)]
    counted = [value for value in values if value / 40 >= SWA_FROM]
    assert counted[0] == 30
    assert mean_of(values, kind="swa") == pytest.approx(sum(counted) / len(counted))


def test_ema_is_an_even_mean_at_first_and_forgets_later():
    assert mean_of([1.0, 2.0, 6.0], kind="ema") == pytest.approx(3.0)
    assert newest_weight("ema", num_averaged=10_000, done=0.5) == EMA_NEWEST
    # The first value has been forgotten but for a trace.
    assert mean_of([1000.0] + [0.0] * 600, kind="ema") < 1000 / 600


def test_model_holds_other_weights_only_inside():
    model, other = layer(1.0), layer(5.0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with holding(model, {"weight": other.weight.detach()}):
        assert torch.equal(model.weight, other.weight)
        assert torch.equal(model.bias, before["bias"])
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


def test_put_moves_the_named_parameters_alone():
    model, other = layer(1.0), layer(5.0)
    put(model, {"bias": other.bias.detach()})
    assert torch.equal(model.bias, other.bias)
    assert not torch.equal(model.weight, other.weight)
