"""The sentences of a report, the same on a page, in Markdown and on a terminal.

Plain text, not yet escaped for any format. A sentence without a value is empty.
"""

import re
from typing import Any

from regraft.classifiers import FitResult
from regraft.comparison import (
    ArmSummary,
    Comparison,
    LabelWorth,
    Opening,
    PairedTest,
    about,
    nearest_rival,
)
from regraft.runtime import counted, in_points
from regraft.stats import SIGNIFICANCE, Interval, LengthBin

UNKNOWN = "\N{EN DASH}"
# The largest class over its even share, above which accuracy alone is misleading.
UNEVEN = 1.5
# Longer excerpts of texts are cut.
MAX_TEXT_LENGTH = 700


def paired_test_in_words(test: PairedTest) -> str:
    """`a beats b by 3.1 points: 95 % interval ...`; or that no difference was shown."""
    gap = test.difference
    first, second = test.first, test.second
    if test.is_of_runs:
        first, second = f"this run of {first}", f"that of {second}"
    if test.is_significant:
        better, worse = (first, second) if gap.mean > 0 else (second, first)
        claim = f"{better} beats {worse} by {100 * abs(gap.mean):.1f} points"
        claim = claim[0].upper() + claim[1:] if test.is_of_runs else claim
    else:
        claim = f"No difference shown between {first} and {second}"
    p_values = [f"{p_value(test.p_permutation)} by permutation"]
    if test.p_difference is not None:
        p_values.append(f"{p_value(test.p_difference)} over new seeds and examples")
    p_values.append(f"{p_value(test.p_mcnemar)} by McNemar's test")
    parts = [
        f"{claim}: {test.first} minus {test.second} is {in_points(gap.mean)} points, "
        f"95 % interval {in_points(gap.low)} to {in_points(gap.high)}",
        ", ".join(p_values),
    ]
    if test.p_holm is not None:
        parts.append(f"{p_value(test.p_holm)} corrected{_corrected_interval(test)}")
    if test.smallest_difference is not None and not test.is_significant:
        parts.append(_power(test.smallest_difference))
    return "; ".join(parts) + "."


def _corrected_interval(test: PairedTest) -> str:
    if test.corrected is None or test.corrected == test.difference:
        return ""
    return (
        f", corrected interval {in_points(test.corrected.low)} to {in_points(test.corrected.high)}"
    )


def shown_tests(comparison: Comparison) -> list[PairedTest]:
    """The tests of the base arm, and of other uses of a base the nearest rival."""
    base = base_arm(comparison)
    shown = [test for test in comparison.tests if test.first == base]
    for use in dict.fromkeys(test.first for test in comparison.tests):
        nearest = nearest_rival([test for test in comparison.tests if test.first == use])
        shown += [nearest] if use != base and nearest is not None else []
    return shown


def verdict_parts(verdict: str) -> tuple[str, str]:
    """(the first sentence, the rest)."""
    first, *rest = re.split(r"(?<=\.) (?=[A-Z])", verdict, maxsplit=1)
    return first, "".join(rest)


def lead(comparison: Comparison) -> str:
    """Data and seeds, in a few sentences."""
    num_openings = max(len(comparison.openings), 1)
    opened = "once, at the end" if num_openings == 1 else f"{times(num_openings)} so far"
    cut = comparison.cut_share
    most = max((point.num_labels for point in comparison.curve), default=comparison.num_train)
    learned = f"{most:,}" + (f" of {comparison.num_train:,}" if most < comparison.num_train else "")
    on = "cross-validation" if comparison.tuned_on != "valid" else f"{comparison.num_valid:,}"
    seeds = ""
    if num_seeds := max((arm.num_seeds for arm in comparison.arms if arm.is_random), default=0):
        seeds = f" {counted(num_seeds, 'seed')} per network, all on the same batches."
    return (
        f"Trained on {learned} examples, tuned on {on}; {comparison.num_test:,} test examples were "
        f"opened {opened}.{seeds}"
        + (f" {percent(cut)} % of the training texts were truncated." if cut else "")
    )


def tuned_on(comparison: Comparison) -> str:
    """The title of the column of scores that served to choose."""
    return "Valid" if comparison.tuned_on == "valid" else "Cross-validation"


def base_arm(comparison: Comparison) -> str:
    """The arm that the report is about: that of the tests, else one with a base, else the first."""
    names = [arm.name for arm in comparison.arms]
    tested = [test.first for test in comparison.tests if test.first in names]
    bases = [arm.name for arm in comparison.arms if arm.role == "base"]
    return (tested or bases or names)[0]


