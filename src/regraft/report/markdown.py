"""A Comparison as Markdown: for a repository, a pull request or a log.

Comes in: a finished Comparison and the names of its figures, which lie beside the file. Goes out:
the text of report.md.
"""

import html
from collections.abc import Iterable, Sequence

from regraft.evidence import Comparison
from regraft.report import words
from regraft.report.elements import MAX_MATRIX_CLASSES
from regraft.report.page import MAX_CLASSES, REPEAT, ran_facts
from regraft.report.tables import encodable


def comparison_to_markdown(comparison: Comparison, *, figures: Iterable[str]) -> str:
    """The report in plain text; `figures` are those whose PNG lies beside it."""
    drawn = set(figures)
    headline, rest = words.verdict_parts(comparison.verdict)
    parts = [
        f"# {inline(headline)}",
        inline(rest),
        f"**{inline(words.worth_in_words(comparison))}**" if comparison.worth else "",
        words.lead(comparison),
        *[f"> **Note.** {inline(warning)}" for warning in comparison.warnings],
        *_learning(comparison, drawn),
        *_curve(comparison, drawn),
        *_arms(comparison),
        *_tests(comparison),
        *_calibration(comparison, drawn),
        *_lengths(comparison, drawn),
        *_mistakes(comparison),
        *_doubts(comparison),
        *_confusion(comparison),
        *_data(comparison),
        *_openings(comparison),
        *_ran(comparison),
        f"Made on {inline(comparison.created)}.",
    ]
    return joined(parts)


def joined(parts: Iterable[str]) -> str:
    """Paragraphs of a file, without the empty ones."""
    return "\n\n".join(part for part in parts if part) + "\n"


def inline(text: str) -> str:
    """Text that cannot break out of its line, its table cell, or into HTML."""
    return html.escape(encodable(" ".join(text.split())), quote=False).replace("|", "\\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every cell becomes one line."""
    lines = [["---"] * len(columns), *[[inline(cell) for cell in row] for row in rows]]
    head = [inline(column) for column in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, *lines])


def fenced(command: str) -> str:
    """A command to copy."""
    return f"````\n{encodable(command)}\n````"


def _learning(comparison: Comparison, drawn: set[str]) -> list[str]:
    if "accuracy" not in drawn:
        return []
    return [
        "## While they learned",
        "![Accuracy on valid after every epoch](accuracy.png)",
        words.accuracy_note(comparison),
    ]


def _curve(comparison: Comparison, drawn: set[str]) -> list[str]:
    if "curve" not in drawn:
        return []
    sizes = sorted({point.num_labels for point in comparison.curve})
    found = {(point.arm, point.num_labels): point.deciding for point in comparison.curve}
    rows = [
        [name, *[words.interval_in_words(found.get((name, size))) for size in sizes]]
        for name in dict.fromkeys(point.arm for point in comparison.curve)
    ]
    return [
        "## With more labels",
        "![Accuracy on test against the number of labels](curve.png)",
        words.curve_note(comparison),
        table(["arm, accuracy in %", *[f"{size:,} labels" for size in sizes]], rows),
        *(_macro_f1(comparison) if "macro-f1" in drawn else []),
        *_worths(comparison),
    ]


def _macro_f1(comparison: Comparison) -> list[str]:
    picture = "![Macro-F1 on test against the number of labels](macro-f1.png)"
    return [picture, words.macro_f1_note(comparison)]


def _worths(comparison: Comparison) -> list[str]:
    if not comparison.more_worths:
        return []
    columns = ["arm", "labels more", "95 %", "best rival"]
    return [f"{words.worths_title(comparison)}:", table(columns, words.worth_rows(comparison))]


def _arms(comparison: Comparison) -> list[str]:
    shows_leaks = words.has_leaks(comparison)
    columns = ["arm", "test accuracy, %"]
    columns += ["without leaks, %"] if shows_leaks else []
    columns += [f"against {words.base_arm(comparison)}"] if comparison.tests else []
    columns += ["macro-F1, %", "valid, %", "cost", "seeds"]
    rows = []
    for arm in comparison.arms:
        row = [arm.name, words.interval_in_words(arm.test_accuracy)]
        if shows_leaks:
            row.append(words.interval_in_words(arm.test_accuracy_without_leaks))
        if comparison.tests:
            gap, p = words.against_base(words.paired_with_base(comparison, arm))
            row.append(f"{gap}, {p}" if p else gap)
        collapsed = f" ({arm.num_collapsed} collapsed)" if arm.num_collapsed else ""
        rows.append(
            [
                *row,
                " ".join(
                    filter(
                        None, [words.percent(arm.macro_f1), words.clean_macro_f1(comparison, arm)]
                    )
                ),
                words.percent(arm.valid_accuracy.mean),
                words.in_seconds(arm.seconds),
                f"{arm.num_seeds}{collapsed}",
            ]
        )
    return [
        "## The arms",
        table(columns, rows),
        words.arms_note(comparison),
        "\n".join(f"- {inline(arm.name)}: {inline(arm.description)}" for arm in comparison.arms),
    ]


