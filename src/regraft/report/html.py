"""A page as one HTML file, by Jinja2 templates with a macro for each kind of part.

The file needs no other file, no network and no script. Everything is escaped.
"""

import functools
import re
from typing import TYPE_CHECKING

from regraft.classifiers import NUM_OF_CLASS, harmless, signed, trust_facts
from regraft.report.drawing import dark_css, light_css
from regraft.report.page import Page
from regraft.report.tables import encodable
from regraft.runtime import counted, in_percent

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def to_html(page: Page) -> str:
    """The text of the file."""
    return render("report.html", page=page, light=light_css(), dark=dark_css())


def render(template: str, **values: object) -> str:
    """A file of the folder `templates`, filled in."""
    return _environment().get_template(template).render(**values).lstrip()


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("regraft.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Data may hold half a surrogate pair, which no file can.
        finalize=lambda value: encodable(value) if type(value) is str else value,
    )
    environment.filters |= {
        "prose": prose,
        "harmless": harmless,
        "signed": signed,
        "trust_facts": trust_facts,
        "in_percent": in_percent,
        "counted": counted,
    }
    environment.globals["num_of_class"] = NUM_OF_CLASS
    environment.filters["zip"] = lambda first, second: zip(first, second, strict=True)
    return environment


def prose(text: str) -> "Markup":
    """A sentence whose numbers stay with their signs at the end of a line; `commands` as code."""
    from markupsafe import Markup, escape

    together = re.sub(
        r"(?<=\d) (?=%)|(?<=\bp) (?=[=<])|(?<=[=<]) (?=\d)", "\N{NO-BREAK SPACE}", text
    )
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(together))))
