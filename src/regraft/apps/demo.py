"""Recipe: the whole story on real reviews, or on synthetic ones when no registry answers.

Comes in: a folder. Goes out: in it the data, a base, a report and, except in the lab exercise, a
classifier; and a `DemoResult` for the command line to print. Every step is a public recipe with
ordinary files, so that a user can repeat any of them by hand.
"""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regraft.classifiers import FitResult, fit, load_classifier
from regraft.comparison import (
    REPORT_NAME,
    Arm,
    ArmData,
    Comparison,
    Fitted,
    Setup,
    compare,
    load_comparison,
    register_arm,
)
from regraft.config import ARMS, DEFAULT_ARMS, resolve
from regraft.data import (
    Document,
    Example,
    csv_text,
    fetch,
    find_leaks,
    load_examples,
    normalised,
    read_documents,
    split_examples,
    subset_examples,
    synthetic_reviews,
    without_duplicates,
)
from regraft.errors import ConfigError, CorpusError, RunFolderError
from regraft.report import write_report
from regraft.runtime import SILENT, Progress, read_json, tracked, write_json, write_text
from regraft.training import generate, pretrain, read_base_settings, read_info

# The arm that is the finished classifier of the demo: `fit` itself would be trained once a seed.
FITTED_ARM = "blend"
CORPUS = "imdb-25k"
LAB_CORPUS = "french-books"
LAB_TEXT = "french-sentences"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of everything: sized so that two cores end in the minutes promised."""

    name: str
    title: str
    num_test: int
    num_labels: int
    num_valid: int
    num_seeds: int
    prompt: str
    pretraining: dict[str, Any]
    finetuning: dict[str, Any]
    # None: the preset of the recipe.
    preset: str | None = None
    arms: tuple[str, ...] = DEFAULT_ARMS
    # None: without the recipe of `fit`.
    fit_minutes: float | None = None
    fitting: dict[str, Any] = field(default_factory=dict)
    # The comparison then searches the whole text, too. Synthetic reviews are all near copies.
    drops_near_copies: bool = False
    notes: tuple[str, ...] = ()


# Words and contrast carry over to a classifier with few labels; hybrid lets the base write as well.
_STAGED: dict[str, Any] = {
    "objective.kind": "hybrid",
    "objective.stages": "auto",
    "tokenizer.kind": "words",
}
REAL = Plan(
    name="reviews",
    title="25,000 IMDB film reviews, half good, half bad",
    num_test=1000,
    num_labels=400,
    num_valid=200,
    # Two would leave intervals as wide as a house (Student's t with one degree of freedom).
    num_seeds=3,
    prompt="This film is",
    # Small on purpose: in minutes twice the tokens teach more than twice the width.
    pretraining={
        **_STAGED,
        "train.minutes": 2.5,
        "tokenizer.size": 16_384,
        "objective.sampled_tokens": 1024,
        "data.max_length": 128,
        "model.width": 128,
        "model.num_layers": 2,
        "model.num_heads": 2,
    },
    finetuning={"train.epochs": 6, "data.max_length": 256},
    arms=(*DEFAULT_ARMS, "embedding"),
    fit_minutes=3.0,
)
SYNTHETIC = Plan(
    name="synthetic",
    title="synthetic product reviews made by a small grammar, not real text",
    num_test=500,
    num_labels=300,
    num_valid=100,
    num_seeds=2,
    prompt="The kettle is",
    pretraining={
        **_STAGED,
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
LAB = Plan(
    name="lab",
    title="1,284 French book reviews, positive or negative",
    num_test=300,
    num_labels=700,
    num_valid=280,
    num_seeds=3,
    prompt="Bonjour les",
    preset="lab",
    pretraining={"train.minutes": 4.0, "tokenizer.size": 16_000},
    finetuning={"train.epochs": 6},
    arms=("pretrained", "scratch", "linear"),
    drops_near_copies=True,
    notes=(
        "The vocabulary has 16,000 tokens, not the lab's 50,001: in so small a text most of those "
        "would hardly occur.",
    ),
)
NUM_SYNTHETIC = 6000
_BEGUN_NAME, _CLASSIFIER_NAME = "demo.json", "classifier"
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
    notes: tuple[str, ...]
    comparison: Comparison
    fitted: "FittedDemo | None"
    generated: str
    report_path: Path
    figure_path: Path


@dataclass(frozen=True)
class FittedDemo:
    """What `fit` makes of the same data."""

    result: FitResult
    predictions: tuple[Prediction, ...]
    classifier_dir: Path


@register_arm(FITTED_ARM)
class FittedArm(Arm):
    """The classifier that `fit` left in the folder of the demo, next to the base."""

    title, description = "the blend of `regraft fit`", ARMS["fit"]
    role = "base"

    def trainer(self, setup: Setup, *, num_threads: int) -> "FittedClassifier":
        """The folder is found from that of the base."""
        assert setup.start.base is not None, "the demo has one"
        return FittedClassifier(setup.start.base.run_dir.parent / _CLASSIFIER_NAME)

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """It needs its setup: see `trainer`."""
        raise NotImplementedError


@dataclass(frozen=True)
class FittedClassifier:
    """Trains nothing: the classifier is there."""

    run_dir: Path

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """The blend with its score on valid and the time it took."""
        result = FitResult.from_dict(read_info(self.run_dir).result)
        accuracy = result.scores[FITTED_ARM].accuracy.mean
        model = load_classifier(self.run_dir)
        return Fitted(model, valid_accuracy=(accuracy,), seconds=result.seconds)


def demo(
    *,
    out: Path,
    offline: bool = False,
    lab: bool = False,
    resume: bool = False,
    progress: Progress = SILENT,
) -> DemoResult:
    """Pre-train, graft, compare, report; then the recipe of `fit`: all into the folder `out`.

    `lab` is the founding exercise: French reviews, the exact shape and training of the lab, no
    `fit`. With `resume` an interrupted demo in `out` continues with the data it began with.
    """
    if lab and offline:
        raise ConfigError(
            "--lab and --offline exclude each other.",
            "The lab exercise reads French reviews; the offline corpus is synthetic English.",
            remedy="Omit one of the two.",
        )
    begun = _begun(out, resume=resume)
    if begun is not None and (begun == LAB.name) != lab:
        raise RunFolderError(
            f"{out} holds a demo {'of the lab exercise' if not lab else 'of other reviews'}.",
            "A demo resumes with the data it began with.",
            remedy=f"{'Add' if not lab else 'Omit'} --lab, or choose another --out.",
        )
    examples, texts, plan = (
        _lab_data(progress=progress)
        if lab
        else _examples(offline=offline or begun == SYNTHETIC.name, progress=progress)
    )
    if begun is not None and plan.name != begun:
        raise RunFolderError(
            f"{out} holds a demo with real reviews, which cannot be read now.",
            "A demo resumes with the data it began with.",
            remedy="Repeat with a network and without --offline, or choose another --out.",
        )
    write_json(out / _BEGUN_NAME, {"demo": plan.name})
    paths = _write_data(examples, texts=texts, plan=plan, out_dir=out / "data", progress=progress)
    progress.say(
        f"{plan.title}: {plan.num_labels} labelled for training, {plan.num_valid} for validation, "
        f"{plan.num_test} sealed for the test; the rest is text without labels."
    )
    for note in plan.notes:
        progress.say(note)
    command = "regraft demo" + (" --offline" if offline else "") + (" --lab" if lab else "")
    base_dir = out / "base"
    pretrain(
        [paths["text"]],
        out=base_dir,
        settings=resolve("pretrain", preset=plan.preset, overrides=plan.pretraining),
        resume=resume,
        progress=progress,
    )
    classifier_dir = out / _CLASSIFIER_NAME
    result = _fit(plan, paths, out_dir=classifier_dir, resume=resume, progress=progress)
    report_dir = out / "report"
    comparison = _compare(
        plan, paths, base_dir=base_dir, out_dir=report_dir, command=command, progress=progress
    )
    fitted = None
    if result is not None:
        test = load_examples(paths["test"], data=resolve("fit", preset="bag").data)
        fitted = FittedDemo(result, _predictions(classifier_dir, test=test), classifier_dir)
    return DemoResult(
        is_synthetic=plan is SYNTHETIC,
        title=plan.title,
        notes=plan.notes,
        comparison=comparison,
        fitted=fitted,
        generated=generate(base_dir, plan.prompt, temperature=0.7, top_k=50, max_tokens=40),
        report_path=report_dir / "report.html",
        figure_path=report_dir / "accuracy.svg",
    )


def _compare(
    plan: Plan,
    paths: dict[str, Path],
    *,
    base_dir: Path,
    out_dir: Path,
    command: str,
    progress: Progress,
) -> Comparison:
    """The comparison and its report in `out_dir`; a finished one is read from there."""
    if (out_dir / REPORT_NAME).exists():
        progress.say(f"{out_dir} is complete already.")
        return load_comparison(out_dir / REPORT_NAME)
    comparison = compare(
        base=base_dir,
        train=paths["train"],
        valid=paths["valid"],
        test=paths["test"],
        out=out_dir,
        seeds=plan.num_seeds,
        settings=resolve(
            "finetune",
            preset=plan.preset,
            overrides=plan.finetuning,
            base=read_base_settings(base_dir),
        ),
        arms=plan.arms if plan.fit_minutes is None else (*plan.arms, FITTED_ARM),
        # Tuned as shallow arms are, networks would take three times as long; the report warns.
        grid="none",
        texts=[paths["text"]],
        jobs=os.cpu_count() or 1,
        command=command,
        progress=progress,
    )
    if plan.fit_minutes is not None:
        comparison = dataclasses.replace(comparison, request=None)  # the blend was there before
    if plan is SYNTHETIC:
        warnings = (SYNTHETIC_WARNING, *comparison.warnings)
        comparison = dataclasses.replace(comparison, warnings=warnings)
    write_report(comparison, out_dir)
    return comparison


def _fit(
    plan: Plan, paths: dict[str, Path], *, out_dir: Path, resume: bool, progress: Progress
) -> FitResult | None:
    """The recipe of `fit` on the same files, unless the plan has no minutes for it."""
    if plan.fit_minutes is None:
        return None
    return fit(
        [paths["text"]],
        train=paths["train"],
        valid=paths["valid"],
        out=out_dir,
        settings=resolve("fit", preset="bag", overrides=plan.fitting),
        minutes=plan.fit_minutes,
        resume=resume,
        progress=progress,
    )


def _begun(out: Path, *, resume: bool) -> str | None:
    """The name of the plan of an interrupted demo in `out`; None for a new folder."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if resume:
        try:
            name = read_json(out / _BEGUN_NAME)["demo"]
        except (OSError, ValueError, KeyError, TypeError):
            name = None
        if name in (plan.name for plan in (REAL, SYNTHETIC, LAB)):
            return str(name)
        raise RunFolderError(
            f"{out} holds no demo to resume.",
            f"A demo leaves a file {_BEGUN_NAME} there.",
            remedy="Omit --resume and choose another --out.",
        )
    raise RunFolderError(
        f"{out} is not an empty folder.",
        "The demo writes into its own folder.",
        remedy="Add --resume if a demo was interrupted there; else choose another --out, or remove "
        "the folder.",
    )


