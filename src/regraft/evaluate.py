"""A model over a split: probabilities, and the numbers made of them.

Comes in: a model and rows. Goes out: an `Evaluation`, or the loss of a language model. Results are
summed as they come; scores over the vocabulary are never kept. Trains nothing.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from regraft.batches import ExampleRows, Rows, budget_batches, example_rows
from regraft.config import DataSettings, check_same_task
from regraft.corruption import Moment
from regraft.heads import Model, Pooling, pool
from regraft.metrics import (
    Interval,
    accuracy_interval,
    confusion,
    expected_calibration_error,
    log_probabilities,
    macro_f1,
    mean_f1_shares,
    micro_f1_shares,
    softmax,
)
from regraft.model import Backbone
from regraft.objectives import TOKEN_LOSS, Objective, Reading, class_scores
from regraft.runfolder import load_run
from regraft.runtime import SILENT, Progress
from regraft.statistics import score_interval
from regraft.text import Labels, check_labels_known, load_examples

# Positions computed at once, padding included: 32 texts of 256 tokens, or more of shorter ones.
EVALUATION_TOKENS = 8192


@runtime_checkable
class Scorer(Protocol):
    """What gives every row a score for every class, in the order of the rows."""

    def __call__(self, rows: Rows, *, on_batch: Callable[[int], None]) -> NDArray[np.float64]:
        """N x C scores."""


@dataclass(frozen=True)
class Evaluation:
    """What a classifier did on a labelled file."""

    num_examples: int
    accuracy: Interval
    macro_f1: float
    calibration_error: float
    cut_share: float
    labels: tuple[str, ...]
    confusion: list[list[int]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class LabelScore:
    """One of several labels: how many examples bear it, how many were said to, and how well."""

    label: str
    threshold: float
    count: int
    predicted: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class SetEvaluation:
    """What a classifier that gives any number of labels did on a labelled file."""

    num_examples: int
    micro_f1: Interval
    macro_f1: Interval
    exact_match: Interval
    calibration_error: float
    cut_share: float
    labels: tuple[LabelScore, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def class_probabilities(
    model: Model, rows: Rows, *, on_batch: Callable[[int], None] = lambda num_rows: None
) -> NDArray[np.float64]:
    """N x C probabilities in the order of the rows, whatever order they were computed in."""
    return probabilities_of(rows, scores=partial(_scores, model), on_batch=on_batch)


def probabilities_of(
    rows: Rows, *, scores: Scorer, on_batch: Callable[[int], None] = lambda num_rows: None
) -> NDArray[np.float64]:
    """N x C probabilities, whoever scores the rows: our model, or an export of it.

    Of a text that goes on in windows, the mean of their log-probabilities counts.
    """
    windows = rows.windows if isinstance(rows, ExampleRows) else None
    if windows is not None:
        logs_WC = log_probabilities(probabilities_of(windows, scores=scores))
        sums_NC = np.zeros((len(rows.lengths), logs_WC.shape[1]))
        np.add.at(sums_NC, windows.text_numbers, logs_WC)
        means_NC = sums_NC / np.bincount(windows.text_numbers)[:, None]
        on_batch(len(rows.lengths))
        return softmax(means_NC, np.isfinite(means_NC))[0]
    return torch.from_numpy(scores(rows, on_batch=on_batch)).softmax(dim=1).numpy()


def label_probabilities(
    model: Model, rows: Rows, *, on_batch: Callable[[int], None] = lambda num_rows: None
) -> NDArray[np.float64]:
    """N x C probabilities of every label by itself, where a text may bear any number of them.

    Of a text that goes on in windows, the mean of their log-odds counts.
    """
    windows = rows.windows if isinstance(rows, ExampleRows) else None
    if windows is None:
        scores_NC = _scores(model, rows, on_batch=on_batch)
    else:
        scores_WC = _scores(model, windows, on_batch=lambda num_rows: None)
        scores_NC = np.zeros((len(rows.lengths), scores_WC.shape[1]))
        np.add.at(scores_NC, windows.text_numbers, scores_WC)
        scores_NC /= np.bincount(windows.text_numbers)[:, None]
        on_batch(len(rows.lengths))
    return torch.from_numpy(scores_NC).sigmoid().numpy()


@torch.no_grad()
def _scores(model: Model, rows: Rows, *, on_batch: Callable[[int], None]) -> NDArray[np.float64]:
    model.eval()
    device = next(model.parameters()).device
    parts, places = [], []
    for numbers in _batches(rows.lengths):
        batch = rows.batch(numbers).to(device)
        scores_BC = class_scores(model, batch)
        # Off the device first: MPS has no double precision.
        parts.append(scores_BC.cpu().double().numpy())
        places.append(numbers)
        on_batch(len(numbers))
    scores_NC = np.empty((len(rows.lengths), parts[0].shape[1]))
    scores_NC[np.concatenate(places)] = np.concatenate(parts)
    return scores_NC


@torch.no_grad()
def pooled_vectors(
    backbone: Backbone,
    rows: Rows,
    *,
    pooling: Pooling,
    on_batch: Callable[[int], None] = lambda num_rows: None,
) -> NDArray[np.float32]:
    """N x D vectors in the order of the rows: what a head would read, and other models may."""
    backbone.eval()
    device = next(backbone.parameters()).device
    vectors_ND = np.empty((len(rows.lengths), backbone.settings.width), dtype=np.float32)
    for numbers in _batches(rows.lengths):
        batch = rows.batch(numbers).to(device)
        hidden_BTD = backbone(batch.ids_BT, real_BT=batch.real_BT)
        vectors_BD = pool(hidden_BTD, real_BT=batch.real_BT, pooling=pooling)
        vectors_ND[numbers] = vectors_BD.float().cpu().numpy()
        on_batch(len(numbers))
    return vectors_ND


@torch.no_grad()
def readings(
    model: Model, rows: Rows, *, objective: Objective, max_tokens: int
) -> dict[str, float]:
    """What an objective reads off a model, as means over the first rows that hold `max_tokens`.

    An objective that tells no loss of tokens is judged by its whole loss.

    What is hidden does not depend on training: the same rows ask the same every time.
    """
    model.eval()
    device = next(model.parameters()).device
    num_rows = int(np.searchsorted(np.cumsum(rows.lengths), max_tokens)) + 1
    totals: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for numbers in _batches(rows.lengths[:num_rows]):
        moment = Moment(seed=0, step=0, rows=numbers, done=1.0)
        loss_sum = model.compute(objective, rows.batch(numbers).to(device), moment)
        told = {TOKEN_LOSS: Reading(loss_sum.total, loss_sum.count), **loss_sum.readings}
        for name, reading in told.items():
            totals[name] += float(reading.total)
            counts[name] += reading.count
    return {name: totals[name] / max(counts[name], 1) for name in counts}


def _batches(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """All rows, like lengths together: the least padding, as order does not matter here."""
    return budget_batches(lengths, numbers=np.arange(len(lengths)), max_tokens=EVALUATION_TOKENS)


def evaluation(
    probabilities_NC: NDArray[np.float64],
    *,
    targets_N: NDArray[np.int64],
    labels: Labels,
    cut_share: float,
) -> Evaluation:
    """The numbers a user asks for, from probabilities and the truth."""
    predictions_N = probabilities_NC.argmax(axis=1)
    return Evaluation(
        num_examples=len(targets_N),
        accuracy=accuracy_interval((predictions_N == targets_N)[None]),
        macro_f1=macro_f1(predictions_N, targets_N, num_classes=len(labels.names)),
        calibration_error=expected_calibration_error(probabilities_NC, targets_N),
        cut_share=cut_share,
        labels=labels.names,
        confusion=confusion(predictions_N, targets_N, num_classes=len(labels.names)).tolist(),
    )


def set_evaluation(
    probabilities_NC: NDArray[np.float64],
    *,
    targets_NC: NDArray[np.int64],
    labels: Labels,
    thresholds_C: NDArray[np.float64],
    cut_share: float,
) -> SetEvaluation:
    """The numbers a user asks for where an example has any number of labels."""
    predicted_NC = probabilities_NC >= thresholds_C
    chances = probabilities_NC.ravel()
    return SetEvaluation(
        num_examples=len(targets_NC),
        micro_f1=score_interval(micro_f1_shares(predicted_NC, targets_NC)[None]),
        macro_f1=score_interval(mean_f1_shares(predicted_NC, targets_NC)[None]),
        exact_match=accuracy_interval((predicted_NC == targets_NC).all(axis=1)[None]),
        # Of every yes and no: whether the more probable of the two is right as often as it says.
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
    predicted_N: NDArray[np.bool_], targets_N: NDArray[np.int64], *, label: str, threshold: float
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
    run_dir: str | Path,
    path: str | Path,
    *,
    data: DataSettings | None = None,
    progress: Progress = SILENT,
) -> Evaluation | SetEvaluation:
    """A saved classifier on a labelled file; columns and encoding as at training unless given."""
    run = load_run(Path(run_dir), kind="classifier")
    labels = Labels(run.info.labels)
    data = data or run.settings.data
    check_same_task(data, learned=run.settings.data, run=str(run_dir))
    examples = load_examples(path, data=data)
    check_labels_known(examples, labels)
    rows = example_rows(examples, labels=labels, tokenizer=run.tokenizer, data=run.settings.data)
    has_sets = run.settings.data.label_separator is not None
    probabilities = label_probabilities if has_sets else class_probabilities
    progress.start("evaluate", total=len(examples))
    probabilities_NC = probabilities(run.model, rows, on_batch=progress.advance)
    progress.finish()
    if has_sets:
        return set_evaluation(
            probabilities_NC,
            targets_NC=rows.targets,
            labels=labels,
            thresholds_C=np.array(run.info.thresholds),
            cut_share=cut_share(rows),
        )
    targets_N = labels.targets(examples)
    return evaluation(
        probabilities_NC, targets_N=targets_N, labels=labels, cut_share=cut_share(rows)
    )


def cut_share(rows: ExampleRows) -> float:
    """Share of texts longer than the model reads."""
    return rows.num_cut / max(len(rows.lengths), 1)
