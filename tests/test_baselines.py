"""The linear arm on small generated text."""

import numpy as np
import pytest
from conftest import make_examples

from regraft.baselines import fit_linear
from regraft.errors import DataError
from regraft.regression import REGULARISATIONS
from regraft.text import Example, Labels

LABELS = Labels(names=("negative", "positive"))


def examples(num_examples: int, *, seed: int) -> list[Example]:
    pairs = make_examples(num_examples, seed=seed)
    return [Example(text, label, "made.csv", row) for row, (text, label) in enumerate(pairs, 2)]


def test_linear_learns_what_words_give_away():
    model = fit_linear(examples(40, seed=1), examples(20, seed=2), labels=LABELS)
    test = examples(30, seed=3)
    chances = model.probabilities([example.text for example in test])
    predicted = [model.labels[target] for target in chances.argmax(axis=1)]
    assert predicted == [example.label for example in test]
    assert model.valid_accuracy == 1.0


def test_linear_probabilities_sum_to_one():
    model = fit_linear(examples(20, seed=1), examples(10, seed=2), labels=LABELS)
    chances = model.probabilities(["dull", "", "a delight", "\N{SNOWMAN}"])
    assert chances.shape == (4, 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert model.probabilities([]).shape == (0, 2)


def test_linear_keeps_the_strength_that_is_best_on_valid():
    model = fit_linear(examples(12, seed=1), examples(30, seed=2), labels=LABELS)
    assert tuple(model.valid_curve) == REGULARISATIONS
    assert model.valid_accuracy == max(model.valid_curve.values())
    assert model.valid_curve[model.regularisation] == model.valid_accuracy


def test_linear_is_the_same_twice():
    train, valid = examples(16, seed=1), examples(10, seed=2)
    texts = [example.text for example in valid]
    first = fit_linear(train, valid, labels=LABELS).probabilities(texts)
    np.testing.assert_array_equal(
        first, fit_linear(train, valid, labels=LABELS).probabilities(texts)
    )


def test_linear_gives_no_chance_to_a_label_train_does_not_have():
    labels = Labels(names=("mixed", "negative", "positive"))
    model = fit_linear(examples(16, seed=1), examples(8, seed=2), labels=labels)
    chances = model.probabilities(["a delight in every way", "a bore"])
    assert chances.shape == (2, 3)
    assert (chances[:, 0] == 0).all()
    assert chances.argmax(axis=1).tolist() == [2, 1]


def test_linear_drops_rare_features_of_large_data_only():
    valid = examples(8, seed=2)
    small = fit_linear(examples(40, seed=1), valid, labels=LABELS)
    large = fit_linear(examples(600, seed=1), valid, labels=LABELS)
    # Each generated text ends in a number of its own.
    assert "words__39" in small.features.get_feature_names_out()
    assert "words__599" not in large.features.get_feature_names_out()


def test_linear_refuses_one_class():
    only = [example for example in examples(10, seed=1) if example.label == "positive"]
    with pytest.raises(DataError) as caught:
        fit_linear(only, only, labels=LABELS)
    assert caught.value.problem == f"{only[0].source} holds one label only, 'positive'."


def test_linear_refuses_text_without_words():
    train = [Example("...", "positive", "dots.csv", 2), Example("!!", "negative", "dots.csv", 3)]
    with pytest.raises(DataError, match=r"The 2 training texts, from dots.csv, share no words\."):
        fit_linear(train, train, labels=LABELS)
