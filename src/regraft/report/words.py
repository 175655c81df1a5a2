"""The sentences of a report, the same on a page, in Markdown and on a terminal.

Comes in: values of a Comparison. Goes out: plain text, not yet escaped for any format. A sentence
whose value was not found is empty, and left out by whoever tells it.
"""

import re
from typing import Any

from regraft.evidence import (
    SIGNIFICANCE,
    ArmSummary,
    Comparison,
    LabelWorth,
    LengthBin,
    Opening,
    PairedTest,
    about,
    nearest_rival,
)
from regraft.evidence import points as points
from regraft.metrics import Interval

UNKNOWN = "\N{EN DASH}"
# So many times its even share has the largest class where accuracy alone would flatter.
UNEVEN = 1.5
# Longer excerpts of texts are cut: a report is read, not searched.
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
    told = [f"{p_value(test.p_permutation)} by permutation"]
    if test.p_difference is not None:
        told.append(f"{p_value(test.p_difference)} over new seeds and examples")
    told.append(f"{p_value(test.p_mcnemar)} by McNemar's test")
    parts = [
        f"{claim}: {test.first} minus {test.second} is {points(gap.mean)} points, "
        f"95 % interval {points(gap.low)} to {points(gap.high)}",
        ", ".join(told),
    ]
    if test.p_holm is not None:
        parts.append(f"{p_value(test.p_holm)} corrected{_corrected_interval(test)}")
    if test.smallest_difference is not None and not test.is_significant:
        parts.append(_told_limit(test.smallest_difference))
    return "; ".join(parts) + "."


def _corrected_interval(test: PairedTest) -> str:
    if test.corrected is None or test.corrected == test.difference:
        return ""
    return f", interval then {points(test.corrected.low)} to {points(test.corrected.high)}"


def told_tests(comparison: Comparison) -> list[PairedTest]:
    """Those of the base arm, and of other uses of a base the nearest rival; tests.csv has all."""
    base = base_arm(comparison)
    told = [test for test in comparison.tests if test.first == base]
    for use in dict.fromkeys(test.first for test in comparison.tests):
        nearest = nearest_rival([test for test in comparison.tests if test.first == use])
        told += [nearest] if use != base and nearest is not None else []
    return told


def verdict_parts(verdict: str) -> tuple[str, str]:
    """(the first sentence, what limits it)."""
    first, *rest = re.split(r"(?<=\.) (?=[A-Z])", verdict, maxsplit=1)
    return first, "".join(rest)


def lead(comparison: Comparison) -> str:
    """What was learned from and tested on, in a few sentences."""
    num_seeds = max(arm.num_seeds for arm in comparison.arms)
    num_openings = max(len(comparison.openings), 1)
    opened = "once, at the end" if num_openings == 1 else f"{times(num_openings)} so far"
    cut = comparison.cut_share
    most = max((point.num_labels for point in comparison.curve), default=comparison.num_train)
    learned = f"{most:,}" + (f" of {comparison.num_train:,}" if most < comparison.num_train else "")
    return (
        f"Learned from {learned} examples, tuned on {comparison.num_valid:,}; "
        f"{comparison.num_test:,} test examples were opened {opened}. "
        f"{counted(num_seeds, 'seed')} for each neural arm, all on the same batches."
        + (
            f" {percent(cut)} % of the training texts were longer than the model reads, and cut."
            if cut
            else ""
        )
    )


def base_arm(comparison: Comparison) -> str:
    """The arm that the report is about: that of the tests, else a pre-trained one or the first."""
    names = [arm.name for arm in comparison.arms]
    tested = [test.first for test in comparison.tests if test.first in names]
    if tested:
        return tested[0]
    bases = [name for name in names if name.partition(":")[0] == "pretrained"]
    return "pretrained" if "pretrained" in names else (bases or names)[0]


def paired_with_base(comparison: Comparison, arm: ArmSummary) -> PairedTest | None:
    """The paired test of the base arm and this one."""
    for test in comparison.tests:
        if (test.first, test.second) == (base_arm(comparison), arm.name):
            return test
    return None


