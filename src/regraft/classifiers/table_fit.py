"""`regraft.fit`: the recipe for what Python callers have at hand."""

import dataclasses
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from regraft.classifiers.abstention import ALWAYS_ANSWER
from regraft.classifiers.base import single_texts
from regraft.classifiers.estimator import TextClassifier
from regraft.classifiers.inputs import (
    checked_examples,
    in_memory_examples,
    read_labelled,
    read_unlabelled,
)
from regraft.classifiers.label_types import label_type, typed_labels, write_label_type
from regraft.classifiers.updating import fitted_data, update_examples
from regraft.config import resolve
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Progress, scratch_folder
from regraft.training import RunFolder


def fit(
    examples: Any,
    labels: Any = None,
    *,
    text: Hashable = "text",
    label: Hashable = "label",
    unlabelled: Any = None,
    base: str | Path | None = None,
    out: str | Path | None = None,
    minutes: float | None = None,
    num_bases: int | None = None,
    target_accuracy: float | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    update: str | Path | None = None,
    progress: Progress = SILENT,
) -> TextClassifier:
    """Make the best classifier that these examples and unlabelled texts can give.

    `examples` is a DataFrame (pandas, polars) with the columns `text` and `label`, a file with
    them, a dict {label: texts}, or a list of texts, with `labels` as a second list. `unlabelled` is
    a list, Series or DataFrame of texts, or the path of a file. Rows without text are left out.
    `base` is an encoder on disk, which becomes one more member. The run folder is written to `out`,
    if given. Texts are held in memory: for a large file of unlabelled text use the command line, or
    `regraft.classifiers.fit`.

    It takes about `minutes` (30), or makes `num_bases`, and is silent: pass
    `progress=regraft.ProgressLines()` to see how far it is. `target_accuracy`, such as 0.95,
    chooses the confidence below which `predict_table` does not answer.

    `update` is the run folder of an earlier fit: the examples, and their classes, are added to its
    own, and its bases stay. `result_.update` says how the score changed.
    """
    data = resolve("fit", preset="bag", overrides=settings or {}).data
    data = dataclasses.replace(data, text_column=str(text), label_column=str(label))
    X, y = read_labelled(examples, labels, text=text, label=label, data=data)
    if update is not None:
        given = {"unlabelled": unlabelled, "base": base, "minutes": minutes}
        given |= {"num_bases": num_bases, "target_accuracy": target_accuracy}
        _refuse_new({**given, "settings": settings})
        return _updated(Path(update), X, y, out=out, progress=progress)
    more = read_unlabelled(unlabelled, text=text, data=data)
    columns = {"data.text_column": data.text_column, "data.label_column": data.label_column}
    classifier = TextClassifier(
        encoder=base,
        minutes=minutes,
        num_bases=num_bases,
        target_accuracy=target_accuracy,
        seed=seed,
        settings={**(settings or {}), **columns},
    )
    if out is not None:
        RunFolder(Path(out)).check_free(resume=False)  # now, and not after all the minutes
    classifier.fit(X, y, unlabelled=more, progress=progress)
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
    run_dir: Path, X: Any, y: Any, *, out: str | Path | None, progress: Progress
) -> TextClassifier:
    """The run with more examples; in a temporary folder if none is given."""
    data = fitted_data(run_dir)
    given = checked_examples(X, y, progress=progress)
    single_texts(given.contents)
    examples = in_memory_examples(given, separator=data.label_separator)
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
    # As they were given: files hold names. The run may have others, which are no numbers.
    kind = None if data.label_separator is not None else label_type(given.labels)
    if (classes := typed_labels(classifier.classifier_.labels, kind=kind)) is not None:
        classifier.classes_ = classes
        if out is not None:
            write_label_type(Path(out), kind)
    return classifier
