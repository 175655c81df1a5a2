"""A fine-tuned network as a Classifier: prediction, attribution, and its run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from regraft.classifiers.base import Classifier, ExportFormat, register_classifier, single_texts
from regraft.classifiers.explanation import Attribution, Method
from regraft.config import DataSettings, Settings
from regraft.data import Content, ExampleRows, Span
from regraft.errors import DataError, RegraftError
from regraft.models import ClassifierHead, Model
from regraft.runtime import SILENT, Progress, in_percent
from regraft.stats import cautious_temperature, decisions
from regraft.training import (
    BEFORE_RUN_JSON,
    LoadedRun,
    RunFolder,
    Scorer,
    class_probabilities,
    label_probabilities,
    load_run,
    probabilities_of,
)


@register_classifier("classifier")
@dataclass(frozen=True)
class NeuralClassifier(Classifier):
    """One network with a classification head.

    `scorer` computes the class scores of rows if not the network itself, such as an export of it,
    for one label per text. A temperature is part of the weights of the head.
    """

    run: LoadedRun
    scorer: Scorer | None = field(repr=False, default=None)

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of `predict_proba`."""
        return self.run.info.labels

    @property
    def data(self) -> DataSettings:
        """How the files it learned from were read."""
        return self.run.settings.data

    @property
    def computed_by(self) -> Literal["numpy", "torch"]:
        """torch."""
        return "torch"

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The probability from which each label is assigned, chosen on valid."""
        return self.run.info.thresholds

    @property
    def abstain_below(self) -> float | None:
        """What `regraft finetune` was asked for, or chose for a target accuracy."""
        return self.run.info.abstain_below

    @property
    def temperature(self) -> float | None:
        """What the scores were divided by; the weights contain it already."""
        return self.run.info.temperature

    @property
    def network(self) -> LoadedRun:
        """The run itself."""
        return self.run

    @property
    def export_formats(self) -> tuple[ExportFormat, ...]:
        """All formats, for networks of regraft's own families."""
        return () if self.run.settings.model.architecture is not None else ("hf", "onnx")

    def predict_proba(
        self, contents: Sequence[Content], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C probabilities; the mean over all windows that are read of a long text."""
        if not len(contents):  # a Series has no truth value
            return np.zeros((0, len(self.labels)))
        rows = self._rows(contents)
        if rows.num_cut:
            progress.say(
                f"{in_percent(rows.cut_share)} of the texts are longer than "
                f"{self.data.max_length} tokens and were cut."
            )
        progress.start("predict", total=len(contents))
        if self.scorer is not None:
            probabilities_NC = probabilities_of(rows, scores=self.scorer, on_batch=progress.advance)
        else:
            compute = label_probabilities if self.thresholds else class_probabilities
            probabilities_NC = compute(self.run.model, rows, on_batch=progress.advance)
        progress.finish()
        return probabilities_NC

    def cut_share(self, contents: Sequence[Content]) -> float:
        """The share of texts that are longer than all windows together."""
        return self._rows(contents).cut_share

    def _rows(self, contents: Sequence[Content]) -> ExampleRows:
        if self.task.has_pairs:
            _check_pairs(contents)
        else:
            contents = single_texts(contents)
        return ExampleRows(
            contents, targets=[0] * len(contents), tokenizer=self.run.tokenizer, data=self.data
        )

    def attribution_methods(self, text: str) -> tuple[Method, ...]:
        """Integrated gradients, unless there are several windows or labels; leave-one-out."""
        has_windows = (self.data.windows or 1) > 1
        is_cut = has_windows and len(self.run.tokenizer.spans(text)) > self._row_room
        if is_cut or self.task.has_label_sets:
            return ("leave-one-out",)
        return "integrated-gradients", "leave-one-out"

    def attributions(
        self, text: str, spans: Sequence[Span], *, target: int, method: Method
    ) -> Attribution:
        """Integrated gradients or leave-one-out."""
        if method != "integrated-gradients":
            return super().attributions(text, spans, target=target, method=method)
        from regraft.classifiers.gradients import integrated_gradients

        return integrated_gradients(self.run, text, spans, target=target)

    def num_words_read(self, text: str, spans: Sequence[Span]) -> int:
        """Words up to the last token that fits."""
        tokens = self.run.tokenizer.spans(text)
        room = self._row_room * (self.data.windows or 1)
        if len(tokens) <= room:
            return len(spans)
        end = max((stop for _, stop in tokens[:room]), default=0)
        return sum(start < end for start, _ in spans)

    @property
    def _row_room(self) -> int:
        """Tokens of a text that one row holds."""
        return self.data.max_length - self.run.tokenizer.num_framing

    def renamed(self, labels: Sequence[str]) -> "NeuralClassifier":
        """The same network with other names for its labels."""
        info = replace(self.run.info, labels=tuple(labels))
        return replace(self, run=replace(self.run, info=info))

    def save(self, run_dir: Path) -> None:
        """Write a run folder as `regraft finetune` does."""
        run, folder, is_new = self.run, RunFolder(run_dir), not run_dir.exists()
        folder.check_free(resume=False)
        try:
            result = {**run.info.result, "run_dir": str(run_dir)} if run.info.result else {}
            info = folder.start(
                replace(run.info, status="training", result=result),
                settings=run.settings,
                tokenizer=run.tokenizer,
                resume=False,
            )
            folder.finish(info, model=run.model)
        except RegraftError:
            # There is no training to resume: a folder without weights is of no use.
            for name in ("run.json", *BEFORE_RUN_JSON, "model.safetensors"):
                (run_dir / name).unlink(missing_ok=True)
            if is_new and run_dir.exists():
                run_dir.rmdir()
            raise

    @classmethod
    def load(cls, run_dir: Path) -> "NeuralClassifier":
        """Read the run folder of `regraft finetune`."""
        return cls(load_run(run_dir, kind="classifier"))


def _check_pairs(contents: Sequence[Content]) -> None:
    if not all(isinstance(content, tuple) for content in contents):
        raise DataError(
            "These are single texts, and this classifier was trained on pairs of texts.",
            remedy="Pass what it was trained on.",
        )


def has_label_sets(rows: ExampleRows) -> bool:
    """Whether examples have any number of labels."""
    return rows.targets.ndim == 2 and not has_probabilities(rows)


def has_probabilities(rows: ExampleRows) -> bool:
    """Whether the targets are probabilities of the classes, as a teacher gives them."""
    return np.issubdtype(rows.targets.dtype, np.floating)


def calibrate(
    model: Model, valid_rows: ExampleRows, *, is_new_N: Bool[np.ndarray, " N"], settings: Settings
) -> float | None:
    """Divide the scores, in place, by the temperature that fits valid best, and return it.

    The last layer of the head absorbs it, so that whatever runs these weights is calibrated. Only
    rows that were not trained on count. None, and nothing changes, without any; with class
    weights, which no temperature undoes (docs/how-to/imbalanced-classes.md); and of a student,
    whose teacher has done it.
    """
    has_true_labels = not has_probabilities(valid_rows)
    if settings.train.class_weight is not None or not is_new_N.any() or not has_true_labels:
        return None
    assert isinstance(model.head, ClassifierHead), "fine-tuning grafts such a head"
    targets = valid_rows.targets[is_new_N]
    # One temperature for all labels: every label of every row is one yes-or-no decision.
    chances_NC = row_probabilities(model, valid_rows)[is_new_N]
    temperature = cautious_temperature(*decisions(chances_NC, targets))
    model.head.divide_scores(temperature)
    return temperature


def row_probabilities(model: Model, rows: ExampleRows) -> Float[np.ndarray, "N C"]:
    """The probability of every label; rows sum to 1 unless they may have several."""
    compute = label_probabilities if has_label_sets(rows) else class_probabilities
    return np.asarray(compute(model, rows))