def against_base(test: PairedTest | None) -> tuple[str, str]:
    """(gap of an arm to the base arm in points, p): `+3.1`, the p that decides.

    Corrected, where it answers a question; else over new seeds; of single runs, over examples.
    """
    if test is None:
        return UNKNOWN, ""
    ps = (test.p_holm, test.p_difference, test.p_permutation)
    return points(-test.difference.mean), p_value(next(p for p in ps if p is not None))


def arms_note(comparison: Comparison) -> str:
    """How to read the table of arms."""
    note = (
        "Scores are percentages. Intervals are 95 % and count both the choice of test examples and "
        "the luck of seeds. They do not count the choice of the training examples: with all labels "
        "every seed learns from the same ones, and large subsets overlap. Cost is the training "
        "time of one seed."
    )
    if comparison.tests:
        corrected = any(test.p_holm is not None for test in comparison.tests)
        note += (
            f" “Against {base_arm(comparison)}” is the arm minus that one in points, on the same "
            "test examples, with its p"
            + (
                ", corrected (Holm) where it answers one of the questions below."
                if corrected
                else "."
            )
        )
    if has_leaks(comparison):
        where = " among the labelled ones" if _is_text_kept(comparison) else ""
        note += f" “Without leaks” leaves out test texts that were seen before{where}" + (
            "."
            if comparison.num_deciding is None
            else f" or repeat one: by these {comparison.num_deciding:,} examples it is decided."
        )
    return note


def tests_note(comparison: Comparison) -> str:
    """How far the paired tests reach."""
    note = (
        "The permutation test takes the runs as they are, McNemar's test the first seed only; the "
        "interval is about new seeds and new examples."
    )
    corrected = [test.p_holm is not None for test in comparison.tests]
    if not any(corrected):
        return note + " None is corrected for there being several."
    note += (
        f" A difference counts if its corrected p is below {SIGNIFICANCE} and its interval "
        "leaves out zero."
    )
    if any(test.corrected is not None for test in comparison.tests):
        note += (
            " The correction is for the questions of the verdict: did pre-training help, and is "
            "each use of a base better than the best rival. The interval at its level leaves out "
            "zero exactly if the difference counts."
        )
    if not all(corrected):
        note += " A test without a corrected p answers none of them and stands for itself."
    return note


def _told_limit(smallest_difference: float) -> str:
    """What another test like it could show; of very few seeds or examples, nothing."""
    if smallest_difference >= 1:
        return "another comparison of this size could hardly show any gap: take more seeds"
    return (
        f"another comparison of this size would show a true gap of {100 * smallest_difference:.1f} "
        "points 4 times in 5"
    )


def accuracy_note(comparison: Comparison) -> str:
    """How to read the figure of accuracy by epoch."""
    note = "Lines are means over seeds, bands reach from the lowest to the highest seed."
    if any("epoch" in chosen for arm in comparison.arms for chosen in arm.chosen):
        note += (
            " A ring is the epoch whose weights a run kept, where its line then stays; the number "
            "beside a name is the mean of these."
        )
    flat = [arm.name for arm in comparison.arms if len(next(iter(arm.valid_curves), ())) == 1]
    if len(flat) == 1:
        return f"{note} The dashed line is the {flat[0]} arm, which knows no epochs."
    if flat:
        return f"{note} Dashed lines are arms which know no epochs: {', '.join(flat)}."
    return note


def curve_note(comparison: Comparison) -> str:
    """How to read the label curve."""
    note = (
        "Accuracy on test against the number of labelled examples, which grows by a factor along "
        "the axis; every larger set holds the smaller ones. Bands are 95 % intervals over seeds "
        "and test examples; of many arms a few have one, and the table has all."
    )
    if any(point.accuracy_without_leaks is not None for point in comparison.curve):
        note += " Test texts that were seen before or repeat one are left out."
    shown = drawn_worth(comparison)
    if shown is not None:
        note += f" The arrow is what {shown.arm} is worth: as many labels more, for the same score."
    return note


