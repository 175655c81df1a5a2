"""Writes a report: a page as HTML and Markdown, its values as JSON, tables as CSV, and figures.

Computes no result: every number was decided before.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.classifiers import class_words, read_finished
from regraft.comparison import OUTCOMES_NAME, REPORT_NAME, ArmsFolder, Comparison
from regraft.errors import ConfigError, RunFolderError
from regraft.report.comparison_page import comparison_page
from regraft.report.drawing import write_figures
from regraft.report.figures import comparison_figures
from regraft.report.html import to_html
from regraft.report.markdown import to_markdown
from regraft.report.page import Page
from regraft.report.tables import comparison_tables, comparison_to_dict, plain
from regraft.runtime import read_object, write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(of: Comparison | str | Path, out_dir: str | Path | None = None) -> dict[str, Path]:
    """Write every form of the report of a comparison or of a run folder of `fit`; the paths by
    file name, of which report.html opens in a browser.

    That of a run folder is written to its `report`, unless `out_dir` is given. The runs that
    `compare` kept in `out_dir` are removed.
    """
    if not isinstance(of, Comparison):
        return _write_run_report(Path(of), out_dir)
    if out_dir is None:
        raise ConfigError(
            "write_report needs a folder for the report of a comparison.",
            remedy='Pass it, such as write_report(comparison, "runs/report").',
        )
    figures = comparison_figures(of)
    paths = write_page(
        comparison_page(of, figures=figures),
        figures=figures,
        tables=comparison_tables(of),
        values=comparison_to_dict(of),
        outcomes=of.outcomes,
        out_dir=out_dir,
    )
    ArmsFolder(Path(out_dir)).discard()
    return paths


def _write_run_report(run_dir: Path, out_dir: str | Path | None) -> dict[str, Path]:
    from regraft.report.fit_page import write_fit_report

    result = read_finished(run_dir)
    if result is None:
        raise RunFolderError(
            f"{run_dir} holds no finished classifier of `regraft fit`.",
            remedy="Pass such a run folder, or the result of `compare` and a folder.",
        )
    folder = run_dir / "report" if out_dir is None else Path(out_dir)
    if (folder / REPORT_NAME).exists() and read_object(folder / REPORT_NAME).get("tested"):
        raise ConfigError(
            f"{folder} holds the report of a test, which this one would replace.",
            remedy="Pass another folder.",
        )
    result = dataclasses.replace(result, run_dir=str(run_dir))
    return write_fit_report(result, None, folder, class_words=class_words(run_dir))


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
