"""The report of `regraft fit`: the members of the blend, and the comparison on a test file, if any.

With a test file it is the report of that comparison, and adds how the classifier was made.
"""

import dataclasses
import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.classifiers import ClassWords, FitResult, signed
from regraft.comparison import MEMBER_ARMS, Comparison
from regraft.config import flat, settings_to_dict
from regraft.report import sentences as words
from regraft.report.comparison_page import comparison_page
from regraft.report.drawing import arm_styles
from regraft.report.figures import comparison_figures, members_figure
from regraft.report.held_out import held_out_figures, held_out_sections
from regraft.report.page import (
    Cell,
    Command,
    Facts,
    Listing,
    Page,
    Paragraph,
    Part,
    Scored,
    Scores,
    Section,
    Table,
)
from regraft.report.tables import (
    comparison_tables,
    comparison_to_dict,
    interval_cells,
    interval_columns,
    to_csv,
)
from regraft.report.writer import write_page
from regraft.runtime import counted, duration
from regraft.training import read_info, read_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SCORES_NOTE = (
    "The score is the percentage of examples that were classified correctly by members that had "
    "not seen them. The bar is the range in which it would probably lie on other texts of the same "
    "kind."
)
_MEMBERS_NOTE = (
    "Scores are percentages with 95 % intervals over examples. The weight is the share of a member "
    "in the blend. Cost is the time to fit the member; that of the blend is all of it, bases "
    "included."
)


_WORDS_NOTE = (
    "What each word adds to the log-odds of a class: the mean over the labelled texts that the "
    "classifier gives it. `regraft explain RUN --file FILE` shows the same for any table."
)


@dataclass(frozen=True)
class _Made:
    """How the classifier was made."""

    result: FitResult
    class_words: Sequence[ClassWords]
    command: str
    created: str
    ran: dict[str, dict[str, Any]]

    @property
    def judged_on(self) -> str:
        return "valid" if self.result.num_valid else "cross-validation"

    @property
    def verdict(self) -> str:
        """Without a test file."""
        scores = self.result.scores
        others = ", ".join(
            f"{name} {words.percent(score.accuracy.mean)} %"
            for name, score in scores.items()
            if name != "blend"
        )
        kind = " micro-F1" if self.result.measure == "micro-F1" else ""
        return (
            f"The blend reaches {words.percent(scores['blend'].accuracy.mean)} %{kind} by "
            f"{self.judged_on}; its members alone: {others}."
        )

    @property
    def has_macro_f1(self) -> bool:
        """Whether rare classes matter as much as frequent ones to whoever asked for this fit."""
        return self.result.measure == "micro-F1" or bool(self.result.priors)

    @property
    def warnings(self) -> list[str]:
        warnings = []
        if self.result.num_bases == 0:
            warnings.append("There was too little text to pre-train a base: the blend has none.")
        return warnings


def write_fit_report(
    result: FitResult,
    tested: Comparison | None,
    out_dir: str | Path,
    *,
    class_words: Sequence[ClassWords] = (),
    command: str = "",
) -> dict[str, Path]:
    """Write every form of the report; the paths by file name. `command` is what made it."""
    run_dir = Path(result.run_dir)
    info = read_info(run_dir)
    made = _Made(
        result,
        class_words=class_words,
        command=command,
        created=info.created,
        ran={
            "Settings": settings_to_dict(read_settings(run_dir)),
            "Versions and machine": info.environment,
            "Data fingerprints": info.fingerprints,
        },
    )
    figures: dict[str, Figure] = {} if tested is None else comparison_figures(tested)
    own = held_out_figures(result)
    return write_page(
        _page(made, tested, figures, own),
        figures={**figures, **own, "members": _members_figure(made)},
        tables={"members.csv": _to_csv(made)} | (comparison_tables(tested) if tested else {}),
        values=_to_dict(made, tested),
        outcomes=tested.outcomes if tested else None,
        out_dir=out_dir,
    )


def _to_dict(made: _Made, tested: Comparison | None) -> dict[str, Any]:
    return {
        "kind": "fit",
        "verdict": made.verdict if tested is None else tested.verdict,
        "result": made.result.to_dict(),
        "class_words": [words.to_dict() for words in made.class_words],
        "tested": None if tested is None else comparison_to_dict(tested),
        "command": made.command,
        "created": made.created,
        **{title.split()[0].lower(): part for title, part in made.ran.items()},
    }


def _members_figure(made: _Made) -> "Figure":
    scores = {name: score.accuracy for name, score in made.result.scores.items()}
    measure = made.result.measure
    return members_figure(scores, title=f"{measure[0].upper()}{measure[1:]} by {made.judged_on}, %")


def _to_csv(made: _Made) -> str:
    columns = ["member", *interval_columns(made.result.measure), "macro-F1", "weight", "seconds"]
    rows = [
        [name, *interval_cells(score.accuracy), score.macro_f1, score.weight, _seconds(made, name)]
        for name, score in made.result.scores.items()
    ]
    return to_csv(columns, rows)


def _seconds(made: _Made, name: str) -> float:
    score = made.result.scores[name]
    return made.result.seconds if score.weight is None else score.seconds


