"""TextClassifier: scikit-learn's contract, and the run folder it shares with the command line."""

import dataclasses
import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from conftest import TINY, make_examples
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import regraft
from regraft.classifiers.base import load_classifier
from regraft.classifiers.estimator import TextClassifier, _names_inside, _renamed
from regraft.classifiers.inputs import column_names, is_missing, values_of
from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.label_issues import LabelIssue
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
        "target_accuracy": None,
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
    loaded = TextClassifier.load(run_dir)
    assert loaded.classes_.tolist() == [0, 1]
    assert load_classifier(run_dir).labels == ("0", "1")
    assert loaded.result_ == by_recipe.result_
    assert loaded.result_.run_dir == str(run_dir)
    assert loaded.label_issues_ == by_recipe.label_issues_
    assert load_classifier(run_dir).data.text_column == "body"


def test_labels_of_issues_are_those_of_the_caller(by_recipe: TextClassifier) -> None:
    assert by_recipe.result_.labels == ("0", "1")
    assert {issue.label for issue in by_recipe.label_issues_} <= {"0", "1"}
    issue = LabelIssue(row=8, id="", text="a", label="0,2", proposal="2", confidence=0.9)
    names = {"0": "food", "2": "travel"}
    renamed = _renamed(issue, names, separator=",")
    assert (renamed.label, renamed.proposal) == ("food,travel", "travel")
    single = _renamed(dataclasses.replace(issue, label="0"), names, separator=None)
    assert (single.label, single.proposal) == ("food", "travel")


def test_messages_name_labels_as_they_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    reviews = synthetic_reviews(num_documents=30, seed=5)
    texts = [review.text for review in reviews]
    names = ["rare", *(review.label for review in reviews[1:])]
    with pytest.raises(DataError, match=r"The data has one example only of 'rare'\. .*Label one"):
        TextClassifier(num_bases=1).fit(texts, names)
    with pytest.raises(DataError, match=r"of 'id 0', .* and 25 more\. .*Is this a column of ids"):
        TextClassifier(num_bases=1).fit(texts, [f"id {row}" for row in range(30)])
    TextClassifier("scratch", epochs=1, settings=TINY).fit(texts, names)
    assert _names_inside(np.array(["a", "b"]), has_sets=False) == ["a", "b"]
    assert _names_inside(np.array(["a", "b"]), has_sets=True) == ["0", "1"]
    assert _names_inside(np.array([2, 10]), has_sets=False) == ["0", "1"]


def test_result_is_shown_in_a_few_lines(by_recipe: TextClassifier) -> None:
    first, *others = repr(by_recipe.result_).splitlines()
    assert first == "accuracy by cross-validation of 40 labelled texts"
    names = [line.split(":")[0].strip() for line in others]
    assert names[:4] == ["blend", "linear", "latent", "features"]
    assert re.match(r"  linear: \d+\.\d % \(.* to .*\), weight \d\.\d\d$", others[1])


