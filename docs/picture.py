"""The architecture as a picture: one box a module, in the order of the import contract.

Comes in: the layers in pyproject.toml, which `lint-imports` enforces, and the first line of every
module. Goes out: an SVG that cannot go stale. A module imports only modules to its left, or in
bands above; those in one column do not import each other.
"""

import ast
import sys
from html import escape
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 7
BOX_WIDTH, BOX_HEIGHT = 118, 30
GAP_X, GAP_Y, MARGIN = 22, 8, 16
BAND_GAP = 26
LIGHT, HEAVY = ("#e0f2f1", "#00796b"), ("#fff3e0", "#e65100")
INK = "#263238"


def layers() -> list[list[str]]:
    """Modules by layer, from what imports nothing to the command line."""
    contract = _contracts()["The tree is the pipeline"]
    return [[name.strip() for name in layer.split("|")] for layer in reversed(contract["layers"])]


def light_modules() -> set[str]:
    """Modules that never import torch by themselves."""
    contract = _contracts()["Light modules never import torch"]
    return {name.removeprefix("regraft.") for name in contract["source_modules"]}


def architecture_svg() -> str:
    """The picture: bands of columns, read from left to right and from top to bottom."""
    bands = [layers()[start : start + COLUMNS] for start in range(0, len(layers()), COLUMNS)]
    width = 2 * MARGIN + COLUMNS * BOX_WIDTH + (COLUMNS - 1) * GAP_X
    parts: list[str] = []
    top = MARGIN
    for band in bands:
        height = max(len(layer) for layer in band) * (BOX_HEIGHT + GAP_Y) - GAP_Y
        middle = top + height / 2
        for column, layer in enumerate(band):
            left = MARGIN + column * (BOX_WIDTH + GAP_X)
            parts += _column(layer, left=left, middle=middle)
            if column:
                parts.append(_arrow(left - GAP_X + 3, middle))
        top += height + BAND_GAP
    legend = top
    parts += _legend(legend)
    total = legend + BOX_HEIGHT + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total:g}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img" '
        f'aria-label="Modules of regraft in the order in which they may import each other">'
    )
    return "\n".join(
        [head, f'<rect width="{width}" height="{total:g}" fill="#fff"/>', *parts, "</svg>", ""]
    )


def _column(layer: list[str], *, left: float, middle: float) -> list[str]:
    height = len(layer) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    light = light_modules()
    boxes = []
    for number, name in enumerate(layer):
        top = middle - height / 2 + number * (BOX_HEIGHT + GAP_Y)
        fill, edge = LIGHT if name in light else HEAVY
        boxes.append(
            f"<g><title>{escape(_first_line(name))}</title>"
            f'<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" '
            f'fill="{fill}" stroke="{edge}"/>'
            f'<text x="{left + BOX_WIDTH / 2:g}" y="{top + 20:g}" text-anchor="middle" '
            f'fill="{INK}">{escape(name)}</text></g>'
        )
    return boxes


def _arrow(left: float, middle: float) -> str:
    right = left + GAP_X - 7
    return (
        f'<path d="M{left:g} {middle:g}H{right:g}m-5 -4l5 4l-5 4" fill="none" stroke="{INK}" '
        'stroke-opacity="0.55"/>'
    )


def _legend(top: float) -> list[str]:
    parts = []
    texts = ((LIGHT, "never imports torch"), (HEAVY, "may import torch"))
    for number, ((fill, edge), text) in enumerate(texts):
        left = MARGIN + number * 190
        parts.append(
            f'<rect x="{left}" y="{top + 8:g}" width="16" height="14" rx="3" fill="{fill}" '
            f'stroke="{edge}"/><text x="{left + 24}" y="{top + 20:g}" fill="{INK}">{text}</text>'
        )
    note = "data flows to the right, then to the next row; a file imports only what is before it"
    left = MARGIN + 2 * 190
    parts.append(f'<text x="{left}" y="{top + 20:g}" fill="{INK}" fill-opacity="0.8">{note}</text>')
    return parts


def _first_line(name: str) -> str:
    source = ROOT / "src" / "regraft" / name
    path = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return (ast.get_docstring(ast.parse(text)) or name).partition("\n")[0]


def _contracts() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return {contract["name"]: contract for contract in contracts}
