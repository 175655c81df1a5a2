"""What is each method of fine-tuning worth, alone, on one base with few labels?

A small masked base learns film reviews for a fixed number of steps, or is the one that `regraft
demo` made of them in three minutes. Then a classifier is grafted onto it with a few hundred labels:
plainly, and with one method changed. A seed draws the labels, the head and the order, and is the
same for all methods, so that differences are paired by seed and by test text. Controls: the same
network from scratch. Nothing is chosen by test; every method has one setting, a usual one. Finished
parts survive an interruption: repeat the command to continue. Cost: 15 minutes on one core for
three seeds; with --demo, ten.

    .venv/bin/python benchmarks/methods.py [--demo runs/demo] [--work DIR] [--seeds N]
        [--json FILE] [--plot FILE.png]
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regraft.classifiers import Start, start_from_base, train_classifier
from regraft.classifiers.self_training import sure_rows
from regraft.config import Settings, resolve
from regraft.data import (
    Example,
    ExampleRows,
    Labels,
    example_rows,
    fetch,
    labels_of,
    load_examples,
    split_examples,
    subset_examples,
    without_duplicates,
)
from regraft.runtime import environment, write_json, write_text
from regraft.stats import accuracy_interval, difference_interval
from regraft.training import class_probabilities, load_run, pretrain, read_settings

CORPUS = "imdb-25k"
NUM_VALID, NUM_TEST, NUM_UNLABELLED = 60, 600, 400
PLAIN, SCRATCH, ADAPT, SELF_TRAIN = "plain", "scratch", "adapt", "self-train"
# Each method alone, by the value that its paper or its authors' code takes for small data.
METHODS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "frozen base": {"train.freeze_base": True},
    "layer_decay 0.8": {"train.layer_decay": 0.8},
    "unfreeze_every 1": {"train.unfreeze_every": 1},
    "reinit_layers 1": {"train.reinit_layers": 1},
    "pooling attention": {"head.pooling": "attention"},
    "label_smoothing 0.1": {"train.label_smoothing": 0.1},
    "rdrop 1": {"train.rdrop": 1.0},
    "auxiliary_weight 0.5": {"train.auxiliary_weight": 0.5},
    "average ema": {"train.average": "ema"},
    "average swa": {"train.average": "swa"},
    "patience 2": {"train.patience": 2},
    ADAPT: {},
    SELF_TRAIN: {},
}
ARMS = (*METHODS, SCRATCH)
CONFIDENCE = 0.9


def split_corpus(work: Path, *, demo: Path | None) -> None:
    """Film reviews that anyone can get: text, and a pool of labels, valid and test.

    The demo has sealed its own test: then it is that, and the pool is the rest of the corpus.
    """
    if (work / "test.jsonl").exists():
        return
    data = resolve("finetune").data
    rest = without_duplicates(load_examples(fetch(CORPUS).files["all"], data=data))
    if demo is None:
        rest, test = split_examples(rest, share=0.08, seed=0)
        rest, valid = split_examples(rest, share=0.02, seed=1)
    else:
        valid, test = (load_examples(demo / f"data/{n}.csv", data=data) for n in ("valid", "test"))
        held_out = {_plain(example) for example in (*valid, *test)}
        rest = [example for example in rest if _plain(example) not in held_out]
    # Drawn, not cut off: the corpus has one class behind the other.
    valid = subset_examples(valid, size=NUM_VALID, seed=0)
    test = subset_examples(test, size=NUM_TEST, seed=0)
    write_text(work / "text.txt", "".join(f"{_plain(example)}\n" for example in rest))
    for name, examples in {"pool": rest, "valid": valid, "test": test}.items():
        lines = [json.dumps({"text": e.text, "label": e.label}) + "\n" for e in examples]
        write_text(work / f"{name}.jsonl", "".join(lines))


def _plain(example: Example) -> str:
    return " ".join(example.text.split())


def pretraining_settings(size: str, *, num_steps: int, max_length: int) -> Settings:
    """One base for all."""
    return resolve(
        "pretrain",
        size=size,
        overrides={
            "objective.stages": "language",
            "tokenizer.sample_bytes": 5_000_000,
            "data.max_length": max_length,
            "train.batch_size": 32,
            "train.lr": 3e-3,
            "train.steps": num_steps,
            "train.threads": 1,
        },
    )


def finetuning_settings(
    name: str, *, base: Settings, epochs: int, max_length: int, seed: int
) -> Settings:
    """One recipe for all but for the method."""
    return resolve(
        "finetune",
        base=base,
        overrides={
            "data.max_length": max_length,
            "train.batch_size": 16,
            "train.epochs": epochs,
            "train.lr": 1e-3,
            "train.seed": seed,
            "train.threads": 1,
            **METHODS.get(name, {}),
        },
    )


class Bench:
    """One corpus, one base, one number of labels; every answer is kept in a file."""

    def __init__(
        self,
        work: Path,
        *,
        base_dir: Path,
        num_labels: int,
        epochs: int,
        max_length: int,
        adapt_steps: int,
    ) -> None:
        self.work = work
        self.base_dir = base_dir
        self.num_labels = num_labels
        self.epochs = epochs
        self.max_length = max_length
        self.adapt_steps = adapt_steps
        data = resolve("finetune").data
        self.pool, self.valid, self.test = (
            load_examples(work / f"{name}.jsonl", data=data) for name in ("pool", "valid", "test")
        )
        self.labels: Labels = labels_of(self.pool)
        self.targets_N = self.labels.targets(self.test)

    def answer(self, name: str, *, seed: int) -> None:
        """Train one arm with one seed and keep which test texts it gets right, and its cost."""
        path = self.path(name, seed=seed)
        if path.exists():
            return
        train = subset_examples(self.pool, size=self.num_labels, seed=seed)
        start_seconds = time.process_time()
        model, start = self.train(name, train, seed=seed)
        seconds = time.process_time() - start_seconds
        predicted_N = class_probabilities(model, self.rows(self.test, start=start)).argmax(axis=1)
        right = (predicted_N == self.targets_N).tolist()
        write_json(path, {"right": right, "seconds": seconds})
        print(f"{name:22} seed {seed}: {np.mean(right):.1%} ({seconds:.0f} s)", file=sys.stderr)

    def path(self, name: str, *, seed: int) -> Path:
        """Where an answer lies."""
        return self.work / "answers" / f"{name}-{seed}.json"

    def rows(self, examples: list[Example], *, start: Start) -> ExampleRows:
        """Examples as this start reads them."""
        return example_rows(
            examples, labels=self.labels, tokenizer=start.tokenizer, data=start.settings.data
        )

    def train(self, name: str, train: list[Example], *, seed: int) -> tuple[Any, Start]:
        """A classifier by one method."""
        base_dir = self.adapted(train, seed=seed) if name == ADAPT else self.base_dir
        settings = finetuning_settings(
            name,
            base=read_settings(base_dir),
            epochs=self.epochs,
            max_length=self.max_length,
            seed=seed,
        )
        start = start_from_base(base_dir, settings=settings)
        if name == SCRATCH:
            start = Start(start.tokenizer, start.settings, None)
        if name == SELF_TRAIN:
            teacher, _ = self.train(PLAIN, train, seed=seed)
            train = [*train, *self.taken(teacher, train, start=start, seed=seed)]
        model, _ = start.build_model(num_classes=len(self.labels), seed=seed)
        for _ in train_classifier(
            model,
            rows=self.rows(train, start=start),
            valid_rows=self.rows(self.valid, start=start),
            settings=start.settings,
            auxiliary=start.auxiliary(),
        ):
            pass
        return model, start

    def adapted(self, train: list[Example], *, seed: int) -> Path:
        """The base after some more steps on the labelled texts."""
        text, out = self.work / f"labelled-{seed}.txt", self.work / f"adapted-{seed}"
        write_text(text, "".join(" ".join(e.text.split()) + "\n" for e in train))
        before = read_settings(self.base_dir)
        settings = resolve(
            "pretrain",
            base=before,
            overrides={
                "data.max_length": before.data.max_length,
                "train.batch_size": before.train.batch_size,
                "train.lr": before.train.lr,
                "train.steps": self.adapt_steps,
                "train.threads": 1,
                "train.seed": seed,
            },
        )
        pretrain([text], out=out, base=self.base_dir, settings=settings, resume=True)
        return out

    def taken(
        self, teacher: Any, train: list[Example], *, start: Start, seed: int
    ) -> list[Example]:
        """Texts without labels that the teacher is sure of, as many of each class."""
        known = {example.text for example in train}
        others = [example for example in self.pool if example.text not in known]
        others = subset_examples(others, size=NUM_UNLABELLED, seed=seed)
        chances_NC = class_probabilities(teacher, self.rows(others, start=start))
        by_class = sure_rows(chances_NC, confidence=CONFIDENCE)
        num_taken = min(map(len, by_class))
        return [
            Example(others[row].text, self.labels.names[target], "teacher", row + 1)
            for target, rows in enumerate(by_class)
            for row in rows[:num_taken].tolist()
        ]


def table(bench: Bench, *, seeds: int) -> dict[str, Any]:
    """Accuracy of every arm, its difference from plain, its cost over plain's."""
    right, seconds = {}, {}
    for name in ARMS:
        found = [json.loads(bench.path(name, seed=s).read_text()) for s in range(seeds)]
        right[name] = np.array([answer["right"] for answer in found])
        seconds[name] = float(np.mean([answer["seconds"] for answer in found]))
    rows = {}
    for name in ARMS:
        accuracy = accuracy_interval(right[name])
        # Paired by seed as well: the gap of each seed is the score, against nothing.
        gaps_SN = right[name].astype(float) - right[PLAIN]
        gap = difference_interval(gaps_SN, np.zeros((1, gaps_SN.shape[1])))
        rows[name] = {
            "accuracy": vars(accuracy),
            "over_plain": None if name == PLAIN else vars(gap),
            "cost": seconds[name] / seconds[PLAIN],
        }
    base = load_run(bench.base_dir).info.result
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": environment(),
        "corpus": CORPUS,
        "num_labels": bench.num_labels,
        "num_test": len(bench.test),
        "epochs": bench.epochs,
        "max_length": bench.max_length,
        "seeds": seeds,
        "base": {
            key: base[key] for key in ("num_steps", "num_tokens", "valid_loss", "unigram_entropy")
        },
        "plain_seconds": seconds[PLAIN],
        "rows": rows,
    }


