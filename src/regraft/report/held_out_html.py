"""Parts of the report of `regraft fit` about its held-out examples."""

from pathlib import Path

from regraft.classifiers import FitResult
from regraft.data import LabelIssue, read_label_issues
from regraft.report import markdown
from regraft.report import sentences as words
from regraft.report.html import Paragraph, Quotation, Quotations, Section

_ISSUES_SHOWN = 10


def held_out_sections(result: FitResult) -> list[Section]:
    """Sections of report.html."""
    issues = _issues(result)
    if not issues:
        return []
    quotations = [
        Quotation(
            words.clipped(issue.text),
            issue.label,
            issue.proposal,
            before=f"{_place(issue)} is labelled",
            between="; held out, it is predicted to be",
            after=f"with probability {100 * issue.confidence:.0f} %",
        )
        for issue in issues
    ]
    parts = [Paragraph(_issues_note(result)), Quotations(quotations)]
    return [Section("issues", "Possible label errors", parts)]


def held_out_markdown(result: FitResult) -> list[str]:
    """The same in Markdown."""
    issues = _issues(result)
    if not issues:
        return []
    rows = [
        [
            _place(issue),
            issue.label,
            issue.proposal,
            f"{100 * issue.confidence:.0f} %",
            words.clipped(issue.text, 160),
        ]
        for issue in issues
    ]
    columns = ["row", "label", "proposal", "probability", "text"]
    return ["## Possible label errors", _issues_note(result), markdown.table(columns, rows)]


def _issues(result: FitResult) -> list[LabelIssue]:
    if not result.num_label_issues:
        return []
    return read_label_issues(Path(result.run_dir) / "label_issues.csv")[:_ISSUES_SHOWN]


def _issues_note(result: FitResult) -> str:
    num_shown = min(result.num_label_issues, _ISSUES_SHOWN)
    return (
        f"{result.num_label_issues:,} labels are contradicted by predictions "
        f"of members that had not seen them; the first {num_shown} are here, all in "
        "label_issues.csv. Some will be right: read before you accept. `regraft data clean` writes "
        "a copy of the file with those you accept."
    )


def _place(issue: LabelIssue) -> str:
    return f"Row {issue.row:,} ({issue.id})" if issue.id else f"Row {issue.row:,}"
