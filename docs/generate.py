"""Write docs/reference/ from the code: every command with its options, every setting.

`python docs/generate.py` writes the pages; with --check it writes nothing and fails when one is
stale. The texts are those of the command line, config.py and presets.py: none is written here.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from regraft import config, presets
from regraft.cli import app, show

REFERENCE_DIR = Path(__file__).parent / "reference"
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
    """All settings, then what each preset changes."""
    lines = [
        "# Settings",
        "",
        NOTE,
        "",
        "A setting is given in a TOML file (`--config`), or singly with `--set section.key=value`.",
        "`none` switches off what can be off. A run folder keeps its settings in `config.json`.",
    ]
    section = ""
    for row in config.read_setting_help():
        if row.key.partition(".")[0] != section:
            section = row.key.partition(".")[0]
            lines += ["", f"## {section}", "", "| setting | type | default | meaning |"]
            lines += ["|---|---|---|---|"]
        lines.append(f"| `{row.key}` | {row.type} | {show.shown(row.default)} | {row.help} |")
    lines += ["", "## Presets", "", "What each changes from the defaults above, for each recipe."]
    for name, recipes in presets.PRESETS.items():
        lines += ["", f"### {name}", "", f"{presets.PRESET_HELP[name]}", ""]
        lines += ["| recipe | settings |", "|---|---|"]
        for recipe, sections in recipes.items():
            changes = ", ".join(
                f"`{part}.{key}={show.shown(value)}`"
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


def main() -> int:
    """Write the pages, or compare them; the exit code says whether all is well."""
    pages = {"cli.md": cli_page(), "settings.md": settings_page()}
    if "--check" not in sys.argv[1:]:
        REFERENCE_DIR.mkdir(exist_ok=True)
        for name, text in pages.items():
            (REFERENCE_DIR / name).write_text(text, encoding="utf-8")
        return 0
    stale = [name for name, text in pages.items() if _current(name) != text]
    for name in stale:
        print(f"docs/reference/{name} is stale: run `make docs`.", file=sys.stderr)
    return 1 if stale else 0


def _current(name: str) -> str:
    path = REFERENCE_DIR / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
