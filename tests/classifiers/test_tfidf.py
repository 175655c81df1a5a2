"""The linear, the naive Bayes and the latent arm on small generated text."""

import json

import numpy as np
import pytest
from conftest import make_examples
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from tampering import change_facts

from regraft.classifiers import tfidf as baselines
from regraft.classifiers.logistic import REGULARISATIONS, fit_in_space
from regraft.classifiers.tfidf import (
    LatentModel,
    LatentSpace,
    LinearModel,
    NaiveBayesModel,
    fit_latent,
    fit_linear,
    fit_naive_bayes,
    fit_space,
)
from regraft.classifiers.vectoriser import fit_vectoriser
from regraft.data.text.records import Example, Labels
from regraft.errors import DataError, RunFolderError

LABELS = Labels(names=("negative", "positive"))
THREE = Labels(names=("mixed", "negative", "positive"))
# Half of a surrogate pair, as a broken file may hold; no words; words of another script.
STRANGE = ["", "\ud83d is half a character", "?!", "\N{SNOWMAN} 東京 été", "dull and a delight"]


def examples(num_examples: int, *, seed: int) -> list[Example]:
    pairs = make_examples(num_examples, seed=seed)
    return [Example(text, label, "made.csv", row) for row, (text, label) in enumerate(pairs, 2)]


def mixed_examples(num_examples: int, *, seed: int) -> list[Example]:
    """Of three classes, in turn; mixed ones join both kinds of text."""
    good, bad = examples(2 * num_examples, seed=seed)[0::2], examples(num_examples, seed=seed)[1::2]
    made = []
    for row in range(num_examples):
        a, b = good[row], bad[row % len(bad)]
        made.append((a, b, Example(f"{a.text} {b.text}", "mixed", a.source, a.row))[row % 3])
    return made


def texts_of(some: list[Example]) -> list[str]:
    return [example.text for example in some]


