"""TextClassifier: `fit` and `finetune` as a scikit-learn estimator over one Classifier."""

import dataclasses
import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from regraft.classifiers.abstention import ALWAYS_ANSWER, Abstention, check_share
from regraft.classifiers.base import Classifier, load_classifier
from regraft.classifiers.blend import Blend
from regraft.classifiers.epochs import EpochRecord
from regraft.classifiers.finetuning import finetune_examples
from regraft.classifiers.fit_plan import FitLimit
from regraft.classifiers.fit_result import FitResult
from regraft.classifiers.fitting import fit_examples
from regraft.classifiers.held_out import ISSUES_NAME
from regraft.classifiers.inputs import (
    SOURCE,
    checked_contents,
    checked_examples,
    checked_labels,
    checked_texts,
    column_names,
    column_of,
    with_blanks,
    with_columns,
)
from regraft.classifiers.kept_examples import KeptExamples
from regraft.classifiers.label_types import label_type, read_labels, write_label_type
from regraft.classifiers.starts import Start, start_from_base, start_from_scratch, texts_of
from regraft.classifiers.table_prediction import Answers
from regraft.config import LABEL_SEPARATORS, SINGLE_TEXTS, Task, check_task, replace, resolve
from regraft.data import (
    VALID_SHARE,
    Column,
    Content,
    Example,
    LabelIssue,
    check_trainable,
    examples_fingerprint,
    labels_of,
    read_label_issues,
    split_examples,
    write_label_issues,
)
from regraft.errors import ConfigError, DataError
from regraft.runtime import SILENT, Progress, scratch_folder, write_text
from regraft.training import RunFolder, RunInfo, load_base, read_base_settings, read_info

# Instead of a base: all weights are new.
SCRATCH = "scratch"

