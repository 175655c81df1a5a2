"""`regraft.fit`: the recipe for what Python callers have at hand."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regraft.classifiers.abstention import ALWAYS_ANSWER
from regraft.classifiers.base import single_texts
from regraft.classifiers.estimator import TextClassifier
from regraft.classifiers.inputs import read_labelled, read_unlabelled
from regraft.classifiers.updating import fitted_data, update_examples
from regraft.config import resolve
from regraft.data import Content, Example
from regraft.errors import ConfigError, DataError
from regraft.runtime import SILENT, Progress, scratch_folder


def fit(
    examples: Any,
    labels: Any = None,
    *,
    text: str = "text",
    label: str = "label",
    unlabelled: Any = None,
    base: str | Path | None = None,
    out: str | Path | None = None,
    minutes: float | None = None,
    num_bases: int | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    update: str | Path | None = None,
    progress: Progress = SILENT,
) -> TextClassifier:
    """Make the best classifier that these examples and unlabelled texts can give.

    `examples` is a DataFrame (pandas, polars) with the columns `text` and `label`, a file with
    them, a dict {label: texts}, or a list of texts, with `labels` as a second list. `unlabelled` is
    a list, Series or DataFrame of texts, or the path of a file. `base` is an encoder on disk, which
    becomes one more member. The run folder is written to `out`, if given. Texts are held in memory:
    for a large file of unlabelled text use the command line, or `regraft.classifiers.fit`.

    `update` is the run folder of an earlier fit: the examples, and their classes, are added to its
    own, and its bases stay. `result_.update` says how the score changed.
    """
    data = resolve("fit", preset="bag", overrides=settings or {}).data
    data = dataclasses.replace(data, text_column=text, label_column=label)
    contents, answers = read_labelled(examples, labels, text=text, label=label, data=data)
    if update is not None:
        given = {"unlabelled": unlabelled, "base": base, "minutes": minutes}
        given |= {"num_bases": num_bases}
        _refuse_new({**given, "settings": settings})
        return _updated(Path(update), contents, answers, out=out, progress=progress)
    more = read_unlabelled(unlabelled, text=text, data=data)
    classifier = TextClassifier(
        encoder=base, minutes=minutes, num_bases=num_bases, seed=seed, settings=settings
    )
    classifier.fit(contents, answers, unlabelled=more, progress=progress)
    if out is not None:
        classifier.save(out)
    return classifier


def _refuse_new(given: dict[str, Any]) -> None:
    if wrong := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"{', '.join(wrong)} cannot change a run that is updated.",
            "It keeps its bases and settings.",
            remedy="Omit it, or fit again without update.",
        )


def _updated(
    run_dir: Path,
    contents: Sequence[Content],
    answers: Sequence[Any],
    *,
    out: str | Path | None,
    progress: Progress,
) -> TextClassifier:
    """The run with more examples; in a temporary folder if none is given."""
    data = fitted_data(run_dir)
    examples = [
        _example(text, answer, row=row, separator=data.label_separator)
        for row, (text, answer) in enumerate(zip(single_texts(contents), answers, strict=True), 1)
    ]
    with scratch_folder("fit") as folder:
        result = update_examples(
            run_dir,
            examples,
            out=out or folder / "run",
            data=data,
            files={},
            abstention=ALWAYS_ANSWER,
            progress=progress,
        )
        classifier = TextClassifier.load(result.run_dir)
    if all(isinstance(answer, int | np.integer) for answer in answers):
        # As they were given: files hold names. The run may have others, which are no numbers.
        with contextlib.suppress(ValueError):
            classifier.classes_ = np.array([int(name) for name in classifier.classes_])
    return classifier


def _example(text: str, answer: Any, *, row: int, separator: str | None) -> Example:
    is_set = isinstance(answer, set | frozenset | list | tuple)
    if is_set != (separator is not None):
        raise DataError(
            f"Label {row} is {answer!r:.60}, and the run to update has "
            f"{'one label' if separator is None else 'a set of labels'} per text.",
            remedy="Pass labels as those of the run.",
        )
    if separator is None:
        return Example(text, str(answer), "examples", row)
    names = tuple(sorted(map(str, answer)))
    return Example(text, separator.join(names), "examples", row, labels=names)
