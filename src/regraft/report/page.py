"""A Comparison as one page for people: verdict first, then figures, tables, texts, what ran.

Comes in: a finished Comparison and its figures. Goes out: HTML. Each section is a function that
gives an empty body where there is nothing to tell, and is then left out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regraft.config import flat
from regraft.evidence import ArmSummary, Comparison, Mistake
from regraft.report import words
from regraft.report.drawing import figure_for_page
from regraft.report.elements import (
    MAX_MATRIX_CLASSES,
    Cell,
    Scored,
    Section,
    command,
    confusions,
    escape,
    facts,
    figure,
    folding,
    listing,
    page,
    paragraph,
    prose,
    quotation,
    score_table,
    table,
)
from regraft.report.palette import arm_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Matrices shown at once; those of further arms can be opened.
_NUM_MATRICES = 2
# Classes in the table of splits; the rest is in report.json.
MAX_CLASSES = 30
REPEAT = "regraft compare --from report.json --out NEW_FOLDER"


def comparison_to_html(comparison: Comparison, *, figures: "dict[str, Figure]") -> str:
    """One page that needs nothing else; every text from data or settings is escaped."""
    headline, limits = words.verdict_parts(comparison.verdict)
    return page(
        title=f"regraft: {headline}",
        eyebrow="regraft · was pre-training worth it?",
        headline=headline,
        limits=limits,
        is_good=comparison.verdict_kind in ("pays", "pays-otherwise"),
        worth=words.worth_in_words(comparison),
        lead=words.lead(comparison),
        warnings=comparison.warnings,
        sections=[
            Section("learning", "While they learned", _learning(comparison, figures)),
            Section("labels", "With more labels", _curve(comparison, figures)),
            Section("arms", "The arms", _arms(comparison)),
            Section("differences", "Are the differences real?", _tests(comparison)),
            Section("calibration", "How sure, how right", _calibration(comparison, figures)),
            Section("lengths", "Short texts and long ones", _lengths(comparison, figures)),
            Section(
                "mistakes",
                words.mistakes_title(comparison),
                _mistakes(comparison.mistakes),
                link="Surest and wrong",
            ),
            Section("doubts", "Labels to doubt", _doubts(comparison)),
            Section("confusions", "What is taken for what", _confusions(comparison)),
            Section("data", "The data", _data(comparison)),
            Section("openings", "How often the test was opened", _openings(comparison)),
            Section("ran", "What ran", _ran(comparison)),
        ],
        created=comparison.created,
    )


def _learning(comparison: Comparison, figures: "dict[str, Figure]") -> str:
    if "accuracy" not in figures:
        return ""
    ends = ", ".join(
        f"{arm.name} {words.percent(arm.valid_accuracy.mean)} %" for arm in comparison.arms
    )
    svg = figure_for_page(
        figures["accuracy"],
        name="accuracy",
        described=f"Accuracy on valid after every epoch, one line an arm. At the end: {ends}.",
    )
    return figure(svg, note=words.accuracy_note(comparison))


def _curve(comparison: Comparison, figures: "dict[str, Figure]") -> str:
    if "curve" not in figures:
        return ""
    svg = figure_for_page(
        figures["curve"],
        name="curve",
        described="Accuracy on test against the number of labels, one line an arm. "
        "Its numbers are in the table below.",
    )
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
    numbers = table(
        ["Arm", *[f"{size:,} labels" for size in sizes]],
        rows,
        caption="Accuracy on test in percent, with 95 % intervals",
        styles=arm_styles(arm.name for arm in comparison.arms),
    )
    worths = table(
        ["Arm", "Labels more", "Best rival"],
        [
            (name, [Cell(extra, "" if ends == words.UNKNOWN else ends), Cell(rival)])
            for name, extra, ends, rival in words.worth_rows(comparison)
        ],
        caption=words.worths_title(comparison),
        styles=arm_styles(arm.name for arm in comparison.arms),
    )
    drawn = figure(svg, note=words.curve_note(comparison), numbers=numbers)
    if "macro-f1" in figures:
        even = figure_for_page(
            figures["macro-f1"],
            name="macro-f1",
            described="Macro-F1 on test against the number of labels, one line an arm. "
            "Its numbers are in curve.csv.",
        )
        drawn += figure(even, note=words.macro_f1_note(comparison))
    if not comparison.more_worths:
        return drawn
    return drawn + paragraph(f"{words.worths_title(comparison)}.", css_class="note") + worths


def _arms(comparison: Comparison) -> str:
    shows_leaks = words.has_leaks(comparison)
    base = words.base_arm(comparison)
    columns = ["Arm", "Test accuracy"]
    columns += ["Without leaks"] if shows_leaks else []
    columns += [f"Against {base}"] if comparison.tests else []
    columns += ["Macro-F1", "Valid", "Cost", "Seeds"]
    styles = arm_styles(arm.name for arm in comparison.arms)
    rows = []
    for arm in comparison.arms:
        cells = []
        if shows_leaks:
            clean = arm.test_accuracy_without_leaks
            ends = f"{words.percent(clean.low)} to {words.percent(clean.high)}" if clean else ""
            cells.append(Cell(words.percent(clean.mean if clean else None), ends))
        if comparison.tests:
            cells.append(Cell(*words.against_base(words.paired_with_base(comparison, arm))))
        long = words.duration(arm.seconds) if arm.seconds >= 120 else ""
        cells += [
            Cell(words.percent(arm.macro_f1), words.clean_macro_f1(comparison, arm)),
            Cell(words.percent(arm.valid_accuracy.mean)),
            Cell(words.in_seconds(arm.seconds), long),
            Cell(str(arm.num_seeds), f"{arm.num_collapsed} collapsed" if arm.num_collapsed else ""),
        ]
        rows.append(Scored(arm.name, arm.description, styles[arm.name], arm.test_accuracy, cells))
    return score_table(columns, rows, caption="The arms and what each reached") + paragraph(
        words.arms_note(comparison), css_class="note"
    )


def _tests(comparison: Comparison) -> str:
    if not comparison.tests:
        return ""
    rows = []
    for test in words.told_tests(comparison):
        claim, _, evidence = words.paired_test_in_words(test).partition(": ")
        rows.append(f"<li><strong>{escape(claim)}.</strong> <span>{prose(evidence)}</span></li>")
    note = paragraph(words.tests_note(comparison), css_class="note")
    return f'<ul class="tests">{"".join(rows)}</ul>{note}'


def _calibration(comparison: Comparison, figures: "dict[str, Figure]") -> str:
    has_temperature = any(arm.temperature is not None for arm in comparison.arms)
    columns = ["Arm", "Calibration error"]
    columns += ["Temperature", "Error with it"] if has_temperature else []
    rows = []
    for arm in comparison.arms:
        cells = [Cell(words.percent(arm.calibration_error))]
        if has_temperature:
            warm = words.UNKNOWN if arm.temperature is None else f"{arm.temperature:.2f}"
            cells += [Cell(warm), Cell(words.percent(arm.calibrated_error))]
        rows.append((arm.name, cells))
    styles = arm_styles(arm.name for arm in comparison.arms)
    numbers = table(columns, rows, caption="Calibration error on test, in percent", styles=styles)
    note = words.calibration_note(comparison)
    if "calibration" not in figures:
        return numbers + paragraph(note, css_class="note")
    svg = figure_for_page(
        figures["calibration"],
        name="calibration",
        described="A reliability plot for each arm: confidence against accuracy. "
        "The table below sums them up.",
    )
    return figure(svg, note=note) + numbers


def _lengths(comparison: Comparison, figures: "dict[str, Figure]") -> str:
    if "lengths" not in figures:
        return ""
    svg = figure_for_page(
        figures["lengths"],
        name="lengths",
        described="Accuracy on test by the length of the text, one line an arm. "
        "Its numbers are in the table below.",
    )
    arms = [arm for arm in comparison.arms if arm.by_length]
    bins = max((arm.by_length for arm in arms), key=len)
    found = {(arm.name, b.low, b.high): b.accuracy for arm in arms for b in arm.by_length}
    rows = [
        (
            words.words_range(length),
            [
                Cell(f"{length.count:,}"),
                *[Cell(words.percent(found.get((a.name, length.low, length.high)))) for a in arms],
            ],
        )
        for length in bins
    ]
    numbers = table(
        ["Words", "Texts", *[arm.name for arm in arms]],
        rows,
        caption="Accuracy on test in percent, by length",
    )
    return figure(svg, note=words.LENGTH_NOTE, numbers=numbers)


def _mistakes(mistakes: Sequence[Mistake]) -> str:
    items = "".join(
        quotation(
            words.clipped(mistake.text),
            told=f"is <strong>{escape(mistake.label)}</strong>, predicted "
            f"<strong>{escape(mistake.predicted)}</strong> at "
            f"{100 * mistake.probability:.0f}\N{NO-BREAK SPACE}%",
        )
        for mistake in mistakes
    )
    return f'<ul class="texts">{items}</ul>' if items else ""


def _doubts(comparison: Comparison) -> str:
    items = "".join(
        quotation(
            words.clipped(doubt.text),
            told=f"Row {doubt.row:,} is labelled <strong>{escape(doubt.label)}</strong>; "
            f"{_runs(doubt.num_runs)} <strong>{escape(doubt.predicted)}</strong> "
            f"at {100 * doubt.probability:.0f}\N{NO-BREAK SPACE}% on average",
        )
        for doubt in comparison.label_doubts
    )
    note = paragraph(words.doubts_note(comparison), css_class="note")
    return f'{note}<ul class="texts">{items}</ul>' if items else ""


def _runs(num_runs: int) -> str:
    return "the one run asked says" if num_runs == 1 else f"all {num_runs:,} runs asked say"


def _confusions(comparison: Comparison) -> str:
    shown = [
        confusions(arm.name, arm.confusion, labels=comparison.labels)
        for arm in _base_and_best_first(comparison)
    ]
    is_small = len(comparison.labels) <= MAX_MATRIX_CLASSES
    note = paragraph(words.CONFUSIONS_NOTE, css_class="note") if is_small else ""
    first, rest = shown[:_NUM_MATRICES], shown[_NUM_MATRICES:]
    more = folding("The other arms", f'<div class="matrices">{"".join(rest)}</div>') if rest else ""
    return f'<div class="matrices">{"".join(first)}</div>{more}{note}'


def _base_and_best_first(comparison: Comparison) -> list[ArmSummary]:
    base = words.base_arm(comparison)
    best = max(
        (arm for arm in comparison.arms if arm.name != base),
        key=lambda arm: arm.test_accuracy.mean,
        default=None,
    )
    return sorted(comparison.arms, key=lambda arm: (arm.name != base, arm is not best))


def _data(comparison: Comparison) -> str:
    notes = [*words.leak_sentences(comparison), *words.split_sentences(comparison)]
    return _splits(comparison) + listing(notes, css_class="notes")


def _splits(comparison: Comparison) -> str:
    splits = comparison.splits
    if not splits:
        return ""
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
    caption = "Examples of every label" + (f", but {hidden:,} rare ones" if hidden else "")
    return table(["Label", *[split.name for split in splits]], rows, caption=caption)


def _openings(comparison: Comparison) -> str:
    told = [words.opening_in_words(opening) for opening in comparison.openings]
    sentence = paragraph(words.openings_sentence(comparison), css_class="claim")
    return sentence + listing(told, css_class="notes")


def _ran(comparison: Comparison) -> str:
    parts = [f"<h3>The command</h3>{command(comparison.command)}"] if comparison.command else []
    if comparison.request is not None:
        parts.append(f"<h3>The same again, from this report</h3>{command(REPEAT)}")
    told = "".join(facts(title, rows) for title, rows in ran_facts(comparison).items())
    return f'{"".join(parts)}<div class="facts">{told}</div>'


def ran_facts(comparison: Comparison) -> dict[str, list[tuple[str, str]]]:
    """Everything that ran, as names and values under a few titles."""
    request = dict(comparison.request or {})
    # Those of the first base are told below; of another, only what is different.
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
        ("The base", comparison.base),
        ("What was asked for", request),
        ("Settings of other bases", other_settings),
        ("Chosen on valid", chosen),
        ("Settings", comparison.settings),
        ("Versions and machine", comparison.environment),
        ("Fingerprints of the data", comparison.fingerprints),
    )
    return {
        title: [(name, words.fact(value)) for name, value in flat(values).items()]
        for title, values in titles
    }