# The column of second texts in the settings of a run whose texts did not come from a file.
PAIR_COLUMN = "pair"


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A text classifier: the recipe of `regraft fit`, or a new head on a base of your own.

    base: None for the recipe, which pre-trains its own bases; else the base to fine-tune: run
    folder of a language model, Hugging Face folder, checkpoint of the lab, or "scratch". encoder:
    such a base for the recipe, which reads its vectors. minutes: time budget of the recipe (30).
    num_bases: number of its bases, instead of minutes. target_accuracy: of the recipe, chooses the
    confidence below which `predict_table` does not answer. preset, size: as on the command line (by
    default the base's own). epochs: passes over the data when fine-tuning. seed: of weights, order
    and dropout. settings: others by name, such as {"train.lr": 3e-4}.

    X is a list, Series or array of texts or, for fine-tuning, of pairs: tuples of two texts. Labels
    may be strings or numbers; `classes_` holds them as they were given. A text may have any number
    of labels: y is then a list of sets, or scikit-learn's N x C array of 0 and 1.

    After `fit`, `classifier_` is the fitted Classifier. Of the recipe, `result_` has the scores by
    cross-validation, and `label_issues_` the labels that may be wrong, in a list of dataclasses.
    """

    classifier_: Classifier
    result_: FitResult
    label_issues_: list[LabelIssue]
    # Of the recipe: a saved run keeps them, so that labels can be added to it.
    _kept: KeptExamples | None = None

    def __init__(
        self,
        base: str | Path | None = None,
        *,
        encoder: str | Path | None = None,
        minutes: float | None = None,
        num_bases: int | None = None,
        target_accuracy: float | None = None,
        preset: str | None = None,
        size: str | None = None,
        epochs: int | None = None,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.base = base
        self.encoder = encoder
        self.minutes = minutes
        self.num_bases = num_bases
        self.target_accuracy = target_accuracy
        self.preset = preset
        self.size = size
        self.epochs = epochs
        self.seed = seed
        self.settings = settings

    def fit(
        self,
        X: Iterable[object],
        y: Iterable[object],
        *,
        unlabelled: Iterable[object] | None = None,
        progress: Progress = SILENT,
    ) -> "TextClassifier":
        """Learn from texts and labels, and with the recipe from unlabelled texts as well.

        Rows whose text is missing or blank are left out; `progress` names them.

        The recipe reports its cross-validated scores in `result_`. Fine-tuning holds some examples
        out, records the accuracy on them (`history_`) and calibrates the probabilities with them
        (`temperature_`), if possible (see `neural.calibrate`).
        """
        given = checked_examples(X, y, progress=progress)
        classes, answers, has_sets = _classes_of(given.labels)
        check_trainable([Example("", str(classes[t]), SOURCE, 1) for each in answers for t in each])
        inside = _names_inside(classes, has_sets=has_sets)
        examples = [
            _example(content, [inside[t] for t in each], row=row, has_sets=has_sets)
            for row, content, each in zip(given.rows, given.contents, answers, strict=True)
        ]
        self._kept = None
        if self.base is None:
            classifier = self._fit_recipe(
                examples,
                classes=classes,
                unlabelled=[] if unlabelled is None else checked_texts(with_blanks(unlabelled)),
                progress=progress,
            )
        else:
            if unlabelled is not None:
                raise ConfigError(
                    "Fine-tuning a base does not read texts without labels.",
                    "A base has learned from text already.",
                    remedy="Omit unlabelled, or pass base=None for the whole recipe.",
                )
            for name in ("encoder", "target_accuracy"):
                if (value := getattr(self, name)) is not None:
                    raise ConfigError(
                        f"{name}={str(value)!r} is for the recipe, and base says what to "
                        "fine-tune.",
                        remedy="Omit one of them.",
                    )
            classifier = self._finetune(examples, classes=classes, progress=progress)
        self.classes_ = classes
        self.classifier_ = classifier.renamed([str(label) for label in classes])
        if self._kept is not None:
            names = dict(zip(inside, map(str, classes), strict=True))
            separator = classifier.data.label_separator
            self._kept = self._kept.renamed(names, separator=separator)
            self.label_issues_ = [
                _renamed(issue, names, separator=separator) for issue in self.label_issues_
            ]
            self.result_ = dataclasses.replace(self.result_, labels=self.classifier_.labels)
        return self

    def predict_proba(
        self, X: Iterable[object], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C probabilities; columns are `classes_`.

        Rows add up to 1, unless a text may have any number of labels.
        """
        check_is_fitted(self, "classes_")
        return self.classifier_.predict_proba(checked_contents(X), progress=progress)

    def predict(self, X: Iterable[object]) -> NDArray[Any]:
        """The most probable label of every text.

        For label sets: N x C, 1 for each label that reaches its threshold.
        """
        probabilities_NC = self.predict_proba(X)
        if self.classifier_.thresholds:
            return (probabilities_NC >= np.array(self.classifier_.thresholds)).astype(np.int64)
        predicted: NDArray[Any] = self.classes_[probabilities_NC.argmax(axis=1)]
        return predicted

    def predict_table(
        self,
        table: Any,
        text: Hashable = None,
        *,
        top_k: int | None = None,
        abstain_below: float | None = None,
        progress: Progress = SILENT,
    ) -> Any:
        """The DataFrame with columns added, as those of `regraft predict`.

        They are `predicted_label`, `predicted_probability` and `p(LABEL)` for each label or, with
        `top_k`, `top_1`, `p(top_1)` and so on. `text` is the column of texts, by default the one
        that it was fitted on. A row without text has no prediction, and one whose confidence is
        below `abstain_below` no label; by default that is what `target_accuracy` has chosen.
        """
        check_is_fitted(self, "classes_")
        names = column_names(table)
        if names is None:
            raise DataError(
                f"The table is of type {type(table).__name__}.",
                "predict_table takes a DataFrame.",
                remedy="Pass lists and Series to predict or predict_proba.",
            )
        check_share("abstain_below", abstain_below)
        if top_k is not None and top_k < 1:
            raise ConfigError(f"top_k is {top_k}.", "It is at least 1.", remedy="Pass 3.")
        classifier = self.classifier_
        if classifier.task.has_pairs:
            raise ConfigError(
                "predict_table reads one text per row, and this classifier reads pairs.",
                remedy="Pass a list of tuples to predict.",
            )
        column = column_of(
            table, classifier.data.text_column if text is None else text, parameter="text"
        )
        texts = checked_texts(with_blanks(column))
        has_text = [bool(one.strip()) for one in texts]
        rows_NC = np.full((len(texts), len(classifier.labels)), np.nan)
        if any(has_text):
            asked = [one for one, is_asked in zip(texts, has_text, strict=True) if is_asked]
            rows_NC[has_text] = classifier.predict_proba(asked, progress=progress)
        answers = Answers(
            classifier.labels,
            classifier.thresholds,
            separator=None,
            abstain_below=classifier.abstain_below if abstain_below is None else abstain_below,
            top_k=top_k,
        )
        columns = answers.columns([Column(str(name), "text") for name in names])
        rows = [answers.cells(probabilities) for probabilities in rows_NC.tolist()]
        added = {each.name: [row[at] for row in rows] for at, each in enumerate(columns)}
        # Labels as they were given, which may be numbers.
        originals = dict(zip(classifier.labels, self.classes_.tolist(), strict=True))
        for each in columns:
            if each.kind != "probability":
                added[each.name] = [_original(name, originals) for name in added[each.name]]
        return with_columns(table, added)

    def predict_sets(self, X: Iterable[object]) -> list[tuple[Any, ...]]:
        """The labels of every text, if it may have any number of them."""
        check_is_fitted(self, "classes_")
        if not self.classifier_.task.has_label_sets:
            raise ConfigError(
                "This classifier gives every text one label.", remedy="Use predict instead."
            )
        return [tuple(self.classes_[row == 1].tolist()) for row in self.predict(X)]

    def score(self, X: Iterable[object], y: Iterable[object], sample_weight: Any = None) -> float:
        """Accuracy; for label sets, the share of texts whose labels are all correct."""
        check_is_fitted(self, "classes_")
        if self.classifier_.task.has_label_sets and not _is_indicator(y):
            sets = [{str(label) for label in _as_set(labels)} for labels in checked_labels(y)]
            names = self.classifier_.labels
            if unknown := sorted(set().union(*sets).difference(names)):
                raise DataError(
                    f"y holds the label {unknown[0]!r}, which was not in the training data.",
                    f"This classifier knows {', '.join(map(repr, names))}.",
                    remedy="Remove such labels, or train with them.",
                )
            y = np.array([[name in labels for name in names] for labels in sets])
        elif not self.classifier_.task.has_label_sets:
            y = checked_labels(y)
            if set(y).isdisjoint(self.classes_.tolist()):
                # 1 in a DataFrame is "1" in the file that a run was made from.
                expected, predicted = list(map(str, y)), list(map(str, self.predict(X).tolist()))
                return float(accuracy_score(expected, predicted, sample_weight=sample_weight))
        return float(super().score(X, y, sample_weight=sample_weight))

    @property
    def temperature_(self) -> float | None:
        """What the scores were divided by for calibration; None if they were not calibrated."""
        check_is_fitted(self, "classes_")
        return self.classifier_.temperature

    def save(self, run_dir: str | Path) -> Path:
        """Write a run folder, as the command line does, which `write_report` makes a report of."""
        check_is_fitted(self, "classes_")
        folder = RunFolder(Path(run_dir))
        folder.check_free(resume=False)
        self.classifier_.save(folder.run_dir)
        write_label_type(folder.run_dir, label_type(self.classes_))
        if self._kept is not None:
            self._kept.save(folder.run_dir)
            write_label_issues(folder.run_dir / ISSUES_NAME, self.label_issues_)
            self.result_ = dataclasses.replace(self.result_, run_dir=str(folder.run_dir))
        return folder.run_dir

    @classmethod
    def load(cls, run_dir: str | Path) -> "TextClassifier":
        """An estimator from its run folder, ready to predict."""
        classifier = load_classifier(run_dir)
        if (run := classifier.network) is not None:
            base = SCRATCH if run.info.base is None else run.info.base["run_dir"]
            estimator = cls(base=base, preset=run.settings.preset, seed=run.settings.train.seed)
        else:
            estimator = cls()
            info = read_info(Path(run_dir))
            if "weights" in info.result:
                estimator.result_ = FitResult.from_dict(info.result)
                result = estimator.result_
                estimator.minutes = result.minutes
                estimator.num_bases = result.num_bases if result.minutes is None else None
            if (path := Path(run_dir) / ISSUES_NAME).exists():
                estimator.label_issues_ = read_label_issues(path)
        estimator.classifier_ = classifier
        estimator.classes_ = read_labels(Path(run_dir), classifier.labels)
        return estimator

    def _fit_recipe(
        self,
        examples: Sequence[Example],
        *,
        classes: NDArray[Any],
        unlabelled: Sequence[str],
        progress: Progress,
    ) -> Classifier:
        task = _task_of(examples)
        if task not in SINGLE_TEXTS:
            raise ConfigError(
                f"The recipe supports {' or '.join(map(str, SINGLE_TEXTS))}, not {task}.",
                remedy='Pass a base to fine-tune, such as base="scratch".',
            )
        unread = {"preset": self.preset, "size": self.size, "epochs": self.epochs}
        if given := [name for name, value in unread.items() if value is not None]:
            raise ConfigError(
                f"The recipe does not read {', '.join(given)}.",
                "It makes its own bases in the time budget `minutes`.",
                remedy=f"Omit {'it' if len(given) == 1 else 'them'}, or pass a base to fine-tune, "
                'such as base="scratch".',
            )
        columns: dict[str, Any] = {}
        if task.has_label_sets:
            columns["data.label_separator"] = _free_separator(classes)
        settings = resolve(
            "fit",
            preset="bag",
            overrides={"train.seed": self.seed, **columns, **(self.settings or {})},
        )
        with scratch_folder("fit") as folder:
            paths = {name: folder / f"{name}.jsonl" for name in ("labelled", "unlabelled")}
            _write_texts(paths["labelled"], [example.text for example in examples])
            _write_texts(paths["unlabelled"], unlabelled)
            self.result_ = fit_examples(
                examples,
                valid_examples=[],
                texts=[paths["unlabelled"]] if unlabelled else [],
                labelled=paths["labelled"],
                encoder=None if self.encoder is None else load_base(Path(self.encoder)),
                out=folder / "run",
                # The files are ours, whatever columns the settings name.
                settings=replace(settings, "data", text_column="text", encoding="utf-8"),
                limit=FitLimit.of(minutes=self.minutes, bases=self.num_bases),
                abstention=(
                    ALWAYS_ANSWER
                    if self.target_accuracy is None
                    else Abstention(target_accuracy=self.target_accuracy)
                ),
                progress=progress,
            )
            self._kept = KeptExamples.load(folder / "run")
            self.label_issues_ = read_label_issues(folder / "run" / ISSUES_NAME)
            blend = Blend.load(folder / "run")
        # Files are read by the columns that the caller named.
        own = replace(blend.settings, "data", **dataclasses.asdict(settings.data))
        return dataclasses.replace(blend, settings=own)

    def _finetune(
        self, examples: list[Example], *, classes: NDArray[Any], progress: Progress
    ) -> Classifier:
        start = self._start(examples, classes=classes, progress=progress)
        train, valid = _held_out(examples, seed=self.seed)
        info = RunInfo(
            kind="classifier",
            status="training",
            labels=labels_of(examples).names,
            base=None if self.base == SCRATCH else {"run_dir": str(self.base)},
            fingerprints={"train": examples_fingerprint(examples)},
        )
        finetuned = finetune_examples(start, train, valid, info=info, progress=progress)
        self.history_: list[EpochRecord] = finetuned.history
        return finetuned.classifier

    def _start(
        self, examples: Sequence[Example], *, classes: NDArray[Any], progress: Progress
    ) -> Start:
        assert self.base is not None, "the recipe has no start"
        base = None if self.base == SCRATCH else Path(self.base)
        if self.size is not None and base is not None:
            raise ConfigError(
                f"size={self.size!r} cannot change the shape of the base {self.base}.",
                remedy='Omit size, or train from scratch with base="scratch".',
            )
        task = _task_of(examples)
        # The saved run records its task, and how a file expresses it.
        columns: dict[str, Any] = {"data.pair_column": PAIR_COLUMN} if task.has_pairs else {}
        if task.has_label_sets:
            columns["data.label_separator"] = _free_separator(classes)
        settings = resolve(
            "finetune",
            preset=self.preset,
            size=self.size,
            overrides={
                "train.seed": self.seed,
                "train.epochs": self.epochs,
                **columns,
                **(self.settings or {}),
            },
            base=None if base is None else read_base_settings(base),
        )
        check_task(settings.data, supported=[task], by="Training on this X and y")
        if base is not None:
            return start_from_base(base, settings=settings)
        texts = texts_of(examples)
        return start_from_scratch(texts, settings=settings, tokenizer_path=None, progress=progress)


def _task_of(examples: Sequence[Example]) -> Task:
    return Task(
        has_pairs=any(example.pair is not None for example in examples),
        has_label_sets=any(example.labels is not None for example in examples),
    )


def _free_separator(classes: NDArray[Any]) -> str:
    names = "".join(str(name) for name in classes)
    for separator in LABEL_SEPARATORS:
        if separator not in names:
            return separator
    raise DataError(
        f"The names of the labels contain all of {' '.join(LABEL_SEPARATORS)}.",
        "One of these has to separate labels in a file.",
        remedy="Rename a label.",
    )


def _names_inside(classes: NDArray[Any], *, has_sets: bool) -> list[str]:
    """A string for each class, in the order of `classes_`, so that order survives any type.

    These are their own names where they sort alike, for messages name them, and else numbers. The
    names of a set may contain what separates them in a file.
    """
    names = list(map(str, classes))
    if not has_sets and names == sorted(set(names)):
        return names
    digits = len(str(len(classes)))
    return [f"{place:0{digits}d}" for place in range(len(classes))]


def _example(content: Content, names: Sequence[str], *, row: int, has_sets: bool) -> Example:
    text, pair = content if isinstance(content, tuple) else (content, None)
    labels = tuple(names) if has_sets else None
    return Example(text, LABEL_SEPARATORS[0].join(names), SOURCE, row, pair, labels)


def _renamed(issue: LabelIssue, names: Mapping[str, str], *, separator: str | None) -> LabelIssue:
    """The same issue with other names for its labels."""

    def renamed(label: str) -> str:
        parts = [label] if separator is None else label.split(separator)
        return (separator or "").join(names[part] for part in parts if part)

    return dataclasses.replace(issue, label=renamed(issue.label), proposal=renamed(issue.proposal))


def _original(name: Any, originals: Mapping[str, Any]) -> Any:
    """The label, or labels, as they were given, by the name in a run."""
    return [originals[one] for one in name] if isinstance(name, list) else originals.get(name)


def _is_indicator(y: object) -> bool:
    return isinstance(y, np.ndarray) and y.ndim == 2


def _as_set(labels: object) -> "set[Any] | frozenset[Any] | list[Any] | tuple[Any, ...]":
    if not isinstance(labels, set | frozenset | list | tuple):
        raise DataError(
            f"y holds {labels!r:.60} among sets of labels.",
            "Either every text has one label, or each has a set of them.",
            remedy="Put single labels into sets.",
        )
    return labels


def _refuse_flags(sets: Sequence[Collection[Any]]) -> None:
    """Refuse rows of 0 and 1 as plain lists: as sets of labels they would be meaningless."""
    is_row = all(isinstance(labels, list | tuple) and len(labels) > 1 for labels in sets)
    if is_row and len(set(map(len, sets))) == 1 and all(set(row) <= {0, 1} for row in sets):
        raise DataError(
            "y holds lists of 0 and 1, all of one length.",
            "A list holds the labels of a text; 0 or 1 for every label is a numpy array.",
            remedy="Pass numpy.array(y), or lists of the labels.",
        )


def _classes_of(y: Any) -> tuple[NDArray[Any], list[list[int]], bool]:
    """The classes, the class numbers of every text, and whether these are sets."""
    if isinstance(y, np.ndarray):
        empty = np.flatnonzero(~y.any(axis=0))
        if not np.isin(y, (0, 1)).all() or len(empty):
            found = f"no text has label {empty[0]}" if len(empty) else "it holds other numbers"
            raise DataError(
                f"y has two dimensions, and {found}.",
                "Such an array holds 1 for each label that a text has, and else 0.",
                remedy="Remove the column, or pass a list of sets.",
            )
        return np.arange(y.shape[1]), [np.flatnonzero(row).tolist() for row in y], True
    if any(isinstance(labels, set | frozenset | list | tuple) for labels in y):
        sets = [_as_set(labels) for labels in y]
        _refuse_flags(sets)
        classes = np.unique(np.asarray([label for labels in sets for label in labels]))
        numbers = {label: number for number, label in enumerate(classes.tolist())}
        of_texts = [sorted({numbers[np.asarray(x).item()] for x in labels}) for labels in sets]
        return classes, of_texts, True
    classes, targets = np.unique(np.asarray(y), return_inverse=True)
    return classes, [[target] for target in targets.tolist()], False


def _write_texts(path: Path, texts: Sequence[str]) -> None:
    write_text(path, "".join(json.dumps({"text": text}) + "\n" for text in texts))


def _held_out(examples: list[Example], *, seed: int) -> tuple[list[Example], list[Example]]:
    """Hold out a share; with too few examples for that, use the training examples for both."""
    train_examples, valid_examples = split_examples(examples, share=VALID_SHARE, seed=seed)
    if not valid_examples or len(labels_of(train_examples).names) < len(labels_of(examples).names):
        return examples, examples
    return train_examples, valid_examples
