"""TextClassifier: the recipes `fit` and, with a base, `finetune` under scikit-learn's contract.

Comes in: lists of texts or pairs and labels. Goes out: labels, probabilities. `__init__` stores,
`fit` validates and returns self, learned things end in `_`. The recipes are in fit.py, finetune.py.
"""

import json
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from regraft.bases import read_base_settings
from regraft.batches import ExampleRows, example_rows
from regraft.config import Settings, replace, resolve
from regraft.errors import ConfigError, DataError, RegraftError
from regraft.evaluate import class_probabilities, cut_share, label_probabilities
from regraft.finetune import (
    VALID_SHARE,
    EpochRecord,
    Start,
    calibrate,
    chosen_thresholds,
    examples_fingerprint,
    start_from_base,
    start_from_scratch,
    texts_of,
    train_classifier,
    unseen,
)
from regraft.fit import FitResult, fit_examples
from regraft.fitted import FittedClassifier, load_fitted, save_fitted
from regraft.heads import Model
from regraft.runfolder import BEFORE_RUN_JSON, RunFolder, RunInfo, load_run, read_info
from regraft.runtime import SILENT, Progress, write_text
from regraft.text import Content, Example, check_trainable, labels_of, split_examples
from regraft.tokenizer import Tokenizer

# As a base: no base at all, all weights new.
SCRATCH = "scratch"

# The column of second texts that a run is told, where the texts came without a file.
PAIR_COLUMN = "pair"
# And what stands between labels: the first of these that is in none.
LABEL_SEPARATORS = ("|", ";", ",", "\t")


