"""Writes a report: a page as HTML and Markdown, its values as JSON, tables as CSV, and figures.

Computes no result: every number was decided before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.comparison import OUTCOMES_NAME, REPORT_NAME, ArmsFolder, Comparison
from regraft.report.comparison_page import comparison_page
from regraft.report.drawing import write_figures
from regraft.report.figures import comparison_figures
from regraft.report.html import to_html
from regraft.report.markdown import to_markdown
from regraft.report.page import Page
from regraft.report.tables import comparison_tables, comparison_to_dict, plain
from regraft.runtime import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(comparison: Comparison, out_dir: str | Path) -> dict[str, Path]:
    """Write every form of the report; the paths by file name.

    The runs that `compare` kept in this folder are removed.
    """
    figures = comparison_figures(comparison)
    paths = write_page(
        comparison_page(comparison, figures=figures),
        figures=figures,
        tables=comparison_tables(comparison),
        values=comparison_to_dict(comparison),
        outcomes=comparison.outcomes,
        out_dir=out_dir,
    )
    ArmsFolder(Path(out_dir)).discard()
    return paths


def write_page(
    page: Page,
    *,
    figures: "Mapping[str, Figure]",
    tables: Mapping[str, str],
    values: dict[str, Any],
    outcomes: Any,
    out_dir: str | Path,
) -> dict[str, Path]:
    """Write a page with its figures and tables, and `values` as report.json; the paths by name."""
    out_dir = Path(out_dir)
    paths = write_figures(figures, out_dir)
    for name, text in {
        "report.html": to_html(page),
        "report.md": to_markdown(page),
        **tables,
    }.items():
        paths[name] = out_dir / name
        write_text(paths[name], text)
    # report.json last: its presence marks the report as finished.
    for name, value in ((OUTCOMES_NAME, outcomes), (REPORT_NAME, values)):
        if value is not None:
            paths[name] = out_dir / name
            write_json(paths[name], plain(value))
    return paths
