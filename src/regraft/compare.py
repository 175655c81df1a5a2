"""Was the pre-training worth it? Arms that differ in one thing, seeds, paired tests, a verdict.

Comes in: a base, three labelled files, settings. Goes out: a `Comparison`, ready for report.py.
All arms see the same batches for the same budget (arms.py); the test file is read once, after every
arm is trained. Draws nothing and prints nothing.
"""

import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regraft.arms import (
    ArmsFolder,
    Task,
    TrainedArm,
    build_task,
    refuse_changes,
    task_facts,
    train_arms,
)
from regraft.bases import read_base_settings
from regraft.batches import example_rows
from regraft.config import Settings, resolve, settings_to_dict
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.evaluate import class_probabilities, cut_share
from regraft.evidence import (
    REPORT_NAME,
    ArmSummary,
    Comparison,
    Mistake,
    PairedTest,
)
from regraft.finetune import examples_fingerprint, load_splits, start_from_base
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
from regraft.presets import ARMS
from regraft.runtime import SILENT, Progress, environment
from regraft.text import (
    Example,
    Labels,
    check_labels_known,
    check_readable,
    find_leaks,
    load_examples,
)
from regraft.verdict import judge

NUM_MISTAKES = 12


@dataclass(frozen=True)
class SeedRun:
    """One training of one arm: accuracy on valid by epoch, probabilities on test, cost."""

    seed: int
    valid_accuracy: tuple[float, ...]
    test_probabilities: NDArray[np.float64]
    seconds: float


def compare(
    *,
    base: str | Path,
    train: str | Path,
    valid: str | Path | None = None,
    test: str | Path,
    out: str | Path | None = None,
    seeds: int = 3,
    settings: Settings | None = None,
    arms: Sequence[str] = tuple(ARMS),
    jobs: int = 1,
    resume: bool = False,
    command: str = "",
    progress: Progress = SILENT,
) -> Comparison:
    """Train every arm with every seed on the same batches, then open the test file once.

    With a folder `out`, finished runs are kept there until `write_report` writes the report beside
    them; with `resume` they are not trained again, and a comparison that has its report is given
    back as it is. With `jobs`, as many runs at a time, each in a process of its own. Sums are then
    rounded in another order: results are repeated exactly with the same number of jobs.
    """
    _check_request(arms, seeds=seeds, jobs=jobs)
    with contextlib.ExitStack() as stack:
        if out is None:
            temporary = tempfile.TemporaryDirectory(prefix="regraft-compare-")
            out_dir = Path(stack.enter_context(temporary))
        else:
            out_dir = Path(out)
            _check_out(out_dir, resume=resume)
        # Only that it can be read: what it holds stays sealed until every arm is trained.
        check_readable(Path(test))
        settings = settings or resolve("finetune", base=read_base_settings(Path(base)))
        _check_budget(settings)
        start = start_from_base(Path(base), settings=settings)
        settings = start.settings
        train_examples, valid_examples = load_splits(
            train, valid=valid, settings=settings, progress=progress
        )
        task = build_task(start, train=train_examples, valid=valid_examples)
        if (out_dir / REPORT_NAME).exists():
            there = _load_comparison(out_dir / REPORT_NAME)
            _refuse_other(out_dir, there, task=task, test=test, arms=arms, seeds=seeds)
            progress.say(f"{out_dir} is complete already.")
            return there

        folder = ArmsFolder(out_dir)
        stack.enter_context(folder.opened(task, resume=resume))
        trained = train_arms(
            task, arms=arms, seeds=seeds, jobs=jobs, folder=folder, progress=progress
        )
        # Every choice is made: now, and only now, the test file is read.
        test_examples = load_examples(test, data=settings.data)
        check_labels_known(test_examples, task.labels)
        runs = _test_arms(
            trained, test_examples=test_examples, task=task, folder=folder, progress=progress
        )

    leaks = find_leaks([[*task.train, *task.valid], test_examples], progress=progress)
    leaked = {(leak.source, leak.row) for leak in leaks}
    clean_N = np.array([(e.source, e.row) not in leaked for e in test_examples])
    if not clean_N.any():
        raise DataError(
            f"Every example of {test} is also in train or valid, exactly or nearly.",
            "A test on what was learned by heart shows nothing.",
            remedy="Give another --test; with --resume the trained runs are used again.",
        )
    targets_N = task.labels.targets(test_examples)
    summaries = tuple(
        _summary(name, arm_runs, targets_N=targets_N, clean_N=clean_N, num_classes=len(task.labels))
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
        labels=task.labels.names,
        num_train=len(train_examples),
        num_valid=len(valid_examples),
        num_test=len(test_examples),
        num_test_leaks=int((~clean_N).sum()),
        cut_share=cut_share(task.train_rows),
        settings=settings_to_dict(settings),
        environment=environment(),
        fingerprints={
            **task.fingerprints,
            "test": examples_fingerprint(test_examples),
            "text": start.base.info.fingerprints.get("text", ""),
        },
        command=command,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        base={"run_dir": str(base), **start.base.info.result},
        mistakes=_mistakes(runs, test_examples=test_examples, labels=task.labels),
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


def _check_budget(settings: Settings) -> None:
    if settings.train.minutes is not None:
        raise ConfigError(
            f"Arms cannot be compared by the clock: train.minutes is {settings.train.minutes:g}.",
            "The faster arm would see more batches; a fair budget is the same batches for all.",
            remedy="Give --epochs or --steps.",
        )


def _check_out(out_dir: Path, *, resume: bool) -> None:
    """Refuse a folder that cannot take the report, before any work is done for it."""
    if out_dir.exists() and not out_dir.is_dir():
        raise RunFolderError(
            f"{out_dir} exists and is not a folder.",
            "A comparison is written into a folder.",
            remedy="Choose another --out.",
        )
    if (out_dir / REPORT_NAME).exists() and not resume:
        raise RunFolderError(
            f"{out_dir} already holds a report.",
            remedy="Choose another --out, or remove the folder.",
        )


def _load_comparison(path: Path) -> Comparison:
    try:
        return Comparison.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}.",
            "Expected the report of a comparison.",
            remedy="Choose another --out, or remove the file.",
        ) from error


