"""How good a classifier is on a labelled file: accuracy or F1, calibration, confusion."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers.base import Classifier, load_classifier
from regraft.classifiers.inputs import checked_examples, in_memory_examples, read_labelled
from regraft.config import DataSettings, check_task
from regraft.data import Example, Labels, check_labels_known, load_examples
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Plain, Progress, counted, in_percent, in_percent_with_ends
from regraft.stats import (
    CoveragePoint,
    Interval,
    accuracy_interval,
    confusion,
    coverage_curve,
    expected_calibration_error,
    macro_f1,
    mean_f1_shares,
    micro_f1_shares,
    score_interval,
    thinned,
)

# Of the most confident errors.
ERRORS_LISTED = 10


@dataclass(frozen=True)
class LabelScore:
    """A label: how often it occurs, how often it is predicted, and how well.

    `threshold` is the probability from which it is assigned, if a text may have several labels.
    """

    label: str
    threshold: float | None
    count: int
    predicted: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ConfidentError:
    """A wrong prediction; `row` is the first line of the example in its file."""

    row: int
    id: str
    text: str
    label: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class Answered:
    """The texts that a classifier answers which leaves labels empty below a confidence."""

    abstain_below: float
    num_texts: int
    # None if it answers none.
    accuracy: Interval | None


@dataclass(frozen=True, repr=False)
class Evaluation(Plain):
    """The scores of a classifier on labelled examples."""

    num_examples: int
    accuracy: Interval
    macro_f1: float
    calibration_error: float
    cut_share: float
    labels: tuple[str, ...]
    confusion: list[list[int]]
    by_label: tuple[LabelScore, ...]
    # The most confident ones first.
    errors: tuple[ConfidentError, ...]
    # If only the most confident texts were answered.
    coverage: tuple[CoveragePoint, ...]
    answered: Answered | None

    def __repr__(self) -> str:
        """Accuracy, then a line for each label, as a notebook shows them."""
        lines = [
            f"accuracy {_with_ends(self.accuracy)} on {counted(self.num_examples, 'example')}; "
            f"macro-F1 {in_percent(self.macro_f1)}",
            *map(_label_line, self.by_label),
        ]
        if self.answered is not None and self.answered.accuracy is not None:
            lines.append(
                f"with a confidence of {self.answered.abstain_below:.3f} or more: "
                f"{counted(self.answered.num_texts, 'example')}, accuracy "
                f"{_with_ends(self.answered.accuracy)}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class SetEvaluation(Plain):
    """The scores of a classifier of label sets on labelled examples."""

    num_examples: int
    micro_f1: Interval
    macro_f1: Interval
    exact_match: Interval
    calibration_error: float
    cut_share: float
    labels: tuple[LabelScore, ...]

    def __repr__(self) -> str:
        """F1, then a line for each label, as a notebook shows them."""
        first = (
            f"micro-F1 {_with_ends(self.micro_f1)} on {counted(self.num_examples, 'example')}; "
            f"macro-F1 {_with_ends(self.macro_f1)}; all labels right "
            f"{_with_ends(self.exact_match)}"
        )
        return "\n".join([first, *map(_label_line, self.labels)])


def _with_ends(score: Interval) -> str:
    return in_percent_with_ends(score.mean, score.low, score.high)


def _label_line(score: LabelScore) -> str:
    return (
        f"  {score.label}: precision {in_percent(score.precision)}, recall "
        f"{in_percent(score.recall)}, {counted(score.count, 'example')}"
    )


def evaluation(
    probabilities_NC: NDArray[np.float64],
    *,
    targets_N: NDArray[np.int64],
    labels: Labels,
    cut_share: float,
    examples: Sequence[Example] = (),
    abstain_below: float | None = None,
) -> Evaluation:
    """The scores of probabilities against the true labels; `examples` are shown as errors."""
    predictions_N = probabilities_NC.argmax(axis=1)
    answered = None
    if abstain_below is not None:
        is_answered_N = probabilities_NC.max(axis=1) >= abstain_below
        hits = (predictions_N == targets_N)[is_answered_N]
        accuracy = accuracy_interval(hits[None]) if len(hits) else None
        answered = Answered(abstain_below, len(hits), accuracy)
    return Evaluation(
        num_examples=len(targets_N),
        accuracy=accuracy_interval((predictions_N == targets_N)[None]),
        macro_f1=macro_f1(predictions_N, targets_N, num_classes=len(labels.names)),
        calibration_error=expected_calibration_error(probabilities_NC, targets_N),
        cut_share=cut_share,
        labels=labels.names,
        confusion=confusion(predictions_N, targets_N, num_classes=len(labels.names)).tolist(),
        by_label=tuple(
            _label_score(
                predictions_N == target,
                (targets_N == target).astype(np.int64),
                label=label,
                threshold=None,
            )
            for target, label in enumerate(labels)
        ),
        errors=_errors(examples, probabilities_NC, labels=labels) if examples else (),
        coverage=thinned(coverage_curve(probabilities_NC, targets_N)),
        answered=answered,
    )


def _errors(
    examples: Sequence[Example], probabilities_NC: NDArray[np.float64], *, labels: Labels
) -> tuple[ConfidentError, ...]:
    predictions_N, confidence_N = probabilities_NC.argmax(axis=1), probabilities_NC.max(axis=1)
    wrong = np.flatnonzero(predictions_N != labels.targets(examples))
    first = wrong[np.argsort(-confidence_N[wrong], kind="stable")][:ERRORS_LISTED]
    return tuple(
        ConfidentError(
            row=examples[place].row,
            id=examples[place].id,
            text=examples[place].text,
            label=examples[place].label,
            predicted=labels[int(predictions_N[place])],
            probability=float(confidence_N[place]),
        )
        for place in first.tolist()
    )


def set_evaluation(
    probabilities_NC: NDArray[np.float64],
    *,
    targets_NC: NDArray[np.int64],
    labels: Labels,
    thresholds_C: NDArray[np.float64],
    cut_share: float,
) -> SetEvaluation:
    """The scores of probabilities against the true label sets."""
    predicted_NC = probabilities_NC >= thresholds_C
    chances = probabilities_NC.ravel()
    return SetEvaluation(
        num_examples=len(targets_NC),
        micro_f1=score_interval(micro_f1_shares(predicted_NC, targets_NC)[None]),
        macro_f1=score_interval(mean_f1_shares(predicted_NC, targets_NC)[None]),
        exact_match=accuracy_interval((predicted_NC == targets_NC).all(axis=1)[None]),
        # Every label of every example is one yes-or-no decision.
        calibration_error=expected_calibration_error(
            np.stack([1 - chances, chances], axis=1), targets_NC.ravel()
        ),
        cut_share=cut_share,
        labels=tuple(
            _label_score(predicted_N, targets_N, label=label, threshold=float(threshold))
            for predicted_N, targets_N, label, threshold in zip(
                predicted_NC.T, targets_NC.T, labels, thresholds_C, strict=True
            )
        ),
    )


def _label_score(
    predicted_N: NDArray[np.bool_],
    targets_N: NDArray[np.int64],
    *,
    label: str,
    threshold: float | None,
) -> LabelScore:
    hits, predicted, count = (
        int(part.sum()) for part in (predicted_N & (targets_N == 1), predicted_N, targets_N)
    )
    return LabelScore(
        label=label,
        threshold=threshold,
        count=count,
        predicted=predicted,
        precision=hits / max(predicted, 1),
        recall=hits / max(count, 1),
        f1=2 * hits / max(predicted + count, 1),
    )


def evaluate(
    classifier: Any,
    examples: Any,
    labels: Any = None,
    *,
    text: Hashable = None,
    label: Hashable = None,
    data: DataSettings | None = None,
    progress: Progress = SILENT,
) -> Evaluation | SetEvaluation:
    """Score a classifier on labelled examples that it was not trained on.

    `classifier` is a run folder or an estimator. `examples` is a file, read as its training file
    was unless `data` says otherwise, or what `fit` takes: a DataFrame whose columns `text` and
    `label` are those it was fitted on unless given, or a list of texts with `labels`.
    """
    if isinstance(classifier, str | Path):
        name, asked = str(classifier), load_classifier(classifier)
    else:
        name, asked = "this classifier", getattr(classifier, "classifier_", classifier)
    data = data or asked.data
    check_task(data, supported=asked.supported_tasks, by=name)
    if isinstance(examples, str | Path) and labels is None:
        given = load_examples(examples, data=data, progress=progress)
    else:
        X, y = read_labelled(
            examples,
            labels,
            text=data.text_column if text is None else text,
            label=data.label_column if label is None else label,
            data=data,
        )
        separator = data.label_separator if asked.task.has_label_sets else None
        given = in_memory_examples(checked_examples(X, y, progress=progress), separator=separator)
    return score_classifier(asked, given, progress=progress)


def score_classifier(
    classifier: Classifier,
    examples: Sequence[Example],
    *,
    abstain_below: float | None = None,
    progress: Progress = SILENT,
) -> Evaluation | SetEvaluation:
    """Score a classifier on labelled examples; `abstain_below` replaces that of the classifier."""
    probabilities_NC = checked_probabilities(classifier, examples, progress=progress)
    return score_probabilities(classifier, examples, probabilities_NC, abstain_below=abstain_below)


def checked_probabilities(
    classifier: Classifier, examples: Sequence[Example], *, progress: Progress = SILENT
) -> NDArray[np.float64]:
    """What a classifier says of examples, whose labels it must know."""
    check_labels_known(examples, Labels(classifier.labels))
    return classifier.predict_proba([example.content for example in examples], progress=progress)


def score_probabilities(
    classifier: Classifier,
    examples: Sequence[Example],
    probabilities_NC: NDArray[np.float64],
    *,
    abstain_below: float | None = None,
) -> Evaluation | SetEvaluation:
    """The scores of what a classifier said of labelled examples."""
    labels = Labels(classifier.labels)
    targets = labels.targets(examples)
    cut_share = classifier.cut_share([example.content for example in examples])
    if classifier.task.has_label_sets:
        if abstain_below is not None:
            raise ConfigError(
                "--abstain-below needs one label per text, and this classifier gives several.",
                "Each of its labels has its own threshold.",
                remedy="Omit --abstain-below.",
            )
        return set_evaluation(
            probabilities_NC,
            targets_NC=targets,
            labels=labels,
            thresholds_C=np.array(classifier.thresholds),
            cut_share=cut_share,
        )
    return evaluation(
        probabilities_NC,
        targets_N=targets,
        labels=labels,
        cut_share=cut_share,
        examples=examples,
        abstain_below=classifier.abstain_below if abstain_below is None else abstain_below,
    )
