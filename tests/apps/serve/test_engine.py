"""One run ready to answer: its runtime, its exactness, its name, and what it refuses."""

import copy
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_examples
from random_runs import LABELS, write_run
from safetensors.torch import save_file
from shapes import unchecked
from tampering import accept_files, change_facts
from tiny_blends import blend_dir

from regraft.apps.serve.engine import load_engine
from regraft.apps.serve.onnx_classifier import alike_groups
from regraft.classifiers.base import load_classifier, run_fingerprint
from regraft.errors import ConfigError, RunFolderError
from regraft.runtime.files import write_json
from regraft.training.loaded_run import load_run

TEXTS = [text for text, _ in make_examples(40, seed=5)]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("engine") / "reviews"
    return write_run(folder, preset="modern", objective="masked", pooling="mean")


def expected(run_dir: Path, texts: list[str]) -> np.ndarray:
    return load_classifier(run_dir).predict_proba(texts)


def probabilities(values: list[dict]) -> np.ndarray:
    return np.array([list(value["probabilities"].values()) for value in values])


@pytest.mark.parametrize("preset", ["modern", "lab"])
def test_onnxruntime_answers_what_predict_answers(preset, tmp_path):
    pytest.importorskip("onnxruntime")
    objective, pooling = {"modern": ("masked", "mean"), "lab": ("causal", "last")}[preset]
    run_dir = write_run(tmp_path / "run", preset=preset, objective=objective, pooling=pooling)
    with unchecked():
        engine = load_engine(run_dir, runtime="onnx")
        values = engine.classify(TEXTS)
    assert engine.runtime == "onnxruntime"
    assert 0 < engine.difference < 1e-5
    assert probabilities(values) == pytest.approx(expected(run_dir, TEXTS), abs=1e-5)


def test_onnxruntime_reads_a_long_text_in_windows_as_predict_does(tmp_path):
    pytest.importorskip("onnxruntime")
    kind = {"preset": "modern", "objective": "masked", "pooling": "mean"}
    run_dir = write_run(tmp_path / "run", **kind)
    cut = expected(run_dir, [" ".join(TEXTS)])
    settings = json.loads((run_dir / "config.json").read_text())
    settings["data"]["windows"] = 3
    write_json(run_dir / "config.json", settings)
    accept_files(run_dir)
    texts = [TEXTS[0], " ".join(TEXTS), TEXTS[1]]
    with unchecked():
        engine = load_engine(run_dir, runtime="onnx")
        values = engine.classify(texts)
    assert probabilities(values) == pytest.approx(expected(run_dir, texts), abs=1e-5)
    assert probabilities(values)[1] != pytest.approx(cut[0], abs=1e-3)


@pytest.mark.parametrize("fault", ["cannot be written", "is inexact"])
def test_plain_graph_answers_where_the_fused_one_does_not(fault, run_dir, monkeypatch):
    pytest.importorskip("onnxruntime")
    from regraft.apps.serve import onnx_classifier as module

    def write_faulty_graph(model, path):
        if fault == "cannot be written":
            raise AttributeError("module 'torch.onnx' has no attribute 'ops'")
        other = copy.deepcopy(model)
        with torch.no_grad():
            next(other.head.parameters()).add_(1)
        module.write_graph(other, path)

    monkeypatch.setattr(module, "write_fused_graph", write_faulty_graph)
    with unchecked():
        engine = load_engine(run_dir)
        values = engine.classify(TEXTS)
    assert (engine.runtime, engine.note) == ("onnxruntime", "")
    assert probabilities(values) == pytest.approx(expected(run_dir, TEXTS), abs=1e-5)


