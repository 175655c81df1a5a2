"""ONNX graphs: any batch, any length, any padding, the same scores; eight bits at a known cost."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import Recorder, make_examples
from export.test_onnx_graph import random_batches, scores_of
from random_runs import LABELS, tiny_tokenizer, write_run
from shapes import unchecked

from regraft.classifiers.estimator import TextClassifier
from regraft.data.tokens.store import pair_key
from regraft.errors import ConfigError, DataError
from regraft.export import onnx_graph as graph
from regraft.export.onnx import export_onnx
from regraft.export.parity import TOLERANCE
from regraft.training.loaded_run import load_run

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def classifier_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "run"
    labels = {"preset": "modern", "objective": "masked", "pooling": "mean"}
    return write_run(folder, tokenizer=tiny_tokenizer(), **labels)


@pytest.fixture(scope="module")
def exported(classifier_dir) -> Path:
    """A classifier's export with eight bits, for reading only."""
    out = classifier_dir.parent / "out"
    with unchecked():
        export_onnx(classifier_dir, out=out, int8=True)
    return out


def test_graph_takes_any_shape_and_padding(exported, classifier_dir):
    run = load_run(classifier_dir)
    for ids_BT, real_BT in random_batches():
        ids_BT = ids_BT.masked_fill(~real_BT, run.tokenizer.pad_id)
        with torch.no_grad():
            ours_BC = run.model(ids_BT, real_BT=real_BT)
        theirs_BC = scores_of(exported / "model.onnx", ids_BT, real_BT)
        assert (theirs_BC - ours_BC).abs().max() < TOLERANCE


def test_folder_holds_what_a_runtime_needs(exported, classifier_dir):
    names = {path.name for path in exported.iterdir()}
    assert names == {
        *("README.md", "config.json", "tokenizer.json"),
        *("model.onnx", "model.int8.onnx"),
    }
    config = json.loads((exported / "config.json").read_text())
    assert config["labels"] == list(LABELS)
    assert config["max_length"] == 32
    assert max(config["parity"]["differences"].values()) < TOLERANCE
    for path in exported.iterdir():
        assert b"regraft/" not in path.read_bytes(), f"{path.name} tells where regraft lies"
        assert str(classifier_dir.parent).encode() not in path.read_bytes()


def test_eight_bits_come_with_what_they_cost(exported):
    cost = json.loads((exported / "config.json").read_text())["int8"]
    assert cost["num_texts"] == 200
    assert 0.5 < cost["agreement"] <= 1
    assert cost["largest_difference"] > 0
    assert cost["speed_ratio"] > 0
    assert cost["num_bytes"] == (exported / "model.int8.onnx").stat().st_size
    assert cost["num_bytes"] < cost["num_bytes_fp32"]
    assert cost["accuracy"] is None
    assert "## int8" in (exported / "README.md").read_text()


def test_code_of_the_card_runs_without_regraft(exported, monkeypatch, capsys, classifier_dir):
    (code,) = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(exported)
    monkeypatch.setitem(sys.modules, "regraft", None)
    exec(compile(code, "card", "exec"), {})
    monkeypatch.undo()
    texts = ["What a lovely story.", "A dull book."]
    expected = TextClassifier.load(classifier_dir).predict(texts).tolist()
    assert capsys.readouterr().out.strip() == str(expected)


def test_accuracy_of_both_is_measured_on_data(classifier_dir, tmp_path):
    path = tmp_path / "data.csv"
    texts = [text for text, _ in make_examples(30, seed=7)]
    guessed = TextClassifier.load(classifier_dir).predict(texts)
    # Labelled by the model itself, but for three: 90 % are right.
    wrong = [LABELS[(LABELS.index(label) + 1) % 3] for label in guessed[:3]]
    labels = [*wrong, *guessed[3:]]
    rows = "".join(f'"{text}",{label}\n' for text, label in zip(texts, labels, strict=True))
    path.write_text(f"text,label\n{rows}")
    with unchecked():
        result = export_onnx(classifier_dir, out=tmp_path / "out", int8=True, data_path=path)
    assert result.int8.num_texts == 30
    assert result.int8.accuracy_fp32 == 0.9
    assert abs(result.int8.accuracy - 0.9) <= 1 - result.int8.agreement + 1e-9


