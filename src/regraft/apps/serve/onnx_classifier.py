"""A network computed by onnxruntime instead of torch, with the same probabilities."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.apps.serve.engine import trial_probabilities
from regraft.classifiers import Classifier, NeuralClassifier
from regraft.data import Rows
from regraft.errors import RunFolderError
from regraft.export import TOLERANCE, needed, refuse_foreign, write_fused_graph, write_graph
from regraft.models import Model
from regraft.runtime import scratch_folder
from regraft.training import LoadedRun

# Positions a run of the session, padding included.
_SESSION_TOKENS = 1024
# A position costs the same in a run of one text as in a run of many (modern, d 256, one core: 50
# microseconds, 2026-11-17), a further run as much as some of them. So texts share a run as long as
# they are padded by no more than that, or by so small a share.
_RUN_COST_TOKENS = 4
_PADDED_SHARE = 1 / 16
# Positions from which on several cores compute a lone text sooner than one.
_WIDE_TOKENS = 64


def onnx_classifier(
    network: LoadedRun, exact_NC: NDArray[np.float64], *, run_dir: Path
) -> tuple[Classifier, float]:
    """In few large operators where this runtime knows them, else in plain ones; and how far its
    probabilities are from the exact ones."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        needed(name, extra="onnx")
    refuse_foreign(network.settings.model, run_dir=run_dir)

    def made_by(write: Callable[[Model, Path], None]) -> tuple[Classifier, float]:
        with scratch_folder("serve") as folder:
            graph_path = folder / "model.onnx"
            write(network.model, graph_path)
            scorer = OnnxScorer(graph_path, num_classes=len(network.info.labels))
        answering = NeuralClassifier(network, scorer)
        return answering, _difference(answering, exact_NC, run_dir=run_dir)

    try:
        return made_by(write_fused_graph)
    # An older torch or onnxruntime, or a fault in operators as new as these.
    except Exception:
        return made_by(write_graph)


class OnnxScorer:
    """The class scores of a network, computed by onnxruntime.

    A run of the graph that several cores share costs a third more than on one of them, for short
    texts twice as much (two cores, 2026-11-17). So only one that is alone and large gets all of
    them; otherwise each core has its own runs.
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


def _difference(answering: Classifier, exact_NC: NDArray[np.float64], *, run_dir: Path) -> float:
    found_NC = trial_probabilities(answering, run_dir=run_dir)
    largest = float(np.abs(found_NC - exact_NC).max())
    if largest > TOLERANCE:
        raise RunFolderError(
            f"In onnxruntime, a probability differs by {largest:.2g} from torch's.",
            f"At most {TOLERANCE:g} is exact enough.",
            remedy="Serve with --runtime torch, and please report this.",
        )
    return largest
