"""What is the temperature of a fine-tuned classifier worth? How sure, how right, with and without.

    .venv/bin/python benchmarks/calibration.py --json docs/benchmarks/calibration.json

Small networks from scratch on four sets; a seed draws train, valid and test as well as weights and
order. `regraft finetune` has put the temperature into the head; without it is that undone. Beside
it: temperatures fitted on a few texts of valid only, with the caution of `cautious_temperature` and
without. Scores are on test. That caution was added after the first three sets had been looked at
so; the fourth, reuters-r8, was run once, afterwards, to see whether it holds. Cost: 8 minutes of
one core.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers import finetune
from regraft.config import Settings, resolve
from regraft.data import (
    Example,
    Labels,
    corpora,
    example_rows,
    load_examples,
    split_examples,
    subset_examples,
    without_duplicates,
)
from regraft.runtime import environment, write_json
from regraft.stats import (
    accuracy,
    cautious_temperature,
    expected_calibration_error,
    fit_temperature,
    tempered,
)
from regraft.stats.metrics import cross_entropy
from regraft.training import class_probabilities, load_run

# Texts to learn from, of valid and of test.
SIZES = {
    "imdb-25k": (1_000, 400, 1_000),
    "20newsgroups": (1_000, 400, 1_000),
    "bbc-news": (600, 200, 800),
    "reuters-r8": (1_000, 400, 1_000),
}
# Texts of valid that a temperature is fitted on for comparison.
FEW = (20, 50)

Scores = dict[str, float]


def all_examples(corpus: str) -> list[Example]:
    """Of all its files, each text once."""
    data = resolve("finetune").data
    files = corpora.fetch(corpus).files.values()
    return without_duplicates([e for path in files for e in load_examples(path, data=data)])


def drawn(rest: list[Example], *, corpus: str, seed: int) -> dict[str, list[Example]]:
    """Train, valid and test, without a text in common."""
    parts = {}
    for name, size in zip(("test", "valid", "train"), reversed(SIZES[corpus]), strict=True):
        rest, part = split_examples(rest, share=1.1 * size / len(rest), seed=seed)
        parts[name] = subset_examples(part, size=size, seed=seed)
    return parts


def write(path: Path, examples: Sequence[Example]) -> Path:
    """As JSON lines, which finetune reads."""
    rows = [{"text": example.text, "label": example.label} for example in examples]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def measured(
    parts: dict[str, list[Example]], folder: Path, *, settings: Settings
) -> dict[str, Scores]:
    """One training: scores on test, by what the temperature was fitted on."""
    folder.mkdir()
    files = {name: write(folder / f"{name}.jsonl", part) for name, part in parts.items()}
    result = finetune(
        base=None,
        train=files["train"],
        valid=files["valid"],
        out=folder / "run",
        settings=settings,
    )
    assert result.temperature is not None, "valid was held out"
    run = load_run(folder / "run")
    labels = Labels(run.info.labels)
    chances, targets = {}, {}
    for name in ("valid", "test"):
        rows = example_rows(
            parts[name], labels=labels, tokenizer=run.tokenizer, data=run.settings.data
        )
        chances[name] = tempered(class_probabilities(run.model, rows), 1 / result.temperature)
        targets[name] = labels.targets(parts[name])
    order = np.random.default_rng(settings.train.seed).permutation(len(targets["valid"]))
    found = {"without": scores(chances["test"], targets["test"], temperature=1.0)}
    for size in (*FEW, len(order)):
        few = order[:size]
        given = chances["valid"][few], targets["valid"][few]
        fits = {"": cautious_temperature(*given), ", no caution": fit_temperature(*given)}
        for how, temperature in fits.items():
            name = f"with{how}" if size == len(order) else f"by {size} texts{how}"
            found[name] = scores(chances["test"], targets["test"], temperature=temperature)
    return found


def scores(
    chances_NC: NDArray[np.float64], targets_N: NDArray[np.int64], *, temperature: float
) -> Scores:
    """Scores of predictions at a temperature."""
    warm_NC = tempered(chances_NC, temperature)
    return {
        "temperature": temperature,
        "accuracy": accuracy(warm_NC.argmax(axis=1), targets_N),
        "calibration error": expected_calibration_error(warm_NC, targets_N),
        "cross-entropy": cross_entropy(warm_NC, targets_N),
    }


def main() -> None:
    """Every set, every seed; means with the lowest and the highest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--corpora", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[dict[str, Scores]]] = {}
    with tempfile.TemporaryDirectory() as name:
        for corpus in options.corpora:
            found[corpus] = []
            examples = all_examples(corpus)
            for seed in range(options.seeds):
                settings = resolve(
                    "finetune",
                    size=options.size,
                    overrides={
                        **{"train.seed": seed, "train.epochs": options.epochs, "train.threads": 1},
                        **{"data.max_length": 128, "tokenizer.size": 4096, "train.lr": 1e-3},
                    },
                )
                folder = Path(name) / f"{corpus}-{seed}"
                parts = drawn(examples, corpus=corpus, seed=seed)
                found[corpus].append(measured(parts, folder, settings=settings))
                print(corpus, seed, json.dumps(found[corpus][-1]), flush=True)
    for corpus, runs in found.items():
        for how in runs[0]:
            summary = []
            for score in runs[0][how]:
                values = [run[how][score] for run in runs]
                summary.append(
                    f"{score} {np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
                )
            print(f"{corpus:13} {how:24} {'  '.join(summary)}")
    if options.json:
        kept = {"options": {**vars(options), "json": None}, "environment": environment()}
        write_json(options.json, {**kept, "scores": found})


if __name__ == "__main__":
    main()
