"""How are settings written? In a TOML file, or singly as `section.key=value`.

Comes in: a file, assignments, flags by their dotted names. Goes out: nested plain values, of which
config.py makes settings. Knows no setting.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regraft.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file, nested as they are there and not validated."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return values
    except OSError as error:
        raise ConfigError(
            f"Cannot read the configuration {path}: {error.strerror}.",
            remedy="Check the path given to --config.",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not valid TOML: {error}.",
            "Expected sections such as [train] with lines such as lr = 3e-4.",
            remedy="Mend the file, or pass single settings with --set.",
        ) from error


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """`["train.lr=3e-4"]` -> `{"train.lr": "3e-4"}`."""
    parsed: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"--set {assignment!r} is not an assignment.",
                "It takes section.key=value.",
                remedy="Write for example --set train.lr=3e-4.",
            )
        parsed[key.strip()] = value.strip()
    return parsed


def nested(overrides: Mapping[str, Any], problems: list[str]) -> dict[str, dict[str, Any]]:
    """`{"train.lr": 1}` -> `{"train": {"lr": 1}}`; what has no section is added to the problems."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in overrides.items():
        section, dot, key = dotted.partition(".")
        if value is None:
            continue
        if not dot:
            problems.append(f"{dotted}: a setting is written section.key, such as train.lr")
            continue
        sections.setdefault(section, {})[key] = value
    return sections


def with_none(value: Any) -> Any:
    """`none` switches off what a preset switched on; neither TOML nor `--set` has a null.

    What a foreign model means by its words is its own affair.
    """
    if isinstance(value, Mapping):
        return {
            key: part if key == "architecture" else with_none(part) for key, part in value.items()
        }
    return None if isinstance(value, str) and value.lower() == "none" else value
