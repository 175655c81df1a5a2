"""A bag through the command line: pre-trained by contrast, grafted, asked, and what it refuses."""

import csv
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, make_examples, write_examples
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from regraft.apps.cli import app
from regraft.classifiers.starts import start_from_base
from regraft.config.resolution import resolve
from regraft.training.run_folder import read_settings

BAG = {
    "model.width": 24,
    "model.num_pairs": 500,
    "tokenizer.size": 300,
    "objective.group_size": 8,
    "data.max_length": 48,
    "train.batch_size": 4,
    "train.warmup_steps": 1,
}


def flags(settings: dict[str, Any], *sections: str) -> list[str]:
    return [f"--set={key}={value}" for key, value in settings.items() if key.startswith(sections)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


@dataclass(frozen=True)
class Bag:
    """What a user has, made and was told."""

    train: Path
    base: Path
    classifier: Path
    pretrained: dict[str, Any]
    finetuned: dict[str, Any]


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Bag:
    folder = tmp_path_factory.mktemp("bag")
    text, train = folder / "text.txt", write_examples(folder / "train.csv", 64, seed=2)
    text.write_text("".join(f"{document}\n" for document, _ in make_examples(200, seed=9)))
    base, classifier = folder / "base", folder / "classifier"
    pretrained = run_json(
        *("pretrain", text, "--preset", "bag", "--out", base, "--epochs", 2),
        *flags(BAG, ""),
    )
    finetuned = run_json(
        *("finetune", "--base", base, "--train", train, "--out", classifier, "--epochs", 6),
        *flags(BAG, "data.", "train."),
        "--set=train.lr=0.05",
    )
    return Bag(train, base, classifier, pretrained, finetuned)


def test_base_finds_halves_and_predicts_no_token(bag: Bag) -> None:
    told = bag.pretrained
    assert told["objective"] == "contrast"
    assert (told["unigram_entropy"], told["beats_unigram"]) == (None, None)
    assert told["bits_per_byte"] is None
    assert told["valid_loss"] == told["readings"]["valid_loss"]
    assert 0 <= told["readings"]["valid_halves_found"] <= 1


def test_result_shows_the_halves_found(bag: Bag, tmp_path: Path) -> None:
    text = bag.base.parent / "text.txt"
    arguments = ("pretrain", text, "--preset", "bag", "--out", tmp_path / "run", "--steps", 2)
    result = run(*arguments, *flags(BAG, ""))
    assert "second halves" in result.stdout
    assert "unigram" not in result.output


def test_graft_carries_vectors_and_pairs_and_predicts(bag: Bag, tmp_path: Path) -> None:
    base, classifier = (
        load_file(folder / "model.safetensors") for folder in (bag.base, bag.classifier)
    )
    keys = base["backbone.pair_keys"]
    assert torch.equal(classifier["backbone.pair_keys"], keys)
    assert 0 < (keys < 2**62).sum() < len(keys)
    assert bag.finetuned["valid_accuracy"][-1] > 0.7
    out = tmp_path / "predictions.csv"
    assert run("predict", bag.classifier, bag.train, "--out", out).exit_code == 0
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with bag.train.open(encoding="utf-8") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    num_right = sum(
        row["predicted_label"] == label for row, label in zip(rows, labels, strict=True)
    )
    assert num_right > 0.9 * len(rows)
    told = run_json("evaluate", bag.classifier, bag.train)
    assert told["accuracy"]["mean"] == pytest.approx(num_right / len(rows))


def test_compare_gives_scratch_the_pairs_of_the_base(bag: Bag, tmp_path: Path) -> None:
    valid, test = (write_examples(tmp_path / f"{n}.csv", 16, seed=n) for n in (30, 31))
    told = run_json(
        *("compare", "--base", bag.base, "--train", bag.train, "--valid", valid, "--test", test),
        *("--out", tmp_path / "out", "--seeds", 1, "--epochs", 1, "--jobs", 1),
        *("--arms", "pretrained,scratch,frozen"),
        *flags(BAG, "data.", "train."),
    )
    assert [arm["name"] for arm in told["arms"]] == ["pretrained", "scratch", "frozen"]
    settings = resolve("finetune", base=read_settings(bag.base))
    start = start_from_base(bag.base, settings=settings)
    scratch, _ = dataclasses.replace(start, base=None).build_model(num_classes=2, seed=0)
    base, found = start.base.model.backbone.state_dict(), scratch.backbone.state_dict()
    assert [name for name in base if torch.equal(base[name], found[name])] == ["pair_keys"]


def test_scratch_knows_the_pairs_of_its_training_texts(bag: Bag, tmp_path: Path) -> None:
    arguments = ("finetune", "--base", "scratch", "--preset", "bag", "--train", bag.train)
    given = [flag for flag in flags(BAG, "") if "objective." not in flag]
    result = run(*arguments, "--out", tmp_path / "run", "--epochs", 1, *given)
    assert result.exit_code == 0, result.output
    keys = load_file(tmp_path / "run" / "model.safetensors")["backbone.pair_keys"]
    assert 20 < (keys < 2**62).sum() < len(keys)


def test_what_a_bag_cannot_do_is_refused(bag: Bag, tmp_path: Path) -> None:
    assert "cannot continue a text" in refusal("generate", bag.base, "the story")
    assert "cannot predict masked ones" in refusal("fill", bag.base, "the <mask>")
    refusals = {
        bag.base: "holds a base without a head, which scores nothing",
        bag.classifier: "no class of transformers can express",
    }
    for run_dir, problem in refusals.items():
        out = tmp_path / "out"
        drawn = ("attention", run_dir, "the story", "--out", tmp_path / "a.png")
        assert "has no attention" in refusal(*drawn)
        assert problem in refusal("export", run_dir, "--format", "hf", "--out", out)
        for subject in ("mask", "positions"):
            drawn = ("picture", subject, "--run", run_dir, "--out", tmp_path / "a.png")
            assert subject.rstrip("s") in refusal(*drawn)
    told = refusal("export", bag.base, "--format", "onnx", "--out", tmp_path / "out")
    assert "holds a base without a head, which scores nothing" in told
    assert list(tmp_path.iterdir()) == []


def test_too_few_documents_are_told(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("One long document " * 20 + "\nshort\n")
    told = refusal(
        *("pretrain", text, "--preset", "bag", "--out", tmp_path / "out", "--steps", 1),
        *flags(BAG, ""),
    )
    assert "The text holds 1 document of 16 tokens or more; contrast needs at least 2." in told


def test_other_families_learn_by_contrast_too(bag: Bag, tmp_path: Path) -> None:
    text = bag.base.parent / "text.txt"
    told = run_json(
        *("pretrain", text, "--preset", "modern", "--objective", "contrast", "--steps", 3),
        *("--out", tmp_path / "base", *flags(TINY, ""), "--set=objective.group_size=8"),
    )
    assert "valid_halves_found" in told["readings"]
    told = run_json(
        *("finetune", "--base", tmp_path / "base", "--train", bag.train, "--epochs", 1),
        *("--out", tmp_path / "run", *flags(TINY, "data.", "train.")),
    )
    assert "came from the base" in told["transplant"]
    for run_dir, format in ((tmp_path / "base", "hf"), (tmp_path / "base", "onnx")):
        exported = ("export", run_dir, "--format", format, "--out", tmp_path / "out")
        assert "holds a base without a head" in refusal(*exported)
