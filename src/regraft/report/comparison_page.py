"""A Comparison as one page: verdict first, then figures, tables, texts and reproducibility.

Each section is a function that returns parts, none where there is nothing to show.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regraft.comparison import ArmSummary, Comparison
from regraft.config import flat
from regraft.report import sentences as words
from regraft.report.drawing import Style, arm_styles
from regraft.report.page import (
    MAX_MATRIX_CLASSES,
    Cell,
    Claims,
    Command,
    Drawing,
    Facts,
    Listing,
    Matrices,
    Matrix,
    Page,
    Paragraph,
    Part,
    Quotation,
    Quotations,
    Scored,
    Scores,
    Section,
    Table,
)
from regraft.runtime import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Matrices shown at once; those of further arms are folded.
_NUM_MATRICES = 2
# Classes in the table of splits; the rest is in report.json.
MAX_CLASSES = 30
REPEAT = "regraft compare --from report.json --out NEW_FOLDER"


def comparison_page(
    comparison: Comparison,
    *,
    figures: "dict[str, Figure]",
    eyebrow: str = "regraft \N{MIDDLE DOT} was pre-training worth it?",
    warnings: Sequence[str] = (),
    more: Sequence[Section] = (),
) -> Page:
    """The report; figures that are not given are omitted.

    Further `warnings` and sections are added to those of the comparison.
    """
    headline, limits = words.verdict_parts(comparison.verdict)
    return Page(
        eyebrow=eyebrow,
        headline=headline,
        limits=limits,
        is_good=comparison.verdict_kind in ("pays", "pays-otherwise"),
        worth=words.worth_in_words(comparison),
        lead=words.lead(comparison),
        warnings=[*comparison.warnings, *warnings],
        sections=[
            Section("learning", "Training curves", _learning(comparison, figures)),
            Section("labels", "Label curve", _curve(comparison, figures)),
            Section("arms", "Arms", _arms(comparison)),
            Section("differences", "Significance tests", _tests(comparison), is_detail=True),
            Section(
                "calibration", "Calibration", _calibration(comparison, figures), is_detail=True
            ),
            Section(
                "lengths", "Accuracy by text length", _lengths(comparison, figures), is_detail=True
            ),
            Section(
                "mistakes",
                words.mistakes_title(comparison),
                _mistakes(comparison),
                link="Most confident errors",
            ),
            Section("doubts", "Possible label errors", _doubts(comparison)),
            Section("confusions", "Confusion matrices", _confusions(comparison)),
            Section("data", "Data", _data(comparison), is_detail=True),
            Section("openings", "Test set openings", _openings(comparison), is_detail=True),
            *more,
            Section("ran", "Reproducibility", _ran(comparison), is_detail=True),
        ],
        created=comparison.created,
    )


def _learning(comparison: Comparison, figures: "dict[str, Figure]") -> list[Part]:
    if "accuracy" not in figures:
        return []
    ends = ", ".join(
        f"{arm.name} {words.percent(arm.valid_accuracy.mean)} %" for arm in comparison.arms
    )
    described = f"Accuracy on valid after every epoch, one line per arm. At the end: {ends}."
    return [Drawing(figures["accuracy"], "accuracy", described, words.accuracy_note(comparison))]


def _curve(comparison: Comparison, figures: "dict[str, Figure]") -> list[Part]:
    if "curve" not in figures:
        return []
    described = "Accuracy on test against the number of labels, one line per arm."
    note, numbers = words.curve_note(comparison), _curve_table(comparison)
    parts: list[Part] = [Drawing(figures["curve"], "curve", described, note, numbers)]
    if "macro-f1" in figures:
        described = "Macro-F1 on test against the number of labels; curve.csv has the numbers."
        note = words.macro_f1_note(comparison)
        parts.append(Drawing(figures["macro-f1"], "macro-f1", described, note))
    if comparison.more_worths:
        rows = [
            (name, [Cell(extra, ends), Cell(rival)])
            for name, extra, ends, rival in words.worth_rows(comparison)
        ]
        columns, styles = ["Arm", "More labels", "Best rival"], _styles(comparison)
        title = Paragraph(f"{words.worths_title(comparison)}.")
        parts += [title, Table(columns, rows, caption="Worth in labels", styles=styles)]
    return parts


def _curve_table(comparison: Comparison) -> Table:
    sizes = sorted({point.num_labels for point in comparison.curve})
    points = {(point.arm, point.num_labels): point for point in comparison.curve}
    rows = []
    for name in dict.fromkeys(point.arm for point in comparison.curve):
        cells = []
        for size in sizes:
            point = points.get((name, size))
            if point is None:
                cells.append(Cell(words.UNKNOWN))
                continue
            score = point.deciding
            note = f"{words.percent(score.low)} to {words.percent(score.high)}"
            if point.num_collapsed:
                note += f"; {point.num_collapsed} of {point.num_seeds} collapsed"
            cells.append(Cell(words.percent(score.mean), note))
        rows.append((name, cells))
    return Table(
        ["Arm", *[f"{size:,} labels" for size in sizes]],
        rows,
        caption="Accuracy on test in percent, with 95 % intervals",
        styles=_styles(comparison),
    )


def _styles(comparison: Comparison) -> dict[str, Style]:
    return arm_styles(arm.name for arm in comparison.arms)


def _arms(comparison: Comparison) -> list[Part]:
    shows_leaks = words.has_leaks(comparison)
    base = words.base_arm(comparison)
    columns = ["Arm", "Test accuracy"]
    columns += ["On all test texts"] if shows_leaks else []
    columns += [f"Against {base}"] if comparison.tests else []
    columns += ["Macro-F1", words.tuned_on(comparison), "Cost", "Seeds"]
    styles = _styles(comparison)
    rows = []
    for arm in comparison.ranked_arms:
        cells = []
        if shows_leaks:
            whole = arm.test_accuracy
            ends = f"{words.percent(whole.low)} to {words.percent(whole.high)}"
            cells.append(Cell(words.percent(whole.mean), ends))
        if comparison.tests:
            cells.append(Cell(*words.against_base(words.paired_with_base(comparison, arm))))
        long = duration(arm.seconds) if arm.seconds >= 120 else ""
        cells += [
            Cell(words.percent(arm.deciding_macro_f1), words.whole_macro_f1(comparison, arm)),
            Cell(words.percent(arm.valid_accuracy.mean)),
            Cell(words.in_seconds(arm.seconds), long),
            Cell(str(arm.num_seeds), f"{arm.num_collapsed} collapsed" if arm.num_collapsed else ""),
        ]
        rows.append(Scored(arm.name, arm.description, styles[arm.name], arm.deciding, cells))
    return [
        Scores(columns, rows, caption="The arms and their scores"),
        Paragraph(words.SCORES_NOTE),
        Paragraph(words.arms_note(comparison), summary="How to read this table"),
    ]


def _tests(comparison: Comparison) -> list[Part]:
    if not comparison.tests:
        return []
    claims = []
    for test in words.shown_tests(comparison):
        claim, _, evidence = words.paired_test_in_words(test).partition(": ")
        claims.append((claim, evidence))
    return [Claims(claims), Paragraph(words.tests_note(comparison))]


def _calibration(comparison: Comparison, figures: "dict[str, Figure]") -> list[Part]:
    has_temperature = any(arm.temperature is not None for arm in comparison.arms)
    columns = ["Arm", "Calibration error"]
    columns += ["Temperature", "Error with it"] if has_temperature else []
    rows = []
    for arm in comparison.arms:
        cells = [Cell(words.percent(arm.calibration_error))]
        if has_temperature:
            temperature = words.UNKNOWN if arm.temperature is None else f"{arm.temperature:.2f}"
            cells += [Cell(temperature), Cell(words.percent(arm.calibrated_error))]
        rows.append((arm.name, cells))
    caption = "Calibration error on test, in percent"
    numbers = Table(columns, rows, caption=caption, styles=_styles(comparison))
    note = words.calibration_note(comparison)
    if "calibration" not in figures:
        return [numbers, Paragraph(note)]
    described = "A reliability diagram for each arm: confidence against accuracy."
    return [Drawing(figures["calibration"], "calibration", described, note), numbers]


def _lengths(comparison: Comparison, figures: "dict[str, Figure]") -> list[Part]:
    if "lengths" not in figures:
        return []
    arms = [arm for arm in comparison.arms if arm.by_length]
    bins = max((arm.by_length for arm in arms), key=len)
    scores = {(arm.name, b.low, b.high): b.accuracy for arm in arms for b in arm.by_length}
    rows = [
        (
            words.words_range(length),
            [
                Cell(f"{length.count:,}"),
                *[Cell(words.percent(scores.get((a.name, length.low, length.high)))) for a in arms],
            ],
        )
        for length in bins
    ]
    columns = ["Words", "Texts", *[arm.name for arm in arms]]
    numbers = Table(columns, rows, caption="Accuracy on test in percent, by length")
    described = "Accuracy on test by the length of the text, one line per arm."
    return [Drawing(figures["lengths"], "lengths", described, words.LENGTH_NOTE, numbers)]


def _mistakes(comparison: Comparison) -> list[Part]:
    quotations = [
        Quotation(
            words.clipped(mistake.text),
            mistake.label,
            mistake.predicted,
            before=f"Row {mistake.row}, labelled" if mistake.row else "Labelled",
            between=", predicted",
            after=f"with probability {100 * mistake.probability:.0f} %",
        )
        for mistake in comparison.mistakes
    ]
    return [Quotations(quotations)] if quotations else []


def _doubts(comparison: Comparison) -> list[Part]:
    quotations = [
        Quotation(
            words.clipped(doubt.text),
            doubt.label,
            doubt.predicted,
            before=f"Row {doubt.row} is labelled",
            between="; the one run predicts"
            if doubt.num_runs == 1
            else f"; all {doubt.num_runs:,} runs predict",
            after=f"with probability {100 * doubt.probability:.0f} % on average",
        )
        for doubt in comparison.label_doubts
    ]
    if not quotations:
        return []
    return [Paragraph(words.doubts_note(comparison)), Quotations(quotations)]


def _confusions(comparison: Comparison) -> list[Part]:
    matrices = [
        Matrix(arm.name, arm.confusion, comparison.labels)
        for arm in _base_and_best_first(comparison)
    ]
    is_small = len(comparison.labels) <= MAX_MATRIX_CLASSES
    return [
        Matrices(matrices[:_NUM_MATRICES], matrices[_NUM_MATRICES:]),
        Paragraph(words.CONFUSIONS_NOTE if is_small else ""),
    ]


def _base_and_best_first(comparison: Comparison) -> list[ArmSummary]:
    base = words.base_arm(comparison)
    best = max(
        (arm for arm in comparison.arms if arm.name != base),
        key=lambda arm: arm.deciding.mean,
        default=None,
    )
    return sorted(comparison.arms, key=lambda arm: (arm.name != base, arm is not best))


def _data(comparison: Comparison) -> list[Part]:
    notes = [*words.leak_sentences(comparison), *words.split_sentences(comparison)]
    return [*_splits(comparison), Listing(notes)]


def _splits(comparison: Comparison) -> list[Part]:
    splits = comparison.splits
    if not splits:
        return []
    totals: dict[str, int] = {}
    for split in splits:
        for label, count in split.counts.items():
            totals[label] = totals.get(label, 0) + count
    labels = sorted(totals, key=lambda label: -totals[label])[:MAX_CLASSES]
    rows = [
        (
            label,
            [
                Cell(
                    f"{split.counts.get(label, 0):,}",
                    f"{100 * split.counts.get(label, 0) / max(split.num_examples, 1):.1f} %",
                )
                for split in splits
            ],
        )
        for label in labels
    ]
    rows.append(("all", [Cell(f"{split.num_examples:,}") for split in splits]))
    hidden = len(totals) - len(labels)
    caption = "Examples per label" + (f", without {hidden:,} rare ones" if hidden else "")
    return [Table(["Label", *[split.name for split in splits]], rows, caption=caption)]


def _openings(comparison: Comparison) -> list[Part]:
    if not comparison.openings:
        return []
    return [
        Paragraph(words.openings_sentence(comparison), css_class="claim"),
        Listing([words.opening_in_words(opening) for opening in comparison.openings]),
    ]


def _ran(comparison: Comparison) -> list[Part]:
    parts: list[Part] = []
    if comparison.command:
        parts.append(Command("Command", comparison.command))
    if comparison.request is not None:
        parts.append(Command("Repeat from this report", REPEAT))
    return [*parts, Facts(_ran_facts(comparison))]


def _ran_facts(comparison: Comparison) -> dict[str, list[tuple[str, str]]]:
    """Everything needed to repeat it, as names and values under a few titles."""
    request = dict(comparison.request or {})
    # Settings of the first base have their own group; of another, only the differences.
    settings = request.pop("settings", None) or {}
    other_settings = {
        name: {
            key: value
            for key, value in flat(values).items()
            if flat(comparison.settings).get(key) != value
        }
        for name, values in settings.items()
        if name
    }
    if isinstance(request.get("bases"), dict):
        request["bases"] = {name or "first": path for name, path in request["bases"].items()}
    chosen = {arm.name: words.choices_in_words(arm) for arm in comparison.arms if arm.chosen}
    titles = (
        ("Base", comparison.base),
        ("Request", request),
        ("Settings of other bases", other_settings),
        (f"Chosen on {comparison.tuned_on}", chosen),
        ("Settings", comparison.settings),
        ("Versions and machine", comparison.environment),
        ("Data fingerprints", comparison.fingerprints),
    )
    return {
        title: [(name, words.fact(value)) for name, value in flat(values).items()]
        for title, values in titles
    }
