"""Draw the architecture from the import contract in pyproject.toml: one box per room.

The contract is enforced by `lint-imports`, and the modules are read from src/, so the picture
cannot go stale.
"""

import ast
import sys
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_DIR = ROOT / "src" / "regraft"
WIDTH, MARGIN, GAP, PADDING = 980, 14, 8, 10
LINE_HEIGHT, CHARACTER_WIDTH = 16, 6.7
LIGHT, HEAVY = ("#e0f2f1", "#00796b"), ("#fff3e0", "#e65100")
INK, FADED = "#263238", "#546e7a"


def layers() -> list[list[str]]:
    """Rooms by layer, from the one that imports nothing up to the apps."""
    contract = _contracts()["Eleven rooms"]
    return [[name.strip() for name in layer.split("|")] for layer in reversed(contract["layers"])]


def light_rooms() -> set[str]:
    """Rooms of which no module imports torch."""
    contract = _contracts()["Light rooms never import torch"]
    return {name.removeprefix("regraft.") for name in contract["source_modules"]}


def modules(room: str) -> Iterator[str]:
    """The modules of a room in one line, then one line for each package inside it."""
    if not (PACKAGE_DIR / room).is_dir():
        return
    yield " · ".join(_module_names(PACKAGE_DIR / room))
    for path in sorted((PACKAGE_DIR / room).iterdir()):
        if (path / "__init__.py").exists():
            yield f"{path.name}/  {' · '.join(_module_names(path))}"


def architecture_svg() -> str:
    """The picture, read from top to bottom: a room imports only rooms above it."""
    parts: list[str] = []
    top = MARGIN
    for layer in layers():
        width = (WIDTH - 2 * MARGIN - GAP * (len(layer) - 1)) / len(layer)
        texts = [_lines(room, width=width) for room in layer]
        height = max(len(lines) for lines in texts) * LINE_HEIGHT + 2 * PADDING - 2
        for number, (room, lines) in enumerate(zip(layer, texts, strict=True)):
            left = MARGIN + number * (width + GAP)
            parts += _box(room, lines, left=left, top=top, width=width, height=height)
        top += height + GAP
    parts += _legend(top)
    total = top + LINE_HEIGHT + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total:g}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="The rooms of regraft: each imports only rooms above it">'
    )
    background = f'<rect width="{WIDTH}" height="{total:g}" fill="#fff"/>'
    return "\n".join([head, background, *parts, "</svg>", ""])


def _module_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def _lines(room: str, *, width: float) -> list[tuple[str, str]]:
    """(colour, text) of each line in a box; the first follows the name of the room."""
    longest = int((width - 2 * PADDING) / CHARACTER_WIDTH)
    indent = " " * (len(room) + 4)
    sentence = textwrap.wrap(_first_line(room), longest, initial_indent=indent) or [""]
    names = [part for line in modules(room) for part in textwrap.wrap(line, longest)]
    return [(INK, line.strip()) for line in sentence] + [(FADED, line) for line in names]


def _box(
    room: str,
    lines: list[tuple[str, str]],
    *,
    left: float,
    top: float,
    width: float,
    height: float,
) -> list[str]:
    fill, edge = LIGHT if room in light_rooms() else HEAVY
    x, y = left + PADDING, top + PADDING + 11
    parts = [
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="5" '
        f'fill="{fill}" stroke="{edge}"/>'
    ]
    name = f'<tspan font-weight="bold" font-size="13">{room}</tspan>'
    for number, (colour, line) in enumerate(lines):
        text = f'{name}<tspan dx="10">{escape(line)}</tspan>' if number == 0 else escape(line)
        y_line = y + number * LINE_HEIGHT
        parts.append(f'<text x="{x:g}" y="{y_line:g}" fill="{colour}">{text}</text>')
    return parts


def _legend(top: float) -> list[str]:
    parts = []
    texts = ((LIGHT, "never imports torch"), (HEAVY, "may import torch"))
    for number, ((fill, edge), text) in enumerate(texts):
        left = MARGIN + number * 170
        parts.append(
            f'<rect x="{left}" y="{top + 2:g}" width="16" height="12" rx="3" fill="{fill}" '
            f'stroke="{edge}"/><text x="{left + 24}" y="{top + 12:g}" fill="{INK}">{text}</text>'
        )
    note = "Data flows down. A room imports only rooms above it."
    parts.append(f'<text x="{MARGIN + 340}" y="{top + 12:g}" fill="{INK}">{note}</text>')
    return parts


def _first_line(room: str) -> str:
    source = PACKAGE_DIR / room
    path = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or room
    return docstring.partition("\n")[0].replace("`", "")


def _contracts() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return {contract["name"]: contract for contract in contracts}
