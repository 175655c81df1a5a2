"""Was the pre-training worth it? Arms that differ in one thing, seeds, paired tests, a verdict.

Comes in: a base, three labelled files, settings. Goes out: a `Comparison`, ready for report.py.
All arms see the same batches for the same budget; the test file is read once, after every arm is
trained. Draws nothing and prints nothing.
"""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file, save

from regraft.baselines import LinearModel, fit_linear
from regraft.batches import ExampleRows, example_rows
from regraft.config import Settings, replace, resolve, settings_to_dict
from regraft.errors import ConfigError
from regraft.evaluate import class_probabilities, cut_share
from regraft.finetune import (
    Start,
    base_preset,
    examples_fingerprint,
    load_splits,
    start_from_base,
    train_classifier,
)
from regraft.heads import Model
from regraft.metrics import (
    Interval,
    accuracy_interval,
    confusion,
    difference_interval,
    expected_calibration_error,
    is_collapsed,
    macro_f1,
    mcnemar_test,
    paired_permutation_test,
)
from regraft.runtime import SILENT, Progress, environment, write_whole
from regraft.text import Example, Labels, check_labels_known, find_leaks, labels_of, load_examples
from regraft.text.lines import check_present

ARMS = {
    "pretrained": "the base with a new head, everything trained",
    "scratch": "the same model with new random weights",
    "frozen": "the base untouched, only its new head trained",
    "linear": "TF-IDF of words and characters + logistic regression, tuned on valid",
}
NUM_MISTAKES = 12
SIGNIFICANCE = 0.05

VerdictKind = Literal["pays", "loses-to-linear", "ties-with-linear", "no-gain", "hurts", "no-base"]


@dataclass(frozen=True)
class SeedRun:
    """One training of one arm: accuracy on valid by epoch, probabilities on test, cost."""

    seed: int
    valid_accuracy: tuple[float, ...]
    test_probabilities: NDArray[np.float64]
    seconds: float


@dataclass(frozen=True)
class ArmSummary:
    """What an arm reached over its seeds."""

    name: str
    description: str
    num_seeds: int
    valid_accuracy: Interval
    test_accuracy: Interval
    test_accuracy_without_leaks: Interval | None
    macro_f1: float
    calibration_error: float
    seconds: float
    num_collapsed: int
    valid_curves: tuple[tuple[float, ...], ...]
    confusion: list[list[int]]


@dataclass(frozen=True)
class PairedTest:
    """First less second, on the same test examples."""

    first: str
    second: str
    difference: Interval
    p_permutation: float
    p_mcnemar: float

    @property
    def is_significant(self) -> bool:
        """Both the test and the interval must say so."""
        excludes_zero = self.difference.low > 0 or self.difference.high < 0
        return self.p_permutation < SIGNIFICANCE and excludes_zero


@dataclass(frozen=True)
class Mistake:
    """A test example that the base arm gets wrong with confidence."""

    text: str
    label: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class Comparison:
    """Everything a report tells."""

    verdict: str
    verdict_kind: VerdictKind
    arms: tuple[ArmSummary, ...]
    tests: tuple[PairedTest, ...]
    labels: tuple[str, ...]
    num_train: int
    num_valid: int
    num_test: int
    num_test_leaks: int
    truncated_share: float
    settings: dict[str, Any]
    environment: dict[str, str]
    fingerprints: dict[str, str]
    command: str
    created: str
    base: dict[str, Any]
    mistakes: tuple[Mistake, ...]
    warnings: tuple[str, ...]


