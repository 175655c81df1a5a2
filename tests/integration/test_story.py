"""The whole story through the command line: text, base, graft, evidence, pictures."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, make_examples, write_examples
from typer.testing import CliRunner, Result

from regraft.apps.cli import app
from regraft.report.sentences import verdict_parts

# A model that learns the adjectives: the story has to end with something to tell.
ABLE = {**TINY, "data.max_length": 64, "model.width": 24, "model.dropout": 0, "train.lr": 0.005}
SET_ALL = [f"--set={key}={value}" for key, value in ABLE.items()]
SET_TRAINING = [
    f"--set={key}={value}"
    for key, value in ABLE.items()
    if not key.startswith(("model.", "tokenizer."))
]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def run_json(*arguments: object) -> Any:
    """The result alone is on stdout, whatever is told on stderr."""
    return json.loads(run(*arguments, "--json").stdout)


CAUSAL = ("--objective", "causal")


@dataclass(frozen=True)
class Story:
    """The files a user has, the folders they made, and what each command answered."""

    files: dict[str, Path]
    base: Path
    classifier: Path
    pretrained: dict[str, Any]
    finetuned: dict[str, Any]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("story")
    files = {
        name: write_examples(folder / f"{name}.csv", size, seed=seed)
        for seed, (name, size) in enumerate({"train": 96, "valid": 16, "test": 24}.items())
    }
    files["text"] = folder / "text.jsonl"
    lines = [json.dumps({"text": text}) + "\n" for text, _ in make_examples(80, seed=9)]
    files["text"].write_text("".join(lines))
    base, classifier = folder / "base", folder / "classifier"
    pretrained = run_json(
        "pretrain", files["text"], "--out", base, "--steps", 60, *CAUSAL, *SET_ALL
    )
    finetuned = run_json(
        *("finetune", "--base", base, "--train", files["train"], "--valid", files["valid"]),
        *("--out", classifier, "--epochs", 20, *SET_TRAINING),
    )
    return Story(files, base, classifier, pretrained, finetuned)


def test_base_has_learned_the_text(story: Story) -> None:
    assert story.pretrained["num_steps"] == 60
    assert story.pretrained["num_documents"] == 80
    assert story.pretrained["beats_unigram"] is True
    assert story.pretrained["valid_loss"] < story.pretrained["unigram_entropy"]


def test_base_goes_on_writing(story: Story) -> None:
    greedy = run_json("generate", story.base, "the story", "--max-tokens", 8)
    assert greedy == run_json("generate", story.base, "the story", "--max-tokens", 8)
    assert greedy["texts"][0].startswith("the story")
    sampling = ["--temperature", 1, "--top-k", 20, "--max-tokens", 8, "--num", 3]
    texts = run_json("generate", story.base, "the story", *sampling)["texts"]
    assert len(set(texts)) > 1
    assert texts == run_json("generate", story.base, "the story", *sampling)["texts"]


def test_classifier_came_from_the_base_and_learned(story: Story) -> None:
    result = story.finetuned
    assert result["base"] == str(story.base)
    assert "came from the base" in result["transplant"]
    assert result["labels"] == ["negative", "positive"]
    assert len(result["valid_accuracy"]) == 21
    assert result["valid_accuracy"][-1] > 0.8


def test_evaluation_and_predictions_agree(story: Story, tmp_path: Path) -> None:
    evaluation = run_json("evaluate", story.classifier, story.files["test"])
    assert evaluation["num_examples"] == 24
    with story.files["test"].open(encoding="utf-8", newline="") as file:
        truth = [row["label"] for row in csv.DictReader(file)]

    rows = list(
        csv.DictReader(run("predict", story.classifier, story.files["test"]).stdout.splitlines())
    )
    right = [row["predicted_label"] == label for row, label in zip(rows, truth, strict=True)]
    assert sum(right) / len(right) == pytest.approx(evaluation["accuracy"]["mean"])

    out = tmp_path / "predictions.jsonl"
    assert run("predict", story.classifier, story.files["test"], "--out", out).stdout == ""
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [record["predicted_label"] for record in records] == [
        row["predicted_label"] for row in rows
    ]
    for record in records:
        probabilities = [record["p(negative)"], record["p(positive)"]]
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert record["predicted_probability"] == max(probabilities)


def test_text_from_a_pipe_is_classified(story: Story) -> None:
    arguments = ["predict", str(story.classifier), "-", "--format", "jsonl"]
    given = "the plot is wonderful again\nthe plot is dreadful again\n"
    result = CliRunner().invoke(app, arguments, input=given)
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["predicted_label"] for record in records] == ["positive", "negative"]
    assert result.stderr == ""


def test_comparison_ends_in_a_verdict_and_a_report(story: Story, tmp_path: Path) -> None:
    out = tmp_path / "report"
    files = [f"--{name}={story.files[name]}" for name in ("train", "valid", "test")]
    command = ["compare", "--base", story.base, *files, "--seeds", 2, "--epochs", 2, "--jobs", 1]
    command += ["--grid", "none"]
    printed = run_json(*command, "--out", out, *SET_TRAINING)
    assert printed == json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert [arm["name"] for arm in printed["arms"]] == [
        *("pretrained", "scratch", "frozen", "linear")
    ]
    assert [len(arm["valid_curves"]) for arm in printed["arms"]] == [2, 2, 2, 1]
    assert printed["verdict"].endswith(".")
    headline, rest = verdict_parts(printed["verdict"])
    assert f"# {headline}\n\n{rest}\n" in (out / "report.md").read_text(encoding="utf-8")
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "http://" not in html.replace("http://www.w3.org/", "")
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("which", ["base", "classifier"])
def test_attention_is_drawn(story: Story, tmp_path: Path, which: str) -> None:
    out = tmp_path / "attention.png"
    result = run("attention", getattr(story, which), "the plot is dull", "--out", out)
    assert result.stdout == ""
    assert out.read_bytes().startswith(b"\x89PNG")


def test_quiet_commands_say_nothing(story: Story) -> None:
    result = run("evaluate", story.classifier, story.files["test"], "--json", "--quiet")
    assert result.stderr == ""


@pytest.mark.slow
def test_control_c_saves_and_says_how_to_go_on(story: Story, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "regraft", "pretrain", str(story.files["text"])]
    command += ["--out", str(out), "--minutes", "5", *SET_ALL]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        while not (out / "metrics.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stdout == ""
    again = shlex.join(["regraft", *command[3:], "--resume"])
    assert stderr.splitlines()[-2:] == [
        f"Interrupted. The unfinished run is in {out}. Continue with:",
        f"  {again}",
    ]
    assert "Traceback" not in stderr
    (checkpoint,) = (out / "checkpoints").iterdir()
    assert checkpoint.name.isdigit()
