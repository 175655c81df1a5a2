"""The learning rate is a pure function, and decay touches matrices only."""

import pytest

from regraft.config import ModelSettings, TrainSettings
from regraft.heads import build_language_model
from regraft.optim import build_optimizer, learning_rate


def rates(settings: TrainSettings, total_steps: int | None) -> list[float]:
    steps = range(total_steps or 12)
    return [rate(step, settings, total_steps) for step in steps]


def rate(step: int, settings: TrainSettings, total_steps: int | None, decay_from: int = 0) -> float:
    start = max(decay_from, settings.warmup_steps)
    return learning_rate(step, settings=settings, decay_from=start, total_steps=total_steps)


def test_learning_rate_rises_then_falls_to_zero():
    settings = TrainSettings(lr=1.0, warmup_steps=4, schedule="linear")
    values = rates(settings, 12)
    assert values[:4] == [0.25, 0.5, 0.75, 1.0]
    assert values[4:] == pytest.approx([1 - i / 8 for i in range(8)])
    assert rate(12, settings, 12) == 0.0


def test_learning_rate_cosine_is_half_at_half_way():
    settings = TrainSettings(lr=2.0, warmup_steps=2, schedule="cosine")
    assert rate(7, settings, 12) == pytest.approx(1.0)


def test_learning_rate_stays_while_the_end_is_unknown():
    settings = TrainSettings(lr=0.5, warmup_steps=3, schedule="linear")
    assert rates(settings, None)[2:] == [0.5] * 10


def test_learning_rate_stays_at_its_peak_until_the_decay():
    settings = TrainSettings(lr=1.0, warmup_steps=2, schedule="linear")
    values = [rate(step, settings, 10, decay_from=6) for step in range(10)]
    assert values == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_learning_rate_without_warmup_starts_at_its_peak():
    settings = TrainSettings(lr=1e-4, warmup_steps=0, schedule="constant")
    assert rates(settings, 5) == [1e-4] * 5


def test_optimizer_decays_matrices_only():
    model = build_language_model(
        ModelSettings(width=12, num_layers=1, num_heads=3, feedforward_width=7), vocab_size=17
    )
    settings = TrainSettings(weight_decay=0.3)
    decayed, plain = build_optimizer(model, settings=settings).param_groups
    assert decayed["weight_decay"] == 0.3
    assert plain["weight_decay"] == 0.0
    assert all(parameter.dim() == 2 for parameter in decayed["params"])
    assert all(parameter.dim() == 1 for parameter in plain["params"])
    together = len(decayed["params"]) + len(plain["params"])
    assert together == len(list(model.parameters()))


def test_optimizer_leaves_frozen_weights_out():
    model = build_language_model(
        ModelSettings(width=12, num_layers=1, num_heads=3, feedforward_width=7), vocab_size=17
    )
    model.backbone.requires_grad_(False)
    groups = build_optimizer(model, settings=TrainSettings(optimizer="adam")).param_groups
    assert [p for group in groups for p in group["params"]] == list(model.head.parameters())
