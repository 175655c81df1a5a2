"""Write docs/reference/ from the code, the architecture picture from the import contract, and the
notebook from its page.

`python docs/generate.py` writes the pages; with --check it writes nothing and fails if one is
stale. Course pages are compared as well, without their outputs.
"""

import contextlib
import inspect
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import course
import describe
import picture
from typer.main import get_command

from regraft.apps.cli import app
from regraft.apps.cli.inspect import shown
from regraft.apps.course.chapters import read_chapters
from regraft.config import presets, schema

DOCS_DIR = Path(__file__).resolve().parent
REFERENCE_DIR = DOCS_DIR / "reference"
WITH_OUTPUT = re.compile(
    r"^```python\n(?P<code>.*?)^```\n\n```text\n.*?^```", re.MULTILINE | re.DOTALL
)
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NOTE = "<!-- Written by `make docs`; edit the code instead. -->"


def read_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, in the order of the help."""
    if hasattr(command, "commands"):
        for part in command.list_commands(None):
            yield from read_commands(command.commands[part], f"{name} {part}")
    else:
        yield name, command


def cli_page() -> str:
    """All commands: what each does, its example, its arguments and options."""
    commands = list(read_commands(get_command(app), "regraft"))
    lines = ["# Commands", "", NOTE, ""]
    lines += [f"- [`{name}`](#{name.replace(' ', '-')})" for name, _ in commands]
    for name, command in commands:
        what, _, example = inspect.cleandoc(command.help).partition("\b\nExample:\n")
        lines += ["", f"## {name}", "", what.strip(), "", "```sh"]
        lines += [inspect.cleandoc(example), "```", "", "| option | meaning |", "|---|---|"]
        lines += [_option_row(option) for option in _shown(command)]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """All settings, then the presets."""
    lines = [
        "# Settings",
        "",
        NOTE,
        "",
        "Settings come from a TOML file (`--config`) or from `--set section.key=value`.",
        "`none` switches an optional one off. A run folder keeps its settings in `config.json`.",
    ]
    section = ""
    for row in schema.read_setting_help():
        if row.key.partition(".")[0] != section:
            section = row.key.partition(".")[0]
            lines += ["", f"## {section}", "", "| setting | meaning |", "|---|---|"]
        # Two columns, so that a phone shows both.
        kind = f"{row.type}; default {shown(row.default)}"
        lines.append(f"| `{row.key}` | {row.help}<br>*{kind}* |")
    lines += [
        "",
        "## Presets",
        "",
        "What each preset changes from the defaults above, for each recipe.",
    ]
    for name, recipes in presets.PRESETS.items():
        lines += ["", f"### {name}", "", f"{presets.PRESET_HELP[name]}", ""]
        lines += ["| recipe | settings |", "|---|---|"]
        for recipe, sections in recipes.items():
            changes = ", ".join(
                f"`{part}.{key}={shown(value)}`"
                for part, values in sections.items()
                for key, value in values.items()
            )
            lines.append(f"| {recipe} | {changes} |")
    lines += ["", "## Sizes", "", "| `--size` | width | layers | heads |", "|---|---|---|---|"]
    lines += [f"| {name} | {w} | {n} | {h} |" for name, (w, n, h) in presets.SIZES.items()]
    return "\n".join(lines) + "\n"


def _shown(command: Any) -> Iterator[Any]:
    for option in command.params:
        if option.name != "help" and not getattr(option, "hidden", False):
            yield option


def _option_row(option: Any) -> str:
    is_option = option.param_type_name == "option"
    flags = ", ".join(option.opts) if is_option else option.metavar or option.name.upper()
    value = option.metavar if is_option and option.metavar else ""
    notes = [option.help or ""]
    if option.required:
        notes.append("Required.")
    elif option.show_default and option.default not in (None, False):
        notes.append(f"Default: `{option.default}`.")
    meaning = " ".join(notes).replace("|", "\\|")
    return f"| `{f'{flags} {value}'.strip()}` | {meaning} |"


def pages() -> dict[Path, str]:
    """Every generated file of docs/ with its content."""
    return {
        REFERENCE_DIR / "cli.md": cli_page(),
        REFERENCE_DIR / "settings.md": settings_page(),
        REFERENCE_DIR / "python.md": describe.python_page(),
        REFERENCE_DIR / "files.md": describe.files_page(),
        REFERENCE_DIR / "errors.md": describe.errors_page(),
        DOCS_DIR / "images" / "architecture.svg": picture.architecture_svg(),
        DOCS_DIR / "scaling.md": with_outputs(DOCS_DIR / "scaling.md"),
        DOCS_DIR / "how-to" / "pandas.ipynb": notebook(DOCS_DIR / "how-to" / "pandas.md"),
    }


def notebook(path: Path) -> str:
    """A page as a Jupyter notebook: its Python blocks are cells to run, its prose lies between."""
    cells: list[dict[str, Any]] = []
    for at, part in enumerate(CODE_BLOCK.split(_current(path))):
        source = part.strip() if at % 2 else COMMENT.sub("", part).strip()
        lines = source.splitlines(keepends=True)
        if at % 2:
            kind = {"cell_type": "code", "execution_count": None, "outputs": []}
        else:
            kind = {"cell_type": "markdown"}
        if lines:
            cells.append({**kind, "id": f"cell-{at}", "metadata": {}, "source": lines})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def with_outputs(path: Path) -> str:
    """A page whose Python blocks are run, each followed by a block with its output."""
    names: dict[str, Any] = {"open": lambda name: (DOCS_DIR.parent / name).open(encoding="utf-8")}

    def ran(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], path.name, "exec"), names)
        return f"```python\n{block['code']}```\n\n```text\n{printed.getvalue()}```"

    return WITH_OUTPUT.sub(ran, _current(path))


def stale_chapters() -> list[Path]:
    """Course pages whose text or code differs from their chapter."""
    stale = []
    for chapter in read_chapters():
        path = course.PAGES_DIR / f"{chapter.name}.md"
        expected = course.page(chapter, None, images_dir=path.parent)
        if course.without_outputs(_current(path)) != expected:
            stale.append(path)
    return stale


def main() -> int:
    """Write the pages, or compare them; exit code 1 if one is stale."""
    if "--check" not in sys.argv[1:]:
        for path, text in pages().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return 0
    stale = {path: "make docs" for path, text in pages().items() if _current(path) != text}
    stale |= dict.fromkeys(stale_chapters(), "make course")
    for path, command in stale.items():
        print(f"docs/{path.relative_to(DOCS_DIR)} is stale: run `{command}`.", file=sys.stderr)
    return 1 if stale else 0


def _current(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