def paired_with_base(comparison: Comparison, arm: ArmSummary) -> PairedTest | None:
    """The paired test of the base arm and this one."""
    for test in comparison.tests:
        if (test.first, test.second) == (base_arm(comparison), arm.name):
            return test
    return None


def against_base(test: PairedTest | None) -> tuple[str, str]:
    """(gap of an arm to the base arm in points, whether chance alone may explain it)."""
    if test is None:
        return UNKNOWN, ""
    return in_points(-test.difference.mean), "" if test.is_significant else "may be chance"


SCORES_NOTE = (
    "Accuracy is the percentage of test texts that were classified correctly. The bar is the range "
    "in which it would probably lie on other texts of the same kind: the more test texts, the "
    "shorter."
)


def arms_note(comparison: Comparison) -> str:
    """How to read the table of arms."""
    note = (
        "Scores are percentages. Intervals are 95 % intervals over test examples and seeds. They "
        "do not include the choice of training examples: with all labels every seed uses the same "
        "ones, and large subsets overlap. Cost is the training time of one seed."
    )
    if comparison.tests:
        corrected = any(test.p_holm is not None for test in comparison.tests)
        note += (
            f" “Against {base_arm(comparison)}” is the difference in points on the same test "
            "examples; “may be chance”: it is not significant"
            + (", corrected for the number of tests (Holm)." if corrected else ".")
        )
    if has_leaks(comparison):
        where = "in labelled data" if _is_text_kept(comparison) else "during training"
        number = (
            ""
            if comparison.num_deciding is None
            else f" {comparison.num_deciding:,} of {comparison.num_test:,}"
        )
        note += (
            f" Scores are those of the{number} test texts that were not seen {where}, each once; "
            "“On all test texts” includes the others."
        )
    return note


def tests_note(comparison: Comparison) -> str:
    """What the paired tests cover."""
    note = (
        "The permutation test is about these runs, McNemar's test about the first seed; the "
        "interval is about new seeds and new examples."
    )
    corrected = [test.p_holm is not None for test in comparison.tests]
    if not any(corrected):
        return note + " p-values are not corrected for the number of tests."
    note += (
        f" A difference is significant if its corrected p is below {SIGNIFICANCE} and its interval "
        "excludes zero."
    )
    if any(test.corrected is not None for test in comparison.tests):
        note += (
            " The correction (Holm) covers the questions of the verdict: did pre-training help, "
            "and is each use of a base better than the best rival? The corrected interval excludes "
            "zero exactly if the difference is significant."
        )
    if not all(corrected):
        note += " A test without a corrected p answers none of these questions."
    return note


def _power(smallest_difference: float) -> str:
    """The gap with 80 % power; with very few seeds or examples there is none."""
    if smallest_difference >= 1:
        return "a comparison of this size can hardly detect any gap: use more seeds"
    return (
        f"a comparison of this size detects a true gap of {100 * smallest_difference:.1f} points "
        "in 4 cases out of 5"
    )


def accuracy_note(comparison: Comparison) -> str:
    """How to read the figure of accuracy by epoch."""
    note = "Lines are means over seeds; bands span the lowest to the highest seed."
    if any("epoch" in chosen for arm in comparison.arms for chosen in arm.chosen):
        note += (
            " A ring marks the epoch whose weights a run kept; the number next to a name is the "
            "mean of these."
        )
    flat = [arm.name for arm in comparison.arms if len(next(iter(arm.valid_curves), ())) == 1]
    if len(flat) == 1:
        return f"{note} The dashed line is the {flat[0]} arm, which has no epochs."
    if flat:
        return f"{note} Dashed lines are arms without epochs: {', '.join(flat)}."
    return note


def curve_note(comparison: Comparison) -> str:
    """How to read the label curve."""
    note = (
        "Accuracy on test against the number of labelled examples, on a logarithmic axis; every "
        "larger set includes the smaller ones. Bands are 95 % intervals over seeds and test "
        "examples, drawn for a few arms; the table has all of them."
    )
    if any(point.accuracy_without_leaks is not None for point in comparison.curve):
        note += " Test texts that were seen during training or repeat one are excluded."
    shown = drawn_worth(comparison)
    if shown is not None:
        note += f" The arrow is the worth of {shown.arm}: the additional labels for the same score."
    return note


def has_uneven_classes(comparison: Comparison) -> bool:
    """Would always predicting one class look good by accuracy?"""
    return _largest_share(comparison) * len(comparison.labels) > UNEVEN


def macro_f1_note(comparison: Comparison) -> str:
    """Why there is a second curve."""
    return (
        f"The largest class is {percent(_largest_share(comparison))} % of test, so accuracy "
        "rewards predicting it too often. In macro-F1 every class counts the same."
    )


