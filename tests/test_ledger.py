"""The count in closed form: against torch's own, against the lab's numbers, against the answers."""

import json

import pytest

from regraft.config import LAB_VOCABULARY, SIZES, ModelSettings, resolve
from regraft.ledger import SYMBOLS, Ledger, check_ledger, ledger, size_for_budget, wrong_answers

LAB = resolve("pretrain", preset="lab").model


def count(
    model: ModelSettings = LAB, *, vocab_size: int = LAB_VOCABULARY, num_classes: int | None = None
) -> Ledger:
    return ledger(model, vocab_size=vocab_size, num_classes=num_classes, max_length=7, batch_size=3)


def lab_answers() -> dict[str, object]:
    answers = wrong_answers(LAB, vocab_size=LAB_VOCABULARY, num_classes=2)
    return {answer.name: answer for answer in answers}


def test_ledger_gives_the_numbers_of_the_lab():
    counted = count(num_classes=2)
    assert counted.language_model == 21_018_401
    assert counted.classifier == 10_968_602
    assert counted.base == 10_968_200


def test_ledger_equals_the_formula_of_the_lab():
    V, d, L = LAB_VOCABULARY, LAB.width, LAB.num_layers
    for C, total in ((V, count().language_model), (5, count(num_classes=5).classifier)):
        assert total == V * d + L * (6 * d * d + 10 * d) + C * (d + 1)


@pytest.mark.parametrize("num_classes", [None, 2, 5])
@pytest.mark.parametrize(
    "model",
    [
        ModelSettings(width=12, num_layers=1, num_heads=3, feedforward_width=7),
        ModelSettings(width=8, num_layers=3, num_heads=2, feedforward_width=20),
        LAB,
    ],
    ids=["narrow feed-forward", "wide feed-forward", "lab"],
)
def test_ledger_equals_the_built_model(model, num_classes):
    counted = count(model, vocab_size=31, num_classes=num_classes)
    built = check_ledger(counted, model, 31, num_classes)
    assert built == counted.total == sum(term.count for term in counted.terms)
    expected = counted.language_model if num_classes is None else counted.classifier
    assert built == expected


def test_ledger_equals_a_plain_torch_encoder():
    from torch import nn

    layer = nn.TransformerEncoderLayer(12, 3, dim_feedforward=7)
    model = ModelSettings(width=12, num_layers=1, num_heads=3, feedforward_width=7)
    layers = sum(term.per_layer or 0 for term in count(model).terms)
    assert layers == sum(parameter.numel() for parameter in layer.parameters())


def test_check_refuses_a_ledger_of_another_model():
    other = ModelSettings(width=12, num_layers=2, num_heads=3, feedforward_width=12)
    with pytest.raises(AssertionError, match=r"the ledger counts \d+ for the base, the model has"):
        check_ledger(count(vocab_size=31), other, 31, None)


def test_heads_do_not_change_the_count():
    one, four = (ModelSettings(width=8, num_heads=heads) for heads in (1, 4))
    assert count(one).terms == count(four).terms


def evaluate(formula: str, symbols: dict[str, int]) -> float:
    """A formula as printed, read as arithmetic: a space or a dot between factors is a product."""
    factors = formula.replace("²", "**2").replace(" · ", " ")
    for operator in "+/":
        factors = factors.replace(f" {operator} ", operator)
    factors = factors.replace(" ", "*").replace("**2*", "**2 *")
    return float(eval(factors, {"__builtins__": {}}, symbols))


@pytest.mark.parametrize("num_classes", [None, 5])
def test_every_formula_gives_its_number(num_classes):
    counted = count(num_classes=num_classes)
    assert set(counted.symbols) <= set(SYMBOLS)
    memory = (*counted.training_memory_bytes, counted.whole_scores_bytes)
    for term in (*counted.terms, *counted.flops_per_token, *memory):
        assert round(evaluate(term.formula, counted.symbols)) == term.count, term
        if term.per_layer is not None:
            assert term.count == LAB.num_layers * term.per_layer


def test_flops_are_twice_the_weights_and_the_attention_term():
    counted = count()
    d, L, T = LAB.width, LAB.num_layers, 7
    matrices = L * 6 * d * d + LAB_VOCABULARY * d
    assert counted.flops_forward == 2 * matrices + L * 4 * T * d
    assert counted.flops_forward_backward == 3 * counted.flops_forward
    assert count(num_classes=2).flops_forward < counted.flops_forward / 5


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


@pytest.mark.parametrize(
    ("name", "base", "language_model", "classifier"),
    [
        ("every head as wide as the model", 11_600_200, 21_650_401, 11_600_602),
        ("no output projection", 10_800_200, 20_850_401, 10_800_602),
        ("embedding and head only", 10_000_200, 20_000_400, 10_000_600),
        ("a norm as two numbers", 10_965_016, 21_015_217, 10_965_418),
        ("no biases", 10_960_200, 20_960_400, 10_960_600),
    ],
)
def test_wrong_answers_give_the_published_totals(name, base, language_model, classifier):
    answer = lab_answers()[name]
    assert (answer.base, answer.language_model, answer.classifier) == (
        base,
        language_model,
        classifier,
    )


def test_wrong_answers_are_five():
    assert len(lab_answers()) == 5


@pytest.mark.parametrize("num_classes", [None, 5])
def test_wrong_answers_account_for_every_missing_parameter(num_classes):
    model = ModelSettings(width=12, num_layers=2, num_heads=3, feedforward_width=7)
    counted = count(model, vocab_size=31, num_classes=num_classes)
    symbols = {"C": 31, **counted.symbols}
    for answer in wrong_answers(model, vocab_size=31, num_classes=num_classes):
        total = answer.language_model if num_classes is None else answer.classifier
        assert total == counted.total + sum(change.difference for change in answer.changes)
        assert total == evaluate(answer.formula, symbols)
        assert all(change.difference for change in answer.changes)
        for change in answer.changes:
            wrong, right = evaluate(change.wrong, symbols), evaluate(change.right, symbols)
            assert wrong - right == change.difference
        assert json.dumps(answer.to_dict())


def test_feedforward_width_auto_is_the_width():
    auto, written = (ModelSettings(width=8, feedforward_width=width) for width in ("auto", 8))
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