def has_uneven_classes(comparison: Comparison) -> bool:
    """Would who always answers one class look good by accuracy?"""
    return _largest_share(comparison) * len(comparison.labels) > UNEVEN


def macro_f1_note(comparison: Comparison) -> str:
    """Why there is a second curve."""
    return (
        f"The largest class holds {percent(_largest_share(comparison))} % of test, so accuracy "
        "flatters who answers it too often. In macro-F1 every class counts the same."
    )


def _largest_share(comparison: Comparison) -> float:
    """Of the test examples; 0 where a report of earlier does not tell."""
    counts = [split.counts.values() for split in comparison.splits if split.name == "test"]
    return max((max(each) / sum(each) for each in counts), default=0.0)


def drawn_worth(comparison: Comparison) -> LabelWorth | None:
    """The worth that the label curve shows: of the base arm, else of the best other."""
    found = [worth for worth in _worths(comparison) if worth.extra is not None]
    if found and found[0] is comparison.worth:
        return found[0]
    return max(found, key=lambda worth: worth.extra.mean if worth.extra else 0.0, default=None)


def worth_in_words(comparison: Comparison) -> str:
    """What stands below the verdict: the worth of the base arm, and a better one if there is."""
    if comparison.worth is None:
        return ""
    shown = drawn_worth(comparison)
    if shown is None or shown is comparison.worth:
        return comparison.worth.sentence
    return f"{comparison.worth.sentence} {shown.arm}: {shown.sentence}"


def _worths(comparison: Comparison) -> list[LabelWorth]:
    return [*([comparison.worth] if comparison.worth else []), *comparison.more_worths]


def worths_title(comparison: Comparison) -> str:
    """What the table below the label curve holds."""
    fewest = comparison.more_worths[0].num_labels if comparison.more_worths else 0
    return (
        f"How many labels more than {fewest:,} the best arm without a base needs to score as each "
        f"arm of a base does with {fewest:,}; every interval stands for itself"
        + (
            ", and the luck of single runs is in none"
            if any(worth.is_of_runs for worth in _worths(comparison))
            else ""
        )
    )


def worth_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """(arm, labels, interval, rival), if there is more to tell than the sentence at the top."""
    if not comparison.more_worths:
        return []
    return [(worth.arm, *_worth_in_numbers(worth), worth.rival) for worth in _worths(comparison)]


def _worth_in_numbers(worth: LabelWorth) -> tuple[str, str]:
    if worth.extra is None:
        return "no gain found", UNKNOWN
    extra = worth.extra
    if worth.is_bound:
        return f"more than {extra.mean:,.0f}", f"from {about(extra.low)} on"
    more = "more than " if worth.is_high_bound else ""
    return about(extra.mean), f"{about(extra.low)} to {more}{about(extra.high)}"


def calibration_note(comparison: Comparison) -> str:
    """How to read the reliability plots."""
    note = (
        "How often answers of a confidence are right: on the diagonal as often as they say, below "
        "it they are too sure. Larger dots are more answers. The calibration error is the mean "
        "distance from the diagonal."
    )
    if any(arm.temperature is not None for arm in comparison.arms):
        note += (
            " A temperature fitted on valid divides the scores; above 1 it makes answers less sure."
            " It changes no answer."
        )
    return note


LENGTH_NOTE = "Accuracy on test by the length of the text in words, mean over seeds."
CONFUSIONS_NOTE = (
    "Rows are the labels, columns the predictions; counts on test, all seeds together."
)


def doubts_note(comparison: Comparison) -> str:
    """Who doubts the labels that follow, and what it may mean."""
    arms = next((doubt.arms for doubt in comparison.label_doubts if doubt.arms), ())
    runs = f"the runs of {' and '.join(arms)}, the best on valid," if arms else "the runs"
    return (
        f"Here {runs} agree with each other, with confidence, and not with the label. Either it is "
        "wrong, or they share a blind spot: worth a look."
    )