def show(result: dict[str, Any]) -> None:
    """As Markdown."""
    print("| method | accuracy | over plain | cost |\n|---|---|---|---|")
    for name, row in result["rows"].items():
        a, gap = row["accuracy"], row["over_plain"]
        summary = f"{a['mean']:.1%} ({a['low']:.1%} to {a['high']:.1%})"
        over = (
            ""
            if gap is None
            else f"{100 * gap['mean']:+.1f} ({100 * gap['low']:+.1f} to {100 * gap['high']:+.1f})"
        )
        print(f"| {name} | {summary} | {over} | x {row['cost']:.1f} |")


def draw(result: dict[str, Any], *, path: Path) -> None:
    """Differences from plain with their intervals, the best on top."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    gaps = {name: row["over_plain"] for name, row in result["rows"].items() if row["over_plain"]}
    names = sorted(gaps, key=lambda name: gaps[name]["mean"])
    means = np.array([100 * gaps[name]["mean"] for name in names])
    lows = means - [100 * gaps[name]["low"] for name in names]
    highs = [100 * gaps[name]["high"] for name in names] - means
    figure, axes = pyplot.subplots(figsize=(7.5, 5), layout="constrained")
    axes.axvline(0, color="0.6", linewidth=1)
    axes.errorbar(means, names, xerr=[lows, highs], fmt="o", color="tab:blue", capsize=2)
    axes.set_xlabel("points of test accuracy over plain fine-tuning")
    title = f"Each method alone: {result['num_labels']} labels, {result['seeds']} seeds"
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Text, base, classifiers, table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, metavar="DIR", default=Path("runs/methods"))
    parser.add_argument("--demo", type=Path, metavar="DIR", help="what `regraft demo` has left")
    parser.add_argument("--size", default="mini", help="of the base")
    parser.add_argument("--steps", type=int, default=1200, help="of the base's pre-training")
    parser.add_argument("--labels", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=64, help="tokens read of a review")
    parser.add_argument("--adapt-steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them into FILE.png")
    arguments = parser.parse_args()
    work = arguments.work
    (work / "answers").mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    split_corpus(work, demo=arguments.demo)
    base_dir = arguments.demo / "base" if arguments.demo else work / "base"
    if arguments.demo is None:
        settings = pretraining_settings(
            arguments.size, num_steps=arguments.steps, max_length=arguments.max_length
        )
        pretrain([work / "text.txt"], out=base_dir, settings=settings, resume=True)
    bench = Bench(
        work,
        base_dir=base_dir,
        num_labels=arguments.labels,
        epochs=arguments.epochs,
        max_length=arguments.max_length,
        adapt_steps=arguments.adapt_steps,
    )
    for seed, name in itertools.product(range(arguments.seeds), ARMS):
        bench.answer(name, seed=seed)
    result = table(bench, seeds=arguments.seeds)
    show(result)
    if arguments.json:
        write_json(arguments.json, result)
    if arguments.plot:
        draw(result, path=arguments.plot)


if __name__ == "__main__":
    main()
