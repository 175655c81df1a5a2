"""Writes the report of a comparison: HTML, Markdown, JSON, CSV and figures.

Computes no result: every number was decided before.
"""

from pathlib import Path

from regraft.comparison import OUTCOMES_NAME, REPORT_NAME, ArmsFolder, Comparison
from regraft.report.comparison_html import comparison_to_html
from regraft.report.drawing import write_figures
from regraft.report.figures import comparison_figures
from regraft.report.markdown import comparison_to_markdown
from regraft.report.tables import comparison_tables, comparison_to_dict, plain
from regraft.runtime import write_json, write_text


def write_report(comparison: Comparison, out_dir: str | Path) -> dict[str, Path]:
    """Write every form of the report; the paths by file name.

    The runs that `compare` kept in this folder are removed.
    """
    out_dir = Path(out_dir)
    figures = comparison_figures(comparison)
    texts = {
        "report.html": comparison_to_html(comparison, figures=figures),
        "report.md": comparison_to_markdown(comparison, figures=figures),
        **comparison_tables(comparison),
    }
    paths = write_figures(figures, out_dir)
    for name, text in texts.items():
        paths[name] = out_dir / name
        write_text(paths[name], text)
    if comparison.outcomes is not None:
        paths[OUTCOMES_NAME] = out_dir / OUTCOMES_NAME
        write_json(paths[OUTCOMES_NAME], plain(comparison.outcomes))
    # Last: its presence marks the comparison as finished.
    paths[REPORT_NAME] = out_dir / REPORT_NAME
    write_json(paths[REPORT_NAME], comparison_to_dict(comparison))
    ArmsFolder(out_dir).discard()
    return paths
