"""TextClassifier: scikit-learn's contract, and the run folder it shares with the command line."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, make_examples
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import regraft
from regraft.classifiers.base import load_classifier
from regraft.classifiers.estimator import TextClassifier
from regraft.data.synthetic import synthetic_reviews
from regraft.errors import ConfigError, DataError, RegraftError, RunFolderError
from regraft.training.loaded_run import load_run

TEXTS = [text for text, _ in make_examples(24)]
NAMES = [label for _, label in make_examples(24)]
SHAPE = {key: value for key, value in TINY.items() if key.startswith(("model.", "tokenizer."))}
TRAINING = {key: value for key, value in TINY.items() if key not in SHAPE}


def tiny(**options: Any) -> TextClassifier:
    return TextClassifier(**{"base": "scratch", "epochs": 1, "settings": TINY, **options})


@pytest.fixture(scope="module")
def fitted() -> TextClassifier:
    return tiny().fit(TEXTS, NAMES)


def test_classifier_is_public() -> None:
    assert regraft.TextClassifier is TextClassifier
    assert regraft.load_classifier is load_classifier


def test_parameters_are_stored_as_given_and_cloned() -> None:
    settings = {"train.lr": 3e-4}
    classifier = TextClassifier("runs/base", preset="lab", epochs=3, seed=5, settings=settings)
    parameters = {
        "base": "runs/base",
        "encoder": None,
        "minutes": None,
        "num_bases": None,
        "preset": "lab",
        "size": None,
        "epochs": 3,
        "seed": 5,
        "settings": settings,
    }
    assert classifier.get_params() == parameters
    assert classifier.settings is settings
    assert clone(classifier).get_params() == parameters
    assert classifier.set_params(epochs=7, seed=6) is classifier
    assert (classifier.epochs, classifier.seed) == (7, 6)
    assert is_classifier(classifier)


def test_fit_returns_the_classifier_and_follows_it() -> None:
    classifier = tiny(epochs=2)
    assert classifier.fit(TEXTS, NAMES) is classifier
    assert [record.epoch for record in classifier.history_] == [0, 1, 2]
    assert classifier.classifier_.network.settings.train.epochs == 2


def test_probabilities_belong_to_the_classes(fitted: TextClassifier) -> None:
    chances_NC = fitted.predict_proba(TEXTS)
    assert chances_NC.shape == (24, 2)
    assert chances_NC.sum(axis=1) == pytest.approx(np.ones(24))
    assert fitted.classes_.tolist() == ["negative", "positive"]
    predicted = fitted.predict(TEXTS)
    assert predicted.tolist() == [fitted.classes_[row.argmax()] for row in chances_NC]
    assert fitted.score(TEXTS, NAMES) == np.mean(predicted == np.array(NAMES))


def test_probabilities_do_not_depend_on_the_company(fitted: TextClassifier) -> None:
    together = fitted.predict_proba(TEXTS[:5])
    alone = np.concatenate([fitted.predict_proba([text]) for text in TEXTS[:5]])
    assert together == pytest.approx(alone, abs=1e-6)


def test_equal_seeds_give_equal_classifiers(fitted: TextClassifier) -> None:
    again, other = clone(fitted).fit(TEXTS, NAMES), tiny(seed=1).fit(TEXTS, NAMES)
    assert np.array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    assert not np.array_equal(other.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_classifier_learns() -> None:
    learning = {**TINY, "train.lr": 0.01, "model.dropout": 0, "data.max_length": 64}
    classifier = TextClassifier("scratch", epochs=12, settings=learning).fit(TEXTS, NAMES)
    assert classifier.score(TEXTS, NAMES) > 0.8


def test_cross_validation_works() -> None:
    scores = cross_val_score(tiny(), TEXTS, NAMES, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert ((scores >= 0) & (scores <= 1)).all()


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        ([10, 2], [2, 10]),
        (["10", "2"], ["10", "2"]),
        ([True, False], [False, True]),
        (["très bien", "nul"], ["nul", "très bien"]),
    ],
)
def test_labels_keep_their_type_and_order(names: list[Any], classes: list[Any]) -> None:
    labels = [names[row % 2] for row in range(24)]
    classifier = tiny().fit(TEXTS, labels)
    assert classifier.classes_.tolist() == classes
    assert set(classifier.predict(TEXTS).tolist()) <= set(names)


def test_many_classes_keep_their_order() -> None:
    labels = list(range(12)) * 2
    assert tiny().fit(TEXTS, labels).classes_.tolist() == list(range(12))


def test_arrays_are_taken_for_lists(fitted: TextClassifier) -> None:
    classifier = tiny().fit(np.array(TEXTS), np.array(NAMES))
    assert np.array_equal(classifier.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_few_examples_are_all_trained_on() -> None:
    classifier = tiny().fit(["good", "bad", "fine"], ["yes", "no", "yes"])
    assert classifier.predict(["good"]).shape == (1,)


def test_no_texts_have_no_labels(fitted: TextClassifier) -> None:
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict_proba([]).shape == (0, 2)


def test_empty_text_has_a_label(fitted: TextClassifier) -> None:
    assert fitted.predict([""])[0] in fitted.classes_


RECIPE = {"model.width": 16, "model.num_pairs": 200, "tokenizer.size": 400, "data.max_length": 64}


@pytest.fixture(scope="module")
def by_recipe() -> TextClassifier:
    reviews = synthetic_reviews(num_documents=260, seed=1)
    labelled = synthetic_reviews(num_documents=40, seed=2)
    classifier = TextClassifier(num_bases=2, settings={**RECIPE, "data.text_column": "body"})
    return classifier.fit(
        [review.text for review in labelled],
        [int(review.label == "positive") for review in labelled],
        unlabelled=[review.text for review in reviews],
    )


def test_without_a_base_the_recipe_of_fit_is_followed(by_recipe: TextClassifier) -> None:
    assert by_recipe.result_.scores.keys() == {"blend", "linear", "latent", "features"}
    assert (by_recipe.result_.num_train, by_recipe.result_.num_documents) == (40, 300)
    assert by_recipe.classes_.tolist() == [0, 1]
    assert by_recipe.predict(TEXTS).dtype == by_recipe.classes_.dtype
    assert by_recipe.predict_proba(TEXTS).shape == (24, 2)


def test_saved_recipe_predicts_the_same(by_recipe: TextClassifier, tmp_path: Path) -> None:
    run_dir = by_recipe.save(tmp_path / "run")
    for loaded in (TextClassifier.load(run_dir), load_classifier(run_dir)):
        assert np.array_equal(loaded.predict_proba(TEXTS), by_recipe.predict_proba(TEXTS))
        assert loaded.classes_.tolist() == ["0", "1"]
    assert TextClassifier.load(run_dir).result_.run_dir == str(run_dir)


def test_recipe_refuses_what_it_does_not_read(shared_base: Path) -> None:
    with pytest.raises(ConfigError, match="The recipe does not read size, epochs"):
        TextClassifier(size="mini", epochs=2).fit(TEXTS, NAMES)
    with pytest.raises(ConfigError, match="does not read texts without labels"):
        TextClassifier(shared_base).fit(TEXTS, NAMES, unlabelled=["a text"])
    with pytest.raises(DataError, match="X holds 3 examples"):
        TextClassifier().fit(["good", "bad", "fine"], ["yes", "no", "yes"])


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_sets"])
def test_prediction_before_fit_is_refused(method: str) -> None:
    with pytest.raises(NotFittedError):
        getattr(TextClassifier(), method)(["text"])
    with pytest.raises(NotFittedError):
        TextClassifier().score(["text"], ["label"])


def test_save_before_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        TextClassifier().save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", 3, "b"], [0, 1, 0], "Text 2 is of type int, not a string: 3."),
        (["a", None], [0, 1], "Text 2 is of type NoneType, not a string: None."),
        ("ab", [0, 1], "X is one string: 'ab'. X is a list of strings."),
        (["a", "b"], [0], "There are 2 texts and 1 labels."),
        (["a", "b"], ["x", "x"], "y has only one label, 'x'. A classifier needs at least two"),
        ([], [], "There is no example. A classifier needs at least two"),
    ],
)
def test_wrong_input_is_refused(texts: Any, labels: list[Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        tiny().fit(texts, labels)
    assert str(caught.value).startswith(message)


def test_wrong_texts_to_predict_are_refused(fitted: TextClassifier) -> None:
    with pytest.raises(DataError, match="Text 1 is of type float, not a string"):
        fitted.predict([0.5])


def test_wrong_settings_are_refused_at_fit() -> None:
    classifier = TextClassifier("scratch", settings={"train.larning_rate": 1})
    with pytest.raises(ConfigError, match="there is no such setting"):
        classifier.fit(TEXTS, NAMES)


def test_size_of_a_base_cannot_be_changed(shared_base: Path) -> None:
    with pytest.raises(ConfigError, match="size='mini' cannot change the shape of the base"):
        TextClassifier(shared_base, size="mini").fit(TEXTS, NAMES)


def test_saved_classifier_predicts_the_same(fitted: TextClassifier, tmp_path: Path) -> None:
    run_dir = fitted.save(tmp_path / "run")
    assert run_dir == tmp_path / "run"
    for loaded in (TextClassifier.load(run_dir), load_classifier(str(run_dir))):
        assert np.array_equal(loaded.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
        assert loaded.classes_.tolist() == fitted.classes_.tolist()
    with pytest.raises(RunFolderError, match="already holds a run"):
        fitted.save(run_dir)


@pytest.mark.parametrize("at", ["config.json", "run.json", "model.safetensors"])
def test_full_disk_leaves_no_half_classifier(
    fitted: TextClassifier, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def refuse(source: Any, target: Any) -> None:
        if Path(target).name == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(RegraftError, match=rf"The disk is full: .*{at} was not written\."):
            fitted.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert load_classifier(fitted.save(tmp_path / "run")).predict(TEXTS).shape == (24,)


def test_classifier_is_grafted_onto_a_base(shared_base: Path, tmp_path: Path) -> None:
    classifier = tiny(base=shared_base, settings=TRAINING).fit(TEXTS, NAMES)
    assert classifier.classifier_.network.settings.model.width == TINY["model.width"]
    assert classifier.predict_proba(TEXTS).shape == (24, 2)
    loaded = TextClassifier.load(classifier.save(tmp_path / "run"))
    assert loaded.base == str(shared_base)
    assert np.array_equal(loaded.predict_proba(TEXTS), classifier.predict_proba(TEXTS))


def test_run_of_the_command_line_can_be_loaded(shared_classifier: Path) -> None:
    classifier = load_classifier(shared_classifier)
    assert classifier.classes_.tolist() == ["negative", "positive"]
    assert classifier.predict_proba(TEXTS).shape == (24, 2)


def test_base_is_no_classifier(shared_base: Path) -> None:
    with pytest.raises(RunFolderError, match="holds a language-model, not a classifier"):
        load_classifier(shared_base)


def test_temperature_is_kept_with_the_classifier(fitted: TextClassifier, tmp_path: Path) -> None:
    assert fitted.temperature_ is not None
    run_dir = fitted.save(tmp_path / "run")
    assert load_run(run_dir).info.temperature == fitted.temperature_
    assert TextClassifier.load(run_dir).temperature_ == fitted.temperature_


def test_too_few_examples_to_hold_out_leave_probabilities_as_they_are() -> None:
    assert tiny().fit(TEXTS[:2], NAMES[:2]).temperature_ is None
