"""`regraft export`: what it prints, what it refuses."""

import json
import sys
from pathlib import Path

import pytest
from conftest import make_examples, make_records
from random_runs import write_run
from shapes import unchecked
from typer.testing import CliRunner, Result

from regraft.apps.cli import app
from regraft.classifiers.tfidf import fit_linear
from regraft.data.text.records import labels_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def classifier_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    return write_run(folder, preset="lab", objective="causal", pooling="last")


def test_export_prints_every_padding_and_the_largest_difference(classifier_dir, tmp_path):
    pytest.importorskip("transformers")
    out = tmp_path / "out"
    result = run("export", classifier_dir, "--format", "hf", "--out", out)
    assert result.exit_code == 0, result.output
    for padding in ("no padding", "padding on the right", "padding on the left"):
        assert f"OPTForSequenceClassification {padding}" in " ".join(result.stdout.split())
    assert f"{out} " in result.stdout
    again = run("export", classifier_dir, "--format", "hf", "--out", out)
    assert again.exit_code == 2
    assert again.stderr == (
        f"error: {out} exists and is not an empty folder. This is written into its own "
        "folder. Choose another --out.\n"
    )


def test_export_as_json_is_the_result_alone(classifier_dir, tmp_path):
    pytest.importorskip("transformers")
    arguments = ("export", classifier_dir, "--format", "hf", "--out", tmp_path / "out")
    result = json.loads(run(*arguments, "--json", "--quiet").stdout)
    assert result["format"] == "hf"
    assert result["largest_difference"] < 1e-4


def test_onnx_shows_what_int8_cost(classifier_dir, tmp_path):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "out"
    with unchecked():
        result = run("export", classifier_dir, "--format", "onnx", "--int8", "--out", out)
    assert result.exit_code == 0, result.output
    assert "int8 against fp32" in result.stdout
    assert "same answers" in result.stdout


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--format", "hf", "--int8"], ["--int8", "--format onnx"]),
        (["--format", "onnx", "--data", "valid.csv"], ["--data valid.csv", "--int8"]),
        (["--format", "hf", "--minutes", "3"], ["--minutes 3", "--text"]),
        (["--format", "numpy", "--text", __file__], [f"--text {__file__}", "without a student"]),
    ],
)
def test_flags_that_contradict_are_refused(flags, facts, classifier_dir, tmp_path):
    result = run("export", classifier_dir, "--out", tmp_path / "out", *flags)
    assert result.exit_code == 2
    assert all(fact in result.stderr for fact in facts)


@pytest.mark.parametrize(
    ("format", "module", "extra"), [("hf", "transformers", "hf"), ("onnx", "onnx", "onnx")]
)
def test_missing_extra_is_named(format, module, extra, classifier_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    result = run("export", classifier_dir, "--format", format, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: This export needs {module}, which is not installed. The extra `{extra}` brings "
        f"it. In your clone of regraft, run `pip install '.[{extra}]'`.\n"
    )


@pytest.mark.parametrize("format", ["hf", "onnx"])
def test_folder_that_is_no_run_is_refused(format, tmp_path):
    missing = tmp_path / "missing"
    result = run("export", missing, "--format", format, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: There is no run folder {missing}.")
    assert list(tmp_path.iterdir()) == []


def test_place_below_a_file_is_refused(classifier_dir, tmp_path):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "out"
    result = run("export", classifier_dir, "--format", "hf", "--out", out)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: Cannot write {out}: Not a directory. Choose a folder you may write to.\n"
    )


@pytest.fixture(scope="module")
def linear_dir(tmp_path_factory) -> Path:
    examples, folder = make_records(40), tmp_path_factory.mktemp("cli") / "linear"
    fit_linear(examples, examples, labels=labels_of(examples)).save(folder)
    return folder


@pytest.mark.parametrize(("format", "module"), [("hf", "transformers"), ("onnx", "onnx")])
def test_what_is_no_network_is_refused_before_an_extra_is_asked_for(
    format, module, linear_dir, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    result = run("export", linear_dir, "--format", format, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "'linear', which is not a network" in result.stderr
    remedy = result.stderr.partition("same answers.")[2]
    assert "--text FILE" in remedy.partition("Use --format numpy")[2]
    assert "pip install" not in result.stderr


def test_fitted_classifier_is_exported_for_numpy(linear_dir, tmp_path):
    result = run("export", linear_dir, "--format", "numpy", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "probabilities" in result.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"README.md", "arrays.npz", "classifier.json", "classifier.py"}


def test_student_is_exported_where_text_is_given(linear_dir, classifier_dir, tmp_path):
    pytest.importorskip("transformers")
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("".join(f"{text}\n" for text, _ in make_examples(120, seed=8)))
    flags = ("--format", "hf", "--text", text, "--minutes", 0.05, "--out", out)
    result = run("export", linear_dir, *flags)
    assert result.exit_code == 0, result.output
    assert "| same label as its teacher |" in (out / "README.md").read_text()
    assert (tmp_path / "out-student" / "run.json").exists()
    refused = run("export", classifier_dir, *flags[:4], "--out", tmp_path / "other")
    assert refused.exit_code == 2
    assert f"--text {text} would not be used." in refused.stderr
