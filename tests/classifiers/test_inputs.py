"""Texts and labels as Python callers have them: frames, Series, arrays, dicts, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from conftest import make_examples, write_examples
from tiny_blends import TINY_BAG, light_blend

import regraft
from regraft.classifiers.inputs import (
    checked_contents,
    checked_examples,
    checked_labels,
    checked_texts,
    read_labelled,
    read_unlabelled,
)
from regraft.config.schema import DataSettings
from regraft.data.synthetic import synthetic_reviews
from regraft.errors import DataError

TEXTS = [text for text, _ in make_examples(12)]
NAMES = [label for _, label in make_examples(12)]
COLUMNS = {"id": list(range(12)), "message": TEXTS, "queue": NAMES}
FRAMES = [pandas.DataFrame(COLUMNS), polars.DataFrame(COLUMNS), pyarrow.table(COLUMNS)]
DATA = DataSettings()


def labelled(examples: Any, labels: Any = None, **columns: str) -> tuple[list[Any], list[Any]]:
    X, y = read_labelled(
        examples, labels, data=DATA, **{"text": "text", "label": "label", **columns}
    )
    given = checked_examples(X, y)
    return list(given.contents), given.labels


@pytest.mark.parametrize("frame", FRAMES)
def test_named_columns_of_a_frame_are_read(frame: Any) -> None:
    assert labelled(frame, text="message", label="queue") == (TEXTS, NAMES)
    assert read_unlabelled(frame, text="message", data=DATA) == TEXTS


@pytest.mark.parametrize("frame", FRAMES)
def test_frame_without_the_column_names_its_columns(frame: Any) -> None:
    with pytest.raises(DataError) as caught:
        labelled(frame, label="queue")
    assert "has no column 'text'" in str(caught.value)
    assert "'id', 'message', 'queue'" in str(caught.value)
    with pytest.raises(DataError, match=r"has no column 'label'\..*Pass label="):
        labelled(frame, text="message")


def test_columns_may_be_numbers_and_must_be_single() -> None:
    assert labelled(pandas.DataFrame({0: TEXTS, 1: NAMES}), text=0, label=1) == (TEXTS, NAMES)
    twice = pandas.DataFrame([[text, text, "a"] for text in TEXTS], columns=["text", "text", "y"])
    with pytest.raises(DataError, match=r"more than one column 'text'.*Rename or drop"):
        labelled(twice, label="y")


def test_missing_cells_of_a_frame_are_found() -> None:
    frame = pandas.DataFrame({"text": [*TEXTS, None], "label": [*NAMES, None]})
    assert labelled(frame) == (TEXTS, NAMES)
    assert read_unlabelled(frame, text="text", data=DATA) == TEXTS
    frame.loc[[2, 4], "label"] = None
    with pytest.raises(DataError, match=r"Label 3 is missing, as is 1 other"):
        labelled(frame)
    with pytest.raises(DataError, match=r"Label 3 \(index 102\) is missing"):
        labelled(frame.set_index(pandas.RangeIndex(100, 113)))
    categories = frame.dropna().astype({"label": "category"})
    assert labelled(categories)[1] == categories["label"].tolist()


def test_column_that_holds_texts_is_proposed() -> None:
    frame = pandas.DataFrame({"id": [f"V-{row}" for row in range(12)], "body": TEXTS})
    with pytest.raises(DataError, match=r"such as X\['body'\]"):
        checked_texts(frame)
    with pytest.raises(DataError, match=r"no column 'text'.*such as unlabelled\['body'\]"):
        read_unlabelled(frame, text="text", data=DATA)


def test_name_of_a_column_for_labels_is_refused() -> None:
    frame = pandas.DataFrame({"text": TEXTS, "queue": NAMES})
    with pytest.raises(DataError, match=r'labels are one string: .queue.*pass label="queue"'):
        labelled(frame, "queue")
    with pytest.raises(DataError, match="There are 12 texts and 3 labels"):
        labelled(TEXTS, NAMES[:3])


@pytest.mark.parametrize("frame", FRAMES)
def test_frame_where_texts_are_expected_is_refused(frame: Any) -> None:
    with pytest.raises(DataError, match=r"X is a table with the columns 'id', 'message', 'queue'"):
        checked_contents(frame)
    with pytest.raises(DataError, match=r"such as X\['message'\]"):
        checked_texts(frame)
    with pytest.raises(DataError, match="y is a table"):
        checked_labels(frame)


@pytest.mark.parametrize("series", [pandas.Series, polars.Series, np.array, pyarrow.array, tuple])
def test_series_and_arrays_are_lists(series: Any) -> None:
    assert labelled(series(TEXTS), series(NAMES)) == (TEXTS, NAMES)
    assert read_unlabelled(series(TEXTS), text="text", data=DATA) == TEXTS
    assert checked_labels(series([1, 2])) == [1, 2]


def test_texts_by_label_and_by_column_are_read() -> None:
    assert labelled({"good": ["a", "b"], "bad": ["c"]}) == (
        ["a", "b", "c"],
        ["good", "good", "bad"],
    )
    assert labelled({"text": TEXTS, "label": NAMES}) == (TEXTS, NAMES)
    with pytest.raises(DataError, match="X is one string: 'abc'"):
        labelled({"good": "abc", "bad": ["c"]})


def test_files_are_read_and_letters_are_not(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "train.csv", 12)
    for given in (path, str(path)):
        assert labelled(given) == (TEXTS, NAMES)
        assert read_unlabelled(given, text="text", data=DATA) == TEXTS
    assert read_unlabelled([path], text="text", data=DATA) == TEXTS
    with pytest.raises(DataError, match=r"There is no file or folder 'texts\.txt'"):
        labelled("texts.txt")
    with pytest.raises(DataError, match=r"names of files, .*pathlib\.Path"):
        read_unlabelled([str(path)], text="text", data=DATA)


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, pandas.NA, pandas.NaT])
def test_missing_label_is_refused_with_its_place(missing: Any) -> None:
    with pytest.raises(DataError, match="Label 2 is missing"):
        regraft.TextClassifier("scratch").fit(["a", "b"], ["x", missing])


def test_texts_without_labels_are_refused() -> None:
    with pytest.raises(DataError, match="texts and no labels"):
        labelled(TEXTS)


def test_frame_is_fitted_and_series_are_predicted(tmp_path: Path) -> None:
    reviews = synthetic_reviews(num_documents=260, seed=1)
    examples = synthetic_reviews(num_documents=40, seed=2)
    frame = pandas.DataFrame(
        {"message": [e.text for e in examples], "queue": [e.label for e in examples]}
    )
    classifier = regraft.fit(
        frame,
        text="message",
        label="queue",
        unlabelled=polars.Series([review.text for review in reviews]),
        num_bases=1,
        settings=TINY_BAG,
        out=tmp_path / "run",
    )
    assert classifier.result_.num_documents == 300
    texts = frame["message"][:5]
    expected = classifier.predict_proba(texts.tolist())
    for given in (texts, polars.Series(texts.tolist()), texts.to_numpy()):
        assert np.array_equal(classifier.predict_proba(given), expected)
    with pytest.raises(DataError, match="X is a table"):
        classifier.predict(frame)
    assert regraft.load_classifier(tmp_path / "run").labels == ("negative", "positive")


def test_frame_is_evaluated_like_its_file(tmp_path: Path) -> None:
    classifier = light_blend()
    classifier.save(tmp_path / "run")
    reviews = synthetic_reviews(num_documents=20, seed=6)
    frame = pandas.DataFrame(
        {"text": [e.text for e in reviews], "label": [e.label for e in reviews]}
    )
    frame.to_csv(tmp_path / "test.csv", index=False)
    expected = regraft.evaluate(tmp_path / "run", tmp_path / "test.csv")
    estimator = regraft.TextClassifier()
    estimator.classifier_ = classifier
    renamed = frame.rename(columns={"text": "message", "label": "queue"})
    for given in (
        regraft.evaluate(tmp_path / "run", frame),
        regraft.evaluate(estimator, renamed, text="message", label="queue"),
        regraft.evaluate(classifier, frame["text"], frame["label"]),
    ):
        assert given.accuracy == expected.accuracy
        assert given.confusion == expected.confusion
    assert repr(expected).startswith("accuracy ")
    assert len(repr(expected).splitlines()) == 3
