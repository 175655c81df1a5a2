"""`regraft.fit`: the recipe for what Python callers have at hand."""

import dataclasses
from pathlib import Path
from typing import Any

from regraft.classifiers.estimator import TextClassifier
from regraft.classifiers.inputs import read_labelled, read_unlabelled
from regraft.config import resolve
from regraft.runtime import SILENT, Progress


def fit(
    examples: Any,
    labels: Any = None,
    *,
    text: str = "text",
    label: str = "label",
    unlabelled: Any = None,
    out: str | Path | None = None,
    minutes: float | None = None,
    num_bases: int | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    progress: Progress = SILENT,
) -> TextClassifier:
    """Make the best classifier that these examples and unlabelled texts can give.

    `examples` is a DataFrame (pandas, polars) with the columns `text` and `label`, a file with
    them, a dict {label: texts}, or a list of texts, with `labels` as a second list. `unlabelled`
    is a list, Series or DataFrame of texts, or the path of a file. The run folder is written to
    `out`, if given. Texts are held in memory: for a large file of unlabelled text use the command
    line, or `regraft.classifiers.fit`.
    """
    data = resolve("pretrain", preset="bag", overrides=settings or {}).data
    data = dataclasses.replace(data, text_column=text, label_column=label)
    contents, answers = read_labelled(examples, labels, text=text, label=label, data=data)
    more = read_unlabelled(unlabelled, text=text, data=data)
    classifier = TextClassifier(minutes=minutes, num_bases=num_bases, seed=seed, settings=settings)
    classifier.fit(contents, answers, unlabelled=more, progress=progress)
    if out is not None:
        classifier.save(out)
    return classifier
