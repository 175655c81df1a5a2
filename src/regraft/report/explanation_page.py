"""Explanations as pages: the coloured words of a text, and the strongest words of each class.

A page needs nothing else: no script, no font, no address is loaded. All text is escaped.
"""

from collections.abc import Sequence
from importlib.resources import files

from regraft.classifiers import ClassWords, Explanation
from regraft.report.html import render


def explanation_to_html(explanation: Explanation) -> str:
    """A page with the verdict, the coloured words, the strongest ones and how far to trust them."""
    return _page(f"Why {explanation.label}?", explanation=explanation)


def class_words_to_html(classes: Sequence[ClassWords]) -> str:
    """A page with the most important words of each class."""
    return _page("The most important words of each class", classes=classes)


def explanation_css() -> str:
    """The style of an explanation: light and dark, for phones, readable without colours."""
    path = files("regraft.report").joinpath("templates").joinpath("explanation.css")
    return path.read_text(encoding="utf-8")


def _page(
    title: str, *, explanation: Explanation | None = None, classes: Sequence[ClassWords] = ()
) -> str:
    return render(
        "explanation.html",
        title=title,
        style=explanation_css(),
        explanation=explanation,
        classes=classes,
    )
