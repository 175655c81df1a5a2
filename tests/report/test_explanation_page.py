"""Pages of explanations: what they show, and that they let no text do harm."""

import re
from html.parser import HTMLParser

from explanations import explanation

from regraft.classifiers.explanation import ClassWords, StrongWord
from regraft.data.words import word_spans
from regraft.report.explanation_page import (
    class_words_to_html,
    explanation_css,
    explanation_to_html,
)


def test_the_text_is_shown_as_it_is():
    text = "  one, two\n three "
    page = explanation_to_html(explanation(text, [1.0, 0.0, -1.0, 0.5]))
    assert text in Tags(page).text
    assert '<mark class="rx-for rx-9" title="+1.000"><bdi>one</bdi></mark>, ' in page
    assert '<mark class="rx-against rx-9" title="-1.000"><bdi>two</bdi></mark>\n ' in page


def test_unread_words_are_marked():
    page = explanation_to_html(explanation("good so bad", [1.0, 0.0, 0.0], num_unread=2))
    assert '<span class="rx-unread">so</span> <span class="rx-unread">bad</span>' in page
    assert ".rx-unread " in explanation_css()


def test_words_of_a_class_have_bars_relative_to_the_strongest():
    words = (StrongWord("<good>", 2.0, 3), StrongWord("bad", -1.0, 1))
    page = class_words_to_html([ClassWords("pos", 4, words), ClassWords("neg", 1, ())])
    assert "<bdi>&lt;good&gt;</bdi> <small>x 3</small>" in page
    assert re.findall(r'<rect class="rx-(\w+)" width="([\d.]+)%"', page) == [
        ("for", "100.0"),
        ("against", "50.0"),
    ]
    assert "4 texts" in page
    assert "1 text<" in page
    assert page.count("no word") == 2


class Tags(HTMLParser):
    """Names of the tags of a page, and all its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def section(page: str) -> str:
    """What stands between the head and the end of a page."""
    return page.partition("<main>")[2].partition("</main>")[0]


HARMFUL = '<script>alert("1")</script> <img src=x onerror=alert(1)> </p></section> &amp; "quoted"'


def test_page_takes_tags_for_text():
    found = explanation(HARMFUL, [1.0 - number / 10 for number in range(len(word_spans(HARMFUL)))])
    tags = Tags(section(explanation_to_html(found)))
    assert "script" not in tags.names
    assert "img" not in tags.names
    assert HARMFUL in tags.text
    # Neither handlers nor styles: a strict content policy lets the section pass.
    assert tags.attributes <= {"class", "title", "dir", "scope"}


def test_label_is_text_as_well():
    found = explanation("good", [1.0], label="<b>", probabilities={"<b>": 1.0}, predicted="<b>")
    assert "<b>" not in explanation_to_html(found)
    assert "<b>" in Tags(explanation_to_html(found)).text


def test_page_needs_nothing_from_elsewhere():
    found = explanation("good $film ${x} bad", [1.0, 0.1, 0.2, 0.3, 0.1, 0.2, -1.0])
    page = explanation_to_html(found)
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert "$film ${x}" in Tags(page).text
    assert all(f".rx-{level} " in explanation_css() for level in range(1, 10))