@runtime_checkable
class Classifier(Protocol):
    """What classifies texts, however it was made; `load_classifier` reads one."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, in the order of the columns of `predict_proba`."""

    def predict_proba(
        self, texts: Sequence[str], /, *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C probabilities."""


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of texts: the recipe of `regraft fit`, or a new head on a base of your own.

    base: None for the recipe, which makes its own bases; else what is fine-tuned: run folder of a
    language model, Hugging Face folder, checkpoint of the lab, or "scratch". minutes: time of the
    recipe. preset, size: as on the command line (without a preset, the base's own). epochs: passes
    over the data when fine-tuning. seed: of weights, order and dropout. settings: more of them by
    name, such as {"train.lr": 3e-4}.

    X is a list of texts or, for fine-tuning, of pairs: tuples of two texts. Labels may be strings
    or numbers; `classes_` holds them as they were given. For fine-tuning, a text may have any
    number of labels: y is then a list of sets, or scikit-learn's N x C array of 0 and 1.
    """

    fitted_: FittedClassifier | None
    thresholds_: NDArray[np.float64]
    temperature_: float | None

    def __init__(
        self,
        base: str | Path | None = None,
        *,
        minutes: float = 30.0,
        preset: str | None = None,
        size: str | None = None,
        epochs: int | None = None,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.base = base
        self.minutes = minutes
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
        """Learn from texts and labels, and by the recipe from texts without labels as well.

        The recipe tells in `result_` what it is worth on texts it was not fitted on; fine-tuning
        holds some out, follows the accuracy on them (`history_`) and calibrates the probabilities
        by them (`temperature_`), where that can be done (see `finetune.calibrate`).
        """
        texts = _checked_contents(X)
        classes, answers, has_sets = _checked_answers(y)
        if len(texts) != len(answers):
            raise DataError(
                f"There are {len(texts)} texts and {len(answers)} labels.",
                "Each text needs one label.",
                remedy="Check X and y.",
            )
        check_trainable([Example("", str(classes[t]), "y", 1) for each in answers for t in each])
        # Inside, labels are strings in the order of classes_, so that order survives any type.
        digits = len(str(len(classes)))
        examples = [
            _example(content, [f"{t:0{digits}d}" for t in each], row=row, has_sets=has_sets)
            for row, (content, each) in enumerate(zip(texts, answers, strict=True), start=1)
        ]
        if self.base is None:
            return self._fit_recipe(
                examples,
                classes=classes,
                unlabelled=_checked_texts(unlabelled or ()),
                progress=progress,
            )
        if unlabelled is not None:
            raise ConfigError(
                "Fine-tuning a base does not read texts without labels.",
                "A base has learned from text already.",
                remedy="Leave unlabelled away, or take base=None for the whole recipe.",
            )
        train_examples, valid_examples = _held_out(examples, seed=self.seed)
        start = self._start(examples, classes=classes, progress=progress)
        labels = labels_of(examples)
        tokenizer, data = start.tokenizer, start.settings.data
        model, _ = start.build_model(num_classes=len(classes), seed=self.seed)
        valid_rows = example_rows(valid_examples, labels=labels, tokenizer=tokenizer, data=data)
        self.history_: list[EpochRecord] = list(
            train_classifier(
                model,
                rows=example_rows(train_examples, labels=labels, tokenizer=tokenizer, data=data),
                valid_rows=valid_rows,
                settings=start.settings,
                auxiliary=start.auxiliary(),
                progress=progress,
            )
        )
        fingerprints = {"train": examples_fingerprint(examples)}
        is_new_N = unseen(valid_examples, train=train_examples)
        temperature = calibrate(model, valid_rows, is_new_N=is_new_N, settings=start.settings)
        return self._learned(
            model.eval(),
            classes=classes,
            tokenizer=tokenizer,
            settings=start.settings,
            fingerprints=fingerprints,
            thresholds=chosen_thresholds(model, valid_rows),
            temperature=temperature,
        )

    def predict_proba(
        self, X: Iterable[object], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C probabilities; columns are `classes_`.

        Those of a text add up to 1, unless it may have any number of labels: then each is for
        itself.
        """
        check_is_fitted(self, "classes_")
        if self.fitted_ is not None:
            return self.fitted_.predict_proba(_checked_texts(X), progress=progress)
        texts = _checked_contents(X)
        _check_kind(texts, reads_pairs=self.settings_.data.pair_column is not None)
        if not texts:
            return np.zeros((0, len(self.classes_)))
        rows = ExampleRows(
            texts,
            targets=[0] * len(texts),
            tokenizer=self.tokenizer_,
            data=self.settings_.data,
        )
        if rows.num_cut:
            progress.say(
                f"{cut_share(rows):.1%} of the texts are longer than "
                f"{self.settings_.data.max_length} tokens and were cut."
            )
        progress.start("predict", total=len(texts))
        probabilities = label_probabilities if len(self.thresholds_) else class_probabilities
        probabilities_NC = probabilities(self.model_, rows, on_batch=progress.advance)
        progress.finish()
        return probabilities_NC

    def predict(self, X: Iterable[object]) -> NDArray[Any]:
        """The most probable label of every text.

        Where a text may have any number: N x C, 1 for each label that reaches its threshold.
        """
        probabilities_NC = self.predict_proba(X)
        if len(self.thresholds_):
            return (probabilities_NC >= self.thresholds_).astype(np.int64)
        predicted: NDArray[Any] = self.classes_[probabilities_NC.argmax(axis=1)]
        return predicted

    def predict_sets(self, X: Iterable[object]) -> list[tuple[Any, ...]]:
        """The labels of every text, where it may have any number of them."""
        check_is_fitted(self, "classes_")
        if not len(self.thresholds_):
            raise ConfigError(
                "This classifier gives every text one label.", remedy="Take predict instead."
            )
        return [tuple(self.classes_[row == 1].tolist()) for row in self.predict(X)]

    def score(self, X: Iterable[object], y: Iterable[object], sample_weight: Any = None) -> float:
        """Accuracy; of any number of labels, the share of texts with all of them right."""
        check_is_fitted(self, "classes_")
        if self.fitted_ is None and len(self.thresholds_) and not _is_indicator(y):
            sets = [{str(label) for label in _as_set(labels)} for labels in y]
            names = [str(name) for name in self.classes_]
            if unknown := sorted(set().union(*sets).difference(names)):
                raise DataError(
                    f"y holds the label {unknown[0]!r}, which was not learned.",
                    f"This classifier knows {', '.join(map(repr, names))}.",
                    remedy="Leave such labels out, or learn them, too.",
                )
            y = np.array([[name in labels for name in names] for labels in sets])
        return float(super().score(X, y, sample_weight=sample_weight))

    def save(self, run_dir: str | Path) -> Path:
        """Write a run folder, as the command line writes it. Labels are saved as strings."""
        check_is_fitted(self, "classes_")
        folder = RunFolder(Path(run_dir))
        folder.check_free(resume=False)
        if self.fitted_ is not None:
            save_fitted(
                self.fitted_, folder.run_dir, labels=[str(label) for label in self.classes_]
            )
            return folder.run_dir
        is_new = not folder.run_dir.exists()
        info = RunInfo(
            kind="classifier",
            status="training",
            labels=tuple(str(label) for label in self.classes_),
            thresholds=tuple(self.thresholds_.tolist()),
            temperature=self.temperature_,
            base=None if self.base == SCRATCH else {"run_dir": str(self.base)},
            fingerprints=self.fingerprints_,
        )
        try:
            info = folder.start(
                info, settings=self.settings_, tokenizer=self.tokenizer_, resume=False
            )
            folder.finish(info, model=self.model_)
        except RegraftError:
            # There is no training to resume: a folder without its weights would only be in the way.
            for name in ("run.json", *BEFORE_RUN_JSON, "model.safetensors"):
                (folder.run_dir / name).unlink(missing_ok=True)
            if is_new and folder.run_dir.exists():
                folder.run_dir.rmdir()
            raise
        return folder.run_dir

    @classmethod
    def load(cls, run_dir: str | Path) -> "TextClassifier":
        """A classifier from its run folder, ready to predict."""
        if read_info(Path(run_dir)).kind == "blend":
            fitted = load_fitted(Path(run_dir))
            recipe = cls(minutes=fitted.info.result["minutes"], seed=fitted.settings.train.seed)
            return recipe._learned_recipe(fitted, classes=fitted.classes_)
        run = load_run(Path(run_dir), kind="classifier")
        base = SCRATCH if run.info.base is None else run.info.base["run_dir"]
        classifier = cls(base=base, preset=run.settings.preset, seed=run.settings.train.seed)
        return classifier._learned(
            run.model,
            classes=np.array(run.info.labels),
            tokenizer=run.tokenizer,
            settings=run.settings,
            fingerprints=run.info.fingerprints,
            thresholds=run.info.thresholds,
            temperature=run.info.temperature,
        )

    def _fit_recipe(
        self,
        examples: Sequence[Example],
        *,
        classes: NDArray[Any],
        unlabelled: Sequence[str],
        progress: Progress,
    ) -> "TextClassifier":
        if any(example.pair is not None for example in examples):
            raise ConfigError(
                "X holds pairs, and the recipe reads single texts.",
                "Pairs of texts are for fine-tuning.",
                remedy='Give a base to fine-tune, such as base="scratch".',
            )
        if any(example.labels is not None for example in examples):
            raise ConfigError(
                "y holds sets of labels, and the recipe gives every text one.",
                "Any number of labels is for fine-tuning.",
                remedy='Give a base to fine-tune, such as base="scratch".',
            )
        unread = {"preset": self.preset, "size": self.size, "epochs": self.epochs}
        given = [name for name, value in unread.items() if value is not None]
        if given:
            raise ConfigError(
                f"The recipe does not read {', '.join(given)}.",
                "It makes its own bases, in the minutes given.",
                remedy=f"Leave {'it' if len(given) == 1 else 'them'} away, or give a base to "
                'fine-tune, such as base="scratch".',
            )
        settings = resolve(
            "pretrain", preset="bag", overrides={"train.seed": self.seed, **(self.settings or {})}
        )
        with tempfile.TemporaryDirectory(prefix="regraft-fit-") as folder:
            paths = {name: Path(folder) / f"{name}.jsonl" for name in ("labelled", "unlabelled")}
            _write_texts(paths["labelled"], [example.text for example in examples])
            _write_texts(paths["unlabelled"], unlabelled)
            fit_examples(
                examples,
                watched=[],
                texts=[paths["unlabelled"]] if unlabelled else [],
                labelled=paths["labelled"],
                out=Path(folder) / "run",
                # The files are ours, whatever columns the settings name.
                settings=replace(settings, "data", text_column="text", encoding="utf-8"),
                minutes=self.minutes,
                progress=progress,
            )
            fitted = load_fitted(Path(folder) / "run")
        return self._learned_recipe(fitted, classes=classes)

    def _learned_recipe(
        self, fitted: FittedClassifier, *, classes: NDArray[Any]
    ) -> "TextClassifier":
        self.fitted_ = fitted
        self.thresholds_ = np.zeros(0)
        self.temperature_ = fitted.temperature
        self.result_ = FitResult.from_dict(fitted.info.result)
        self.classes_ = classes
        self.tokenizer_ = fitted.tokenizer
        self.settings_ = fitted.settings
        self.fingerprints_ = fitted.info.fingerprints
        return self

    def _start(
        self, examples: Sequence[Example], *, classes: NDArray[Any], progress: Progress
    ) -> Start:
        assert self.base is not None, "the recipe has no start"
        base = None if self.base == SCRATCH else Path(self.base)
        if self.size is not None and base is not None:
            raise ConfigError(
                f"size={self.size!r} cannot change the shape of the base {self.base}.",
                remedy='Leave size away, or start anew with base="scratch".',
            )
        # Who loads the run later has to know that it reads pairs, or gives any number of labels,
        # and how these stand in a file.
        has_pairs = any(example.pair is not None for example in examples)
        has_sets = any(example.labels is not None for example in examples)
        task: dict[str, Any] = {"data.pair_column": PAIR_COLUMN} if has_pairs else {}
        if has_sets:
            names = "".join(str(name) for name in classes)
            free = [sign for sign in LABEL_SEPARATORS if sign not in names]
            if not free:
                raise DataError(
                    f"The names of the labels hold all of {' '.join(LABEL_SEPARATORS)}.",
                    "One of these has to stand between labels in a file.",
                    remedy="Rename a label.",
                )
            task["data.label_separator"] = free[0]
        overrides = {
            "train.seed": self.seed,
            "train.epochs": self.epochs,
            **task,
            **(self.settings or {}),
        }
        settings = resolve(
            "finetune",
            preset=self.preset,
            size=self.size,
            overrides=overrides,
            base=None if base is None else read_base_settings(base),
        )
        if settings.data.pair_column is not None and not has_pairs:
            raise ConfigError(
                f"data.pair_column is {settings.data.pair_column!r}, and X holds single texts.",
                remedy="Give tuples of two texts, or leave the setting away.",
            )
        if settings.data.label_separator is not None and not has_sets:
            raise ConfigError(
                f"data.label_separator is {settings.data.label_separator!r}, and y holds single "
                "labels.",
                remedy="Give a list of sets, or leave the setting away.",
            )
        if base is not None:
            return start_from_base(base, settings=settings)
        texts = texts_of(examples)
        return start_from_scratch(texts, settings=settings, tokenizer_path=None, progress=progress)

    def _learned(
        self,
        model: Model,
        *,
        classes: NDArray[Any],
        tokenizer: Tokenizer,
        settings: Settings,
        fingerprints: dict[str, str],
        thresholds: Sequence[float],
        temperature: float | None,
    ) -> "TextClassifier":
        self.fitted_ = None
        self.thresholds_ = np.array(thresholds, dtype=np.float64)
        self.temperature_ = temperature
        self.model_ = model
        self.classes_ = classes
        self.tokenizer_ = tokenizer
        self.settings_ = settings
        self.fingerprints_ = fingerprints
        return self


def _example(content: Content, names: Sequence[str], *, row: int, has_sets: bool) -> Example:
    text, pair = content if isinstance(content, tuple) else (content, None)
    labels = tuple(names) if has_sets else None
    return Example(text, LABEL_SEPARATORS[0].join(names), "X", row, pair, labels)


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
    """Rows of 0 and 1 as plain lists: as sets of labels they would all be the same."""
    is_row = all(isinstance(labels, list | tuple) and len(labels) > 1 for labels in sets)
    if is_row and len(set(map(len, sets))) == 1 and all(set(row) <= {0, 1} for row in sets):
        raise DataError(
            "y holds lists of 0 and 1, all of one length.",
            "A list holds the labels of a text; 0 or 1 for every label is a numpy array.",
            remedy="Give numpy.array(y), or lists of the labels.",
        )


def _checked_answers(y: Iterable[object]) -> tuple[NDArray[Any], list[list[int]], bool]:
    """The classes, those of every text by number, and whether there may be any number of them."""
    if isinstance(y, np.ndarray) and y.ndim == 2:
        empty = np.flatnonzero(~y.any(axis=0))
        if not np.isin(y, (0, 1)).all() or len(empty):
            found = f"no text has label {empty[0]}" if len(empty) else "it holds other numbers"
            raise DataError(
                f"y has two dimensions, and {found}.",
                "Such an array holds 1 for each label that a text has, and else 0.",
                remedy="Leave the column away, or give a list of sets.",
            )
        return np.arange(y.shape[1]), [np.flatnonzero(row).tolist() for row in y], True
    given = list(y)
    if any(isinstance(labels, set | frozenset | list | tuple) for labels in given):
        sets = [_as_set(labels) for labels in given]
        _refuse_flags(sets)
        classes = np.unique(np.asarray([label for labels in sets for label in labels]))
        numbers = {label: number for number, label in enumerate(classes.tolist())}
        of_texts = [sorted({numbers[np.asarray(x).item()] for x in labels}) for labels in sets]
        return classes, of_texts, True
    classes, targets = np.unique(np.asarray(given), return_inverse=True)
    return classes, [[target] for target in targets.tolist()], False


def _write_texts(path: Path, texts: Sequence[str]) -> None:
    write_text(path, "".join(json.dumps({"text": text}) + "\n" for text in texts))


def _checked_contents(X: Iterable[object]) -> list[Content]:
    """Texts, or pairs of them if the first is one."""
    items = X if isinstance(X, str) else list(X)
    if isinstance(items, str) or not items or not isinstance(items[0], tuple | list):
        return list(_checked_texts(items))
    pairs: list[Content] = []
    for row, item in enumerate(items, start=1):
        texts = tuple(item) if isinstance(item, tuple | list) else (item,)
        if len(texts) != 2 or not all(isinstance(text, str) and text.strip() for text in texts):
            raise DataError(
                f"Pair {row} is {item!r:.60}.",
                "A pair is a tuple of two texts, neither of them empty.",
                remedy="Mend or remove it; texts and pairs do not mix.",
            )
        pairs.append((texts[0], texts[1]))
    return pairs


def _check_kind(contents: Sequence[Content], *, reads_pairs: bool) -> None:
    """Refuse pairs where single texts were learned, and the reverse."""
    if contents and isinstance(contents[0], tuple) != reads_pairs:
        learned, given = ("pairs", "single texts") if reads_pairs else ("single texts", "pairs")
        raise DataError(
            f"X holds {given}, and this classifier learned {learned}.",
            remedy="Give it what it was fitted on.",
        )


def _checked_texts(X: Iterable[object]) -> list[str]:
    # A string is iterable, too: its letters would pass for texts.
    if isinstance(X, str):
        raise DataError(
            f"X is one string: {X!r:.60}.",
            "X is a list of strings.",
            remedy="Put the text into a list.",
        )
    texts: list[str] = []
    for row, text in enumerate(X, start=1):
        if not isinstance(text, str):
            raise DataError(
                f"Text {row} is of type {type(text).__name__}, not a string: {text!r:.60}.",
                "X is a list of strings.",
                remedy="Pass a list of texts, not an array of numbers.",
            )
        texts.append(text)
    return texts


def _held_out(examples: list[Example], *, seed: int) -> tuple[list[Example], list[Example]]:
    """Hold out a share; with too few examples for that, follow the training examples themselves."""
    train_examples, valid_examples = split_examples(examples, share=VALID_SHARE, seed=seed)
    if not valid_examples or len(labels_of(train_examples).names) < len(labels_of(examples).names):
        return examples, examples
    return train_examples, valid_examples


def load_classifier(run_dir: str | Path) -> "TextClassifier | FittedClassifier":
    """The classifier in a run folder, of `regraft finetune` or of `regraft fit`."""
    if read_info(Path(run_dir)).kind == "blend":
        return load_fitted(Path(run_dir))
    return TextClassifier.load(run_dir)


def prediction(
    labels: Sequence[str], probabilities: Sequence[float], *, thresholds: Sequence[float] = ()
) -> dict[str, Any]:
    """What is told of one text: its label, and the probability of each, to six digits.

    With thresholds, the list of all labels that reach theirs.
    """
    rounded = [round(probability, 6) for probability in probabilities]
    if thresholds:
        reached = zip(labels, probabilities, thresholds, strict=True)
        return {
            "label": [label for label, chance, needed in reached if chance >= needed],
            "probabilities": dict(zip(labels, rounded, strict=True)),
        }
    best = max(range(len(labels)), key=probabilities.__getitem__)
    return {
        "label": labels[best],
        "probability": rounded[best],
        "probabilities": dict(zip(labels, rounded, strict=True)),
    }