def mistakes_title(comparison: Comparison) -> str:
    """Whose mistakes follow."""
    return f"Where the {base_arm(comparison)} arm is surest and wrong"


def has_leaks(comparison: Comparison) -> bool:
    """Was any test text seen before the test, or does one repeat another?"""
    has_repeats = comparison.num_deciding not in (None, comparison.num_test)
    return has_repeats or bool(comparison.num_test_leaks or comparison.num_text_leaks)


def _is_text_kept(comparison: Comparison) -> bool:
    """Do test texts decide that were in the text without labels, for want of others?"""
    outcomes = comparison.outcomes
    if outcomes is None or outcomes.in_text is None:
        return False
    return ("1", "1") in zip(outcomes.decides, outcomes.in_text, strict=True)


def clean_macro_f1(comparison: Comparison, arm: ArmSummary) -> str:
    """`81.2 without leaks`, where there are any."""
    if arm.macro_f1_without_leaks is None or not has_leaks(comparison):
        return ""
    return f"{percent(arm.macro_f1_without_leaks)} without leaks"


def leak_sentences(comparison: Comparison) -> list[str]:
    """Which test texts were seen before the test, as far as it was looked for."""
    sentences = []
    leaks, in_text = comparison.num_test_leaks, comparison.num_text_leaks
    if leaks:
        occur = "test text occurs" if leaks == 1 else "test texts occur"
        sentences.append(
            f"{leaks:,} {occur} in train or valid too, exactly or nearly; every arm is scored with "
            "and without."
        )
    else:
        sentences.append("No test text occurs in train or valid, not even nearly.")
    if in_text:
        were = "test text was" if in_text == 1 else "test texts were"
        what = "every arm is scored with and without."
        if _is_text_kept(comparison):
            what = "too few others are left to decide without."
        sentences.append(
            f"{in_text:,} {were} in the text without labels, exactly or nearly; {what}"
        )
    elif in_text == 0:
        sentences.append("No test text was in the text without labels, not even nearly.")
    if has_leaks(comparison) and comparison.num_deciding is not None:
        where = (
            "not among the labelled ones" if _is_text_kept(comparison) else "seen nowhere before"
        )
        sentences.append(
            f"{comparison.num_deciding:,} of {comparison.num_test:,} test examples, {where} "
            "and each text once, decide: verdict, tests, label curve and worth in labels."
        )
    return sentences


def openings_sentence(comparison: Comparison) -> str:
    """How often anyone looked at the test labels."""
    num_openings = len(comparison.openings)
    if not num_openings:
        return ""
    counted_by = "Counted by openings.json, beside the folder of this comparison."
    if num_openings == 1:
        return f"The test labels have been opened once: for this comparison. {counted_by}"
    return (
        f"The test labels have been opened {times(num_openings)}. Whoever chooses by their "
        f"results learns from the test, and its scores flatter. {counted_by}"
    )


def split_sentences(comparison: Comparison) -> list[str]:
    """What is odd about a split: texts cut, labels that contradict each other."""
    sentences = []
    cut = [f"{percent(s.cut_share)} % of {s.name}" for s in comparison.splits if s.cut_share]
    if cut:
        sentences.append(f"Longer than the model reads, and cut: {', '.join(cut)}.")
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
    """What the grid chose: `C 1 (2 seeds); C 10 (1 seed)`."""
    told = [", ".join(f"{key} {fact(value)}" for key, value in one.items()) for one in arm.chosen]
    distinct = list(dict.fromkeys(told))
    if len(distinct) == 1:
        return distinct[0]
    return "; ".join(f"{one} ({counted(told.count(one), 'seed')})" for one in distinct)


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


def counted(number: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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


def p_value(p: float) -> str:
    """`p = 0.012`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def in_seconds(seconds: float) -> str:
    """A cost that can be compared at a glance: always the same unit."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"


def duration(seconds: float) -> str:
    """A time in the unit that fits."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