def test_torch_answers_what_predict_answers(run_dir):
    engine = load_engine(run_dir, runtime="torch")
    values = engine.classify(TEXTS)
    assert (engine.runtime, engine.kind, engine.note) == ("torch", "classifier", "")
    assert not engine.is_calibrated
    assert engine.labels == LABELS
    assert probabilities(values) == pytest.approx(expected(run_dir, TEXTS), abs=1e-6)
    assert [value["label"] for value in values] == load_classifier(run_dir).predict(TEXTS).tolist()


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_run_with_a_temperature_is_calibrated(runtime, shared_classifier, tmp_path):
    if runtime == "onnx":
        pytest.importorskip("onnxruntime")
    with unchecked():
        engine = load_engine(shared_classifier, runtime=runtime)
        values = engine.classify(TEXTS)
    assert engine.is_calibrated
    assert probabilities(values) == pytest.approx(expected(shared_classifier, TEXTS), abs=1e-5)
    # Runs that were made before temperatures are as they were.
    old = shutil.copytree(shared_classifier, tmp_path / "old")
    change_facts(old / "run.json", temperature=...)
    assert not load_engine(old, runtime="torch").is_calibrated


def test_blend_answers_what_predict_answers(tmp_path_factory):
    blend = blend_dir(tmp_path_factory, num_labels=2)
    engine = load_engine(blend)
    values = engine.classify(TEXTS)
    assert (engine.runtime, engine.kind, engine.is_calibrated) == ("numpy", "blend", True)
    assert probabilities(values) == pytest.approx(expected(blend, TEXTS), abs=1e-6)
    assert engine.explain(TEXTS[0])["label"] == values[0]["label"]
    told = load_engine(blend, runtime="onnx").note
    assert told.startswith("onnxruntime is not used")
    assert "blend" in told


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([5], [[0]]),
        ([9, 3, 9, 4, 30], [[1, 3], [0, 2], [4]]),
        ([100, 104, 96], [[2, 0, 1]]),
        ([600, 600], [[0], [1]]),
    ],
)
def test_texts_of_like_length_share_a_run(lengths, expected):
    groups = alike_groups(np.array(lengths, dtype=np.int64))
    assert [group.tolist() for group in groups] == expected


def test_without_the_extra_torch_answers_and_says_so(run_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    engine = load_engine(run_dir)
    assert engine.runtime == "torch"
    assert engine.note.startswith("onnxruntime is not used: This export needs onnxruntime")
    with pytest.raises(ConfigError, match="needs onnxruntime"):
        load_engine(run_dir, runtime="onnx")


def test_export_that_differs_is_not_used(run_dir, monkeypatch):
    pytest.importorskip("onnxruntime")
    from regraft.apps.serve import onnx_classifier as module

    class Inexact(module.OnnxScorer):
        def __call__(self, rows, *, on_batch):
            return np.roll(super().__call__(rows, on_batch=on_batch), 1, axis=1)

    monkeypatch.setattr(module, "OnnxScorer", Inexact)
    with unchecked():
        engine = load_engine(run_dir)
        assert engine.runtime == "torch"
        assert engine.note.startswith("onnxruntime is not used: In onnxruntime, a probability")
        with pytest.raises(RunFolderError, match=r"At most 0\.0001 is exact enough"):
            load_engine(run_dir, runtime="onnx")


def test_model_is_named_after_the_folder_and_what_is_in_it(run_dir, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(run_dir, target_is_directory=True)
    name = load_engine(link, runtime="torch").model
    assert name == f"reviews@{run_fingerprint(run_dir)[:12]}"


def test_explanation_is_of_the_same_decision(run_dir):
    engine = load_engine(run_dir, runtime="torch")
    explained = engine.explain(TEXTS[0])
    assert explained["label"] == engine.classify(TEXTS[:1])[0]["label"]
    assert [word["text"] for word in explained["words"]][:3] == TEXTS[0].split()[:3]


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(RunFolderError, match="There is no run folder"):
        load_engine(tmp_path / "missing")


def test_run_that_gives_no_probabilities_is_refused(tmp_path):
    run_dir = write_run(tmp_path / "run", preset="lab", objective="causal", pooling="last")
    run = load_run(run_dir)
    with torch.no_grad():
        for parameter in run.model.head.parameters():
            parameter.fill_(3e38)
    save_file(run.model.state_dict(), run_dir / "model.safetensors")
    accept_files(run_dir)
    with pytest.raises(RunFolderError, match="does not give probabilities on made-up texts"):
        load_engine(run_dir, runtime="torch")