def compare(
    *,
    base: str | Path,
    train: str | Path,
    valid: str | Path | None = None,
    test: str | Path,
    seeds: int = 3,
    settings: Settings | None = None,
    arms: Sequence[str] = tuple(ARMS),
    jobs: int = 1,
    command: str = "",
    progress: Progress = SILENT,
) -> Comparison:
    """Train every arm with every seed on the same batches, then open the test file once.

    With `jobs`, as many runs at a time, each in a process of its own. Sums are then rounded in
    another order: results are repeated exactly with the same number of jobs.
    """
    _check_request(arms, seeds=seeds, jobs=jobs)
    # Only that it is there: what it holds stays sealed until every arm is trained.
    check_present(Path(test))
    settings = settings or resolve("finetune", preset=base_preset(base))
    start = start_from_base(Path(base), settings=settings)
    settings = start.settings
    train_examples, valid_examples = load_splits(
        train, valid=valid, settings=settings, progress=progress
    )
    splits = _Splits(train_examples, valid_examples, labels_of(train_examples))

    with tempfile.TemporaryDirectory(prefix="regraft-compare-") as shelf:
        trained = _train_arms(
            start,
            splits=splits,
            arms=arms,
            seeds=seeds,
            jobs=jobs,
            shelf=Path(shelf),
            progress=progress,
        )
        # Every choice is made: now, and only now, the test file is read.
        test_examples = load_examples(test, data=settings.data)
        check_labels_known(test_examples, splits.labels)
        runs = _test_arms(
            trained, test_examples=test_examples, start=start, splits=splits, progress=progress
        )

    leaks = find_leaks([train_examples + valid_examples, test_examples], progress=progress)
    leaked = {(leak.source, leak.row) for leak in leaks}
    clean_N = np.array([(e.source, e.row) not in leaked for e in test_examples])
    targets_N = _targets(test_examples, splits.labels)
    summaries = tuple(
        _summary(name, arm_runs, targets_N=targets_N, clean_N=clean_N, splits=splits)
        for name, arm_runs in runs.items()
    )
    tests = _paired_tests(runs, targets_N=targets_N)
    kind, verdict = judge(summaries, tests)
    assert start.base is not None
    return Comparison(
        verdict=verdict,
        verdict_kind=kind,
        arms=summaries,
        tests=tests,
        labels=splits.labels.names,
        num_train=len(train_examples),
        num_valid=len(valid_examples),
        num_test=len(test_examples),
        num_test_leaks=int((~clean_N).sum()),
        truncated_share=cut_share(splits.rows(train_examples, start=start)),
        settings=settings_to_dict(settings),
        environment=environment(),
        fingerprints={
            "train": examples_fingerprint(train_examples),
            "valid": examples_fingerprint(valid_examples),
            "test": examples_fingerprint(test_examples),
            "base": start.base.info.fingerprints.get("text", ""),
        },
        command=command,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        base={"run_dir": str(base), **start.base.info.result},
        mistakes=_mistakes(runs, test_examples=test_examples, labels=splits.labels),
        warnings=_warnings(summaries, seeds=seeds, num_test_leaks=int((~clean_N).sum())),
    )


def _check_request(arms: Sequence[str], *, seeds: int, jobs: int) -> None:
    unknown = [name for name in arms if name not in ARMS]
    if unknown or not arms or len(set(arms)) != len(arms):
        raise ConfigError(
            f"Cannot compare the arms {', '.join(map(repr, arms)) or 'none'}.",
            f"Arms are {', '.join(ARMS)}, each at most once.",
            remedy="Mend --arms.",
        )
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}.", "It must be 1 or more.", remedy="Use 3 or more.")
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}.", "It must be 1 or more.", remedy="Use 1 or 2.")


@dataclass(frozen=True)
class _Splits:
    train: list[Example]
    valid: list[Example]
    labels: Labels

    def rows(self, examples: Sequence[Example], *, start: Start) -> ExampleRows:
        return example_rows(
            examples, labels=self.labels, tokenizer=start.tokenizer, data=start.settings.data
        )


@dataclass(frozen=True)
class _Trained:
    """A trained run of an arm, waiting on the shelf for the test file."""

    arm: str
    seed: int
    valid_accuracy: tuple[float, ...]
    seconds: float
    linear: LinearModel | None
    weights_path: Path | None


def _train_arms(
    start: Start,
    *,
    splits: _Splits,
    arms: Sequence[str],
    seeds: int,
    jobs: int,
    shelf: Path,
    progress: Progress,
) -> list[_Trained]:
    trained = []
    if "linear" in arms:
        progress.start("linear arm", total=None)
        linear = fit_linear(splits.train, splits.valid, labels=splits.labels)
        progress.finish()
        trained.append(
            _Trained("linear", 0, (linear.valid_accuracy,), linear.seconds, linear, None)
        )
    # Seed by seed, not arm by arm: what is interrupted or watched is balanced over the arms.
    first_seed = start.settings.train.seed
    wanted = [
        (name, seed)
        for seed in range(first_seed, first_seed + seeds)
        for name in arms
        if name != "linear"
    ]
    room = _Room(start, splits, shelf)
    if jobs > 1 and len(wanted) > 1:
        return trained + _train_side_by_side(room, wanted, jobs=jobs, progress=progress)
    for number, (name, seed) in enumerate(wanted, start=1):
        title = f"{name}, seed {seed} ({number} of {len(wanted)})"
        trained.append(room.train(name, seed, progress=_Named(progress, title)))
    return trained


