"""Parts of the report of `regraft fit` about its held-out examples.

Possible label errors, accuracy by the number of labels, and accuracy by the share answered.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regraft.classifiers import EXAMPLES_NAME, FitResult, KeptExamples, Update
from regraft.data import Example, LabelIssue, read_label_issues
from regraft.report import sentences as words
from regraft.report.drawing import DASHES, MUTED, Line, arm_styles, draw_lines, line_axes, name_axes
from regraft.report.figures import label_axes
from regraft.report.page import (
    Cell,
    Drawing,
    Matrices,
    Matrix,
    Paragraph,
    Part,
    Quotation,
    Quotations,
    Section,
    Table,
)
from regraft.runtime import counted, in_percent, in_points
from regraft.stats import ConfidenceBin, confidence_bins, landmarks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LISTED_NOTE = "Without those that are listed below as possible label errors."
_ISSUES_SHOWN = 10
_ERRORS_SHOWN = 5
_MATRIX_NOTE = (
    "Rows are labels, columns are predictions; counts of examples that the classifier had not seen "
    "when it predicted them."
)
_CALIBRATION_NOTE = (
    "How often held-out predictions are right, by their confidence. On the dashed line a "
    "prediction of 80 % is right in 80 % of the cases; below it the classifier is overconfident."
)
_CURVE_TITLE = "How many labels do I need?"
_CURVE_NOTE = (
    "Measured: the members fitted again on parts of the labels, tested on the folds left out. "
    "Forecast: power laws through resampled errors, with 95 % intervals; it assumes more labels of "
    "the same kind and the same bases."
)
_COVERAGE_TITLE = "When not to answer"
_UPDATE_TITLE = "What the new labels changed"
_UPDATE_NOTE = (
    "Scores on the same texts, before and after, with 95 % intervals. Earlier examples were held "
    "out both times; the new ones are unknown to the earlier classifier, which cannot name a new "
    "class."
)


def held_out_figures(result: FitResult) -> "dict[str, Figure]":
    """Every figure that there are values for, by file name."""
    figures = {"coverage": coverage_figure(result)} if len(result.coverage) > 1 else {}
    if len(bins := _bins(_kept(result))) > 1:
        figures["confidence"] = confidence_figure(bins)
    if result.label_curve:
        figures["labels"] = label_curve_figure(result)
    return figures


def label_curve_figure(result: FitResult) -> "Figure":
    """Accuracy by the number of labels: measured, then forecast."""
    lines = []
    for name, is_forecast in (("measured", False), ("forecast", True)):
        points = [point for point in result.label_curve if point.is_forecast == is_forecast]
        lines.append(
            Line(
                name,
                arm_styles(["linear" if is_forecast else "blend"]).popitem()[1],
                xs=[point.num_labels for point in points],
                ys=[100 * point.accuracy.mean for point in points],
                lows=[100 * point.accuracy.low for point in points],
                highs=[100 * point.accuracy.high for point in points],
            )
        )
    return label_axes(lines, title=f"Score of the blend ({result.measure}), %")[0]


def coverage_figure(result: FitResult) -> "Figure":
    """Accuracy on the most confident held-out examples, by how many they are."""
    points = result.coverage
    line = Line(
        "blend",
        arm_styles(["blend"])["blend"],
        xs=[100 * point.coverage for point in points],
        ys=[100 * point.accuracy for point in points],
    )
    figure, axes = line_axes([line.name])
    axes.set_xlim(0, 101)
    name_axes(axes, title="Accuracy on what is answered, %", across="% answered")
    draw_lines(axes, [line])
    if result.abstain_below is not None:
        answered = [point.coverage for point in points if point.threshold >= result.abstain_below]
        axes.axvline(100 * max(answered, default=0.0), color=MUTED, linestyle=DASHES)
    return figure


def confidence_figure(bins: Sequence[ConfidenceBin]) -> "Figure":
    """Accuracy of held-out predictions by their confidence, and the line of perfect calibration."""
    line = Line(
        "blend",
        arm_styles(["blend"])["blend"],
        xs=[100 * one.confidence for one in bins],
        ys=[100 * one.accuracy for one in bins],
    )
    figure, axes = line_axes([line.name])
    name_axes(axes, title="Accuracy, %", across="confidence, %")
    axes.plot([0, 100], [0, 100], color=MUTED, linestyle=DASHES)
    draw_lines(axes, [line])
    axes.set(xlim=(100 / (2 * len(bins)), 101), ylim=(0, 101))
    return figure


def held_out_sections(result: FitResult, figures: "dict[str, Figure]") -> list[Section]:
    """Sections of the report."""
    sections = []
    if result.update is not None:
        changes = [(row[0], [Cell(cell) for cell in row[1:]]) for row in update_rows(result.update)]
        table = Table(UPDATE_COLUMNS, changes, caption=_UPDATE_TITLE)
        notes: list[Part] = [Paragraph(update_sentence(result.update), css_class=""), table]
        sections.append(Section("update", _UPDATE_TITLE, [*notes, Paragraph(_UPDATE_NOTE)]))
    if "labels" in figures:
        numbers = [(row[0], [Cell(cell) for cell in row[1:]]) for row in _curve_rows(result)]
        table = Table(_CURVE_COLUMNS, numbers, caption=_CURVE_TITLE)
        curve = Drawing(figures["labels"], "labels", _CURVE_TITLE, _CURVE_NOTE, table)
        parts: list[Part] = [Paragraph(forecast_sentence(result), css_class=""), curve]
        sections.append(Section("labels", _CURVE_TITLE, parts))
    if "coverage" in figures:
        note = _coverage_note(result)
        choices = [
            (
                in_percent(point.coverage, digits=0),
                [Cell(in_percent(point.accuracy)), Cell(f"{point.threshold:.3f}")],
            )
            for point in landmarks(result.coverage)
        ]
        table = Table(_COVERAGE_COLUMNS, choices, caption=_COVERAGE_TITLE)
        drawing = Drawing(figures["coverage"], "coverage", _COVERAGE_TITLE, note)
        sections.append(Section("coverage", _COVERAGE_TITLE, [drawing, table]))
    issues = _issues(result)
    sections += _error_sections(result, figures, listed={(issue.id, issue.row) for issue in issues})
    if issues:
        quotations = [
            Quotation(
                words.clipped(issue.text),
                issue.label,
                issue.proposal,
                before=f"{_place(issue)} is labelled",
                between="; held out, it is predicted to be",
                after=f"with probability {in_percent(issue.confidence, digits=0)}",
            )
            for issue in issues
        ]
        doubts: list[Part] = [Paragraph(_issues_note(result)), Quotations(quotations)]
        sections.append(Section("issues", "Possible label errors", doubts))
    return sections


def _kept(result: FitResult) -> KeptExamples | None:
    """What is known of each held-out example; None if a text may have several labels, or if the
    run has lost its examples."""
    run_dir = Path(result.run_dir)
    if result.thresholds or not (run_dir / EXAMPLES_NAME).exists():
        return None
    kept = KeptExamples.load(run_dir)
    return kept if kept.confidence else None


def _bins(kept: KeptExamples | None) -> tuple[ConfidenceBin, ...]:
    if kept is None:
        return ()
    is_right = [
        example.names == answer for example, answer in zip(kept.judged, kept.held_out, strict=True)
    ]
    return confidence_bins(np.array(kept.confidence), np.array(is_right), num_bins=10)


def _error_sections(
    result: FitResult, figures: "dict[str, Figure]", *, listed: AbstractSet[tuple[str, int]]
) -> list[Section]:
    """What is taken for what, the most confident errors that are not `listed`, and calibration.

    Examples are listed by id and row: in a folder, each is in row 1 of its file.
    """
    kept = _kept(result)
    if kept is None:
        return []
    place = {name: at for at, name in enumerate(result.labels)}
    counts = np.zeros((len(place), len(place)), dtype=np.int64)
    wrong = []
    for example, (answer,), confidence in zip(
        kept.judged, kept.held_out, kept.confidence, strict=True
    ):
        counts[place[example.label], place[answer]] += 1
        if example.label != answer and (example.id, example.row) not in listed:
            wrong.append((confidence, example, answer))
    wrong.sort(key=lambda one: -one[0])
    matrix = Matrices([Matrix("blend", counts.tolist(), result.labels)])
    sections = [Section("confusion", "Confusion matrix", [matrix, Paragraph(_MATRIX_NOTE)])]
    if wrong:
        quotations = [
            Quotation(
                words.clipped(example.text),
                example.label,
                answer,
                before=f"{_place(example)}, labelled",
                between=", predicted",
                after=f"with probability {in_percent(confidence, digits=0)}",
            )
            for confidence, example, answer in wrong[:_ERRORS_SHOWN]
        ]
        title = "Most confident errors"
        parts: list[Part] = [Paragraph(_LISTED_NOTE)] if listed else []
        sections.append(Section("errors", title, [*parts, Quotations(quotations)]))
    if "confidence" in figures:
        title = "Calibration"
        drawing = Drawing(figures["confidence"], "confidence", title, _CALIBRATION_NOTE)
        sections.append(Section("calibration", title, [drawing], is_detail=True))
    return sections


UPDATE_COLUMNS = ["examples", "number", "before, %", "after, %", "difference, points"]


def update_rows(update: Update) -> list[list[str]]:
    """One row for all examples, then for earlier and new ones."""
    return [
        [
            change.texts,
            f"{change.num_texts:,}",
            words.percent(change.before.mean),
            words.percent(change.after.mean),
            f"{in_points(change.difference.mean)} ({in_points(change.difference.low)} to "
            f"{in_points(change.difference.high)})",
        ]
        for change in update.changes
    ]


def update_sentence(update: Update) -> str:
    """`100 examples were added to runs/news, with the new class 'sport'.`"""
    names = ", ".join(map(repr, update.new_labels))
    classes = f", with the new {'class' if len(update.new_labels) == 1 else 'classes'} {names}"
    changed = f"; {update.num_relabelled:,} earlier labels were replaced"
    return (
        f"{counted(update.num_added, 'example')} added to {update.run_dir}"
        f"{classes if names else ''}{changed if update.num_relabelled else ''}."
    )


_COVERAGE_COLUMNS = ["coverage", "accuracy", "confidence from"]
_CURVE_COLUMNS = ["labels", "score, %", "how"]


def _curve_rows(result: FitResult) -> list[list[str]]:
    return [
        [
            f"{point.num_labels:,}",
            words.interval_in_words(point.accuracy),
            "forecast" if point.is_forecast else "measured",
        ]
        for point in result.label_curve
    ]


def forecast_sentence(result: FitResult) -> str:
    """`With 800 labels instead of 400, expect 89.6 to 91.2 %.`, for every forecast of more."""
    forecasts = [
        (
            point.num_labels,
            f"{words.percent(point.accuracy.low)} to {words.percent(point.accuracy.high)} %",
        )
        for point in result.label_curve
        if point.is_forecast and point.num_labels > result.num_train
    ]
    if not forecasts:
        return ""
    (num_labels, score), *others = forecasts
    first = f"With {num_labels:,} labels instead of {result.num_train:,}, expect {score}"
    return "; ".join([first, *(f"with {number:,}, {score}" for number, score in others)]) + "."


def _coverage_note(result: FitResult) -> str:
    note = (
        "Held-out examples by the confidence of the blend: if only the most confident ones are "
        "answered, how many of the answers are right."
    )
    if result.abstain_below is None:
        return (
            f"{note} Here every text is answered. `predict --abstain-below` takes a confidence of "
            "the table; `fit --target-accuracy` chooses one."
        )
    return f"{note} Below a confidence of {result.abstain_below:.3f}, `predict` does not answer."


def _issues(result: FitResult) -> list[LabelIssue]:
    if not result.num_label_issues:
        return []
    return read_label_issues(Path(result.run_dir) / "label_issues.csv")[:_ISSUES_SHOWN]


def _issues_note(result: FitResult) -> str:
    num_shown = min(result.num_label_issues, _ISSUES_SHOWN)
    return (
        f"{result.num_label_issues:,} labels are contradicted by predictions "
        f"of members that had not seen them; the first {num_shown} are here, all in "
        f"label_issues.csv. Some will be right: read before you accept. {_how_to_relabel(result)}"
    )


def _how_to_relabel(result: FitResult) -> str:
    if any(Path(file).is_dir() for file in result.judged_files):
        return "Move the files that you accept to the folder of their class."
    return "`regraft data clean` writes a copy of the file with those you accept."


def _place(quoted: LabelIssue | Example) -> str:
    if quoted.row == 1 and quoted.id.endswith((".txt", ".txt.gz")):  # a file of a folder
        return quoted.id
    return f"Row {quoted.row} ({quoted.id})" if quoted.id else f"Row {quoted.row}"
