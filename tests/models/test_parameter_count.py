"""The count in closed form: against torch's own, against the lab's numbers, against the answers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from regraft.config import traits
from regraft.config.presets import LAB_VOCABULARY, SIZES
from regraft.config.resolution import replace, resolve, with_size
from regraft.config.schema import ModelSettings, ObjectiveSettings
from regraft.data.rows import Batch
from regraft.models.heads import build_classifier, build_language_model
from regraft.models.parameter_count import (
    CAUSAL,
    SYMBOLS,
    Ledger,
    check_ledger,
    ledger,
    size_for_budget,
)
from regraft.training.masking import Moment
from regraft.training.objectives import contrast

FAMILIES = ["lab", "bert", "modern"]
KINDS = ["causal", "masked", "bert", "sop", "replaced", "hybrid"]
LAB = resolve("pretrain", preset="lab").model


def count(
    model: ModelSettings = LAB,
    *,
    vocab_size: int = LAB_VOCABULARY,
    num_classes: int | None = None,
    objective: ObjectiveSettings = CAUSAL,
    pooling: str = "last",
) -> Ledger:
    return ledger(
        model,
        vocab_size=vocab_size,
        num_classes=num_classes,
        max_length=7,
        batch_size=3,
        objective=objective,
        pooling=pooling,
    )


def small(family: str, **changes: int) -> ModelSettings:
    values = {"width": 12, "num_layers": 2, "num_heads": 3, "feedforward_width": 7, **changes}
    return ModelSettings(family=family, max_positions=19, **values)


def test_ledger_gives_the_numbers_of_the_lab():
    counted = count(num_classes=2)
    assert counted.language_model == 21_018_401
    assert counted.classifier == 10_968_602
    assert counted.base == 10_968_200


def test_ledger_equals_the_formula_of_the_lab():
    V, d, L = LAB_VOCABULARY, LAB.width, LAB.num_layers
    for C, total in ((V, count().language_model), (5, count(num_classes=5).classifier)):
        assert total == V * d + L * (6 * d * d + 10 * d) + C * (d + 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "shape",
    [
        {"num_layers": 1, "feedforward_width": 7},
        {"width": 8, "num_layers": 3, "num_heads": 2, "feedforward_width": 20},
        {"width": 24, "num_heads": 6},
    ],
    ids=["narrow feed-forward", "wide feed-forward", "many heads"],
)
def test_ledger_equals_the_built_language_model(shape, family, kind):
    model = small(family, **shape)
    objective = ObjectiveSettings(kind=kind, generator_share=0.5)
    counted = count(model, vocab_size=31, objective=objective)
    built = check_ledger(counted, model, vocab_size=31, num_classes=None, objective=objective)
    assert built == counted.total == counted.language_model
    assert counted.classifier is None


def small_bag(**changes: int) -> ModelSettings:
    values = {"width": 12, "num_layers": 0, "num_heads": 1, "num_pairs": 23, **changes}
    return ModelSettings(family="bag", feedforward_width=12, max_positions=19, **values)


CONTRAST = ObjectiveSettings(kind="contrast", group_size=5)


@pytest.mark.parametrize("num_classes", [None, 2])
@pytest.mark.parametrize("family", [*FAMILIES, "bag"])
def test_ledger_equals_the_built_model_of_contrast(family, num_classes):
    model = small_bag() if family == "bag" else small(family)
    how = {"vocab_size": 31, "num_classes": num_classes, "objective": CONTRAST, "pooling": "mean"}
    counted = count(model, **how)
    assert check_ledger(counted, model, **how) == counted.total
    # There is no head: the language model is the base.
    assert counted.language_model == counted.base
    if family == "bag":
        assert counted.base == 31 * 12 + 23 * 12
        assert counted.layers == 0
    assert set(counted.symbols) <= set(SYMBOLS)
    assert ("G" in counted.symbols) == (num_classes is None)
    memory = (*counted.training_memory_bytes, counted.whole_scores_bytes)
    for term in (*counted.terms, *counted.flops_per_token, *memory):
        assert round(evaluate(term.formula, counted.symbols)) == term.count, term
    assert counted.to_dict()["base"] == counted.base


@pytest.mark.parametrize("num_classes", [2, 5])
@pytest.mark.parametrize("pooling", ["last", "mean", "first", "attention"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ledger_equals_the_built_classifier(family, pooling, num_classes):
    objective = ObjectiveSettings(kind="replaced")
    how = {"num_classes": num_classes, "pooling": pooling, "objective": objective}
    counted = count(small(family), vocab_size=31, **how)
    built = check_ledger(counted, small(family), vocab_size=31, **how)
    assert built == counted.total == counted.classifier
    language_model = count(small(family), vocab_size=31, objective=objective)
    assert counted.language_model == language_model.total


@pytest.mark.parametrize("preset", [*FAMILIES, "bag"])
@pytest.mark.parametrize("size", [None, *SIZES])
def test_ledger_equals_every_preset_and_size(preset, size):
    settings = resolve("pretrain", preset=preset)
    settings = with_size(settings, size) if size else settings
    how = {
        "vocab_size": settings.tokenizer.size,
        "num_classes": 2,
        "objective": settings.objective,
        "pooling": settings.head.pooling,
    }
    assert check_ledger(count(settings.model, **how), settings.model, **how)


def test_docs_tell_the_numbers_of_the_presets():
    page = Path(__file__).parents[2] / "docs/concepts/counting-parameters.md"
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", page.read_text(), re.M
    )
    assert [preset for preset, *_ in rows] == [*FAMILIES, "bag"]
    for preset, *numbers in rows:
        settings = resolve("pretrain", preset=preset)
        counted = count(
            settings.model,
            vocab_size=settings.tokenizer.size,
            num_classes=2,
            objective=settings.objective,
            pooling=settings.head.pooling,
        )
        told = [int(number.replace(",", "")) for number in numbers]
        assert told == [counted.base, counted.language_model, counted.classifier]


@pytest.mark.parametrize("share", [0.01, 0.25, 0.34, 0.5, 1.0])
def test_ledger_equals_a_model_with_any_generator(share):
    model, objective = small("modern"), ObjectiveSettings(kind="replaced", generator_share=share)
    counted = count(model, vocab_size=31, objective=objective)
    check_ledger(counted, model, vocab_size=31, num_classes=None, objective=objective)
    heads = counted.symbols["h"]
    assert counted.symbols["g"] == 4 * heads
    assert 1 <= heads <= 3


def test_ledger_of_bert_equals_its_formula():
    V, d, F, M, L = 31, 12, 7, 19, 2
    layer = 4 * d * d + 4 * d + 2 * d * F + F + d + 4 * d
    base = V * d + M * d + 2 * d + 2 * d + L * layer
    counted = count(small("bert"), vocab_size=V, objective=ObjectiveSettings(kind="bert"))
    assert counted.base == base
    assert counted.layers == L * layer
    transform, pooler = d * d + d + 2 * d, d * d + d
    assert counted.language_model == base + transform + V + pooler + 2 * d + 2


def test_ledger_of_modern_equals_its_formula():
    V, d, F, L = 31, 12, 7, 2
    layers = L * (4 * d * d + 3 * d * F) + (2 * L - 1) * d
    counted = count(small("modern"), vocab_size=V, objective=ObjectiveSettings(kind="masked"))
    assert counted.base == V * d + d + layers + d
    assert counted.language_model == counted.base + d * d + d + V
    pooled = count(small("modern"), vocab_size=V, num_classes=3, pooling="mean")
    assert pooled.classifier == counted.base + d * d + d + 3 * (d + 1)


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_tied_matrix_is_named_and_counts_nothing(family):
    terms = {term.name: term for term in count(small(family)).terms}
    assert terms["head weight, tied to the embedding"].count == 0
    assert "head weight" not in terms


def test_ledger_equals_a_plain_torch_encoder():
    layer = torch.nn.TransformerEncoderLayer(12, 3, dim_feedforward=7)
    model = small("lab", num_layers=1)
    assert count(model).layers == sum(parameter.numel() for parameter in layer.parameters())


def test_check_refuses_a_ledger_of_another_model():
    with pytest.raises(AssertionError, match=r"counts \d+ for the layers, the model has \d+"):
        check_ledger(count(vocab_size=31), small("lab"), vocab_size=31, num_classes=None)
    with pytest.raises(AssertionError, match=r"counts \d+ for the language model, the model has"):
        check_ledger(
            count(small("bert"), vocab_size=31),
            small("bert"),
            vocab_size=31,
            num_classes=None,
            objective=ObjectiveSettings(kind="bert"),
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_do_not_change_the_count(family):
    one, four = (small(family, width=8, num_heads=heads) for heads in (1, 4))
    assert count(one).terms == count(four).terms


def evaluate(formula: str, symbols: dict[str, int]) -> float:
    """A formula as printed, read as arithmetic: a space or a dot between factors is a product."""
    factors = formula.replace("²", "**2").replace(" · ", " ")
    for operator in "+-/":
        factors = factors.replace(f" {operator} ", operator)
    factors = factors.replace(" ", "*").replace("**2*", "**2 *")
    return float(eval(factors, {"__builtins__": {}}, symbols))


@pytest.mark.parametrize("num_classes", [None, 5])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_formula_gives_its_number(family, kind, num_classes):
    objective = ObjectiveSettings(kind=kind, mask_rate_end=0.3)
    how = {"objective": objective, "num_classes": num_classes, "pooling": "first"}
    for model in (small(family), small(family, num_layers=1, feedforward_width=48)):
        counted = count(model, vocab_size=31, **how)
        assert set(counted.symbols) <= set(SYMBOLS)
        memory = (*counted.training_memory_bytes, counted.whole_scores_bytes)
        for term in (*counted.terms, *counted.flops_per_token, *memory):
            assert round(evaluate(term.formula, counted.symbols)) == term.count, term
            if term.per_layer is not None:
                assert term.count == model.num_layers * term.per_layer


def test_flops_are_twice_the_weights_and_the_attention_term():
    counted = count()
    d, L, T = LAB.width, LAB.num_layers, 7
    matrices = L * 6 * d * d + LAB_VOCABULARY * d
    assert counted.flops_forward == 2 * matrices + L * 4 * T * d
    assert counted.flops_forward_backward == 3 * counted.flops_forward
    assert count(num_classes=2).flops_forward < counted.flops_forward / 5


@pytest.mark.parametrize("num_classes", [None, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_flops_are_those_that_torch_counts(family, num_classes):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    how = {"vocab_size": 31, "pooling": "first"}
    if num_classes is None:
        model = build_language_model(small(family), vocab_size=31)
    else:
        model = build_classifier(small(family), num_classes=num_classes, **how)
    # Attention as plain products: of the fused one torch knows no count on a CPU.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.eval()(torch.randint(31, (2, 7)))
    counted = count(small(family), num_classes=num_classes, **how)
    # What happens once a row is rounded to whole operations a token.
    assert counter.get_total_flops() == pytest.approx(2 * 7 * counted.flops_forward, abs=14)


def test_flops_of_contrast_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    model = build_language_model(small_bag(), vocab_size=31, objective=CONTRAST)
    # One group of five documents, each in two halves of seven tokens.
    batch = Batch(
        torch.randint(31, (10, 7)), torch.ones(10, 7, dtype=torch.bool), torch.zeros(10).long()
    )
    with FlopCounterMode(display=False) as counter:
        contrast(model, batch, Moment(seed=0, step=0, rows=np.arange(1), done=0.0))
    counted = count(small_bag(), vocab_size=31, objective=CONTRAST)
    assert counter.get_total_flops() == pytest.approx(10 * 7 * counted.flops_forward, abs=70 / 2)


@pytest.mark.parametrize(
    ("objective", "share"),
    [
        ({"kind": "masked"}, 0.15),
        ({"kind": "masked", "mask_rate": 0.3, "mask_rate_end": 0.1}, 0.2),
        ({"kind": "hybrid", "causal_share": 0.5, "mask_rate": 0.2}, 0.6),
    ],
)
def test_head_costs_arithmetic_at_predicted_tokens_only(objective, share):
    model = small("bert")
    everywhere = count(model)
    counted = count(model, objective=ObjectiveSettings(**objective))
    assert counted.symbols["m"] == pytest.approx(share)
    head = {term.name: term for term in counted.flops_per_token}["head, at predicted tokens"]
    assert head.formula == "2 m V d"
    assert head.count == pytest.approx(share * everywhere.flops_per_token[-1].count, abs=1)
    whole, part = everywhere.whole_scores_bytes.count, counted.whole_scores_bytes.count
    assert part == pytest.approx(share * whole, abs=1)
    assert counted.terms == everywhere.terms


def test_replaced_adds_its_generator():
    model = small("modern")
    masked, replaced = (
        count(model, objective=ObjectiveSettings(kind=kind)) for kind in ("masked", "replaced")
    )
    of_generator = [t for t in replaced.flops_per_token if t.name.startswith("generator: ")]
    assert len(of_generator) == 6
    # Tokens are drawn without a gradient: this product has no way back.
    (drawn,) = [term for term in replaced.flops_per_token if term.forward_only]
    assert drawn.count == of_generator[-2].count > 0
    assert replaced.flops_forward_backward == 3 * replaced.flops_forward - 2 * drawn.count
    names = [term.name for term in replaced.training_memory_bytes]
    assert names[-1] == "generator: activations"
    assert masked.base == replaced.base


@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_what_autograd_keeps(family, attention_dropout):
    batch, length = 3, 64

    def kept_bytes(num_layers: int) -> int:
        model = ModelSettings(
            family=family,
            width=64,
            num_layers=num_layers,
            num_heads=2,
            feedforward_width=64,
            dropout=0.1,
            attention_dropout=attention_dropout,
            max_positions=length,
        )
        backbone = build_language_model(model, vocab_size=31).backbone.train()
        weights = {tensor.data_ptr() for tensor in (*backbone.parameters(), *backbone.buffers())}
        kept = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            backbone(torch.randint(31, (batch, length)))
        storages = [tensor.untyped_storage() for tensor in kept.values()]
        return sum(part.nbytes() for part in storages if part.data_ptr() not in weights)

    model = ModelSettings(
        family=family,
        width=64,
        num_heads=2,
        feedforward_width=64,
        attention_dropout=attention_dropout,
    )
    counted = ledger(model, vocab_size=31, max_length=length, batch_size=batch)
    expected = counted.training_memory_bytes[-1].per_layer
    assert kept_bytes(3) - kept_bytes(2) == pytest.approx(expected, rel=0.25)


def test_memory_holds_weights_gradients_and_moments():
    counted = count(num_classes=2)
    fixed = sum(term.count for term in counted.training_memory_bytes[:3])
    assert fixed == 16 * counted.total
    assert counted.memory_bytes > fixed
    assert count().whole_scores_bytes.count == 8 * 3 * 7 * LAB_VOCABULARY


def test_ledger_is_json():
    values = json.loads(json.dumps(count(num_classes=2).to_dict()))
    assert values["language_model"] == 21_018_401
    assert values["classifier"] == 10_968_602
    assert sum(term["count"] for term in values["terms"]) == values["classifier"]
    assert "classifier" not in count().to_dict()


@pytest.mark.parametrize("family", FAMILIES)
def test_feedforward_width_auto_is_the_family_s(family):
    widths = ("auto", 12 * traits.FAMILIES[family].feedforward_factor)
    auto, written = (small(family, feedforward_width=width) for width in widths)
    assert count(auto).terms == count(written).terms


def test_size_for_a_budget_grows_with_time_and_speed():
    def chosen(minutes: float, speed: float) -> str:
        overrides = {"train.minutes": minutes}
        return size_for_budget(resolve("pretrain", overrides=overrides), flops_per_second=speed)

    assert chosen(0.01, 1e9) == "tiny"
    ladder = [chosen(minutes, 150e9) for minutes in (0.1, 5, 60, 6000)]
    assert ladder == sorted(ladder, key=list(SIZES).index)
    assert ladder[-1] == "base"
    assert chosen(10, 150e9) == "mini"
    assert chosen(10, 100e12) == "base"


def test_size_for_a_budget_depends_on_the_objective():
    """At a large vocabulary the causal head eats the minutes that a masked one leaves."""
    settings = resolve("pretrain", overrides={"train.minutes": 8, "tokenizer.size": 50_000})
    causal = replace(settings, "objective", kind="causal")
    sizes = [size_for_budget(each, flops_per_second=150e9) for each in (causal, settings)]
    assert [list(SIZES).index(size) for size in sizes] == [0, 1]
