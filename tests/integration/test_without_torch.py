"""A fitted classifier where torch is not installed: the same answers, and one clear refusal."""

import csv
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from servers import served
from tampering import accept_files, change_facts
from tiny_blends import light_blend

from regraft.classifiers.base import load_classifier
from regraft.runtime import with_checksum, write_json
from regraft.training.run_folder import read_info

TEXTS = ("A charming, wonderful book.", "Dull! Nothing\nhappens in it.", "Книга 長い本")
# What the extra `train` brings: each import of one of them fails, as if it were not installed.
BLOCKED = ("torch", "sklearn", "matplotlib", "joblib")
BLOCK = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
PROGRAM = (sys.executable, "-c", f"{BLOCK}\nfrom regraft.apps.cli import main\nmain()")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light") / "run"
    light_blend().save(folder)
    return folder


def regraft(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in (*PROGRAM, *arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def python(code: str) -> str:
    command = [sys.executable, "-c", BLOCK + code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def answered(*arguments: object) -> str:
    result = regraft(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_predict_evaluate_and_explain_answer_as_with_torch(run_dir, tmp_path):
    file = tmp_path / "new.csv"
    with file.open("w", encoding="utf-8", newline="") as opened:
        labels = ("positive", "negative", "negative")
        csv.writer(opened).writerows([("text", "label"), *zip(TEXTS, labels, strict=True)])
    classifier = load_classifier(run_dir)
    expected_NC = classifier.predict_proba(TEXTS)
    predictions = json.loads(answered("predict", run_dir, file, "--json", "--quiet"))
    for prediction, row in zip(predictions, expected_NC, strict=True):
        found = [prediction[f"p({label})"] for label in classifier.labels]
        assert found == pytest.approx(row, abs=1e-6)
    evaluation = json.loads(answered("evaluate", run_dir, file, "--json", "--quiet"))
    assert evaluation["num_examples"] == len(TEXTS)
    explanation = json.loads(answered("explain", run_dir, TEXTS[0], "--json", "--quiet"))
    assert explanation["method"] == "contributions"
    assert max(explanation["probabilities"].values()) == pytest.approx(expected_NC[0].max())


def test_serve_answers_a_request(run_dir):
    expected_C = load_classifier(run_dir).predict_proba(TEXTS[:1])[0]
    with served(run_dir, program=PROGRAM) as server:
        client = server.client()
        status, body = client.classify(TEXTS[0])
        client.close()
        server.end()
    assert status == 200
    found = body["predictions"][0]["probabilities"]
    assert list(found.values()) == pytest.approx(expected_C, abs=1e-6)


def test_commands_that_train_name_the_extra_before_anything_else(tmp_path):
    commands = {
        "fit": ["--text", "text.txt", "--train", "train.csv", "--out", str(tmp_path / "run")],
        "pretrain": ["text.txt", "--out", str(tmp_path / "run")],
        "generate": [str(tmp_path), "Once"],
        "export": [str(tmp_path), "--format", "hf", "--out", str(tmp_path / "run")],
        "studio": [],
    }
    lines = python(
        f"""
from typer.testing import CliRunner
from regraft.apps.cli import app

for name, arguments in {commands}.items():
    result = CliRunner().invoke(app, [name, *arguments])
    print(result.exit_code, result.stderr, end="")
"""
    )
    assert lines.splitlines() == [
        f"2 error: `regraft {name}` needs torch, which is not installed. The extra `train` brings "
        "it. In your clone of regraft, run `pip install '.[train]'`."
        for name in commands
    ]
    assert not list(tmp_path.iterdir())


def test_export_for_numpy_works(run_dir, tmp_path):
    flags = ("--format", "numpy", "--out", tmp_path / "out")
    assert "probabilities" in answered("export", run_dir, *flags)
    assert (tmp_path / "out" / "arrays.npz").exists()


def test_run_folder_with_a_network_names_the_extra(run_dir, tmp_path):
    info = dataclasses.replace(read_info(run_dir), kind="classifier")
    write_json(tmp_path / "run.json", with_checksum(dataclasses.asdict(info)))
    result = regraft("predict", tmp_path, "new.csv", "--quiet")
    assert result.returncode == 2
    assert f"The classifier of kind classifier in {tmp_path} needs torch" in result.stderr
    assert "pip install '.[train]'" in result.stderr


def test_run_with_an_encoder_names_the_extra(run_dir, tmp_path):
    blend = shutil.copytree(run_dir, tmp_path / "run")
    change_facts(blend / "members" / "latent" / "member.json", kind="embedding")
    accept_files(blend)
    result = regraft("predict", blend, "new.csv", "--quiet")
    assert result.returncode == 2
    assert "The classifier of kind embedding in " in result.stderr
    assert "pip install '.[train]'" in result.stderr


def test_python_names_the_extra():
    error = python(
        """
import regraft

regraft.load_classifier, regraft.evaluate, regraft.load_examples
try:
    regraft.fit
except regraft.ConfigError as error:
    print(error)
"""
    )
    assert error.startswith("regraft.fit needs ")
    assert "pip install '.[train]'" in error