def _refuse_other(
    out_dir: Path,
    there: Comparison,
    *,
    task: Task,
    test: str | Path,
    arms: Sequence[str],
    seeds: int,
) -> None:
    """Refuse to take a finished comparison for one of other arms, seeds, settings or data."""
    # Nothing is trained any more that could learn from the test file.
    test_examples = load_examples(test, data=task.start.settings.data)
    wanted = sorted((name, 1 if name == "linear" else seeds) for name in arms)
    found = sorted((arm.name, arm.num_seeds) for arm in there.arms)
    if wanted != found:
        told = ", ".join(f"{name} {num_seeds}" for name, num_seeds in found)
        raise RunFolderError(
            f"{out_dir} already holds a report of other arms or seeds: {told}.",
            remedy="Choose another --out, or remove the folder.",
        )
    now = task_facts(task)
    now["fingerprints"]["test"] = examples_fingerprint(test_examples)
    before = {"settings": there.settings, "fingerprints": there.fingerprints}
    refuse_changes(out_dir, before=before, now=now)


def _test_arms(
    trained: Sequence[TrainedArm],
    *,
    test_examples: Sequence[Example],
    task: Task,
    folder: ArmsFolder,
    progress: Progress,
) -> dict[str, list[SeedRun]]:
    start = task.start
    rows = example_rows(
        test_examples, labels=task.labels, tokenizer=start.tokenizer, data=start.settings.data
    )
    runs: dict[str, list[SeedRun]] = {name: [] for name in ARMS}
    model, _ = start.build_model(num_classes=len(task.labels), seed=0)
    progress.start("test", total=len(trained) * len(test_examples))
    for run in trained:
        if run.linear is not None:
            probabilities_NC = run.linear.probabilities([e.text for e in test_examples])
            progress.advance(len(test_examples))
        else:
            folder.load(run, into=model)
            probabilities_NC = class_probabilities(model, rows, on_batch=progress.advance)
        runs[run.name].append(SeedRun(run.seed, run.valid_accuracy, probabilities_NC, run.seconds))
    progress.finish()
    return {name: arm_runs for name, arm_runs in runs.items() if arm_runs}


def _correct(runs: Sequence[SeedRun], targets_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.stack([run.test_probabilities.argmax(axis=1) == targets_N for run in runs])


def _summary(
    name: str,
    runs: Sequence[SeedRun],
    *,
    targets_N: NDArray[np.int64],
    clean_N: NDArray[np.bool_],
    num_classes: int,
) -> ArmSummary:
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


def _mistakes(
    runs: dict[str, list[SeedRun]], *, test_examples: Sequence[Example], labels: Labels
) -> tuple[Mistake, ...]:
    """The most confident errors of the base arm, by its mean probabilities over seeds."""
    arm = runs.get("pretrained") or next(iter(runs.values()))
    probabilities_NC = np.mean([run.test_probabilities for run in arm], axis=0)
    predictions_N = probabilities_NC.argmax(axis=1)
    wrong = np.flatnonzero(predictions_N != labels.targets(test_examples))
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
            f"{num_test_leaks} of the test examples are also, exactly or nearly, in train or "
            "valid; scores are given with and without them."
        )
    return tuple(warnings)
