"""A page as its parser sees it: tags in order, each one closed, and where links lead."""

from html.parser import HTMLParser
from itertools import pairwise

VOID_TAGS = {"meta", "br", "img", "hr", "use", "path"}


class Outline(HTMLParser):
    """Tags in order, with a check that each one opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_TAGS:
            assert self._open.pop() == tag

    def close(self) -> None:
        super().close()
        assert self._open == []

    def values(self, attribute: str) -> list[str | None]:
        return [value for name, value in self.attributes if name == attribute]


def outline(text: str) -> Outline:
    """The page, which must be well-formed."""
    parser = Outline()
    parser.feed(text)
    parser.close()
    return parser


def check_readable(text: str) -> None:
    """What any reader needs: order of headings, names of tables and figures, anchors that exist."""
    found = outline(text)
    levels = [int(tag[1]) for tag in found.tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for tag, attributes in found.elements:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if attributes.get("tabindex") == "0" and tag == "div":
            assert attributes["aria-label"]
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    links = [*found.values("href"), *found.values("xlink:href"), *found.values("src")]
    assert all(link is not None and link.startswith("#") and link[1:] in ids for link in links)
    assert all(name in ids for name in found.values("aria-labelledby"))


def check_self_contained(text: str) -> None:
    """No script, no network, no other file; the page itself forbids them."""
    found = outline(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & set(found.tags)
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert "://" not in text
    assert "@import" not in text
    assert "Content-Security-Policy" in text