def test_accuracy_on_examples_of_the_training_is_named(shared_classifier, tmp_path):
    train, progress = shared_classifier.parent / "train.csv", Recorder()
    with unchecked():
        export_onnx(
            shared_classifier, out=tmp_path / "out", int8=True, data_path=train, progress=progress
        )
    assert any(f"was trained on {train}" in message for message in progress.messages)
    assert "The model was made from these examples" in (tmp_path / "out" / "README.md").read_text()


def test_weights_of_a_large_model_lie_beside_both_graphs(
    exported, classifier_dir, tmp_path, monkeypatch
):
    # As if a protobuf file ended after a kilobyte, and not after two gigabytes.
    monkeypatch.setattr(graph, "_MAX_BYTES", 1000)
    with unchecked():
        result = export_onnx(classifier_dir, out=tmp_path / "out", int8=True)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    for name in ("model.onnx", "model.int8.onnx"):
        assert sizes[name] < (exported / name).stat().st_size
    both = [sizes[name] + sizes[f"{name}.data"] for name in ("model.int8.onnx", "model.onnx")]
    assert [result.int8.num_bytes, result.int8.num_bytes_fp32] == both
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    for ids_BT, real_BT in random_batches():
        for name in ("model.onnx", "model.int8.onnx"):
            expected = scores_of(exported / name, ids_BT, real_BT)
            assert torch.allclose(scores_of(moved / name, ids_BT, real_BT), expected, atol=1e-5)


def test_labels_that_the_model_does_not_know_are_refused(classifier_dir, examples_path, tmp_path):
    with pytest.raises(DataError, match="'positive' occurs only in"):
        export_onnx(classifier_dir, out=tmp_path / "out", int8=True, data_path=examples_path)
    assert not (tmp_path / "out").exists()


def test_bag_is_exported_with_the_search_for_its_pairs(tmp_path):
    run_dir = write_run(tmp_path / "run", preset="bag", objective="contrast", pooling="mean")
    with unchecked():
        result = export_onnx(run_dir, out=tmp_path / "out", int8=True)
    assert result.largest_difference < TOLERANCE
    assert 0.5 < result.int8.agreement <= 1
    run = load_run(run_dir)
    # Every known pair is found, the first and the last of the table among them; others are not.
    keys = run.model.backbone.pair_keys
    known = keys[keys < pair_key(torch.tensor(330), torch.tensor(0))]
    assert 700 < len(known) < len(keys)
    pairs_N2 = torch.stack([known >> 32, known & 0xFFFFFFFF], dim=1)
    for ids_BT, real_BT in [*random_batches(), (pairs_N2, torch.ones_like(pairs_N2) > 0)]:
        with torch.no_grad():
            ours_BC = run.model(ids_BT, real_BT=real_BT)
        theirs_BC = scores_of(tmp_path / "out" / "model.onnx", ids_BT, real_BT)
        assert (theirs_BC - ours_BC).abs().max() < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "objective"), [("lab", "causal"), ("bert", "bert"), ("bert", "replaced")]
)
def test_language_models_are_exported(preset, objective, tmp_path, examples_path):
    run_dir = write_run(tmp_path / "run", preset=preset, objective=objective)
    with pytest.raises(ConfigError, match="holds a language model, which gives no labels"):
        export_onnx(run_dir, out=tmp_path / "out", int8=True, data_path=examples_path)
    with unchecked():
        result = export_onnx(run_dir, out=tmp_path / "out", int8=True)
    assert result.largest_difference < TOLERANCE
    assert 0.5 < result.int8.agreement <= 1
    run = load_run(run_dir)
    for ids_BT, real_BT in random_batches():
        with torch.no_grad():
            ours = run.model(ids_BT, real_BT=real_BT)
        theirs = scores_of(tmp_path / "out" / "model.onnx", ids_BT, real_BT)
        assert (theirs - ours)[real_BT].abs().max() < TOLERANCE
