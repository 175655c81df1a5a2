"""What do the answers say? Probabilities of every run become the numbers of a report.

Comes in: the opened test file and the answers of each run to it. Goes out: the values of
evidence.py. Letters: S seeds, N examples, C classes. Reads no file, trains nothing, judges nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.arms import Cell
from regraft.evidence import (
    ArmSummary,
    CurvePoint,
    LabelDoubt,
    Mistake,
    PairedTest,
    Split,
    is_network,
    questions,
)
from regraft.metrics import (
    Interval,
    accuracy_by_length,
    accuracy_interval,
    confusion,
    expected_calibration_error,
    fit_temperature,
    is_collapsed,
    label_doubts,
    macro_f1,
    macro_f1_interval,
    reliability,
    tempered,
)
from regraft.statistics import (
    SIGNIFICANCE,
    Difference,
    difference,
    holm_factors,
    mcnemar_test,
    paired_permutation_test,
    question_p,
    smallest_difference,
)
from regraft.text import Example, Labels, normalised

NUM_MISTAKES = 12
NUM_DOUBTS = 12
NUM_DOUBTING = 2


@dataclass(frozen=True)
class Exam:
    """The test examples with their truth; `clean_N` decide: seen nowhere before, each text once."""

    examples: Sequence[Example]
    labels: Labels
    targets_N: NDArray[np.int64]
    valid_targets_N: NDArray[np.int64]
    clean_N: NDArray[np.bool_]


@dataclass(frozen=True)
class SeedRun:
    """One run: its cell, accuracy on valid by epoch, cost, choices, and what it answered."""

    cell: Cell
    valid_accuracy: tuple[float, ...]
    seconds: float
    chosen: dict[str, Any]
    valid_NC: NDArray[np.float64]
    test_NC: NDArray[np.float64]

    @property
    def predictions_N(self) -> NDArray[np.int64]:  # noqa: N802
        """The most probable class of every test example."""
        return np.asarray(self.test_NC.argmax(axis=1), dtype=np.int64)


def correct(runs: Sequence[SeedRun], exam: Exam) -> NDArray[np.bool_]:
    """S x N: is the answer right?"""
    return np.stack([run.predictions_N == exam.targets_N for run in runs])


def deciding(runs: Sequence[SeedRun], exam: Exam) -> NDArray[np.bool_]:
    """The same of the examples that decide."""
    return correct(runs, exam)[:, exam.clean_N]


def arm_summary(name: str, runs: Sequence[SeedRun], *, exam: Exam, description: str) -> ArmSummary:
    """What an arm reached over its seeds, with the largest number of labels."""
    num_classes, targets_N = len(exam.labels), exam.targets_N
    correct_SN = correct(runs, exam)
    # Of the weights that were kept, not of the last epoch.
    finals = [float((run.valid_NC.argmax(axis=1) == exam.valid_targets_N).mean()) for run in runs]
    temperatures = [fit_temperature(run.valid_NC, exam.valid_targets_N) for run in runs]
    calibrated = [
        tempered(run.test_NC, temperature)
        for run, temperature in zip(runs, temperatures, strict=True)
    ]
    counts = [confusion(run.predictions_N, targets_N, num_classes=num_classes) for run in runs]
    lengths_N = np.array([len(example.text.split()) for example in exam.examples])
    return ArmSummary(
        name=name,
        description=description,
        num_seeds=len(runs),
        valid_accuracy=Interval(float(np.mean(finals)), min(finals), max(finals)),
        test_accuracy=accuracy_interval(correct_SN),
        test_accuracy_without_leaks=accuracy_interval(correct_SN[:, exam.clean_N]),
        macro_f1=_mean_macro_f1(runs, exam, np.ones_like(exam.clean_N)),
        macro_f1_without_leaks=_mean_macro_f1(runs, exam, exam.clean_N),
        calibration_error=_mean_error([run.test_NC for run in runs], targets_N),
        seconds=float(np.mean([run.seconds for run in runs])),
        num_collapsed=_num_collapsed(runs, targets_N=exam.targets_N),
        valid_curves=tuple(run.valid_accuracy for run in runs),
        confusion=np.sum(counts, axis=0).tolist(),
        temperature=float(np.mean(temperatures)),
        calibrated_error=_mean_error(calibrated, targets_N),
        # All runs together: a bin holds the answers of every seed.
        reliability=reliability(
            np.concatenate([run.test_NC for run in runs]), np.tile(targets_N, len(runs))
        ),
        by_length=accuracy_by_length(correct_SN, lengths_N),
        chosen=tuple(run.chosen for run in runs if run.chosen),
    )


def _mean_macro_f1(runs: Sequence[SeedRun], exam: Exam, of_N: NDArray[np.bool_]) -> float:
    num_classes, targets = len(exam.labels), exam.targets_N[of_N]
    found = [macro_f1(run.predictions_N[of_N], targets, num_classes=num_classes) for run in runs]
    return float(np.mean(found))


def curve_point(name: str, runs: Sequence[SeedRun], *, exam: Exam, num_labels: int) -> CurvePoint:
    """An arm with one number of labels."""
    num_classes = len(exam.labels)
    predictions_SN = np.stack([run.predictions_N for run in runs])
    clean_N = exam.clean_N
    return CurvePoint(
        arm=name,
        num_labels=num_labels,
        num_seeds=len(runs),
        accuracy=accuracy_interval(correct(runs, exam)),
        macro_f1=macro_f1_interval(predictions_SN, exam.targets_N, num_classes=num_classes),
        seconds=float(np.mean([run.seconds for run in runs])),
        num_collapsed=_num_collapsed(runs, targets_N=exam.targets_N),
        accuracy_without_leaks=None if clean_N.all() else accuracy_interval(deciding(runs, exam)),
        macro_f1_without_leaks=None
        if clean_N.all()
        else macro_f1_interval(
            predictions_SN[:, clean_N], exam.targets_N[clean_N], num_classes=num_classes
        ),
    )


def _mean_error(answers: Sequence[NDArray[np.float64]], targets_N: NDArray[np.int64]) -> float:
    return float(np.mean([expected_calibration_error(each, targets_N) for each in answers]))


def _num_collapsed(runs: Sequence[SeedRun], *, targets_N: NDArray[np.int64]) -> int:
    return sum(is_collapsed(run.predictions_N, targets_N) for run in runs)


Pair = tuple[str, str]


def paired_tests(
    correct_by_arm: Mapping[str, NDArray[np.bool_]],
    *,
    is_whole: bool,
    num_resamples: int = 10_000,
) -> tuple[PairedTest, ...]:
    """The first arm against every other, and every pair that a question is answered by.

    Those of questions are corrected for how many are asked (docs/concepts/evidence.md). `is_whole`
    says that all labels were used: where they were not, each single run has its luck in them.
    """
    names = tuple(correct_by_arm)
    asked = questions(names)
    pairs = dict.fromkeys(
        [*((names[0], other) for other in names[1:]), *(pair for each in asked for pair in each)]
    )
    gaps = {pair: difference(*(correct_by_arm[name] for name in pair)) for pair in pairs}
    ps = {pair: gap.p for pair, gap in gaps.items()}
    factors = _factors(asked, ps=ps, gaps=gaps)
    hidden = {
        name
        for name, correct_SN in correct_by_arm.items()
        if len(correct_SN) == 1 and (is_network(name) or not is_whole)
    }
    found = []
    for first, second in pairs:
        ours, theirs = correct_by_arm[first], correct_by_arm[second]
        gap, p, factor = gaps[first, second], ps[first, second], factors.get((first, second))
        is_of_runs = not hidden.isdisjoint((first, second))
        found.append(
            PairedTest(
                first=first,
                second=second,
                difference=gap.interval(),
                p_permutation=paired_permutation_test(ours, theirs, num_resamples=num_resamples),
                p_mcnemar=mcnemar_test(ours[0], theirs[0]),
                p_difference=None if is_of_runs else p,
                p_holm=None if factor is None else min(1.0, factor * p),
                smallest_difference=smallest_difference(
                    # What belongs to no question pays for none.
                    ours,
                    theirs,
                    num_tests=1 if factor is None else len(asked),
                ),
                corrected=None if factor is None else gap.interval(level=SIGNIFICANCE / factor),
                is_of_runs=is_of_runs,
            )
        )
    return tuple(found)


def _factors(
    asked: Sequence[Sequence[Pair]], *, ps: Mapping[Pair, float], gaps: Mapping[Pair, Difference]
) -> dict[Pair, int]:
    """By how much the p of each pair is multiplied.

    By Holm for its question, and by the number of rivals in it unless all of them are beaten.
    """
    wholes = [question_p([ps[p] for p in pairs], [gaps[p].mean for p in pairs]) for pairs in asked]
    factors: dict[Pair, int] = {}
    for pairs, factor in zip(asked, holm_factors(wholes), strict=True):
        beats_all = all(gaps[pair].mean > 0 and factor * ps[pair] < SIGNIFICANCE for pair in pairs)
        factors |= dict.fromkeys(pairs, factor if beats_all else factor * len(pairs))
    return factors


def mistakes(runs: Sequence[SeedRun], *, exam: Exam) -> tuple[Mistake, ...]:
    """The most confident errors of an arm, by its mean probabilities over seeds."""
    probabilities_NC = np.mean([run.test_NC for run in runs], axis=0)
    predictions_N = probabilities_NC.argmax(axis=1)
    wrong = np.flatnonzero(predictions_N != exam.targets_N)
    wrong = wrong[np.argsort(-probabilities_NC[wrong].max(axis=1))][:NUM_MISTAKES]
    return tuple(
        Mistake(
            text=exam.examples[i].text,
            label=exam.examples[i].label,
            predicted=exam.labels.names[predictions_N[i]],
            probability=float(probabilities_NC[i].max()),
        )
        for i in wrong.tolist()
    )


def doubting_arms(arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """The two whose runs are asked about labels: the best on valid, chosen before the test."""
    best = sorted(arms, key=lambda arm: -arm.valid_accuracy.mean)
    return tuple(arm.name for arm in best[:NUM_DOUBTING])


def doubts(runs: Sequence[SeedRun], *, exam: Exam) -> tuple[LabelDoubt, ...]:
    """Test labels that all of these runs contradict with confidence."""
    chances_SNC = np.stack([run.test_NC for run in runs])
    means_NC = chances_SNC.mean(axis=0)
    return tuple(
        LabelDoubt(
            row=exam.examples[i].row,
            text=exam.examples[i].text,
            label=exam.examples[i].label,
            predicted=exam.labels.names[int(means_NC[i].argmax())],
            probability=float(means_NC[i].max()),
            num_runs=len(runs),
            arms=tuple(dict.fromkeys(run.cell.arm for run in runs)),
        )
        for i in label_doubts(chances_SNC, exam.targets_N)[:NUM_DOUBTS].tolist()
    )


def split(name: str, examples: Sequence[Example], *, labels: Labels, cut_share: float) -> Split:
    """What a split holds."""
    counts = Counter(example.label for example in examples)
    labels_by_text: defaultdict[str, set[str]] = defaultdict(set)
    for example in examples:
        labels_by_text[normalised(example.text)].add(example.label)
    return Split(
        name=name,
        num_examples=len(examples),
        counts={label: counts[label] for label in labels},
        cut_share=cut_share,
        num_contradictions=sum(len(found) > 1 for found in labels_by_text.values()),
    )


def split_warnings(splits: Sequence[Split]) -> tuple[str, ...]:
    """What is wrong with the data and can be lived with."""
    warnings = []
    for part in splits:
        missing = [label for label, count in part.counts.items() if not count]
        if missing:
            told = ", ".join(map(repr, missing[:5])) + (" and more" if len(missing) > 5 else "")
            use = "choose by" if part.name == "valid" else "be scored on"
            warnings.append(f"{part.name} has no example of {told}: there is none to {use}.")
        if part.num_contradictions:
            warnings.append(
                f"{part.num_contradictions} texts of {part.name} bear contradicting labels: "
                "no model can be right on all of them."
            )
    return tuple(warnings)


def warnings(
    arms: Sequence[ArmSummary], curve: Sequence[CurvePoint], *, seeds: int, num_leaks: int
) -> tuple[str, ...]:
    """What weakens a result."""
    told = []
    if seeds == 1:
        told.append(
            "One seed: intervals cover the test examples only, not the luck of a training run."
        )
    for arm in arms:
        if arm.num_collapsed:
            told.append(
                f"{arm.num_collapsed} of {arm.num_seeds} runs of the {arm.name} arm collapsed: "
                "they predict one class almost always."
            )
    smaller = [point for point in curve if point.num_labels < max(p.num_labels for p in curve)]
    num_collapsed = sum(point.num_collapsed for point in smaller)
    if num_collapsed:
        num_runs = sum(point.num_seeds for point in smaller)
        told.append(
            f"{num_collapsed} of {num_runs} runs with fewer labels collapsed; the label curve "
            "counts them as they are."
        )
    if num_leaks:
        told.append(
            f"{num_leaks} of the test examples are also, exactly or nearly, in train or "
            "valid; they decide nothing, and scores are given with and without them."
        )
    return tuple(told)