@pytest.mark.parametrize("kind", [pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_table_is_predicted_with_its_columns(by_recipe: TextClassifier, kind: Any) -> None:
    bodies = [TEXTS[0], None, TEXTS[1], "  "]
    table = kind({"id": [7, 8, 9, 10], "body": bodies})
    answered = by_recipe.predict_table(table)
    assert type(answered) is type(table)
    columns = ["predicted_label", "predicted_probability", "p(0)", "p(1)"]
    assert column_names(answered) == ["id", "body", *columns]
    assert values_of(answered["id"]) == [7, 8, 9, 10]
    labels = values_of(answered["predicted_label"])
    assert [labels[0], labels[2]] == by_recipe.predict(TEXTS[:2]).tolist()
    assert is_missing(labels[1])
    assert is_missing(labels[3])
    found = values_of(answered["p(1)"])
    assert [found[0], found[2]] == pytest.approx(by_recipe.predict_proba(TEXTS[:2])[:, 1], abs=1e-6)
    assert is_missing(found[1])
    best = by_recipe.predict_table(table, "body", top_k=1)
    assert column_names(best)[2:] == [*columns[:2], "top_1", "p(top_1)"]
    unsure = by_recipe.predict_table(table, abstain_below=1.0)
    assert all(map(is_missing, values_of(unsure["predicted_label"])))
    again = by_recipe.predict_table(answered)
    assert column_names(again)[-1] == "p(1)_2"


def test_gapped_index_is_kept(by_recipe: TextClassifier) -> None:
    frame = pandas.DataFrame({"body": TEXTS[:9]})[::4]
    answered = by_recipe.predict_table(frame)
    assert answered.index.tolist() == [0, 4, 8]
    assert answered["predicted_label"].tolist() == by_recipe.predict(frame["body"]).tolist()
    assert by_recipe.predict_table(frame[:0]).columns[-1] == "p(1)"


def test_table_to_predict_is_checked(by_recipe: TextClassifier) -> None:
    frame = pandas.DataFrame({"body": TEXTS[:2], "number": [1, 2]})
    with pytest.raises(DataError, match=r"no column 'text'\..*'body', 'number'"):
        by_recipe.predict_table(frame, "text")
    with pytest.raises(DataError, match=r"Text 1 is of type int, not a string"):
        by_recipe.predict_table(frame, "number")
    with pytest.raises(DataError, match=r"of type list\. predict_table takes a DataFrame"):
        by_recipe.predict_table(TEXTS)
    with pytest.raises(ConfigError, match="top_k is 0"):
        by_recipe.predict_table(frame, top_k=0)
    with pytest.raises(ConfigError, match="abstain_below is 80"):
        by_recipe.predict_table(frame, abstain_below=80)


def test_target_accuracy_empties_labels_of_a_table() -> None:
    reviews = synthetic_reviews(num_documents=60, seed=3)
    frame = pandas.DataFrame(
        {"text": [review.text for review in reviews], "label": [review.label for review in reviews]}
    )
    classifier = regraft.fit(frame, num_bases=1, settings=RECIPE, target_accuracy=1.0)
    below = classifier.classifier_.abstain_below
    assert below is not None
    answered = classifier.predict_table(frame)
    is_sure = answered["predicted_probability"] >= below
    assert answered["predicted_label"].notna().tolist() == is_sure.tolist()
    with pytest.raises(ConfigError, match=r"target_accuracy='0\.9' is for the recipe"):
        tiny(target_accuracy=0.9).fit(TEXTS, NAMES)


def test_score_compares_numbers_with_labels_of_a_file(
    by_recipe: TextClassifier, tmp_path: Path
) -> None:
    reviews = synthetic_reviews(num_documents=30, seed=4)
    texts = [review.text for review in reviews]
    y = [int(review.label == "positive") for review in reviews]
    run_dir = by_recipe.save(tmp_path / "run")
    (run_dir / "label_type.json").unlink()
    loaded = TextClassifier.load(run_dir)
    assert loaded.classes_.tolist() == ["0", "1"]
    assert loaded.score(texts, y) == by_recipe.score(texts, y) > 0


def test_rows_without_text_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [*TEXTS[:2], None, *TEXTS[2:], " "]
    labels = [*NAMES[:2], None, *NAMES[2:], "other"]
    classifier = tiny().fit(texts, labels, progress=regraft.ProgressLines())
    assert classifier.classes_.tolist() == sorted(set(NAMES))
    assert "The data: left out 2 rows without text: 3, 26." in capsys.readouterr().err
    with pytest.raises(DataError, match="All 2 texts are empty"):
        tiny().fit(["", None], ["a", "b"])


def test_recipe_refuses_what_it_does_not_read(shared_base: Path) -> None:
    with pytest.raises(ConfigError, match="The recipe does not read size, epochs"):
        TextClassifier(size="mini", epochs=2).fit(TEXTS, NAMES)
    with pytest.raises(ConfigError, match="does not read texts without labels"):
        TextClassifier(shared_base).fit(TEXTS, NAMES, unlabelled=["a text"])
    with pytest.raises(DataError, match="The data holds 3 examples"):
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
        (["a", "b"], "label", "The labels are one string: 'label'."),
        ("ab", [0, 1], "X is one string: 'ab'. X is a list of strings."),
        (["a", "b"], [0], "There are 2 texts and 1 labels."),
        (
            ["a", "b"],
            ["x", "x"],
            "The data has only one label, 'x'. A classifier needs at least two",
        ),
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
    gapped = pandas.Series(["a", None, "b", float("nan")], index=[3, 17, 20, 21])
    with pytest.raises(DataError, match=r"Text 2 \(index 17\) is missing, as is 1 other\."):
        fitted.predict(gapped)


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