def _tests(comparison: Comparison) -> list[str]:
    if not comparison.tests:
        return []
    told = [
        f"- {inline(words.paired_test_in_words(test))}" for test in words.told_tests(comparison)
    ]
    return ["## Are the differences real?", "\n".join(told), words.tests_note(comparison)]


def _calibration(comparison: Comparison, drawn: set[str]) -> list[str]:
    rows = [
        [
            arm.name,
            words.percent(arm.calibration_error),
            words.UNKNOWN if arm.temperature is None else f"{arm.temperature:.2f}",
            words.percent(arm.calibrated_error),
        ]
        for arm in comparison.arms
    ]
    has_temperature = any(arm.temperature is not None for arm in comparison.arms)
    columns = ["arm", "calibration error, %", "temperature", "error with it, %"]
    num_columns = 4 if has_temperature else 2
    return [
        "## How sure, how right",
        "![Reliability of every arm](calibration.png)" if "calibration" in drawn else "",
        words.calibration_note(comparison),
        table(columns[:num_columns], [row[:num_columns] for row in rows]),
    ]


def _lengths(comparison: Comparison, drawn: set[str]) -> list[str]:
    if "lengths" not in drawn:
        return []
    return [
        "## Short texts and long ones",
        "![Accuracy on test by the length of the text](lengths.png)",
        words.LENGTH_NOTE,
    ]


def _mistakes(comparison: Comparison) -> list[str]:
    if not comparison.mistakes:
        return []
    return [f"## {inline(words.mistakes_title(comparison))}"] + [
        f"> {inline(words.clipped(mistake.text))}\n>\n> is **{inline(mistake.label)}**, "
        f"predicted **{inline(mistake.predicted)}** at {100 * mistake.probability:.0f} %"
        for mistake in comparison.mistakes
    ]


def _doubts(comparison: Comparison) -> list[str]:
    if not comparison.label_doubts:
        return []
    rows = [
        [
            f"{doubt.row:,}",
            doubt.label,
            doubt.predicted,
            f"{100 * doubt.probability:.0f} %",
            words.clipped(doubt.text, 160),
        ]
        for doubt in comparison.label_doubts
    ]
    columns = ["row", "label", "the runs say", "at", "text"]
    return ["## Labels to doubt", words.doubts_note(comparison), table(columns, rows)]


def _confusion(comparison: Comparison) -> list[str]:
    """Of the base arm only; all of them are in report.html."""
    if len(comparison.labels) > MAX_MATRIX_CLASSES:
        return []
    base = words.base_arm(comparison)
    arm = next(arm for arm in comparison.arms if arm.name == base)
    rows = [
        [label, *[f"{count:,}" for count in counts]]
        for label, counts in zip(comparison.labels, arm.confusion, strict=True)
    ]
    title = f"## What the {inline(base)} arm takes for what"
    return [title, table(["label", *comparison.labels], rows), words.CONFUSIONS_NOTE]


def _data(comparison: Comparison) -> list[str]:
    parts = ["## The data"]
    if comparison.splits:
        labels = list(dict.fromkeys(label for s in comparison.splits for label in s.counts))
        rows = [
            [label, *[f"{split.counts.get(label, 0):,}" for split in comparison.splits]]
            for label in labels[:MAX_CLASSES]
        ]
        rows.append(["all", *[f"{split.num_examples:,}" for split in comparison.splits]])
        parts.append(table(["label", *[split.name for split in comparison.splits]], rows))
    notes = [*words.leak_sentences(comparison), *words.split_sentences(comparison)]
    return [*parts, "\n".join(f"- {inline(note)}" for note in notes)]


def _openings(comparison: Comparison) -> list[str]:
    if not comparison.openings:
        return []
    told = [f"- {inline(words.opening_in_words(opening))}" for opening in comparison.openings]
    title = "## How often the test was opened"
    return [title, words.openings_sentence(comparison), "\n".join(told)]


def _ran(comparison: Comparison) -> list[str]:
    parts = ["## What ran"]
    if comparison.command:
        parts.append(fenced(comparison.command))
    if comparison.request is not None:
        parts += ["The same again, from the report:", fenced(REPEAT)]
    for title, facts in ran_facts(comparison).items():
        if facts:
            parts.append(f"### {title}\n\n" + table(["name", "value"], facts))
    return parts