def _largest_share(comparison: Comparison) -> float:
    """The largest share of a class in test; 0 if there are no counts."""
    counts = [split.counts.values() for split in comparison.splits if split.name == "test"]
    return max((max(each) / sum(each) for each in counts), default=0.0)


def drawn_worth(comparison: Comparison) -> LabelWorth | None:
    """The worth that the label curve shows: of the base arm, else the largest."""
    gains = [worth for worth in _worths(comparison) if worth.extra is not None]
    if gains and gains[0] is comparison.worth:
        return gains[0]
    return max(gains, key=lambda worth: worth.extra.mean if worth.extra else 0.0, default=None)


def worth_in_words(comparison: Comparison) -> str:
    """The worth of the base arm, and a larger one if there is."""
    if comparison.worth is None:
        return ""
    shown = drawn_worth(comparison)
    if shown is None or shown is comparison.worth:
        return comparison.worth.sentence
    return f"{comparison.worth.sentence} {shown.arm}: {shown.sentence}"


def _worths(comparison: Comparison) -> list[LabelWorth]:
    return [*([comparison.worth] if comparison.worth else []), *comparison.more_worths]


def worths_title(comparison: Comparison) -> str:
    """The caption of the table below the label curve."""
    fewest = comparison.more_worths[0].num_labels if comparison.more_worths else 0
    return (
        f"How many more labels than {fewest:,} the best arm without a base needs to match each arm "
        f"with a base at {fewest:,}; intervals are not corrected for their number"
        + (
            " and do not include the variance between runs"
            if any(worth.is_of_runs for worth in _worths(comparison))
            else ""
        )
    )


def worth_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """(arm, labels, interval, rival), if there are several."""
    if not comparison.more_worths:
        return []
    return [(worth.arm, *_worth_in_numbers(worth), worth.rival) for worth in _worths(comparison)]


def _worth_in_numbers(worth: LabelWorth) -> tuple[str, str]:
    if worth.extra is None:
        return "no gain found", ""
    extra = worth.extra
    if worth.is_bound:
        return f"more than {extra.mean:,.0f}", f"{about(extra.low)} or more"
    more = "more than " if worth.is_high_bound else ""
    return about(extra.mean), f"{about(extra.low)} to {more}{about(extra.high)}"


def calibration_note(comparison: Comparison) -> str:
    """How to read the reliability plots."""
    note = (
        "Accuracy against confidence: points below the diagonal are overconfident, points above it "
        "underconfident. Larger dots are more predictions. The calibration error is the mean "
        "distance from the diagonal."
    )
    if any(arm.temperature is not None for arm in comparison.arms):
        note += (
            " A temperature fitted on valid divides the logits; above 1 it lowers confidence. It "
            "changes no prediction."
        )
    return note


LENGTH_NOTE = "Accuracy on test by the length of the text in words, mean over seeds."
CONFUSIONS_NOTE = "Rows are labels, columns are predictions; counts on test, summed over seeds."


def doubts_note(comparison: Comparison) -> str:
    """Which runs contradict the labels, and what it may mean."""
    arms = next((doubt.arms for doubt in comparison.label_doubts if doubt.arms), ())
    runs = f"the runs of {' and '.join(arms)}, the best on valid," if arms else "the runs"
    return (
        f"Here {runs} confidently agree on another label. Either the label is wrong, or the runs "
        "share a weakness: worth a look."
    )


def mistakes_title(comparison: Comparison) -> str:
    """The heading of the errors."""
    return f"Most confident errors of {base_arm(comparison)}"


def has_leaks(comparison: Comparison) -> bool:
    """Was any test text seen during training, or does one repeat another?"""
    has_repeats = comparison.num_deciding not in (None, comparison.num_test)
    return has_repeats or bool(comparison.num_test_leaks or comparison.num_text_leaks)


def _is_text_kept(comparison: Comparison) -> bool:
    """Do test texts decide although they occur in the unlabelled text?"""
    outcomes = comparison.outcomes
    if outcomes is None or outcomes.in_text is None:
        return False
    return ("1", "1") in zip(outcomes.decides, outcomes.in_text, strict=True)


def whole_macro_f1(comparison: Comparison, arm: ArmSummary) -> str:
    """`81.2 on all`, where not all test texts decide."""
    if arm.macro_f1_without_leaks is None or not has_leaks(comparison):
        return ""
    return f"{percent(arm.macro_f1)} on all"