class Heard:
    """A Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, float | None]] = []
        self.amount = 0.0
        self.num_open = 0

    def start(self, name: str, *, total: float | None) -> None:
        assert self.num_open == 0
        self.num_open = 1
        self.tasks.append((name, total))

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self.amount += amount

    def finish(self) -> None:
        self.num_open = 0

    def say(self, message: str) -> None: ...


def test_linear_learns_what_words_give_away():
    model = fit_linear(examples(40, seed=1), examples(20, seed=2), labels=LABELS)
    test = examples(30, seed=3)
    chances = model.predict_proba([example.text for example in test])
    predicted = [model.labels[target] for target in chances.argmax(axis=1)]
    assert predicted == [example.label for example in test]
    assert model.tuned.valid_accuracy == 1.0


def test_linear_probabilities_sum_to_one():
    model = fit_linear(examples(20, seed=1), examples(10, seed=2), labels=LABELS)
    chances = model.predict_proba(["dull", "", "a delight", "\N{SNOWMAN}"])
    assert chances.shape == (4, 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert model.predict_proba([]).shape == (0, 2)


def test_linear_keeps_the_strength_that_is_best_on_valid():
    model = fit_linear(examples(12, seed=1), examples(30, seed=2), labels=LABELS)
    assert tuple(model.tuned.valid_curve) == REGULARISATIONS
    assert model.tuned.valid_accuracy == max(model.tuned.valid_curve.values())
    assert model.tuned.valid_curve[model.tuned.regularisation] == model.tuned.valid_accuracy


def test_linear_is_the_same_twice():
    train, valid = examples(16, seed=1), examples(10, seed=2)
    texts = [example.text for example in valid]
    first = fit_linear(train, valid, labels=LABELS).predict_proba(texts)
    np.testing.assert_array_equal(
        first, fit_linear(train, valid, labels=LABELS).predict_proba(texts)
    )


def test_linear_gives_no_chance_to_a_label_train_does_not_have():
    labels = Labels(names=("mixed", "negative", "positive"))
    model = fit_linear(examples(16, seed=1), examples(8, seed=2), labels=labels)
    chances = model.predict_proba(["a delight in every way", "a bore"])
    assert chances.shape == (2, 3)
    assert (chances[:, 0] == 0).all()
    assert chances.argmax(axis=1).tolist() == [2, 1]


def test_linear_drops_rare_features_of_large_data_only():
    valid = examples(8, seed=2)
    small = fit_linear(examples(40, seed=1), valid, labels=LABELS)
    large = fit_linear(examples(600, seed=1), valid, labels=LABELS)
    # Each generated text ends in a number of its own.
    assert "39" in small.words.terms
    assert "599" not in large.words.terms


def test_linear_refuses_one_class():
    only = [example for example in examples(10, seed=1) if example.label == "positive"]
    with pytest.raises(DataError) as caught:
        fit_linear(only, only, labels=LABELS)
    assert "only one label, 'positive'" in caught.value.problem


def test_linear_refuses_text_without_words():
    train = [Example("...", "positive", "dots.csv", 2), Example("!!", "negative", "dots.csv", 3)]
    with pytest.raises(DataError, match=r"The 2 training texts, from dots.csv, share no words\."):
        fit_linear(train, train, labels=LABELS)


@pytest.mark.parametrize("valid", [(), None])
def test_linear_without_valid_is_judged_by_folds(valid):
    train = examples(40, seed=1)
    model = fit_linear(train, valid, labels=LABELS)
    assert model.tuned.judged_by == "folds"
    assert model.judged_NC is not None
    assert model.judged_NC.shape == (40, 2)
    assert model.tuned.valid_accuracy == np.mean(
        model.judged_NC.argmax(axis=1) == LABELS.targets(train)
    )
    test = examples(30, seed=3)
    predicted = model.predict_proba(texts_of(test)).argmax(axis=1)
    np.testing.assert_array_equal(predicted, LABELS.targets(test))


def test_linear_fits_one_example_a_class():
    train = examples(2, seed=1)
    model = fit_linear(train, None, labels=LABELS)
    assert (model.tuned.judged_by, model.tuned.valid_accuracy) == ("nothing", None)
    predicted = model.predict_proba(texts_of(train)).argmax(axis=1)
    np.testing.assert_array_equal(predicted, LABELS.targets(train))


def test_latent_is_tf_idf_svd_and_unit_length(documents):
    space = fit_space(iter(documents), seed=4)
    words = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b", dtype=np.float32
    )
    svd = TruncatedSVD(min(len(documents), 300), random_state=4)
    svd.fit(words.fit_transform(documents))
    new = texts_of(examples(7, seed=9))
    expected = normalize(svd.transform(words.transform(new)))
    found = space.vectors(new)
    # Axes of equal length may be turned; angles between texts may not change.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)


def test_latent_learns_words_from_text_without_labels(monkeypatch):
    """Words that no example has, but that stand beside its words in the text."""
    monkeypatch.setattr(baselines, "LATENT_DIMENSIONS", 2)
    good, bad = ("vivid", "superb", "bright", "moving"), ("dull", "tedious", "grey", "stale")
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(kind, size=3)) for kind in (good, bad) * 40]
    train = [
        Example(f"{word} {row}", label, "made.csv", row)
        for row in range(3)
        for word, label in (("vivid", "positive"), ("dull", "negative"))
    ]
    latent = fit_latent(train, None, labels=LABELS, texts=iter(texts))
    assert latent.tuned.judged_by == "folds"
    assert (latent.predict_proba(good)[:, 1] > 0.5).all()
    assert (latent.predict_proba(bad)[:, 0] > 0.5).all()
    assert latent.predict_proba([]).shape == (0, 2)


def test_latent_knows_three_classes_and_valid(documents):
    train, valid = mixed_examples(30, seed=1), mixed_examples(12, seed=2)
    model = fit_latent(train, valid, labels=THREE, texts=documents)
    assert model.tuned.judged_by == "valid"
    assert model.judged_NC is not None
    assert model.judged_NC.shape == (12, 3)
    chances = model.predict_proba(STRANGE)
    np.testing.assert_allclose(chances.sum(axis=1), 1)


def test_latent_needs_no_more_text_than_the_training_texts():
    train = [Example("good", "positive", "two.csv", 2), Example("bad", "negative", "two.csv", 3)]
    model = fit_latent(train, None, labels=LABELS, texts=())
    assert model.space.axes_VK.shape == (2, 2)
    assert model.predict_proba(["good", "bad"]).argmax(axis=1).tolist() == [1, 0]


def test_latent_has_at_most_so_many_dimensions(documents, monkeypatch):
    monkeypatch.setattr(baselines, "LATENT_DIMENSIONS", 4)
    assert fit_space(documents).axes_VK.shape[1] == 4


def test_latent_drops_rare_and_common_terms_of_large_text(monkeypatch, documents):
    monkeypatch.setattr(baselines, "_LARGE_TEXT_FROM", len(documents))
    terms = set(fit_space(documents).words.terms)
    assert "note" not in terms  # in every document
    assert "59" not in terms  # in one
    monkeypatch.setattr(baselines, "_LARGE_TEXT_FROM", len(documents) + 1)
    assert {"note", "59"} <= set(fit_space(documents).words.terms)


def test_latent_is_the_same_twice(documents):
    train, texts = examples(16, seed=1), texts_of(examples(9, seed=5))
    first = fit_latent(train, None, labels=LABELS, texts=documents, seed=3)
    again = fit_latent(train, None, labels=LABELS, texts=documents, seed=3)
    np.testing.assert_array_equal(first.predict_proba(texts), again.predict_proba(texts))


def test_latent_space_serves_other_labels(documents):
    train = examples(16, seed=1)
    whole = fit_latent(train, None, labels=LABELS, texts=documents)
    part = LatentModel(fit_in_space(whole.space, train, None, labels=LABELS), whole.space)
    texts = texts_of(examples(9, seed=5))
    np.testing.assert_array_equal(whole.predict_proba(texts), part.predict_proba(texts))


def test_latent_tells_its_progress(documents):
    heard = Heard()
    fit_latent(examples(8, seed=1), None, labels=LABELS, texts=iter(documents), progress=heard)
    total = len(documents) + 8
    assert heard.tasks == [
        ("reading text", None),
        ("counting words", total),
        ("latent dimensions", None),
    ]
    assert heard.amount == 2 * total
    assert heard.num_open == 0


def test_latent_refuses_text_without_words():
    train = [Example("...", "positive", "dots.csv", 2), Example("!!", "negative", "dots.csv", 3)]
    heard = Heard()
    with pytest.raises(DataError) as caught:
        fit_latent(train, None, labels=LABELS, texts=["?"], progress=heard)
    assert caught.value.problem == "The 3 texts share no words."
    assert heard.num_open == 0


def test_latent_reads_no_text_for_a_label_that_does_not_exist():
    def unread():
        pytest.fail("the text was read")
        yield ""

    wrong = [Example("fine", "neutral", "valid.csv", 2)]
    with pytest.raises(DataError, match="There is no label 'neutral'"):
        fit_latent(examples(8, seed=1), wrong, labels=LABELS, texts=unread())


@pytest.mark.parametrize("labels", [LABELS, THREE], ids=["two", "three"])
def test_saved_models_answer_bit_for_bit(tmp_path, documents, labels):
    made = examples if labels is LABELS else mixed_examples
    train = [*made(24, seed=1), Example(f"{STRANGE[1]} of a bore", "negative", "made.csv", 9)]
    texts = [*STRANGE, *texts_of(made(40, seed=5))]
    linear = fit_linear(train, None, labels=labels)
    latent = fit_latent(train, made(9, seed=2), labels=labels, texts=documents)
    for model in (linear, latent):
        model.save(tmp_path / model.kind)
    for model, again in (
        (linear, LinearModel.load(tmp_path / "linear")),
        (latent, LatentModel.load(tmp_path / "latent")),
    ):
        np.testing.assert_array_equal(again.predict_proba(texts), model.predict_proba(texts))
        assert again.labels == model.labels
        assert again.tuned.valid_accuracy == model.tuned.valid_accuracy
        assert again.tuned.judged_by == model.tuned.judged_by
        assert again.seconds == model.seconds


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"analyzer": "sentences"}, "the analyzer 'sentences' is unknown"),
        ({"ngram_range": [1, 3]}, "word terms are of 1 to 2 words, not of 1 to 3"),
        ({"ngram_range": 2}, "'int' object is not iterable"),
    ],
)
def test_latent_refuses_settings_that_make_no_sense(tmp_path, documents, settings, reason):
    fit_latent(examples(8, seed=1), None, labels=LABELS, texts=documents).save(tmp_path)
    path = tmp_path / "member.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts["vectorisers"]["words"].update(settings)
    change_facts(path, **facts)
    with pytest.raises(RunFolderError) as caught:
        LatentModel.load(tmp_path)
    assert caught.value.problem == f"{path} describes no latent member: {reason}."


def test_saved_linear_is_no_latent(tmp_path):
    fit_linear(examples(8, seed=1), None, labels=LABELS).save(tmp_path)
    with pytest.raises(RunFolderError) as caught:
        LatentModel.load(tmp_path)
    assert str(tmp_path) in caught.value.problem
    assert "linear" in caught.value.problem


def test_naive_bayes_learns_what_words_give_away():
    model = fit_naive_bayes(examples(40, seed=1), examples(20, seed=2), labels=LABELS)
    test = examples(30, seed=3)
    predicted = model.predict_proba(texts_of(test)).argmax(axis=1)
    assert (predicted == LABELS.targets(test)).mean() > 0.9
    assert model.tuned.regularisation in REGULARISATIONS
    assert model.tuned.judged_by == "valid"
    assert model.tuned.valid_curve.keys() == set(REGULARISATIONS)


def test_naive_bayes_weighs_words_by_their_ratio():
    texts = [("good film", "positive"), ("good", "positive"), ("bad film", "negative")]
    train = [Example(text, label, "made.csv", row) for row, (text, label) in enumerate(texts)]
    words, matrix = fit_vectoriser(
        texts_of(train), analyzer="word", ngram_range=(1, 2), is_binary=True
    )
    fitted = baselines._fit_ratios(matrix, LABELS.targets(train), strength=1.0)
    # Terms: bad, bad film, film, good, good film. By hand, with one added to each count:
    inside, outside = np.array([1, 1, 2, 3, 2]), np.array([2, 2, 2, 1, 1])
    ratios = np.log((inside / inside.sum()) / (outside / outside.sum()))
    assert words.terms == ["bad", "bad film", "film", "good", "good film"]
    # A regression pulls with the ratio of a word, so its weight on the word has the same sign.
    assert (np.sign(fitted.coef_[0]) == np.sign(ratios))[np.abs(ratios) > 0.1].all()
    assert fitted.predict_proba(matrix).argmax(axis=1).tolist() == [1, 1, 0]


def test_naive_bayes_is_saved_and_tells_three_classes(tmp_path):
    train, valid = mixed_examples(60, seed=1), mixed_examples(30, seed=2)
    model = fit_naive_bayes(train, valid, labels=THREE)
    test = mixed_examples(30, seed=3)
    chances = model.predict_proba([*texts_of(test), *STRANGE])
    assert chances.sum(axis=1) == pytest.approx(1)
    assert (chances[: len(test)].argmax(axis=1) == THREE.targets(test)).mean() > 0.8
    model.save(tmp_path / "member")
    again = NaiveBayesModel.load(tmp_path / "member")
    assert np.array_equal(again.predict_proba([*texts_of(test), *STRANGE]), chances)
    assert again.predict_proba([]).shape == (0, 3)


def test_naive_bayes_without_words_is_refused():
    train = [Example("?!", label, "made.csv", 2) for label in LABELS]
    with pytest.raises(DataError, match=r"share no words\. The nbsvm arm counts words"):
        fit_naive_bayes(train, train, labels=LABELS)


def test_space_is_saved_for_several_regressions(tmp_path):
    space = fit_space(texts_of(examples(40, seed=1)))
    space.save(tmp_path / "space")
    again = LatentSpace.load(tmp_path / "space")
    test = [*texts_of(examples(10, seed=3)), *STRANGE]
    assert np.array_equal(again.vectors(test), space.vectors(test))
    with pytest.raises(RunFolderError, match="kind space"):
        LatentModel.load(tmp_path / "space")
