"""Every command that writes, with small inputs: how it is started, and what it should leave."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conftest import TINY, make_examples, make_records, write_examples
from random_runs import write_run
from tiny_blends import light_blend
from wheels import build_wheel

from regraft.classifiers.tfidf import fit_linear
from regraft.data.corpora import CORPORA
from regraft.data.text.records import labels_of

Words = Sequence[object]
_BAG = {
    "model.width": 16,
    "model.num_pairs": 200,
    "tokenizer.size": 400,
    "data.max_length": 64,
    "train.batch_size": 1,
    "train.checkpoint_every": 3,
    "objective.group_size": 4,
}
_ROWS = "".join(f'"{text}",{label}\n' for text, label in make_examples(2_000, seed=9))


@dataclass(frozen=True)
class Scenario:
    """A command by its output; `is_whole` if its output is there whole or not at all."""

    name: str
    words: Callable[[Path], Words]
    is_whole: bool = False
    # Of the environment, besides what all have.
    num_processes: int = 1


def _flags(values: dict[str, object]) -> list[str]:
    return [f"--set={key}={value}" for key, value in values.items()]


def make_inputs(folder: Path) -> None:
    """Files, a base and classifiers that commands read; an index of packages for fetch."""
    folder.mkdir(parents=True)
    texts = "".join(f"{text} {text}\n" for text, _ in make_examples(260, seed=1))
    (folder / "text.txt").write_text(texts)
    for seed, (name, size) in enumerate({"train": 40, "valid": 30, "test": 24}.items(), start=3):
        write_examples(folder / f"{name}.csv", size, seed=seed)
    write_examples(folder / "new.csv", 6_000, seed=6)
    write_run(folder / "base", preset="modern", objective="masked")
    write_run(folder / "network", preset="modern", objective="masked", pooling="mean")
    examples = make_records(40, seed=3)
    fit_linear(examples, examples, labels=labels_of(examples)).save(folder / "linear")
    light_blend().save(folder / "blend")
    (folder / "index").mkdir()
    sha256 = build_wheel(
        folder / "index",
        name="tinyfilms",
        version="1.0",
        members={"data/a.csv": "review,sentiment\n" + _ROWS},
    )
    CORPORA["tiny"] = replace(
        CORPORA["imdb-50k"],
        name="tiny",
        package="tinyfilms",
        version="1.0",
        sha256=sha256,
        num_rows=2_000,
        members=r"data/a\.csv",
    )
    index = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    os.environ.update({**index, "PIP_FIND_LINKS": str(folder / "index")})


def scenarios(inputs: Path) -> list[Scenario]:
    """All of them, the quick ones first."""
    text, linear, network = inputs / "text.txt", inputs / "linear", inputs / "network"
    tiny = _flags({**TINY, "train.threads": 1})
    fit = ["fit", "--text", text, "--train", inputs / "train.csv", "--bases", 2, "--seed", 5]
    split = [f"--{name}={inputs / name}.csv" for name in ("train", "valid", "test")]
    length = ["--steps", 60, "--checkpoint-every", 4, "--resume", *tiny]
    student = {**TINY, "model.width": 16, "model.num_heads": 2, "train.threads": 1}
    return [
        Scenario(
            "predict",
            lambda out: ["predict", linear, inputs / "new.csv", "--out", f"{out}.csv", "--resume"],
            is_whole=True,
        ),
        Scenario(
            "tokenizer train",
            lambda out: ["tokenizer", "train", text, "--size", 400, "--out", f"{out}.json"],
            is_whole=True,
        ),
        Scenario(
            "tokenize",
            lambda out: ["tokenize", inputs / "new.csv", "--tokenizer", network, "--out", out],
        ),
        Scenario(
            "data check",
            lambda out: ["data", "check", *map(_csv, split), "--drop-leaks", out],
        ),
        Scenario("fetch", lambda out: ["data", "fetch", "tiny", "--out", out]),
        Scenario(
            "export",
            lambda out: ["export", network, "--format", "hf", "--out", out],
            is_whole=True,
        ),
        Scenario("pretrain", lambda out: ["pretrain", text, "--out", out, *length]),
        Scenario(
            "finetune",
            lambda out: [
                *("finetune", "--base", inputs / "base", "--train", inputs / "train.csv"),
                *("--valid", inputs / "valid.csv", "--out", out, "--resume", "--epochs", 6),
                *("--checkpoint-every", 4, *_flags({"data.max_length": 24, "train.batch_size": 4})),
            ],
        ),
        Scenario(
            "distill",
            lambda out: [
                *("distill", linear, "--text", text, "--out", out, "--resume", "--epochs", 2),
                *("--checkpoint-every", 4, *_flags(student)),
            ],
        ),
        Scenario("fit", lambda out: [*fit, "--out", out, "--resume", *_flags(_BAG)]),
        Scenario(
            "fit (two workers)",
            lambda out: [*fit, "--out", out, "--resume", *_flags(_BAG)],
            num_processes=2,
        ),
        Scenario(
            "compare",
            lambda out: [
                *("compare", "--base", inputs / "base", *split, "--out", out, "--resume"),
                *("--arms", "pretrained,scratch,linear", "--seeds", 2, "--epochs", 2),
                *("--grid=none", "--jobs", 1, "--set=data.max_length=24", "--set=train.threads=1"),
            ],
        ),
    ]


def _csv(option: str) -> str:
    return option.partition("=")[2]


def output_of(scenario: Scenario, out: Path) -> Path:
    """The file or folder that a command writes."""
    words = [str(word) for word in scenario.words(out)]
    flag = "--drop-leaks" if "--drop-leaks" in words else "--out"
    return Path(words[words.index(flag) + 1])


def remove(path: Path) -> None:
    """A file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
