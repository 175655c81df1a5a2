"""Recipe: the whole story on real reviews, or on synthetic ones when no registry answers.

Comes in: a folder. Goes out: in it the data, a base, a classifier and a report; and a `DemoResult`
for the command line to print. Every step is a public recipe with ordinary files, so that a user can
repeat any of them by hand.
"""

import csv
import dataclasses
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.classifiers import FitResult, fit, load_classifier
from regraft.comparison import Comparison, compare, compare_fitted
from regraft.config import resolve
from regraft.data import (
    Example,
    fetch,
    load_examples,
    split_examples,
    subset_examples,
    synthetic_reviews,
    without_duplicates,
)
from regraft.errors import CorpusError, RunFolderError
from regraft.report import write_report
from regraft.runtime import SILENT, Progress, write_text
from regraft.training import generate, pretrain

CORPUS = "imdb-25k"


@dataclass(frozen=True)
class Plan:
    """How much of everything: sized so that two cores end in the minutes promised."""

    title: str
    num_test: int
    num_labels: int
    num_valid: int
    num_seeds: int
    prompt: str
    pretraining: dict[str, Any]
    finetuning: dict[str, Any]
    fit_minutes: float
    fitting: dict[str, Any]


REAL = Plan(
    title="25,000 IMDB film reviews, half good, half bad",
    num_test=1000,
    num_labels=400,
    num_valid=200,
    # Two would leave intervals as wide as a house (Student's t with one degree of freedom).
    num_seeds=3,
    prompt="This film is",
    # Small on purpose: in three minutes twice the tokens teach more than twice the width.
    pretraining={
        # Both: the demo classifies with the base and lets it write.
        "objective.kind": "hybrid",
        "train.minutes": 3.0,
        "data.max_length": 128,
        "model.width": 128,
        "model.num_layers": 2,
        "model.num_heads": 2,
    },
    finetuning={"train.epochs": 6, "data.max_length": 192},
    fit_minutes=3.0,
    fitting={},
)
SYNTHETIC = Plan(
    title="synthetic product reviews made by a small grammar, not real text",
    num_test=500,
    num_labels=300,
    num_valid=100,
    num_seeds=2,
    prompt="The kettle is",
    pretraining={
        # Both: the demo classifies with the base and lets it write.
        "objective.kind": "hybrid",
        "train.minutes": 0.5,
        "data.max_length": 64,
        "tokenizer.size": 1000,
        "model.width": 128,
        "model.num_layers": 2,
    },
    finetuning={"train.epochs": 10, "data.max_length": 96},
    fit_minutes=0.5,
    fitting={"tokenizer.size": 1000},
)
NUM_SYNTHETIC = 6000
SYNTHETIC_WARNING = "Synthetic text, made by a small grammar: the numbers say nothing of real text."