def leak_sentences(comparison: Comparison) -> list[str]:
    """Which test texts were seen during training, as far as known."""
    sentences = []
    leaks, in_text = comparison.num_test_leaks, comparison.num_text_leaks
    if leaks:
        occur = "test text occurs" if leaks == 1 else "test texts occur"
        sentences.append(
            f"{leaks:,} {occur} in train or valid, exactly or nearly; every arm is scored with and "
            "without them."
        )
    else:
        sentences.append("No test text occurs in train or valid, exactly or nearly.")
    if in_text:
        occur = "test text occurs" if in_text == 1 else "test texts occur"
        ending = "every arm is scored with and without them."
        if _is_text_kept(comparison):
            ending = "they are included, because too few others are left."
        sentences.append(f"{in_text:,} {occur} in the unlabelled text, exactly or nearly; {ending}")
    elif in_text == 0:
        sentences.append("No test text occurs in the unlabelled text, exactly or nearly.")
    if has_leaks(comparison) and comparison.num_deciding is not None:
        where = "in labelled data" if _is_text_kept(comparison) else "during training"
        sentences.append(
            f"{comparison.num_deciding:,} of {comparison.num_test:,} test examples, not seen "
            f"{where} and each text once, are used for the verdict, the tests, the label curve and "
            "the worth in labels."
        )
    return sentences


def openings_sentence(comparison: Comparison) -> str:
    """How often the test labels were read."""
    num_openings = len(comparison.openings)
    if not num_openings:
        return ""
    recorded = "Recorded in openings.json, next to the folder of this report."
    if num_openings == 1:
        return f"The test labels have been read once: for this comparison. {recorded}"
    return (
        f"The test labels have been read {times(num_openings)}. Choices based on earlier results "
        f"make later scores optimistic. {recorded}"
    )


def split_sentences(comparison: Comparison) -> list[str]:
    """Truncated texts and contradicting labels."""
    sentences = []
    cut = [f"{percent(s.cut_share)} % of {s.name}" for s in comparison.splits if s.cut_share]
    if cut:
        sentences.append(f"Truncated to the length of the model: {', '.join(cut)}.")
    for split in comparison.splits:
        if split.num_contradictions:
            occur = "text occurs" if split.num_contradictions == 1 else "texts occur"
            sentences.append(
                f"In {split.name}, {split.num_contradictions:,} {occur} more than once, with "
                "different labels."
            )
    return sentences


def opening_in_words(opening: Opening) -> str:
    """`2025-01-02T03:04:05+00:00: test.csv (9f86d081884c), by regraft compare ...`."""
    by = f", by {opening.command}" if opening.command else ""
    return f"{opening.when}: {opening.test} ({opening.fingerprint[:12]}){by}"


def choices_in_words(arm: ArmSummary) -> str:
    """The chosen hyperparameters: `C 1 (2 seeds); C 10 (1 seed)`."""
    chosen = [", ".join(f"{key} {fact(value)}" for key, value in one.items()) for one in arm.chosen]
    distinct = list(dict.fromkeys(chosen))
    if len(distinct) == 1:
        return distinct[0]
    return "; ".join(f"{one} ({counted(chosen.count(one), 'seed')})" for one in distinct)


def fact(value: Any) -> str:
    """A setting or a fact as people write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(fact, value)) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def clipped(text: str, length: int = MAX_TEXT_LENGTH) -> str:
    """At most `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def times(number: int) -> str:
    """`twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def words_range(length: LengthBin) -> str:
    """From and to, in words; one number where both are the same."""
    if length.low == length.high:
        return f"{length.low:,}"
    return f"{length.low:,}\N{EN DASH}{length.high:,}"


def percent(share: float | None) -> str:
    """A share in percent, without the sign."""
    return UNKNOWN if share is None else f"{100 * share:.1f}"


def interval_in_words(interval: Interval | None) -> str:
    """`81.0 (79.2 to 82.7)`."""
    if interval is None:
        return UNKNOWN
    return f"{percent(interval.mean)} ({percent(interval.low)} to {percent(interval.high)})"


def points_in_words(interval: Interval) -> str:
    """`+3.0 (+1.0 to +5.0)`, of a difference."""
    ends = f"{in_points(interval.low)} to {in_points(interval.high)}"
    return f"{in_points(interval.mean)} ({ends})"


def p_value(p: float) -> str:
    """`p = 0.012`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def in_seconds(seconds: float) -> str:
    """A cost that can be compared at a glance: always the same unit."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"


def encoder_sentence(result: FitResult) -> str:
    """Whether the encoder of `fit --base` is part of the run, and what that needs."""
    if (weight := result.weights.get("encoder")) is None:
        return ""
    if weight == 0:
        return "The encoder gains nothing (weight 0), so it is not part of the run."
    return (
        "The encoder is part of the run, so predicting needs torch (the extra `train`; an encoder "
        "from Hugging Face needs the extra `hf`, too)."
    )
