"""The wrong answers give the published totals, and every missing parameter is accounted for."""

import json

import pytest
from models.test_parameter_count import LAB, evaluate

from regraft.apps.course.mistakes import wrong_answers
from regraft.config.presets import LAB_VOCABULARY
from regraft.config.resolution import resolve
from regraft.config.schema import ModelSettings
from regraft.errors import ConfigError
from regraft.models.parameter_count import ledger


def lab_answers() -> dict[str, object]:
    answers = wrong_answers(LAB, vocab_size=LAB_VOCABULARY, num_classes=2)
    return {answer.name: answer for answer in answers}


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
    counted = ledger(model, vocab_size=31, num_classes=num_classes, max_length=7, batch_size=3)
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


def test_wrong_answers_are_about_the_lab():
    with pytest.raises(ConfigError, match="given for blocks of the lab; these are bert"):
        wrong_answers(resolve("pretrain", preset="bert").model, vocab_size=31, num_classes=None)