@dataclass(frozen=True)
class Prediction:
    """A held-out text, what it is, and what the classifier says."""

    text: str
    label: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo shows at its end."""

    is_synthetic: bool
    title: str
    comparison: Comparison
    fitted: FitResult
    tested: Comparison
    generated: str
    predictions: tuple[Prediction, ...]
    report_path: Path
    classifier_dir: Path


def demo(*, out: Path, offline: bool = False, progress: Progress = SILENT) -> DemoResult:
    """Pre-train, graft, compare, report; then the recipe of `fit`: all into the folder `out`."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(
            f"{out} is not an empty folder.",
            "The demo writes into a folder of its own.",
            remedy="Choose another --out, or remove the folder.",
        )
    examples, plan = _examples(offline=offline, progress=progress)
    paths = _write_data(examples, plan=plan, out_dir=out / "data")
    progress.say(
        f"{plan.title}: {plan.num_labels} labelled for training, {plan.num_valid} for validation, "
        f"{plan.num_test} sealed for the test; the rest is text without labels."
    )
    command = "regraft demo" + (" --offline" if offline else "")
    base_dir, classifier_dir = out / "base", out / "classifier"
    pretrain(
        [paths["text"]],
        out=base_dir,
        settings=resolve("pretrain", overrides=plan.pretraining),
        progress=progress,
    )
    settings = resolve("finetune", overrides=plan.finetuning)
    comparison = compare(
        base=base_dir,
        train=paths["train"],
        valid=paths["valid"],
        test=paths["test"],
        seeds=plan.num_seeds,
        settings=settings,
        # Tuned as shallow arms are, networks would take three times as long; the report warns.
        grid="none",
        jobs=os.cpu_count() or 1,
        command=command,
        progress=progress,
    )
    if plan is SYNTHETIC:
        warnings = (SYNTHETIC_WARNING, *comparison.warnings)
        comparison = dataclasses.replace(comparison, warnings=warnings)
    report = write_report(comparison, out / "report")
    fitted = fit(
        [paths["text"]],
        train=paths["train"],
        valid=paths["valid"],
        out=classifier_dir,
        settings=resolve("pretrain", preset="bag", overrides=plan.fitting),
        minutes=plan.fit_minutes,
        progress=progress,
    )
    return DemoResult(
        is_synthetic=plan is SYNTHETIC,
        title=plan.title,
        comparison=comparison,
        fitted=fitted,
        tested=compare_fitted(
            classifier_dir,
            train=paths["train"],
            valid=paths["valid"],
            test=paths["test"],
            texts=[paths["text"]],
            command=command,
            progress=progress,
        ),
        generated=generate(base_dir, plan.prompt, temperature=0.7, top_k=50, max_tokens=40),
        predictions=_predictions(
            classifier_dir, test=load_examples(paths["test"], data=settings.data)
        ),
        report_path=report["report.html"],
        classifier_dir=classifier_dir,
    )


def _examples(*, offline: bool, progress: Progress) -> tuple[list[Example], Plan]:
    if not offline:
        try:
            fetched = fetch(CORPUS, progress=progress)
        except CorpusError as error:
            progress.say(f"{error} Going on with synthetic reviews instead.")
        else:
            data = resolve("finetune").data
            return load_examples(fetched.files["all"], data=data), REAL
    return synthetic_reviews(num_documents=NUM_SYNTHETIC, seed=0), SYNTHETIC


def _write_data(examples: Sequence[Example], *, plan: Plan, out_dir: Path) -> dict[str, Path]:
    """Without duplicates, split into ordinary files: text.txt and three csv files."""
    unique = without_duplicates(list(examples))
    rest, test = split_examples(unique, share=plan.num_test / len(unique), seed=0)
    rest, valid = split_examples(rest, share=plan.num_valid / len(rest), seed=1)
    train = subset_examples(rest, size=plan.num_labels, seed=0)
    paths = {"text": out_dir / "text.txt"}
    # The training texts may be read without their labels too; valid and test stay unseen.
    write_text(paths["text"], "".join(" ".join(e.text.split()) + "\n" for e in rest))
    for name, part in (("train", train), ("valid", valid), ("test", test)):
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer)
        writer.writerow(["text", "label"])
        writer.writerows((example.text, example.label) for example in part)
        paths[name] = out_dir / f"{name}.csv"
        write_text(paths[name], buffer.getvalue())
    return paths


def _predictions(classifier_dir: Path, *, test: Sequence[Example]) -> tuple[Prediction, ...]:
    """The three shortest test texts of at least a line: what a person reads at a glance."""
    readable = sorted((e for e in test if len(e.text) >= 80), key=lambda e: len(e.text))[:3]
    classifier = load_classifier(classifier_dir)
    probabilities_NC = classifier.predict_proba([example.text for example in readable])
    return tuple(
        Prediction(
            text=example.text,
            label=example.label,
            predicted=str(classifier.classes_[row.argmax()]),
            probability=float(row.max()),
        )
        for example, row in zip(readable, probabilities_NC, strict=True)
    )
