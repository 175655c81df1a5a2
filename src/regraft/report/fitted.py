"""What `regraft fit` made, told to people and to programs in the same forms as a comparison.

Comes in: the result of `fit`, and what the test file said if there is one. Goes out: report.html,
report.md, report.json, a table and a figure. Versions, settings and fingerprints are read from the
run folder.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.config import flat, settings_to_dict
from regraft.evidence import REPORT_NAME
from regraft.fit import FitResult
from regraft.fitted import FinalScore
from regraft.report import markdown, words
from regraft.report.drawing import write_figures
from regraft.report.elements import (
    MAX_MATRIX_CLASSES,
    Cell,
    Scored,
    Section,
    command,
    confusions,
    escape,
    facts,
    page,
    paragraph,
    prose,
    score_table,
    table,
)
from regraft.report.figures import members_figure
from regraft.report.palette import arm_styles
from regraft.report.tables import interval_cells, interval_columns, plain, to_csv
from regraft.runfolder import read_info, read_settings
from regraft.runtime import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DESCRIPTIONS = {
    "blend": "all members together: what regraft predict uses",
    "linear": "TF-IDF of the labelled texts, logistic regression",
    "latent": "TF-IDF and SVD of all text, logistic regression",
    "features": "vectors of the bases, logistic regression",
}


_MEMBERS_NOTE = (
    "Scores are percentages with 95 % intervals over examples. The weight says how much a member "
    "has to say in the blend. Cost is the time of a member by itself; that of the blend is all of "
    "it, bases included."
)


@dataclass(frozen=True)
class _Told:
    """All that the report is made of."""

    result: FitResult
    tested: FinalScore | None
    command: str
    created: str
    ran: dict[str, dict[str, Any]]

    @property
    def judged_on(self) -> str:
        return "valid" if self.result.num_valid else "cross-validation"

    @property
    def verdict(self) -> str:
        if self.tested is not None:
            return self.tested.verdict
        scores = self.result.scores
        others = ", ".join(
            f"{name} {words.percent(score.accuracy.mean)} %"
            for name, score in scores.items()
            if name != "blend"
        )
        return (
            f"The blend reaches {words.percent(scores['blend'].accuracy.mean)} % by "
            f"{self.judged_on}; its members by themselves: {others}."
        )

    @property
    def is_good(self) -> bool:
        """Whether the blend was shown to beat everything that it was tested against."""
        tests = self.tested.tests if self.tested else ()
        return bool(tests) and all(t.is_significant and t.difference.mean > 0 for t in tests)


def write_fit_report(
    result: FitResult,
    tested: FinalScore | None,
    out_dir: str | Path,
    *,
    command: str = "",
) -> dict[str, Path]:
    """Write every form of the report; the paths by file name. `command` is what made it."""
    out_dir = Path(out_dir)
    run_dir = Path(result.run_dir)
    info = read_info(run_dir)
    told = _Told(
        result,
        tested,
        command=command,
        created=info.created,
        ran={
            "Settings": settings_to_dict(read_settings(run_dir)),
            "Versions and machine": info.environment,
            "Fingerprints of the data": info.fingerprints,
        },
    )
    figures = {"members": _members_figure(told)}
    texts = {
        "report.html": _to_html(told),
        "report.md": _to_markdown(told),
        "members.csv": _to_csv(told),
    }
    paths = write_figures(figures, out_dir)
    for name, text in texts.items():
        paths[name] = out_dir / name
        write_text(paths[name], text)
    paths[REPORT_NAME] = out_dir / REPORT_NAME
    write_json(paths[REPORT_NAME], _to_dict(told))
    return paths


def _to_dict(told: _Told) -> dict[str, Any]:
    values = {
        "kind": "fit",
        "verdict": told.verdict,
        "result": told.result.to_dict(),
        "tested": None if told.tested is None else told.tested.to_dict(),
        "command": told.command,
        "created": told.created,
        **{title.split()[0].lower(): part for title, part in told.ran.items()},
    }
    finished: dict[str, Any] = plain(values)
    return finished


def _members_figure(told: _Told) -> "Figure":
    if told.tested is not None:
        scores = {name: score.accuracy for name, score in told.tested.scores.items()}
        return members_figure(scores, title="Accuracy on test, %")
    scores = {name: score.accuracy for name, score in told.result.scores.items()}
    return members_figure(scores, title=f"Accuracy by {told.judged_on}, %")


def _to_csv(told: _Told) -> str:
    columns = ["member", *interval_columns("judged_accuracy"), *interval_columns("test_accuracy")]
    tested = told.tested.scores if told.tested else {}
    rows = [
        [
            name,
            *interval_cells(score.accuracy),
            *interval_cells(tested[name].accuracy if name in tested else None),
            tested[name].macro_f1 if name in tested else None,
            tested[name].calibration_error if name in tested else None,
            score.weight,
            told.result.seconds if score.weight is None else score.seconds,
        ]
        for name, score in told.result.scores.items()
    ]
    return to_csv([*columns, "macro_f1", "calibration_error", "weight", "seconds"], rows)


def _to_html(told: _Told) -> str:
    return page(
        title=f"regraft: {told.verdict}",
        eyebrow="regraft · the classifier you have now",
        headline=told.verdict,
        is_good=told.is_good,
        limits="",
        worth="",
        lead=_lead(told),
        warnings=_warnings(told),
        sections=[
            Section("members", "The blend and its members", _members(told)),
            Section("differences", "Are the differences real?", _tests(told)),
            Section("calibration", "How sure, how right", _calibration(told)),
            Section("confusions", "What is taken for what", _confusions(told)),
            Section("plan", "What the minutes went into", _plan(told)),
            Section("use", "Use it", _use(told)),
            Section("ran", "What ran", _ran(told)),
        ],
        created=told.created,
    )


def _lead(told: _Told) -> str:
    result = told.result
    if result.num_valid:
        judged = f"Weights were chosen on {result.num_valid:,} valid examples."
    else:
        judged = "Everything was chosen by cross-validation, so that no label was held back."
    tested = ""
    if told.tested is not None:
        tested = f" {told.tested.num_test:,} test examples were opened once, at the end."
    return (
        f"Learned from {result.num_train:,} labelled examples and {result.num_documents:,} "
        f"documents of {result.num_tokens:,} tokens. {judged}{tested}"
    )


def _warnings(told: _Told) -> list[str]:
    warnings = []
    if told.tested is None:
        warnings.append(
            "No test file was given: scores by "
            f"{told.judged_on} also served to choose, and flatter slightly."
        )
    else:
        warnings += told.tested.notes
    if told.result.num_bases == 0:
        warnings.append("There was too little text to learn a base from: the blend does without.")
    return warnings


def _members(told: _Told) -> str:
    judged = f"By {told.judged_on}"
    columns = ["Member", judged] if told.tested is None else ["Member", "Test accuracy"]
    columns += [] if told.tested is None else ["Macro-F1", judged]
    columns += ["Weight", "Cost"]
    styles = arm_styles(told.result.scores)
    rows = []
    for name, score in told.result.scores.items():
        shown = score.accuracy
        cells = []
        if told.tested is not None:
            shown = told.tested.scores[name].accuracy
            cells = [
                Cell(words.percent(told.tested.scores[name].macro_f1)),
                Cell(
                    words.percent(score.accuracy.mean),
                    f"{words.percent(score.accuracy.low)} to {words.percent(score.accuracy.high)}",
                ),
            ]
        seconds = told.result.seconds if score.weight is None else score.seconds
        cells += [
            Cell("all" if score.weight is None else f"{score.weight:.2f}"),
            Cell(words.in_seconds(seconds), words.duration(seconds) if seconds >= 120 else ""),
        ]
        rows.append(Scored(name, _DESCRIPTIONS.get(name, ""), styles[name], shown, cells))
    return score_table(columns, rows, caption="The blend and its members") + paragraph(
        _MEMBERS_NOTE, css_class="note"
    )


def _tests(told: _Told) -> str:
    if told.tested is None:
        return ""
    rows = []
    for test in told.tested.tests:
        claim, _, evidence = words.paired_test_in_words(test).partition(": ")
        rows.append(f"<li><strong>{escape(claim)}.</strong> <span>{prose(evidence)}</span></li>")
    return f'<ul class="tests">{"".join(rows)}</ul>' if rows else ""


def _calibration(told: _Told) -> str:
    sentence = paragraph(_temperature(told), css_class="claim")
    if told.tested is None:
        return sentence
    rows = [
        (name, [Cell(words.percent(score.calibration_error))])
        for name, score in told.tested.scores.items()
    ]
    numbers = table(
        ["Member", "Calibration error, %"],
        rows,
        caption="Calibration error on test: how far confidence is from being right",
        styles=arm_styles(told.tested.scores),
    )
    note = "The calibration error is the mean gap between how sure and how often right, on test."
    return sentence + numbers + paragraph(note, css_class="note")


def _temperature(told: _Told) -> str:
    warm = told.result.temperature
    effect = "less" if warm > 1 else "more"
    return (
        f"A temperature of {warm:.2f}, fitted on {told.judged_on}, makes the blend's answers "
        f"{effect} sure; it changes no answer."
    )


def _confusions(told: _Told) -> str:
    if told.tested is None:
        return ""
    counts = told.tested.scores["blend"].confusion
    matrix = confusions("blend", counts, labels=told.result.labels)
    note = "Rows are the labels, columns the predictions; counts on test."
    is_small = len(told.result.labels) <= MAX_MATRIX_CLASSES
    return f'<div class="matrices">{matrix}</div>' + paragraph(
        note if is_small else "", css_class="note"
    )


def _plan(told: _Told) -> str:
    rows = [(name, [Cell(value)]) for name, value in _plan_facts(told)]
    return table(["What", "How much"], rows, caption="What the recipe was given and what it did")


def _plan_facts(told: _Told) -> list[tuple[str, str]]:
    result = told.result
    return [
        ("minutes allowed", f"{result.minutes:g}"),
        ("time taken", words.duration(result.seconds)),
        ("bases", f"{result.num_bases}"),
        ("passes of each over the text", f"{result.passes:.2g}"),
        ("documents", f"{result.num_documents:,}"),
        ("tokens", f"{result.num_tokens:,}"),
        ("labelled examples", f"{result.num_train:,}"),
        ("labels", ", ".join(result.labels)),
    ]


def _use(told: _Told) -> str:
    return "".join(f"<h3>{escape(title)}</h3>{command(text)}" for title, text in _commands(told))


def _commands(told: _Told) -> list[tuple[str, str]]:
    run_dir = shlex.quote(told.result.run_dir)
    return [
        ("Predict", f"regraft predict {run_dir} FILE"),
        ("Score on further examples", f"regraft evaluate {run_dir} FILE"),
        *([("Make it again", told.command)] if told.command else []),
    ]


def _ran(told: _Told) -> str:
    parts = "".join(facts(title, rows) for title, rows in _ran_facts(told).items())
    return f'<div class="facts">{parts}</div>'


def _ran_facts(told: _Told) -> dict[str, list[tuple[str, str]]]:
    return {
        title: [(name, words.fact(value)) for name, value in flat(values).items()]
        for title, values in told.ran.items()
    }


def _to_markdown(told: _Told) -> str:
    judged = f"by {told.judged_on}, %"
    tested = told.tested.scores if told.tested else {}
    columns = ["member", *(["test accuracy, %"] if tested else []), judged, "weight", "cost"]
    rows = []
    for name, score in told.result.scores.items():
        on_test = [words.interval_in_words(tested[name].accuracy)] if tested else []
        weight = "all" if score.weight is None else f"{score.weight:.2f}"
        seconds = told.result.seconds if score.weight is None else score.seconds
        judged_score = words.interval_in_words(score.accuracy)
        rows.append([name, *on_test, judged_score, weight, words.in_seconds(seconds)])
    tests = told.tested.tests if told.tested else ()
    paired = [f"- {markdown.inline(words.paired_test_in_words(test))}" for test in tests]
    parts = [
        f"# {markdown.inline(told.verdict)}",
        _lead(told),
        *[f"> **Note.** {markdown.inline(warning)}" for warning in _warnings(told)],
        "## The blend and its members",
        markdown.table(columns, rows),
        "![Accuracy of the blend and its members](members.png)",
        _MEMBERS_NOTE,
        *(["## Are the differences real?", "\n".join(paired)] if paired else []),
        "## How sure, how right",
        _temperature(told),
        "## What the minutes went into",
        markdown.table(["name", "value"], _plan_facts(told)),
        "## Use it",
        *[f"{title}:\n\n{markdown.fenced(text)}" for title, text in _commands(told)],
        "## What ran",
        *[
            f"### {title}\n\n" + markdown.table(["name", "value"], rows)
            for title, rows in _ran_facts(told).items()
            if rows
        ],
        f"Made on {markdown.inline(told.created)}.",
    ]
    return markdown.joined(parts)
