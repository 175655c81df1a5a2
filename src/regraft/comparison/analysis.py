"""From predictions to a Comparison: the scores, tests, errors and label curve of a report.

The same analysis serves `compare` and `fit --test`. Letters: S seeds, N examples, C classes. Reads
no file and trains nothing; verdict.py concludes, caveats.py warns.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regraft.comparison.caveats import leak_caveats, opening_caveats, run_caveats, split_caveats
from regraft.comparison.label_worth import worth_in_labels
from regraft.comparison.plan import Cell
from regraft.comparison.results import (
    ArmInfo,
    ArmSummary,
    Comparison,
    CurvePoint,
    LabelDoubt,
    LabelWorth,
    Mistake,
    Outcomes,
    PairedTest,
    RunOutcomes,
    Split,
    questions,
)
from regraft.comparison.test_set import Opened, Seen
from regraft.comparison.verdict import easily_missed, judge
from regraft.data import Example, Labels, normalised
from regraft.runtime import environment
from regraft.stats import (
    SIGNIFICANCE,
    Difference,
    Interval,
    accuracy_by_length,
    accuracy_interval,
    confusion,
    difference,
    expected_calibration_error,
    fit_temperature,
    holm_factors,
    is_collapsed,
    label_doubts,
    macro_f1,
    macro_f1_interval,
    mcnemar_test,
    paired_permutation_test,
    question_p,
    reliability,
    smallest_difference,
    tempered,
)

NUM_MISTAKES = 12
NUM_DOUBTS = 12
NUM_DOUBTING = 2


@dataclass(frozen=True)
class Exam:
    """The test examples with their targets; `clean_N` decide: not seen before, each text once."""

    examples: Sequence[Example]
    labels: Labels
    targets_N: NDArray[np.int64]
    clean_N: NDArray[np.bool_]


@dataclass(frozen=True)
class SeedRun:
    """One run: accuracy on valid by epoch, cost, choices, and its probabilities.

    Without `valid_VC` no temperature is fitted; `valid_targets_V` belong to it.
    """

    cell: Cell
    valid_accuracy: tuple[float, ...]
    seconds: float
    chosen: dict[str, Any]
    test_NC: NDArray[np.float64]
    valid_VC: NDArray[np.float64] | None = None
    valid_targets_V: NDArray[np.int64] | None = None

    @property
    def predictions_N(self) -> NDArray[np.int64]:  # noqa: N802
        """The most probable class of every test example."""
        return np.asarray(self.test_NC.argmax(axis=1), dtype=np.int64)

    @property
    def final_accuracy(self) -> float:
        """Accuracy on valid of the weights that were kept, which need not be the last.

        What knows no epochs has measured itself: a blend that chose its weights on valid would
        look better there than it is.
        """
        if self.valid_VC is None or len(self.valid_accuracy) == 1:
            return self.valid_accuracy[-1]
        return float((self.valid_VC.argmax(axis=1) == self.valid_targets_V).mean())

    @property
    def temperature(self) -> float | None:
        """Fitted on valid."""
        if self.valid_VC is None or self.valid_targets_V is None:
            return None
        return fit_temperature(self.valid_VC, self.valid_targets_V)


@dataclass(frozen=True)
class Evidence:
    """Everything that is analysed: arms, the opened test file, and the runs on it.

    `runs_of` an arm and a number of labels reads the runs when they are needed, so that only one
    arm's predictions are in memory at a time. `is_whole` says that the largest number of labels is
    all of them. `caveats` are warnings about the setup.
    """

    arms: Sequence[ArmInfo]
    opened: Opened
    seen: Seen
    labels: Labels
    sizes: Sequence[int]
    runs_of: Callable[[str, int], list[SeedRun]]
    is_whole: bool
    splits: Sequence[Split]
    num_seeds: int | None = None
    caveats: Sequence[str] = ()


@dataclass(frozen=True)
class Provenance:
    """Where a comparison comes from, as the report shows it."""

    settings: dict[str, Any]
    fingerprints: dict[str, str]
    command: str
    base: dict[str, Any]
    request: dict[str, Any] | None = None
    tuned_on: Literal["valid", "cross-validation"] = "valid"


def build_comparison(evidence: Evidence, provenance: Provenance) -> Comparison:
    """Everything in a report."""
    opened, seen, sizes = evidence.opened, evidence.seen, evidence.sizes
    exam = Exam(
        opened.examples, evidence.labels, evidence.labels.targets(opened.examples), seen.clean_N
    )
    largest = max(sizes)

    def deciding_of(name: str, size: int) -> NDArray[np.bool_]:
        return correct(evidence.runs_of(name, size), exam)[:, exam.clean_N]

    arms = base_arm_first(evidence.arms)
    summaries = tuple(
        arm_summary(arm, evidence.runs_of(arm.name, largest), exam=exam) for arm in evidence.arms
    )
    curve = _curve(evidence, exam) if len(sizes) > 1 else ()
    tests = paired_tests(
        {arm: deciding_of(arm.name, largest) for arm in arms}, is_whole=evidence.is_whole
    )
    # The verdict quotes the scores that its tests are about.
    deciding_arms = [dataclasses.replace(arm, test_accuracy=arm.deciding) for arm in summaries]
    kind, verdict = judge(deciding_arms, tests)
    worths = _worths(arms, sizes, deciding_of)
    doubting = [run for name in doubting_arms(summaries) for run in evidence.runs_of(name, largest)]
    num_leaks = int(seen.labelled_N.sum())
    splits = {split.name: split for split in evidence.splits}
    return Comparison(
        verdict=" ".join([verdict, *_what_decided(seen)]),
        verdict_kind=kind,
        arms=summaries,
        tests=tests,
        labels=evidence.labels.names,
        num_train=splits["train"].num_examples,
        num_valid=splits["valid"].num_examples if "valid" in splits else 0,
        num_test=len(opened.examples),
        num_test_leaks=num_leaks,
        cut_share=splits["train"].cut_share,
        settings=provenance.settings,
        environment=environment(),
        fingerprints={**provenance.fingerprints, "test": opened.fingerprint},
        command=provenance.command,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        base=provenance.base,
        mistakes=mistakes(evidence.runs_of(arms[0].name, largest), exam=exam),
        warnings=(
            *run_caveats(summaries, curve, num_seeds=evidence.num_seeds),
            *leak_caveats(seen),
            *evidence.caveats,
            *opening_caveats(opened.openings),
            *split_caveats(evidence.splits),
        ),
        curve=curve,
        worth=next(iter(worths), None),
        more_worths=worths[1:],
        smallest_difference=easily_missed(deciding_arms, tests),
        num_text_leaks=None if seen.text_N is None else int(seen.text_N.sum()),
        label_doubts=doubts(doubting, exam=exam),
        splits=tuple(evidence.splits),
        openings=opened.openings,
        request=provenance.request,
        num_deciding=int(seen.clean_N.sum()),
        tuned_on=provenance.tuned_on,
        outcomes=_outcomes(evidence, exam),
    )


def base_arm_first(arms: Sequence[ArmInfo]) -> list[ArmInfo]:
    """The arm that the verdict is about comes first: a fine-tuned base, else any use of one."""
    ordered = sorted(arms, key=lambda arm: (not arm.control, ":" in arm.name))
    first = next((arm for arm in ordered if arm.control), None)
    first = first or next((arm for arm in ordered if arm.role == "base"), None)
    return sorted(ordered, key=lambda arm: arm is not first)


def _curve(evidence: Evidence, exam: Exam) -> tuple[CurvePoint, ...]:
    return tuple(
        curve_point(arm.name, evidence.runs_of(arm.name, size), exam=exam, num_labels=size)
        for arm in evidence.arms
        for size in evidence.sizes
    )


def _worths(
    arms: Sequence[ArmInfo],
    sizes: Sequence[int],
    correct_of: Callable[[str, int], NDArray[np.bool_]],
) -> tuple[LabelWorth, ...]:
    """The worth in labels of every arm with a base, in this order; none without a curve."""
    if len(sizes) < 2:
        return ()
    curves = {arm.name: {size: correct_of(arm.name, size) for size in sizes} for arm in arms}
    others = [arm.name for arm in arms if arm.role != "base"]
    worths = (worth_in_labels(curves, arm=arm, others=others) for arm in arms if arm.role == "base")
    return tuple(worth for worth in worths if worth is not None)


def _what_decided(seen: Seen) -> list[str]:
    num_test, num_deciding = len(seen.clean_N), int(seen.clean_N.sum())
    if num_deciding == num_test:
        return []
    return [
        f"Decided by {num_deciding:,} of {num_test:,} test examples: the others were seen during "
        "training, or repeat one."
    ]


def _outcomes(evidence: Evidence, exam: Exam) -> Outcomes:
    seen = evidence.seen
    return Outcomes(
        test=evidence.opened.fingerprint,
        num_test=len(exam.examples),
        decides=_bits(seen.clean_N),
        in_labelled=_bits(seen.labelled_N),
        in_text=None if seen.text_N is None else _bits(seen.text_N),
        repeats=_bits(seen.repeat_N),
        runs=tuple(
            RunOutcomes(arm.name, size, run.cell.seed, right=_bits(correct([run], exam)[0]))
            for arm in evidence.arms
            for size in evidence.sizes
            for run in evidence.runs_of(arm.name, size)
        ),
    )


def _bits(is_so_N: NDArray[np.bool_]) -> str:
    return "".join("1" if is_so else "0" for is_so in is_so_N.tolist())


def correct(runs: Sequence[SeedRun], exam: Exam) -> NDArray[np.bool_]:
    """S x N: is the prediction right?"""
    return np.stack([run.predictions_N == exam.targets_N for run in runs])


def arm_summary(arm: ArmInfo, runs: Sequence[SeedRun], *, exam: Exam) -> ArmSummary:
    """The scores of an arm over its seeds, with the largest number of labels."""
    num_classes, targets_N = len(exam.labels), exam.targets_N
    correct_SN = correct(runs, exam)
    finals = [run.final_accuracy for run in runs]
    temperatures = [run.temperature for run in runs if run.temperature is not None]
    calibrated = [
        tempered(run.test_NC, temperature)
        for run, temperature in zip(runs, temperatures, strict=False)
    ]
    counts = [confusion(run.predictions_N, targets_N, num_classes=num_classes) for run in runs]
    lengths_N = np.array([len(example.text.split()) for example in exam.examples])
    return ArmSummary(
        **{field.name: getattr(arm, field.name) for field in dataclasses.fields(ArmInfo)},
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
        temperature=float(np.mean(temperatures)) if temperatures else None,
        calibrated_error=_mean_error(calibrated, targets_N) if calibrated else None,
        # All runs together: a bin holds the predictions of every seed.
        reliability=reliability(
            np.concatenate([run.test_NC for run in runs]), np.tile(targets_N, len(runs))
        ),
        by_length=accuracy_by_length(correct_SN, lengths_N),
        chosen=tuple(run.chosen for run in runs if run.chosen),
    )


def _mean_macro_f1(runs: Sequence[SeedRun], exam: Exam, of_N: NDArray[np.bool_]) -> float:
    num_classes, targets = len(exam.labels), exam.targets_N[of_N]
    scores = [macro_f1(run.predictions_N[of_N], targets, num_classes=num_classes) for run in runs]
    return float(np.mean(scores))


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
        accuracy_without_leaks=None
        if clean_N.all()
        else accuracy_interval(correct(runs, exam)[:, clean_N]),
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
    correct_by_arm: Mapping[ArmInfo, NDArray[np.bool_]],
    *,
    is_whole: bool,
    num_resamples: int = 10_000,
) -> tuple[PairedTest, ...]:
    """The first arm against every other, and every pair that answers a question.

    The latter are corrected for the number of questions (docs/concepts/evidence.md). `is_whole`
    says that all labels were used; otherwise a single run depends on the subset it drew.
    """
    pairs_by_question = questions(tuple(correct_by_arm))
    by_name = {arm.name: correct_SN for arm, correct_SN in correct_by_arm.items()}
    names = tuple(by_name)
    pairs = dict.fromkeys(
        [
            *((names[0], other) for other in names[1:]),
            *(pair for each in pairs_by_question for pair in each),
        ]
    )
    gaps = {pair: difference(*(by_name[name] for name in pair)) for pair in pairs}
    p_by_pair = {pair: gap.p for pair, gap in gaps.items()}
    factors = _factors(pairs_by_question, p_by_pair=p_by_pair, gaps=gaps)
    single = {
        arm.name
        for arm, correct_SN in correct_by_arm.items()
        if len(correct_SN) == 1 and (arm.is_random or not is_whole)
    }
    tests = []
    for first, second in pairs:
        ours, theirs = by_name[first], by_name[second]
        gap, p, factor = gaps[first, second], p_by_pair[first, second], factors.get((first, second))
        is_of_runs = not single.isdisjoint((first, second))
        tests.append(
            PairedTest(
                first=first,
                second=second,
                difference=gap.interval(),
                p_permutation=paired_permutation_test(ours, theirs, num_resamples=num_resamples),
                p_mcnemar=mcnemar_test(ours[0], theirs[0]),
                p_difference=None if is_of_runs else p,
                p_holm=None if factor is None else min(1.0, factor * p),
                smallest_difference=smallest_difference(
                    ours,
                    theirs,
                    # A pair that answers no question is not corrected.
                    num_tests=1 if factor is None else len(pairs_by_question),
                ),
                corrected=None if factor is None else gap.interval(level=SIGNIFICANCE / factor),
                is_of_runs=is_of_runs,
            )
        )
    return tuple(tests)


def _factors(
    pairs_by_question: Sequence[Sequence[Pair]],
    *,
    p_by_pair: Mapping[Pair, float],
    gaps: Mapping[Pair, Difference],
) -> dict[Pair, int]:
    """The factor of each pair's p: by Holm for its question, and by the number of rivals in it
    unless all of them are beaten.
    """
    p_by_question = [
        question_p([p_by_pair[p] for p in pairs], [gaps[p].mean for p in pairs])
        for pairs in pairs_by_question
    ]
    factors: dict[Pair, int] = {}
    for pairs, factor in zip(pairs_by_question, holm_factors(p_by_question), strict=True):
        beats_all = all(
            gaps[pair].mean > 0 and factor * p_by_pair[pair] < SIGNIFICANCE for pair in pairs
        )
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
            row=exam.examples[i].row,
        )
        for i in wrong.tolist()
    )


def doubting_arms(arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """The two best arms on valid, chosen before the test: their runs vote on labels."""
    best = sorted(arms, key=lambda arm: -arm.valid_accuracy.mean)
    return tuple(arm.name for arm in best[:NUM_DOUBTING])


def doubts(runs: Sequence[SeedRun], *, exam: Exam) -> tuple[LabelDoubt, ...]:
    """Test labels that all of these runs contradict with confidence."""
    probabilities_SNC = np.stack([run.test_NC for run in runs])
    means_NC = probabilities_SNC.mean(axis=0)
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
        for i in label_doubts(probabilities_SNC, exam.targets_N)[:NUM_DOUBTS].tolist()
    )


def split(name: str, examples: Sequence[Example], *, labels: Labels, cut_share: float) -> Split:
    """The counts of a split."""
    counts = Counter(example.label for example in examples)
    labels_by_text: defaultdict[str, set[str]] = defaultdict(set)
    for example in examples:
        labels_by_text[normalised(example.text)].add(example.label)
    return Split(
        name=name,
        num_examples=len(examples),
        counts={label: counts[label] for label in labels},
        cut_share=cut_share,
        num_contradictions=sum(len(own) > 1 for own in labels_by_text.values()),
    )
