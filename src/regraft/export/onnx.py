"""Export to an ONNX folder, checked in onnxruntime; on demand also in int8, with its cost."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from scipy.special import logit

from regraft.classifiers import seen_warning
from regraft.config import DataSettings, Task, check_task
from regraft.data import (
    Batch,
    Content,
    ExampleRows,
    Labels,
    budget_batches,
    check_labels_known,
    load_examples,
    padded,
    synthetic_reviews,
)
from regraft.errors import ConfigError
from regraft.export.common import (
    check_ids,
    exported_tokenizer,
    first_scores,
    has_token_types,
    load_exportable,
    needed,
    reads_pairs,
    sample_pairs,
    sample_texts,
    special_names,
)
from regraft.export.model_card import onnx_card
from regraft.export.onnx_graph import is_large, quiet, write_graph
from regraft.export.parity import ExportResult, Int8Cost, Parity, check_parity
from regraft.models import Model, ReplacedHead
from regraft.runtime import SILENT, Progress, whole_folder, write_json, write_text
from regraft.training import LoadedRun, class_scores

MODEL_NAME, INT8_NAME = "model.onnx", "model.int8.onnx"
# Made-up texts on which eight bits are compared when no data is given.
_NUM_TEXTS = 200
# Positions a run of a session; where every one is scored over the vocabulary, fewer.
_MAX_TOKENS, _MAX_SCORED_TOKENS = 8192, 512


def export_onnx(
    run_dir: str | Path,
    *,
    out: str | Path,
    int8: bool = False,
    data_path: str | Path | None = None,
    data: DataSettings | None = None,
    progress: Progress = SILENT,
) -> ExportResult:
    """Write the model of a run folder to `out`, a new or empty folder, as an ONNX graph.

    With `int8` a second graph has its weights in eight bits; what that costs is measured on the
    labelled file `data_path`, or on made-up texts.
    """
    run = load_exportable(Path(run_dir))
    for name in ("onnx", "onnxscript", "onnxruntime"):
        needed(name, extra="onnx")
    texts, targets, warning = _measured_on(run, data_path, data=data)
    if warning is not None:
        progress.say(warning)
    with whole_folder(Path(out)) as folder:
        progress.start("writing model.onnx", total=None)
        write_graph(run.model, folder / MODEL_NAME, inputs=_inputs(run))
        _write_tokenizer(run, folder / "tokenizer.json")
        progress.finish()
        progress.start("comparing in onnxruntime", total=None)
        parity = _parity(run, folder)
        check_parity(parity, made_by="onnxruntime")
        progress.finish()
        cost = None
        if int8:
            progress.start("quantising and measuring", total=None)
            _write_int8(run.model, folder)
            cost = _int8_cost(run, folder, texts=texts, targets=targets)
            cost = dataclasses.replace(cost, is_seen=warning is not None)
            progress.finish()
        result = ExportResult(str(out), "onnx", (parity,), int8=cost)
        write_json(folder / "config.json", _config(run, result))
        name = Path(out).resolve().name
        write_text(folder / "README.md", onnx_card(run, parity=parity, name=name, int8=cost))
    return result


def _measured_on(
    run: LoadedRun, path: str | Path | None, *, data: DataSettings | None
) -> tuple[list[Content], NDArray[np.int64] | None, str | None]:
    """Texts or pairs, their classes, and a warning if the run was made from them.

    Made-up texts have no classes.
    """
    if path is None:
        made_up = [review.text for review in synthetic_reviews(num_documents=_NUM_TEXTS, seed=0)]
        if reads_pairs(run):
            return list(zip(made_up, reversed(made_up), strict=True)), None, None
        return list(made_up), None, None
    if not run.info.is_classifier:
        raise ConfigError(
            f"{run.run_dir} holds a language model, which gives no labels to compare with {path}.",
            remedy="Omit --data: the likeliest tokens are compared on synthetic texts.",
        )
    labels = Labels(run.info.labels)
    data = data or run.settings.data
    check_task(data, supported=[Task.of(run.settings.data)], by=str(run.run_dir))
    examples = load_examples(path, data=data)
    check_labels_known(examples, labels)
    contents = [example.content for example in examples]
    return contents, labels.targets(examples), seen_warning(run.run_dir, Path(path), examples)


def _inputs(run: LoadedRun) -> list[str]:
    """The inputs of the graph: token types only where a family marks two texts by them."""
    return ["input_ids", "attention_mask", *(["token_type_ids"] if has_token_types(run) else [])]


def _write_tokenizer(run: LoadedRun, path: Path) -> None:
    """A tokenizer that cuts and pads by itself, as the runtime does not."""
    inner = exported_tokenizer(run)
    inner.enable_truncation(run.settings.data.max_length)
    inner.enable_padding(pad_id=run.tokenizer.pad_id, pad_token=special_names(run)["pad_token"])
    write_text(path, inner.to_str(pretty=True) + "\n")


def _config(run: LoadedRun, result: ExportResult) -> dict[str, Any]:
    return {
        "kind": run.info.kind,
        "labels": list(run.info.labels),
        "thresholds": list(run.info.thresholds),
        "inputs": _inputs(run),
        "outputs": ["logits"],
        "max_length": run.settings.data.max_length,
        "max_positions": run.settings.model.max_positions,
        "pad_id": run.tokenizer.pad_id,
        "parity": dataclasses.asdict(result.parity[0]),
        "int8": None if result.int8 is None else dataclasses.asdict(result.int8),
    }


def _parity(run: LoadedRun, folder: Path) -> Parity:
    """The files, read as a user would, compared with our own model."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    session = _Session(folder / MODEL_NAME, run=run)
    texts = sample_texts(run, has_special_names=True)
    samples = sample_pairs(texts) if reads_pairs(run) else [(text,) for text in texts]
    rows = []
    for sample in samples:
        encoding = tokenizer.encode(*sample)
        content = sample if len(sample) == 2 else sample[0]
        check_ids(run, content, encoding.ids, made_by="the exported tokenizer")
        rows.append((encoding.ids, encoding.type_ids))
    alone, together = [[row] for row in rows], [rows[:-1], rows[:2]]
    return Parity(
        name=MODEL_NAME,
        differences={
            "no padding": _largest(run, session, alone, pads_left=False),
            "padding on the right": _largest(run, session, together, pads_left=False),
            "padding on the left": _largest(run, session, together, pads_left=True),
        },
        num_texts=len(samples),
        text=" / ".join(samples[0]),
        vector=first_scores(torch.from_numpy(session.scores(_batch(run, rows[:1])))[0]),
    )


