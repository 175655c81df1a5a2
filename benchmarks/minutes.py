"""What do more minutes of pre-training buy?

Bases of the same recipe and text that differ in their minutes, then one `regraft compare` of all of
them: fine-tuned, and as frozen vectors under a logistic regression. What is finished outlives an
interruption: repeat the command to go on.

    .venv/bin/python benchmarks/minutes.py {lab,modern} [--minutes 1 4 10] [--seeds 3]
        [--data FOLDER] [--work DIR] [--json FILE] [--plot FILE.png]

`lab` is the lab's preset on French reviews, 1,600 book reviews as labels; it needs --data, the
folder that holds cls-books and french. `modern` is made in stages from 45,000 film reviews, with
400 labels; its test set is that of recipes.py. Bases take one core for the minutes given; a
comparison takes up to an hour of one.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from recipes import CORPUS, split_corpus, write_corpus_text

from regraft.comparison import load_comparison
from regraft.config import resolve
from regraft.data import Example, load_examples, subset_examples
from regraft.runtime import environment, write_json, write_text

NUM_LABELS, NUM_VALID = 400, 200
# Of the lab: five epochs instead of ten, for the cost; its rate is constant.
EPOCHS = {"lab": 5, "modern": 6}
TITLES = {
    "lab": "The lab, French book reviews, 1,600 labels",
    "modern": "Preset modern in stages, film reviews, 400 labels",
}
PRETRAINING = {
    "lab": ("--preset", "lab"),
    "modern": (
        *("--preset", "modern", "--stages", "auto", "--set", "objective.kind=hybrid"),
        *("--set", "tokenizer.kind=words", "--set", "tokenizer.size=16384"),
        *("--set", "objective.sampled_tokens=1024", "--set", "data.max_length=128"),
        *("--set", "model.width=128", "--set", "model.num_layers=2"),
        *("--set", "model.num_heads=2"),
    ),
}
FINETUNING = {"lab": (), "modern": ("--set", "data.max_length=256")}


def write_examples(path: Path, examples: list[Example]) -> None:
    """As jsonl."""
    lines = [json.dumps({"text": e.text, "label": e.label}) + "\n" for e in examples]
    write_text(path, "".join(lines))


def files_of(name: str, *, data: Path | None, work: Path) -> tuple[list[str], dict[str, str]]:
    """(the text, train, valid and test) of a set."""
    if name == "lab":
        assert data is not None, "lab needs --data"
        books = data / "cls-books"
        splits = {part: str(books / f"{part}.review.spm") for part in ("train", "valid", "test")}
        return [str(data / "french" / "reviews.txt.gz"), "--tokenizer", str(books)], splits
    columns = resolve("finetune").data
    if not (work / "more.txt").exists():
        split_corpus(CORPUS, work=work)
        test = load_examples(work / "test.jsonl", data=columns)
        write_corpus_text("imdb-25k", test=test, path=work / "more.txt")
    pool = load_examples(work / "train.jsonl", data=columns)
    labelled = subset_examples(pool, size=NUM_LABELS + NUM_VALID, seed=0)
    train = subset_examples(labelled, size=NUM_LABELS, seed=1)
    known = {example.text for example in train}
    write_examples(work / "labels.jsonl", train)
    write_examples(work / "valid.jsonl", [e for e in labelled if e.text not in known])
    names = {"train": "labels", "valid": "valid", "test": "test"}
    splits = {part: str(work / f"{file}.jsonl") for part, file in names.items()}
    return [str(work / "text.txt"), str(work / "more.txt")], splits


def regraft(*words: str) -> None:
    """One command of this environment."""
    program = [str(Path(sys.executable).with_name("regraft")), *words]
    print(f"$ {shlex.join(['regraft', *words])}", file=sys.stderr, flush=True)
    subprocess.run(program, check=True, stdout=sys.stderr)


def scores(report: Path, *, minutes: list[float]) -> dict[str, Any]:
    """Accuracy on test, without leaks, of every arm; and the minutes of its base, if any."""
    rows: dict[str, Any] = {}
    for arm in load_comparison(report).arms:
        name, _, base = arm.name.partition(":")
        score = arm.test_accuracy_without_leaks or arm.test_accuracy
        row = {"value": score.mean, "low": score.low, "high": score.high}
        if name in ("pretrained", "embedding"):
            length = float(base.removeprefix("m")) if base else max(minutes)
            rows.setdefault(name, {})[f"{length:g}"] = row
        else:
            rows[name] = row
    return rows


def draw(rows: dict[str, Any], *, title: str, path: Path) -> None:
    """Accuracy against minutes."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    names = {"pretrained": "fine-tuned", "embedding": "frozen vectors + logistic regression"}
    for key, label in names.items():
        points = sorted(rows[key].items(), key=lambda item: float(item[0]))
        at = [float(minutes) for minutes, _ in points]
        axes.plot(at, [row["value"] for _, row in points], marker="o", label=label)
        low, high = ([row[side] for _, row in points] for side in ("low", "high"))
        axes.fill_between(at, low, high, alpha=0.12, linewidth=0)
    for key, label in (("linear", "TF-IDF + logistic regression"), ("scratch", "from scratch")):
        if key in rows:
            style = "--" if key == "linear" else ":"
            axes.axhline(rows[key]["value"], color="#8a8d94", linestyle=style, label=label)
    axes.set_xscale("log")
    axes.set_xticks(at, [f"{minutes:g}" for minutes in at])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("minutes of pre-training on one core")
    axes.set_ylabel("accuracy on test")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Bases, one comparison, table and figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=tuple(EPOCHS))
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 4, 10])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder with cls-books and french, for lab")
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    given = parser.parse_args()
    work = given.work or Path("runs/minutes") / given.name
    work.mkdir(parents=True, exist_ok=True)
    text, splits = files_of(given.name, data=given.data, work=work)
    bases, arms = [], []
    for minutes in sorted(given.minutes, reverse=True):
        out = str(work / f"base-{minutes:g}")
        regraft(
            *("pretrain", *text, *PRETRAINING[given.name], "--minutes", f"{minutes:g}"),
            *("--set", "train.threads=1", "--out", out, "--resume"),
        )
        suffix = f":m{minutes:g}" if bases else ""
        bases += ["--base", f"{suffix.removeprefix(':')}={out}" if bases else out]
        arms += [f"pretrained{suffix}", f"embedding{suffix}"]
    # The lab from scratch has a page of its own, with ten epochs.
    arms += ["linear"] if given.name == "lab" else ["scratch", "linear"]
    regraft(
        *(
            "compare",
            *bases,
            *(word for part, path in splits.items() for word in (f"--{part}", path)),
        ),
        *("--arms", ",".join(arms), "--seeds", str(given.seeds), "--grid", "none"),
        *("--epochs", str(EPOCHS[given.name]), *FINETUNING[given.name]),
        *("--set", "train.threads=1", "--jobs", "1", "--out", str(work / "comparison"), "--resume"),
    )
    rows = scores(work / "comparison" / "report.json", minutes=given.minutes)
    print(json.dumps(rows, indent=1))
    if given.json:
        write_json(given.json, {"environment": environment(), "seeds": given.seeds, "rows": rows})
    if given.plot:
        draw(rows, title=TITLES[given.name], path=given.plot)


if __name__ == "__main__":
    main()
