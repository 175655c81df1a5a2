"""A Comparison as Markdown: for a repository, a pull request or a log."""

import html
from collections.abc import Iterable, Sequence

from regraft.comparison import Comparison
from regraft.report import sentences as words
from regraft.report.comparison_html import MAX_CLASSES, REPEAT, ran_facts
from regraft.report.html import MAX_MATRIX_CLASSES
from regraft.report.tables import encodable


def comparison_to_markdown(
    comparison: Comparison,
    *,
    figures: Iterable[str],
    warnings: Sequence[str] = (),
    more: Sequence[str] = (),
) -> str:
    """The report in plain text; `figures` are those whose PNG is in the same folder."""
    drawn = set(figures)
    headline, rest = words.verdict_parts(comparison.verdict)
    parts = [
        f"# {inline(headline)}",
        inline(rest),
        f"**{inline(words.worth_in_words(comparison))}**" if comparison.worth else "",
        words.lead(comparison),
        *[f"> **Note.** {inline(warning)}" for warning in (*comparison.warnings, *warnings)],
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
        *more,
        *_ran(comparison),
        f"Created {inline(comparison.created)}.",
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
        "## Training curves",
        "![Accuracy on valid after every epoch](accuracy.png)",
        words.accuracy_note(comparison),
    ]


def _curve(comparison: Comparison, drawn: set[str]) -> list[str]:
    if "curve" not in drawn:
        return []
    sizes = sorted({point.num_labels for point in comparison.curve})
    scores = {(point.arm, point.num_labels): point.deciding for point in comparison.curve}
    rows = [
        [name, *[words.interval_in_words(scores.get((name, size))) for size in sizes]]
        for name in dict.fromkeys(point.arm for point in comparison.curve)
    ]
    return [
        "## Label curve",
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
    columns = ["arm", "more labels", "95 %", "best rival"]
    return [f"{words.worths_title(comparison)}:", table(columns, words.worth_rows(comparison))]


def _arms(comparison: Comparison) -> list[str]:
    shows_leaks = words.has_leaks(comparison)
    columns = ["arm", "test accuracy, %"]
    columns += ["without leaks, %"] if shows_leaks else []
    columns += [f"against {words.base_arm(comparison)}"] if comparison.tests else []
    columns += ["macro-F1, %", f"{words.tuned_on(comparison).lower()}, %", "cost", "seeds"]
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
        "## Arms",
        table(columns, rows),
        words.arms_note(comparison),
        "\n".join(f"- {inline(arm.name)}: {inline(arm.description)}" for arm in comparison.arms),
    ]


def _tests(comparison: Comparison) -> list[str]:
    if not comparison.tests:
        return []
    lines = [
        f"- {inline(words.paired_test_in_words(test))}" for test in words.shown_tests(comparison)
    ]
    return ["## Significance tests", "\n".join(lines), words.tests_note(comparison)]


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
        "## Calibration",
        "![Reliability diagrams](calibration.png)" if "calibration" in drawn else "",
        words.calibration_note(comparison),
        table(columns[:num_columns], [row[:num_columns] for row in rows]),
    ]


def _lengths(comparison: Comparison, drawn: set[str]) -> list[str]:
    if "lengths" not in drawn:
        return []
    return [
        "## Accuracy by text length",
        "![Accuracy on test by the length of the text](lengths.png)",
        words.LENGTH_NOTE,
    ]


def _mistakes(comparison: Comparison) -> list[str]:
    if not comparison.mistakes:
        return []
    return [f"## {inline(words.mistakes_title(comparison))}"] + [
        f"> {inline(words.clipped(mistake.text))}\n>\n> Labelled **{inline(mistake.label)}**, "
        f"predicted **{inline(mistake.predicted)}** with probability "
        f"{100 * mistake.probability:.0f} %"
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
    columns = ["row", "label", "predicted", "probability", "text"]
    return ["## Possible label errors", words.doubts_note(comparison), table(columns, rows)]


def _confusion(comparison: Comparison) -> list[str]:
    """Of the base arm; report.html has all of them."""
    if len(comparison.labels) > MAX_MATRIX_CLASSES:
        return []
    base = words.base_arm(comparison)
    arm = next(arm for arm in comparison.arms if arm.name == base)
    rows = [
        [label, *[f"{count:,}" for count in counts]]
        for label, counts in zip(comparison.labels, arm.confusion, strict=True)
    ]
    title = f"## Confusion matrix of {inline(base)}"
    return [title, table(["label", *comparison.labels], rows), words.CONFUSIONS_NOTE]


def _data(comparison: Comparison) -> list[str]:
    parts = ["## Data"]
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
    lines = [f"- {inline(words.opening_in_words(opening))}" for opening in comparison.openings]
    title = "## Test set openings"
    return [title, words.openings_sentence(comparison), "\n".join(lines)]


def _ran(comparison: Comparison) -> list[str]:
    parts = ["## Reproducibility"]
    if comparison.command:
        parts.append(fenced(comparison.command))
    if comparison.request is not None:
        parts += ["Repeat from this report:", fenced(REPEAT)]
    for title, facts in ran_facts(comparison).items():
        if facts:
            parts.append(f"### {title}\n\n" + table(["name", "value"], facts))
    return parts
