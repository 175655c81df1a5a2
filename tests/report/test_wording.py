"""The wording of reports is frozen in one golden file; the other tests check facts."""

import html
import re
from collections.abc import Callable

from comparisons import comparison, full_comparison

from regraft.comparison.results import Comparison
from regraft.report.comparison_page import comparison_page
from regraft.report.figures import comparison_figures
from regraft.report.html import to_html
from regraft.report.markdown import to_markdown


def page_text(whole: Comparison) -> str:
    """The words of a page, one line per element; numbers are tested elsewhere."""
    page = to_html(comparison_page(whole, figures=comparison_figures(whole)))
    body = page[page.index("<header") :]
    body = re.sub(r"<svg.*?</svg>", "", body, flags=re.DOTALL)
    lines = html.unescape(re.sub(r"<[^>]+>", "\n", body)).splitlines()
    return "\n".join(dict.fromkeys(line.strip() for line in lines if re.search("[A-Z]", line)))


def test_report_wording_is_frozen(golden: Callable[[str, str], None]) -> None:
    full, leaky = full_comparison(), comparison(num_text_leaks=2, num_deciding=77)
    figures = comparison_figures(full)
    parts = {
        "report.html": page_text(full),
        "report.md": to_markdown(comparison_page(full, figures=figures)),
        "report.md with leaks, without corrections": to_markdown(
            comparison_page(leaky, figures={})
        ),
    }
    text = "\n".join(f"===== {name}\n{part.rstrip()}\n" for name, part in parts.items())
    golden("report.txt", text)
