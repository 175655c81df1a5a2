"""One run, ready to answer: its classifier in the fastest runtime that is exact, and its name.

An `Engine` was tried on made-up texts before it answers. Knows nothing of requests.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers import (
    Classifier,
    NeuralClassifier,
    load_classifier,
    prediction,
    run_fingerprint,
)
from regraft.config import check_task
from regraft.data import Rows, synthetic_reviews
from regraft.errors import RegraftError, RunFolderError
from regraft.export import TOLERANCE, needed, refuse_foreign, write_fused_graph, write_graph
from regraft.models import Model
from regraft.runtime import SILENT, Progress
from regraft.training import LoadedRun

if TYPE_CHECKING:
    from regraft.classifiers import Explainer

Runtime = Literal["auto", "onnx", "torch"]
# Positions a run of the session, padding included.
_SESSION_TOKENS = 1024
# A position costs the same in a run of one text as in a run of many (modern, d 256, one core: 50
# microseconds, 2026-11-17), a further run as much as some of them. So texts share a run as long as
# they are padded by no more than that, or by so small a share.
_RUN_COST_TOKENS = 4
_PADDED_SHARE = 1 / 16
# Positions from which on several cores compute a lone text sooner than one.
_WIDE_TOKENS = 64
# So many reviews one behind the other are more than any model of ours reads.
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
    runtime: Literal["onnxruntime", "torch"]
    is_calibrated: bool
    classifier: Classifier
    original: Classifier
    difference: float
    seconds_a_byte: float
    note: str

    def classify(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """What `regraft predict` says of each text."""
        rows = self.classifier.predict_proba(texts).tolist()
        return [prediction(self.labels, row) for row in rows]

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
    check_task(original.data, by="`regraft serve`")
    exact_NC = _probabilities(original, run_dir=run_dir)
    answering: Classifier = original
    difference, note = 0.0, ""
    if runtime != "torch" and original.network is not None:
        progress.start("making a graph for onnxruntime", total=None)
        try:
            answering, difference = _onnx_classifier(original.network, exact_NC, run_dir=run_dir)
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
            f"{run_dir} was rewritten while it was read.",
            remedy="Wait until it is complete.",
        )
    return Engine(
        model=f"{run_dir.name}@{before[:12]}",
        fingerprint=before,
        kind=original.kind,
        labels=original.labels,
        runtime="torch" if answering is original else "onnxruntime",
        is_calibrated=original.is_calibrated,
        classifier=answering,
        original=original,
        difference=difference,
        seconds_a_byte=_seconds_a_byte(answering),
        note=note,
    )


class OnnxScorer:
    """The class scores of a network, computed by onnxruntime.

    A run of the graph that several cores share costs a third more than on one of them, for short
    texts twice as much (two cores, 2026-11-17). So only one that is alone and large gets all of
    them; otherwise each core has runs of its own.
    """

    def __init__(self, graph_path: Path, *, num_classes: int) -> None:
        import joblib

        self._num_classes = num_classes
        self._session = _session(graph_path, num_threads=1)
        self._wide_session = _session(graph_path, num_threads=0)  # 0: as many as there are cores
        self._threads = ThreadPoolExecutor(joblib.cpu_count(), thread_name_prefix="regraft-onnx")

    def __call__(self, rows: Rows, *, on_batch: Callable[[int], None]) -> NDArray[np.float64]:
        groups = list(alike_groups(rows.lengths))
        is_alone = len(groups) == 1 and rows.lengths.sum() >= _WIDE_TOKENS
        session = self._wide_session if is_alone else self._session

        def group_scores(group: NDArray[np.int64]) -> NDArray[np.float32]:
            batch = rows.batch(group)
            given = {
                "input_ids": batch.ids_BT.numpy(),
                "attention_mask": batch.real_BT.numpy().astype(np.int64),
            }
            found: NDArray[np.float32] = session.run(["logits"], given)[0]
            return found

        each = map if len(groups) == 1 else self._threads.map
        scores_NC = np.empty((len(rows.lengths), self._num_classes))
        for group, scores_BC in zip(groups, each(group_scores, groups), strict=True):
            scores_NC[group] = scores_BC
            on_batch(len(group))
        return scores_NC


def _session(graph_path: Path, *, num_threads: int) -> Any:
    onnxruntime = needed("onnxruntime", extra="onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    # Threads that spin while they wait take the core from whoever reads the next request.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph_path, options, providers=["CPUExecutionProvider"])


def alike_groups(lengths_N: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Numbers of texts for each run of the session: like lengths together, hardly any padding."""
    order_N = np.argsort(lengths_N, kind="stable")
    start = total = 0
    for place, longest in enumerate(lengths_N[order_N].tolist()):
        positions = longest * (place + 1 - start)
        padded = positions - total - longest
        if place > start and (
            positions > _SESSION_TOKENS
            or padded > max(_RUN_COST_TOKENS, _PADDED_SHARE * (total + longest))
        ):
            yield order_N[start:place]
            start, total = place, 0
        total += longest
    if len(order_N):
        yield order_N[start:]


def _onnx_classifier(
    network: LoadedRun, exact_NC: NDArray[np.float64], *, run_dir: Path
) -> tuple[Classifier, float]:
    """In few large operators where this runtime knows them, else in plain ones; and how far its
    probabilities are from the exact ones."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        needed(name, extra="onnx")
    refuse_foreign(network.settings.model, run_dir=run_dir)

    def made_by(write: Callable[[Model, Path], None]) -> tuple[Classifier, float]:
        with tempfile.TemporaryDirectory(prefix="regraft-serve-") as folder:
            graph_path = Path(folder) / "model.onnx"
            write(network.model, graph_path)
            scorer = OnnxScorer(graph_path, num_classes=len(network.info.labels))
        answering = NeuralClassifier(network, scorer)
        return answering, _difference(answering, exact_NC, run_dir=run_dir)

    try:
        return made_by(write_fused_graph)
    # An older torch or onnxruntime, or a fault in operators as new as these.
    except Exception:
        return made_by(write_graph)


def _trial_texts() -> list[str]:
    """Made up: reviews, nothing, one sign, several scripts, more than is read at once."""
    found = synthetic_reviews(num_documents=_LONG_TEXT_REVIEWS, seed=0)
    reviews = [review.text for review in found]
    return [*reviews[:8], "", "!", "Книга 長い本 \U0001f600 كتاب", " ".join(reviews)]


def _probabilities(classifier: Classifier, *, run_dir: Path) -> NDArray[np.float64]:
    """Of the trial texts, all at once and one alone; refused if they are none."""
    texts = _trial_texts()
    found = classifier.predict_proba(texts)
    alone = classifier.predict_proba(texts[:1])
    is_sound = np.isfinite(found).all() and np.abs(found.sum(axis=1) - 1).max() < TOLERANCE
    if not is_sound or np.abs(alone - found[:1]).max() > TOLERANCE:
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


def _difference(answering: Classifier, exact_NC: NDArray[np.float64], *, run_dir: Path) -> float:
    found_NC = _probabilities(answering, run_dir=run_dir)
    largest = float(np.abs(found_NC - exact_NC).max())
    if largest > TOLERANCE:
        raise RunFolderError(
            f"In onnxruntime, a probability differs by {largest:.2g} from torch's.",
            f"At most {TOLERANCE:g} is exact enough.",
            remedy="Serve with --runtime torch, and please report this.",
        )
    return largest