def _examples(
    *, offline: bool, progress: Progress
) -> tuple[list[Example], Sequence[Document], Plan]:
    if not offline:
        try:
            fetched = fetch(CORPUS, progress=progress)
        except CorpusError as error:
            progress.say(f"{error} Going on with synthetic reviews instead.")
        else:
            data = resolve("finetune").data
            return load_examples(fetched.files["all"], data=data), (), REAL
    return synthetic_reviews(num_documents=NUM_SYNTHETIC, seed=0), (), SYNTHETIC


def _lab_data(*, progress: Progress) -> tuple[list[Example], Sequence[Document], Plan]:
    """French reviews and sentences. Nothing replaces them: without a registry there is no lab."""
    data = resolve("finetune").data
    reviews, sentences = (fetch(name, progress=progress) for name in (LAB_CORPUS, LAB_TEXT))
    return (
        load_examples(reviews.files["all"], data=data),
        list(read_documents([sentences.files["all"]], data=data)),
        LAB,
    )


def _write_data(
    examples: Sequence[Example],
    *,
    texts: Sequence[Document],
    plan: Plan,
    out_dir: Path,
    progress: Progress,
) -> dict[str, Path]:
    """Without duplicates, split into ordinary files: text.txt and three csv files.

    `texts` are more text without labels; what occurs in a held-out review is dropped from it. Near
    copies of held-out reviews are dropped everywhere, if the plan searches for them.
    """
    unique = without_duplicates(list(examples))
    rest, test = split_examples(unique, share=plan.num_test / len(unique), seed=0)
    rest, valid = split_examples(rest, share=plan.num_valid / len(rest), seed=1)
    leaks = find_leaks([test, valid, rest, texts], near=plan.drops_near_copies, progress=progress)
    leaked = {(leak.source, leak.row) for leak in leaks}
    valid = [example for example in valid if (example.source, example.row) not in leaked]
    rest = [example for example in rest if (example.source, example.row) not in leaked]
    train = subset_examples(rest, size=min(plan.num_labels, len(rest)), seed=0)
    held_out = "\n".join(normalised(example.text) for example in (*test, *valid))
    lines = [" ".join(example.text.split()) for example in rest]
    if texts:
        task = "search the text for held-out reviews"
        lines += [
            " ".join(document.text.split())
            for document in tracked(texts, name=task, total=len(texts), progress=progress)
            if (document.source, document.row) not in leaked
            and normalised(document.text) not in held_out
        ]
    paths = {"text": out_dir / "text.txt"}
    # The training texts may be read without their labels too; valid and test stay unseen.
    write_text(paths["text"], "".join(f"{line}\n" for line in lines))
    for name, part in (("train", train), ("valid", valid), ("test", test)):
        paths[name] = out_dir / f"{name}.csv"
        rows = [(example.text, example.label) for example in part]
        write_text(paths[name], csv_text(["text", "label"], rows))
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