# The ids of a row, and their types.
_Row = tuple[list[int], list[int]]


@torch.no_grad()
def _largest(
    run: LoadedRun, session: "_Session", groups: list[list[_Row]], *, pads_left: bool
) -> float:
    """The largest difference between a score of ours and of the session's."""
    found = []
    for group in groups:
        batch = _batch(run, group, pads_left=pads_left)
        ours = class_scores(run.model, batch).numpy()
        difference = np.abs(ours - session.scores(batch))
        real_BT = batch.real_BT.numpy()
        found.append((difference[real_BT] if session.is_of_tokens else difference).max())
    return float(np.max(found))


def _batch(run: LoadedRun, rows: list[_Row], *, pads_left: bool = False) -> Batch:
    ids_BT, real_BT = padded([np.array(ids) for ids, _ in rows], pad_id=run.tokenizer.pad_id)
    types_BT, _ = padded([np.array(types) for _, types in rows], pad_id=0)
    parts = [ids_BT, real_BT, types_BT]
    if pads_left:
        num_pads = (~real_BT).sum(dim=1).tolist()
        parts = [
            torch.stack([row.roll(n) for row, n in zip(part, num_pads, strict=True)])
            for part in parts
        ]
    ids_BT, real_BT, types_BT = parts
    targets_B = torch.zeros(len(rows), dtype=torch.int64)
    return Batch(ids_BT, real_BT, targets_B, token_types_BT=types_BT)


