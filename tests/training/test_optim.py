"""The learning rate is a pure function, decay touches matrices only, Muon only the blocks'."""

import pytest
import torch

from regraft.config.schema import ModelSettings, ObjectiveSettings, TrainSettings
from regraft.models.heads import Model, build_classifier, build_language_model
from regraft.training.optim import (
    build_optimizer,
    gradient_rows,
    layers_from_top,
    learning_rate,
    orthogonal,
    rising_steps,
    thaw,
)


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


def test_short_run_reaches_the_peak_of_its_rate():
    settings = TrainSettings(lr=1.0, warmup_steps=50, schedule="linear")
    rising = rising_steps(settings, total_steps=10)
    assert rising == 5
    rates = [
        learning_rate(step, settings=settings, decay_from=rising, total_steps=10)
        for step in range(10)
    ]
    assert max(rates) == rates[4] == rates[5] == 1.0
    assert rates[-1] == pytest.approx(0.2)
    assert rising_steps(settings, total_steps=None) == 50


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


def trained(settings: TrainSettings, *, steps: int) -> tuple[Model, torch.optim.Optimizer]:
    """A small model after some steps along gradients that depend on the step only."""
    torch.manual_seed(0)
    model = build_language_model(
        ModelSettings(width=12, num_layers=2, num_heads=3, feedforward_width=7), vocab_size=17
    )
    optimizer = build_optimizer(model, settings=settings)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return model, optimizer


def is_map(name: str, parameter: torch.Tensor) -> bool:
    return name.startswith("backbone.blocks.") and parameter.dim() == 2


def test_muon_moves_matrices_of_blocks_and_leaves_the_rest_to_adamw():
    muon, _ = trained(TrainSettings(optimizer="muon", weight_decay=0.3), steps=3)
    adamw, _ = trained(TrainSettings(optimizer="adamw", weight_decay=0.3), steps=3)
    theirs = dict(adamw.named_parameters())
    for name, parameter in muon.named_parameters():
        assert torch.equal(parameter, theirs[name]) != is_map(name, parameter), name


def test_muon_state_is_tensors_by_parameter():
    model, optimizer = trained(TrainSettings(optimizer="muon"), steps=1)
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        expected = {"momentum"} if is_map(name, parameter) else {"step", "exp_avg", "exp_avg_sq"}
        assert state.keys() == expected
        assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_muon_steps_are_as_long_as_those_of_adamw():
    settings = TrainSettings(optimizer="muon", lr=0.01, weight_decay=0.0)
    before, _ = trained(settings, steps=0)
    after, _ = trained(settings, steps=1)
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        if is_map(name, old):
            # Adam's updates have a mean square of about 0.2 to 0.4, early ones up to 1.
            assert 0.1 < ((new - old) / 0.01).square().mean().sqrt() < 0.3


def bag() -> Model:
    settings = ModelSettings(
        family="bag", width=12, num_layers=0, num_heads=1, dropout=0, num_pairs=7
    )
    torch.manual_seed(0)
    return build_language_model(
        settings, vocab_size=17, objective=ObjectiveSettings(kind="contrast")
    )


@pytest.mark.parametrize("is_sparse", [True, False])
def test_rowwise_moves_the_rows_read_by_its_own_formula(is_sparse):
    model = bag()
    table = model.backbone.embedding
    optimizer = build_optimizer(model, settings=TrainSettings(optimizer="rowwise", lr=0.1))
    assert table.sparse
    table.sparse = is_sparse
    expected, squares = table.weight.detach().clone(), torch.zeros(17)
    for step, ids in enumerate(([3, 5, 3], [5, 9, 2]), start=1):
        optimizer.zero_grad()
        aims = torch.linspace(-1, 1, 3 * 12).view(3, 12) * step
        torch.nn.functional.mse_loss(table(torch.tensor(ids)), aims, reduction="sum").backward()
        gradient = table.weight.grad.to_dense().clone()
        for row in set(ids):
            squares[row] = 0.999 * squares[row] + 0.001 * gradient[row].square().mean()
            rate = 0.1 / ((squares[row] / (1 - 0.999**step)).sqrt() + 1e-8)
            expected[row] -= rate * gradient[row]
        optimizer.step()
        torch.testing.assert_close(table.weight.detach(), expected)
    untouched = [row for row in range(17) if row not in (2, 3, 5, 9)]
    assert torch.equal(table.weight[untouched], bag().backbone.embedding.weight[untouched])


def test_sparse_gradient_of_several_parts_holds_each_row_once():
    parameter = torch.nn.Parameter(torch.zeros(5, 2))
    for ids in ([1, 3], [0, 3]):
        torch.nn.functional.embedding(torch.tensor(ids), parameter, sparse=True).sum().backward()
    rows, values = gradient_rows(parameter)
    assert rows.tolist() == [0, 1, 3]
    assert values.tolist() == [[1, 1], [1, 1], [2, 2]]


