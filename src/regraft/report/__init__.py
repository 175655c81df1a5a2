"""What was found, told to people and to programs: HTML, Markdown, JSON, CSV and figures.

Comes in: a finished Comparison, or what `fit` made. Goes out: files in one folder; report.html
needs no other file, no network and no script. Computes no result: every number was decided before.
"""

from pathlib import Path

from regraft.arms import ArmsFolder
from regraft.evidence import OUTCOMES_NAME, REPORT_NAME, Comparison
from regraft.report.drawing import write_figures
from regraft.report.figures import comparison_figures
from regraft.report.fitted import write_fit_report
from regraft.report.markdown import comparison_to_markdown
from regraft.report.page import comparison_to_html
from regraft.report.tables import comparison_tables, comparison_to_dict, plain
from regraft.report.words import paired_test_in_words
from regraft.runtime import write_json, write_text

__all__ = ["comparison_to_dict", "paired_test_in_words", "write_fit_report", "write_report"]


def write_report(comparison: Comparison, out_dir: str | Path) -> dict[str, Path]:
    """Write every form of the report; the paths by file name.

    What `compare` kept in this folder to go on with is then of no use, and removed.
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
    # Last: its presence says that the comparison has ended.
    paths[REPORT_NAME] = out_dir / REPORT_NAME
    write_json(paths[REPORT_NAME], comparison_to_dict(comparison))
    ArmsFolder(out_dir).discard()
    return paths