class _Session:
    """A graph in onnxruntime with the interface of our model."""

    def __init__(self, path: Path, *, run: LoadedRun) -> None:
        onnxruntime = needed("onnxruntime", extra="onnx")
        self._inner = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._inputs = _inputs(run)
        self.is_of_tokens = not run.info.is_classifier
        # One score for each yes or no, rather than the best of several: yes from here on.
        self._bounds: NDArray[np.float64] | None = None
        if run.info.thresholds:
            self._bounds = logit(np.array(run.info.thresholds))
        elif isinstance(run.model.head, ReplacedHead):
            self._bounds = np.zeros(())

    def scores(self, batch: Batch) -> NDArray[np.float32]:
        """The scores of every class, or of every token at every position."""
        parts = (batch.ids_BT, batch.real_BT.long(), batch.token_types_BT)
        given = {
            name: part.numpy()
            for name, part in zip(self._inputs, parts, strict=False)
            if part is not None
        }
        scores: NDArray[np.float32] = self._inner.run(["logits"], given)[0]
        return scores

    def answers(self, scores: NDArray[np.float32], real_BT: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The class of every row, or yes or no to each; or at every real position the token."""
        best: NDArray[np.int64] = (
            scores.argmax(axis=-1)
            if self._bounds is None
            else (scores >= self._bounds).astype(np.int64)
        )
        return best[real_BT] if self.is_of_tokens else best


def _write_int8(model: Model, folder: Path) -> None:
    onnx = needed("onnx", extra="onnx")
    quantization = needed("onnxruntime.quantization", extra="onnx")
    graph = onnx.load(folder / MODEL_NAME)
    # The quantiser transposes weights, and then trips over their shapes as noted before.
    graph.graph.ClearField("value_info")
    with quiet():
        # Unsigned, since products of signed ones overflow where a processor lacks VNNI: with a
        # scale a column, scores err 0.25 times as much as by the library's default (2026-11-16,
        # AVX2, a lab classifier of width 24 with random weights).
        quantization.quantize_dynamic(
            graph,
            folder / INT8_NAME,
            per_channel=True,
            weight_type=quantization.QuantType.QUInt8,
            use_external_data_format=is_large(model),
        )


def _int8_cost(
    run: LoadedRun, folder: Path, *, texts: list[Content], targets: NDArray[np.int64] | None
) -> Int8Cost:
    """Both graphs over the same batches, in turns, so that other load affects both alike."""
    paths = {"fp32": folder / MODEL_NAME, "int8": folder / INT8_NAME}
    sessions = {name: _Session(path, run=run) for name, path in paths.items()}
    rows = ExampleRows(
        texts,
        targets=[0] * len(texts) if targets is None else targets,
        tokenizer=run.tokenizer,
        data=run.settings.data,
    )
    is_of_tokens = sessions["fp32"].is_of_tokens
    groups = budget_batches(
        rows.lengths,
        numbers=np.arange(len(texts)),
        max_tokens=_MAX_SCORED_TOKENS if is_of_tokens else _MAX_TOKENS,
    )
    seconds = dict.fromkeys(sessions, 0.0)
    num_right = dict.fromkeys(sessions, 0)
    num_same = num_answers = 0
    largest = 0.0
    for turn, numbers in enumerate([groups[0], *groups]):
        batch = rows.batch(numbers)
        real_BT = batch.real_BT.numpy()
        scores, answers = {}, {}
        for name in list(sessions)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            scores[name] = sessions[name].scores(batch)
            seconds[name] += time.perf_counter() - start
            answers[name] = sessions[name].answers(scores[name], real_BT)
        if turn == 0:  # warm-up
            seconds = dict.fromkeys(sessions, 0.0)
            continue
        num_same += int((answers["fp32"] == answers["int8"]).sum())
        num_answers += answers["fp32"].size
        difference = np.abs(scores["fp32"] - scores["int8"])
        largest = max(largest, float((difference[real_BT] if is_of_tokens else difference).max()))
        if targets is not None:
            for name in sessions:
                num_right[name] += int((answers[name] == batch.targets.numpy()).sum())
    accuracy = {
        name: None if targets is None else num_right[name] / num_answers for name in sessions
    }
    return Int8Cost(
        num_texts=len(texts),
        agreement=num_same / num_answers,
        largest_difference=largest,
        speed_ratio=seconds["fp32"] / seconds["int8"],
        num_bytes=_num_bytes(paths["int8"]),
        num_bytes_fp32=_num_bytes(paths["fp32"]),
        accuracy=accuracy["int8"],
        accuracy_fp32=accuracy["fp32"],
    )


def _num_bytes(path: Path) -> int:
    """The size of a graph, with the separate file of weights if it is large."""
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))