def test_rowwise_moves_nothing_where_a_batch_reads_no_row():
    model = bag()
    optimizer = build_optimizer(model, settings=TrainSettings(optimizer="rowwise"))
    table = model.backbone.embedding
    table(torch.zeros(0, dtype=torch.int64)).sum().backward()
    optimizer.step()
    assert torch.equal(table.weight, bag().backbone.embedding.weight)


def test_other_optimisers_take_dense_gradients():
    model = bag()
    build_optimizer(model, settings=TrainSettings(optimizer="rowwise"))
    build_optimizer(model, settings=TrainSettings(optimizer="adamw"))
    assert not model.backbone.embedding.sparse


def test_muon_without_matrices_to_move_is_adamw():
    model, _ = trained(TrainSettings(), steps=0)
    model.backbone.requires_grad_(False)
    optimizer = build_optimizer(model, settings=TrainSettings(optimizer="muon"))
    assert type(optimizer) is torch.optim.AdamW


@pytest.mark.parametrize("shape", [(12, 12), (36, 12), (5, 30)])
def test_orthogonal_keeps_directions_and_levels_their_lengths(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    left, lengths, right = torch.linalg.svd(matrix, full_matrices=False)
    assert lengths.max() > 2 * lengths.min()
    found = left.T @ orthogonal(matrix) @ right.T
    assert (found.diagonal() > 0.6).all()
    assert (found.diagonal() < 1.3).all()
    assert (found - found.diagonal().diag()).abs().max() < 1e-4


def names_by_layer(model: Model) -> list[set[str]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [{names[parameter] for parameter in layer} for layer in layers_from_top(model)]


@pytest.mark.parametrize("family", ["lab", "bert", "modern"])
def test_layers_from_top_are_head_blocks_and_embeddings(family):
    model = build_language_model(
        ModelSettings(family=family, width=12, num_layers=2, num_heads=3, feedforward_width=7),
        vocab_size=17,
    )
    head, last, first, embeddings = names_by_layer(model)
    assert all(name.startswith("head.") for name in head)
    assert {name for name in last if "blocks.1." not in name} == (
        {"backbone.final_norm.weight"} if family == "modern" else set()
    )
    assert all("blocks.0." in name for name in first)
    assert "backbone.embedding.weight" in embeddings
    together = len(head) + len(last) + len(first) + len(embeddings)
    assert together == len(list(model.parameters()))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_layer_decay_lowers_the_rate_from_layer_to_layer(optimizer):
    model, _ = trained(TrainSettings(), steps=0)
    settings = TrainSettings(optimizer=optimizer, layer_decay=0.5)
    shares = {
        parameter: group["rate_share"]
        for group in build_optimizer(model, settings=settings).param_groups
        for parameter in group["params"]
    }
    assert shares.keys() == set(model.parameters())
    for depth, layer in enumerate(layers_from_top(model)):
        assert {shares[parameter] for parameter in layer} == {0.5**depth}


def test_muon_by_layers_moves_what_muon_moves():
    # A decay so near to 1 that only the grouping differs.
    grouped, _ = trained(TrainSettings(optimizer="muon", layer_decay=1 - 1e-12), steps=2)
    plain, _ = trained(TrainSettings(optimizer="muon"), steps=2)
    for (name, parameter), other in zip(
        grouped.named_parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter, other, msg=name)


def test_layers_thaw_one_by_one_from_the_head_down():
    model, _ = trained(TrainSettings(), steps=0)
    settings = TrainSettings(unfreeze_every=2)
    thawed = []
    for epoch in range(9):
        thaw(model, epoch=epoch, done=0, settings=settings)
        layers = [{p.requires_grad for p in layer} for layer in layers_from_top(model)]
        thawed.append(sum(layer == {True} for layer in layers))
    assert thawed == [1, 1, 2, 2, 3, 3, 4, 4, 4]


def test_frozen_base_never_thaws():
    model, _ = trained(TrainSettings(), steps=0)
    model.backbone.requires_grad_(False)
    thaw(model, epoch=99, done=0, settings=TrainSettings(unfreeze_every=1, freeze_base=True))
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())


def test_rowwise_moves_what_is_no_table_as_adamw_does():
    def moved(optimizer_name: str) -> torch.Tensor:
        torch.manual_seed(0)
        settings = ModelSettings(
            family="bag", width=12, num_layers=0, num_heads=1, dropout=0, num_pairs=7
        )
        model = build_classifier(settings, vocab_size=17, num_classes=3, pooling="mean")
        optimizer = build_optimizer(model, settings=TrainSettings(optimizer=optimizer_name))
        for _ in range(3):
            optimizer.zero_grad()
            model.head.linear(torch.linspace(-1, 1, 12)).square().sum().backward()
            optimizer.step()
        return model.head.linear.weight.detach()

    assert torch.equal(moved("rowwise"), moved("adamw"))