def _page(
    made: _Made, tested: Comparison | None, figures: "dict[str, Figure]", own: "dict[str, Figure]"
) -> Page:
    sections = [
        Section("members", "The blend and its members", _members(made)),
        *held_out_sections(made.result, own),
        Section("words", "The most important words of each class", _class_words(made)),
        Section("use", "How to use it", _commands(made)),
        Section("plan", "How the time was spent", _plan(made), is_detail=True),
    ]
    if tested is not None:
        sections = [_beside_test(section, made) for section in sections]
        return comparison_page(
            tested,
            figures=figures,
            eyebrow="regraft \N{MIDDLE DOT} the classifier you have now",
            warnings=made.warnings,
            more=sections,
        )
    return Page(
        eyebrow="regraft \N{MIDDLE DOT} the classifier you have now",
        headline=made.verdict,
        is_good=False,
        lead=_lead(made),
        warnings=[*made.warnings, _untested(made)],
        sections=[
            *sections,
            Section("ran", "Reproducibility", [Facts(_ran_facts(made))], is_detail=True),
        ],
        created=made.created,
    )


# Sections about held-out examples, which a test has as well.
_ALSO_TESTED = ("calibration", "confusion", "errors", "issues")


def _beside_test(section: Section, made: _Made) -> Section:
    """A section beside that of the test on the same: it says what it is about, and is a detail.

    Possible label errors stay in sight, for they can be fixed.
    """
    if section.name not in _ALSO_TESTED:
        return section
    return dataclasses.replace(
        section,
        name=f"held-out-{section.name}",
        title=f"{section.title} by {made.judged_on}",
        is_detail=section.name != "issues",
    )


def _lead(made: _Made) -> str:
    result = made.result
    judged = (
        f"Weights were chosen on {result.num_valid:,} valid examples."
        if result.num_valid
        else "Everything was chosen by cross-validation: no label was held back."
    )
    return (
        f"Learned from {result.num_train:,} labelled examples and {result.num_documents:,} "
        f"documents of {result.num_tokens:,} tokens. {judged}"
    )


def _untested(made: _Made) -> str:
    return (
        f"No test file was given: the scores by {made.judged_on} also served to choose, and are "
        "slightly optimistic."
    )


def _members(made: _Made) -> list[Part]:
    styles = arm_styles(made.result.scores)
    rows = []
    for name, score in made.result.scores.items():
        seconds = _seconds(made, name)
        cells = [Cell(words.percent(score.macro_f1))] if made.has_macro_f1 else []
        cells += [
            Cell("all" if score.weight is None else f"{score.weight:.2f}"),
            Cell(words.in_seconds(seconds), duration(seconds) if seconds >= 120 else ""),
        ]
        description = MEMBER_ARMS[name].description
        rows.append(Scored(name, description, styles[name], score.accuracy, cells))
    macro = ["Macro-F1, %"] if made.has_macro_f1 else []
    columns = ["Member", _score_name(made), *macro, "Weight", "Cost"]
    return [
        Scores(columns, rows, caption="The blend and its members", picture="members"),
        Paragraph(_SCORES_NOTE if made.result.measure == "accuracy" else ""),
        *(Paragraph(note) for note in filter(None, [words.encoder_sentence(made.result)])),
        Paragraph(f"{_MEMBERS_NOTE} {_temperature(made)}", summary="How to read this table"),
    ]


def _class_words(made: _Made) -> list[Part]:
    lines = []
    for each in made.class_words:
        pro, contra = (
            ", ".join(f"{w.text} {_signed(w.score)}" for w in s) for s in each.strongest()
        )
        against = f"; against: {contra}" if contra else ""
        lines.append(
            f"{each.label} ({counted(each.num_texts, 'text')}): {pro or 'no word'}{against}."
        )
    return [Listing(lines), Paragraph(_WORDS_NOTE)] if lines else []


def _signed(score: float) -> str:
    return signed(score).replace("-", "\N{MINUS SIGN}")


def _score_name(made: _Made) -> str:
    kind = "Micro-F1 by" if made.result.measure == "micro-F1" else "By"
    return f"{kind} {made.judged_on}"


def _temperature(made: _Made) -> str:
    temperature = made.result.temperature
    effect = "less" if temperature > 1 else "more"
    return (
        f"A temperature of {temperature:.2f}, fitted by {made.judged_on}, makes the blend {effect} "
        "confident; it changes no prediction."
    )


def _plan(made: _Made) -> list[Part]:
    result = made.result
    facts = {
        "time": result.time_taken,
        "bases": f"{result.num_bases}",
        "passes over the text": _passes(result),
        "documents": f"{result.num_documents:,}",
        "tokens": f"{result.num_tokens:,}",
        "labelled examples": f"{result.num_train:,}",
        "labels": ", ".join(result.labels),
    }
    rows = [(name, [Cell(value)]) for name, value in facts.items()]
    return [Table(["What", "How much"], rows, caption="Budget and data")]


def _passes(result: FitResult) -> str:
    groups = [(passes, len(list(group))) for passes, group in itertools.groupby(result.passes)]
    return ", ".join(f"{passes:g} by {counted(number, 'base')}" for passes, number in groups) or "0"


def _commands(made: _Made) -> list[Part]:
    run_dir = shlex.quote(made.result.run_dir)
    commands = {
        "Predict": f"regraft predict {run_dir} FILE",
        "Score on more examples": f"regraft evaluate {run_dir} FILE",
        "Add labels or classes": f"regraft fit --update {run_dir} --train FILE",
    }
    if made.command:
        commands["The command"] = made.command
    if made.result.files and made.result.update is None:
        commands["Make the same again"] = f"regraft fit --from {run_dir} --out DIR"
    return [Command(title, command) for title, command in commands.items()]


def _ran_facts(made: _Made) -> dict[str, list[tuple[str, str]]]:
    return {
        title: [(name, words.fact(value)) for name, value in flat(values).items()]
        for title, values in made.ran.items()
    }
