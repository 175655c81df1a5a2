"""TextClassifier: the fine-tuning recipe under scikit-learn's contract.

Comes in: lists of texts and labels. Goes out: labels and probabilities. `__init__` only stores,
`fit` validates and returns self, learned things end in `_`. The recipe itself is finetune.py's.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from regraft.bases import read_base_settings
from regraft.batches import ExampleRows, example_rows
from regraft.config import Settings, resolve
from regraft.errors import ConfigError, DataError, RegraftError
from regraft.evaluate import class_probabilities, cut_share
from regraft.finetune import (
    VALID_SHARE,
    EpochRecord,
    Start,
    examples_fingerprint,
    start_from_base,
    start_from_scratch,
    train_classifier,
)
from regraft.fitted import FittedClassifier, load_fitted
from regraft.heads import Model
from regraft.runfolder import BEFORE_RUN_JSON, RunFolder, RunInfo, load_run, read_info
from regraft.runtime import SILENT, Progress
from regraft.text import Example, check_trainable, labels_of, split_examples
from regraft.tokenizer import Tokenizer


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of texts, grafted onto a base or trained from scratch.

    base: run folder of a language model, Hugging Face folder, checkpoint of the lab, or None for
    scratch. preset, size: as on the command line (without a preset, the base's own). epochs: passes
    over the data. seed: of head, order and dropout. settings: more of them by name, such as
    {"train.lr": 3e-4}.

    Labels may be strings or numbers; `classes_` holds them as they were given.
    """

    def __init__(
        self,
        base: str | Path | None = None,
        *,
        preset: str | None = None,
        size: str | None = None,
        epochs: int | None = None,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.base = base
        self.preset = preset
        self.size = size
        self.epochs = epochs
        self.seed = seed
        self.settings = settings

    def fit(
        self, X: Iterable[object], y: Iterable[object], *, progress: Progress = SILENT
    ) -> "TextClassifier":
        """Train on texts and labels; a part is held out to follow the accuracy (`history_`)."""
        texts = _checked_texts(X)
        classes, targets = np.unique(np.asarray(list(y)), return_inverse=True)
        if len(texts) != len(targets):
            raise DataError(
                f"There are {len(texts)} texts and {len(targets)} labels.",
                "Each text needs one label.",
                remedy="Check X and y.",
            )
        check_trainable(
            [Example(text, str(classes[t]), "y", 1) for text, t in zip(texts, targets, strict=True)]
        )
        # Inside, labels are strings in the order of classes_, so that order survives any type.
        digits = len(str(len(classes)))
        examples = [
            Example(text, label=f"{target:0{digits}d}", source="X", row=row)
            for row, (text, target) in enumerate(zip(texts, targets, strict=True), start=1)
        ]
        train_examples, valid_examples = _held_out(examples, seed=self.seed)
        start = self._start(texts, progress=progress)
        labels = labels_of(examples)
        tokenizer, data = start.tokenizer, start.settings.data
        model, _ = start.build_model(num_classes=len(classes), seed=self.seed)
        self.history_: list[EpochRecord] = list(
            train_classifier(
                model,
                rows=example_rows(train_examples, labels=labels, tokenizer=tokenizer, data=data),
                valid_rows=example_rows(
                    valid_examples, labels=labels, tokenizer=tokenizer, data=data
                ),
                settings=start.settings,
                progress=progress,
            )
        )
        fingerprints = {"train": examples_fingerprint(examples)}
        return self._learned(
            model.eval(),
            classes=classes,
            tokenizer=tokenizer,
            settings=start.settings,
            fingerprints=fingerprints,
        )

    def predict_proba(
        self, X: Iterable[object], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C probabilities; columns are `classes_`."""
        check_is_fitted(self, "model_")
        texts = _checked_texts(X)
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
        probabilities_NC = class_probabilities(self.model_, rows, on_batch=progress.advance)
        progress.finish()
        return probabilities_NC

    def predict(self, X: Iterable[object]) -> NDArray[Any]:
        """The most probable label of every text."""
        probabilities_NC = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[probabilities_NC.argmax(axis=1)]
        return predicted

    def save(self, run_dir: str | Path) -> Path:
        """Write a run folder, as `regraft finetune` writes it. Labels are saved as strings."""
        check_is_fitted(self, "model_")
        folder = RunFolder(Path(run_dir))
        folder.check_free(resume=False)
        is_new = not folder.run_dir.exists()
        info = RunInfo(
            kind="classifier",
            status="training",
            labels=tuple(str(label) for label in self.classes_),
            base=None if self.base is None else {"run_dir": str(self.base)},
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
        run = load_run(Path(run_dir), kind="classifier")
        base = None if run.info.base is None else run.info.base["run_dir"]
        classifier = cls(base=base, preset=run.settings.preset, seed=run.settings.train.seed)
        return classifier._learned(
            run.model,
            classes=np.array(run.info.labels),
            tokenizer=run.tokenizer,
            settings=run.settings,
            fingerprints=run.info.fingerprints,
        )

    def _start(self, texts: Sequence[str], *, progress: Progress) -> Start:
        if self.size is not None and self.base is not None:
            raise ConfigError(
                f"size={self.size!r} cannot change the shape of the base {self.base}.",
                remedy="Leave size away, or start from scratch with base=None.",
            )
        overrides = {
            "train.seed": self.seed,
            "train.epochs": self.epochs,
            **(self.settings or {}),
        }
        settings = resolve(
            "finetune",
            preset=self.preset,
            size=self.size,
            overrides=overrides,
            base=None if self.base is None else read_base_settings(Path(self.base)),
        )
        if self.base is not None:
            return start_from_base(Path(self.base), settings=settings)
        return start_from_scratch(texts, settings=settings, tokenizer_path=None, progress=progress)

    def _learned(
        self,
        model: Model,
        *,
        classes: NDArray[Any],
        tokenizer: Tokenizer,
        settings: Settings,
        fingerprints: dict[str, str],
    ) -> "TextClassifier":
        self.model_ = model
        self.classes_ = classes
        self.tokenizer_ = tokenizer
        self.settings_ = settings
        self.fingerprints_ = fingerprints
        return self


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
