"""One run, ready to answer: its classifier in the fastest runtime that is exact, and its name.

An `Engine` was tried on made-up texts before it answers. Knows nothing of requests.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers import Classifier, load_classifier, prediction, run_fingerprint
from regraft.config import SINGLE_TEXTS, check_task
from regraft.data import synthetic_reviews
from regraft.errors import RegraftError, RunFolderError
from regraft.runtime import SILENT, Progress

if TYPE_CHECKING:
    from regraft.classifiers import Explainer

Runtime = Literal["auto", "onnx", "torch"]
# Rounding may change a probability by so much.
_EXACT = 1e-4
# So many reviews in one text are more than any model of ours reads.
_LONG_TEXT_REVIEWS = 200


@dataclass(frozen=True)
class Engine:
    """A run that answers. `classifier` does so; `original` is the same in torch, to be explained.

    model: the name of the run folder and a fingerprint of its run.json. difference: the largest
    between a probability of the one and of the other, on made-up texts. seconds_a_byte: what
    one review took to classify. note: why it is torch, if onnxruntime was to be.
    """

    model: str
    fingerprint: str
    kind: str
    labels: tuple[str, ...]
    runtime: Literal["numpy", "onnxruntime", "torch"]
    is_calibrated: bool
    classifier: Classifier
    original: Classifier
    difference: float
    seconds_a_byte: float
    note: str

    def classify(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """What `regraft predict` says of each text."""
        rows = self.classifier.predict_proba(texts).tolist()
        thresholds = self.original.thresholds
        return [prediction(self.labels, row, thresholds=thresholds) for row in rows]

    def explain(self, text: str) -> dict[str, Any]:
        """Which words moved the decision, as `regraft explain` tells it."""
        return self._explainer.explain(text).to_dict()

    @cached_property
    def _explainer(self) -> "Explainer":
        from regraft.classifiers import Explainer

        return Explainer(self.original)


def load_engine(run_dir: Path, *, runtime: Runtime = "auto", progress: Progress = SILENT) -> Engine:
    """Load a run, choose its runtime, and try it; refuses what gives no probabilities."""
    # Looked up once: a link may point elsewhere before all files are read.
    run_dir = Path(os.path.realpath(run_dir))
    before = run_fingerprint(run_dir)
    original = load_classifier(run_dir)
    check_task(original.data, supported=SINGLE_TEXTS, by="`regraft serve`")
    exact_NC = trial_probabilities(original, run_dir=run_dir)
    answering: Classifier = original
    difference, note = 0.0, ""
    if runtime != "torch" and original.network is not None:
        progress.start("making a graph for onnxruntime", total=None)
        try:
            from regraft.apps.serve.onnx_classifier import onnx_classifier

            answering, difference = onnx_classifier(original.network, exact_NC, run_dir=run_dir)
        # Whatever an exporter trips over: the run itself is sound, and torch can answer.
        except Exception as error:
            if runtime == "onnx":
                raise
            answering, difference = original, 0.0
            reason = error.problem if isinstance(error, RegraftError) else f"{error!r:.200}"
            note = f"onnxruntime is not used: {reason}"
        finally:
            progress.finish()
    elif runtime == "onnx":
        note = f"onnxruntime is not used: a classifier of kind {original.kind} has no ONNX graph."
    if run_fingerprint(run_dir) != before:
        raise RunFolderError(
            f"{run_dir} was rewritten while it was read.", remedy="Wait until it is complete."
        )
    return Engine(
        model=f"{run_dir.name}@{before[:12]}",
        fingerprint=before,
        kind=original.kind,
        labels=original.labels,
        runtime=original.computed_by if answering is original else "onnxruntime",
        is_calibrated=original.is_calibrated,
        classifier=answering,
        original=original,
        difference=difference,
        seconds_a_byte=_seconds_a_byte(answering),
        note=note,
    )


def _trial_texts() -> list[str]:
    """Made up: reviews, nothing, one sign, several scripts, more than is read at once."""
    found = synthetic_reviews(num_documents=_LONG_TEXT_REVIEWS, seed=0)
    reviews = [review.text for review in found]
    return [*reviews[:8], "", "!", "Книга 長い本 \U0001f600 كتاب", " ".join(reviews)]


def trial_probabilities(classifier: Classifier, *, run_dir: Path) -> NDArray[np.float64]:
    """The probabilities of trial texts, all at once and one alone; refused if they are none."""
    texts = _trial_texts()
    found = classifier.predict_proba(texts)
    alone = classifier.predict_proba(texts[:1])
    is_sound = np.isfinite(found).all() and found.min() >= 0 and found.max() <= 1 + _EXACT
    if not classifier.task.has_label_sets:
        is_sound = is_sound and np.abs(found.sum(axis=1) - 1).max() < _EXACT
    if not is_sound or np.abs(alone - found[:1]).max() > _EXACT:
        raise RunFolderError(
            f"{run_dir} does not give probabilities on made-up texts.",
            "Those of a text add up to 1, and do not depend on its neighbours.",
            remedy="Train again, or serve another run.",
        )
    return found


def _seconds_a_byte(classifier: Classifier) -> float:
    text, found = _trial_texts()[0], []
    for _ in range(3):
        start = time.perf_counter()
        classifier.predict_proba([text])
        found.append(time.perf_counter() - start)
    return min(found) / len(text.encode())