def _train_side_by_side(
    room: "_Room", wanted: Sequence[tuple[str, int]], *, jobs: int, progress: Progress
) -> list[_Trained]:
    """Each run in a process of its own with its share of the cores.

    Small matrices leave a second thread idle much of the time; a second run does not.
    """
    from joblib import Parallel, delayed, parallel_config

    num_threads = max((os.cpu_count() or 1) // jobs, 1)
    trained = {}
    progress.start(f"{len(wanted)} runs, {jobs} at once", total=len(wanted))
    with parallel_config(backend="loky", inner_max_num_threads=num_threads):
        results = Parallel(n_jobs=jobs, return_as="generator_unordered")(
            delayed(room.train)(name, seed) for name, seed in wanted
        )
        for run in results:
            trained[run.arm, run.seed] = run
            note = f"{run.arm}, seed {run.seed}: valid {run.valid_accuracy[-1]:.1%}"
            progress.advance(note=note)
    progress.finish()
    return [trained[key] for key in wanted]


@dataclass(frozen=True)
class _Room:
    """What every run needs; sent whole to a worker process."""

    start: Start
    splits: _Splits
    shelf: Path

    def train(self, name: str, seed: int, *, progress: Progress = SILENT) -> _Trained:
        """One run of one arm, its weights left on the shelf."""
        start, splits = self.start, self.splits
        settings = replace(start.settings, "train", seed=seed, freeze_base=name == "frozen")
        origin = dataclasses.replace(start, base=None) if name == "scratch" else start
        model, _ = origin.build_model(num_classes=len(splits.labels.names), seed=seed)
        records = list(
            train_classifier(
                model,
                rows=splits.rows(splits.train, start=start),
                valid_rows=splits.rows(splits.valid, start=start),
                settings=settings,
                progress=progress,
            )
        )
        weights_path = self.shelf / f"{name}-{seed}.safetensors"
        _shelve(model, weights_path)
        curve = tuple(record.valid_accuracy for record in records)
        return _Trained(name, seed, curve, records[-1].seconds, None, weights_path)


def _shelve(model: Model, path: Path) -> None:
    weights = save(model.state_dict())
    write_whole(path, lambda file: file.writelines([weights]))


class _Named:
    """A Progress whose tasks bear the name of the run they belong to."""

    def __init__(self, inner: Progress, name: str) -> None:
        self._inner, self._name = inner, name
        self.advance, self.finish, self.say = inner.advance, inner.finish, inner.say

    def start(self, name: str, *, total: float | None) -> None:
        self._inner.start(self._name, total=total)


def _test_arms(
    trained: Sequence[_Trained],
    *,
    test_examples: Sequence[Example],
    start: Start,
    splits: _Splits,
    progress: Progress,
) -> dict[str, list[SeedRun]]:
    rows = splits.rows(test_examples, start=start)
    runs: dict[str, list[SeedRun]] = {name: [] for name in ARMS}
    model, _ = start.build_model(num_classes=len(splits.labels.names), seed=0)
    progress.start("test", total=len(trained) * len(test_examples))
    for run in trained:
        if run.linear is not None:
            probabilities_NC = run.linear.probabilities([e.text for e in test_examples])
            progress.advance(len(test_examples))
        else:
            assert run.weights_path is not None
            model.load_state_dict(load_file(run.weights_path))
            probabilities_NC = class_probabilities(model, rows, on_batch=progress.advance)
        runs[run.arm].append(SeedRun(run.seed, run.valid_accuracy, probabilities_NC, run.seconds))
    progress.finish()
    return {name: arm_runs for name, arm_runs in runs.items() if arm_runs}


def _targets(examples: Sequence[Example], labels: Labels) -> NDArray[np.int64]:
    return np.array([labels.target(example.label) for example in examples], dtype=np.int64)


def _correct(runs: Sequence[SeedRun], targets_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.stack([run.test_probabilities.argmax(axis=1) == targets_N for run in runs])


def _summary(
    name: str,
    runs: Sequence[SeedRun],
    *,
    targets_N: NDArray[np.int64],
    clean_N: NDArray[np.bool_],
    splits: _Splits,
) -> ArmSummary:
    num_classes = len(splits.labels.names)
    correct_SN = _correct(runs, targets_N)
    predictions = [run.test_probabilities.argmax(axis=1) for run in runs]
    finals = [run.valid_accuracy[-1] for run in runs]
    return ArmSummary(
        name=name,
        description=ARMS[name],
        num_seeds=len(runs),
        valid_accuracy=Interval(float(np.mean(finals)), min(finals), max(finals)),
        test_accuracy=accuracy_interval(correct_SN),
        test_accuracy_without_leaks=(
            accuracy_interval(correct_SN[:, clean_N]) if clean_N.any() else None
        ),
        macro_f1=float(
            np.mean([macro_f1(p, targets_N, num_classes=num_classes) for p in predictions])
        ),
        calibration_error=float(
            np.mean([expected_calibration_error(run.test_probabilities, targets_N) for run in runs])
        ),
        seconds=float(np.mean([run.seconds for run in runs])),
        num_collapsed=sum(is_collapsed(p, num_classes=num_classes) for p in predictions),
        valid_curves=tuple(run.valid_accuracy for run in runs),
        confusion=np.sum(
            [confusion(p, targets_N, num_classes=num_classes) for p in predictions], axis=0
        ).tolist(),
    )


def _paired_tests(
    runs: dict[str, list[SeedRun]], *, targets_N: NDArray[np.int64]
) -> tuple[PairedTest, ...]:
    """The base arm against every other; without it, the first arm against the rest."""
    first = "pretrained" if "pretrained" in runs else next(iter(runs))
    correct = {name: _correct(arm_runs, targets_N) for name, arm_runs in runs.items()}
    return tuple(
        PairedTest(
            first=first,
            second=name,
            difference=difference_interval(correct[first], correct[name]),
            p_permutation=paired_permutation_test(correct[first], correct[name]),
            p_mcnemar=mcnemar_test(correct[first][0], correct[name][0]),
        )
        for name in runs
        if name != first
    )


def judge(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> tuple[VerdictKind, str]:
    """The verdict in one sentence, by fixed rules: a gap counts if its paired test says so."""
    score = {arm.name: arm.test_accuracy.mean for arm in arms}
    against = {test.second: test for test in tests if test.first == "pretrained"}
    if not {"scratch", "linear"} & against.keys():
        return "no-base", (
            "The base was compared neither with scratch nor with a linear model, "
            "so there is no verdict."
        )
    ours = f"{score['pretrained']:.1%}"
    kind: VerdictKind = "pays"
    parts = []
    if "scratch" in against:
        gain = against["scratch"]
        theirs = f"{score['scratch']:.1%} from scratch, {_gap(gain)}"
        if gain.is_significant and gain.difference.mean > 0:
            parts.append(f"Pre-training helped: {ours} against {theirs}")
        elif gain.is_significant:
            kind = "hurts"
            parts.append(f"Pre-training hurt: {ours} against {theirs}")
        else:
            kind = "no-gain"
            parts.append(f"No gain from pre-training was found: {ours} against {theirs}")
    else:
        parts.append(f"The pre-trained model reaches {ours}")
    if "linear" in against:
        gap = against["linear"]
        theirs = f"TF-IDF + logistic regression ({score['linear']:.1%}, {_gap(gap)})"
        if not gap.is_significant:
            kind = "ties-with-linear" if kind == "pays" else kind
            parts.append(f"it cannot be told apart from {theirs}")
        elif gap.difference.mean > 0:
            parts.append(f"it beats {theirs}")
        else:
            kind = "loses-to-linear" if kind == "pays" else kind
            parts.append(f"it loses to {theirs}")
    return kind, "; ".join(parts) + "."


def _gap(test: PairedTest) -> str:
    gap = test.difference
    return f"{100 * gap.mean:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def _mistakes(
    runs: dict[str, list[SeedRun]], *, test_examples: Sequence[Example], labels: Labels
) -> tuple[Mistake, ...]:
    """The most confident errors of the base arm, by its mean probabilities over seeds."""
    arm = runs.get("pretrained") or next(iter(runs.values()))
    probabilities_NC = np.mean([run.test_probabilities for run in arm], axis=0)
    predictions_N = probabilities_NC.argmax(axis=1)
    wrong = np.flatnonzero(predictions_N != _targets(test_examples, labels))
    wrong = wrong[np.argsort(-probabilities_NC[wrong].max(axis=1))][:NUM_MISTAKES]
    return tuple(
        Mistake(
            text=test_examples[i].text,
            label=test_examples[i].label,
            predicted=labels.names[predictions_N[i]],
            probability=float(probabilities_NC[i].max()),
        )
        for i in wrong.tolist()
    )


def _warnings(arms: Sequence[ArmSummary], *, seeds: int, num_test_leaks: int) -> tuple[str, ...]:
    warnings = []
    if seeds == 1:
        warnings.append(
            "One seed: intervals cover the test examples only, not the luck of a training run."
        )
    for arm in arms:
        if arm.num_collapsed:
            warnings.append(
                f"{arm.num_collapsed} of {arm.num_seeds} runs of the {arm.name} arm collapsed: "
                "they predict one class almost always."
            )
    if num_test_leaks:
        warnings.append(
            f"{num_test_leaks} test examples are also, exactly or nearly, in train or valid; "
            "scores are given with and without them."
        )
    return tuple(warnings)
