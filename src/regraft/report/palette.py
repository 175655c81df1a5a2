"""The colours and markers of arms, on paper, on a light screen and on a dark one.

Comes in: names of arms. Goes out: a style for each, and the variables of the page's style sheet by
which a figure follows the reader's theme. No two arms differ by colour alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """How an arm is drawn; `variable` names its colour in the style sheet."""

    variable: str
    colour: str
    dark_colour: str
    marker: str


# After Okabe and Ito's colours, made for the colour-blind; darkened until they can be read as text.
_STYLES = {
    "pretrained": Style("pretrained", "#0072b2", "#5ab4ea", "o"),
    "scratch": Style("scratch", "#c04f00", "#f0955a", "s"),
    "frozen": Style("frozen", "#00805c", "#45c9a1", "^"),
    "linear": Style("linear", "#4a4e57", "#c3c7d0", "D"),
    "latent": Style("latent", "#86660a", "#e3c34d", "v"),
    "nbsvm": Style("nbsvm", "#a8457e", "#e58fbf", "P"),
    "lstm": Style("lstm", "#a52a2a", "#ff8a80", "X"),
    "cnn": Style("cnn", "#5a6e00", "#b5cf4e", "<"),
    "embedding": Style("embedding", "#6a4bb8", "#b39df3", ">"),
    "fit": Style("fit", "#006d7a", "#4fd0dd", "*"),
    # The blend is what `fit` makes, its features what pre-training gives.
    "blend": Style("fit", "#006d7a", "#4fd0dd", "*"),
    "features": Style("pretrained", "#0072b2", "#5ab4ea", "o"),
}
# Further bases, and arms of a later version, in their order.
_OTHERS = (
    Style("other-1", "#3b55a8", "#8fabff", "p"),
    Style("other-2", "#7d4a2d", "#d9a184", "h"),
    Style("other-3", "#8b3fa0", "#d794ea", "d"),
    Style("other-4", "#2f6b3a", "#86cf92", "8"),
)

INK, MUTED, GRID, CARD = "#1d2026", "#646870", "#e4e2dc", "#ffffff"
_DARK = {"ink": "#e9e8e3", "muted": "#a0a4ad", "grid": "#30343c", "card": "#1c1f25"}


def arm_styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each arm; the same name has the same style in every report."""
    styles: dict[str, Style] = {}
    num_others = 0
    for name in names:
        style = _STYLES.get(name)
        if style is None:
            style = _OTHERS[num_others % len(_OTHERS)]
            num_others += 1
        styles[name] = style
    return styles


def page_variables() -> dict[str, str]:
    """The variable for each colour that a figure may hold."""
    variables = {style.colour: style.variable for style in (*_STYLES.values(), *_OTHERS)}
    return {**variables, INK: "ink", MUTED: "muted", GRID: "grid", CARD: "card"}


def light_css() -> str:
    """Declarations of all variables for paper and light screens."""
    return _css({variable: colour for colour, variable in page_variables().items()})


def dark_css() -> str:
    """The same variables for dark screens."""
    styles = (*_STYLES.values(), *_OTHERS)
    return _css({**{style.variable: style.dark_colour for style in styles}, **_DARK})


def _css(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
