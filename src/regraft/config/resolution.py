"""Complete settings from a preset, a TOML file, `section.key=value` pairs and flags.

All problems are reported at once, before any data is read.
"""

import dataclasses
import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regraft.config.presets import DEFAULT_PRESET, FOREIGN_PRESET, PRESETS, SIZES, STAGED, Recipe
from regraft.config.rules import (
    LENGTHS,
    OF_FIT,
    OF_STAGES,
    auto_stages,
    changes_of,
    contradictions,
    held_by,
    learns_documents,
    without_effect,
)
from regraft.config.schema import ModelSettings, Settings, feedforward_width, read_setting_help
from regraft.config.traits import FAMILIES
from regraft.errors import ConfigError


def resolve(
    recipe: Recipe,
    *,
    preset: str | None = None,
    size: str | None = None,
    config_path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    base: Settings | None = None,
) -> Settings:
    """Complete settings: preset, then the TOML file, then size, then `section.key` overrides.

    The default preset is the one in the TOML file, else the base's. The shape and tokenizer of a
    base are fixed: a value that would change them is an error.
    A later length (`train.steps`, `train.epochs`, `train.minutes`) replaces an earlier one.
    Overrides that are None are skipped, so unset flags can be passed directly.
    """
    problems: list[str] = []
    file_values = read_toml(config_path) if config_path else {}
    named = file_values.pop("preset", base.preset if base else DEFAULT_PRESET)
    preset = named if preset is None else preset
    is_foreign = base is not None and base.model.traits.is_foreign
    presets = {**PRESETS, **FOREIGN_PRESET} if is_foreign else PRESETS
    if not isinstance(preset, str) or preset not in presets:
        raise ConfigError(
            f"There is no preset {preset!r}.",
            f"Presets are {_names(presets)}.",
            remedy=_nearest(str(preset), presets),
        )
    if is_foreign and recipe != "finetune":
        raise ConfigError(
            "A base from Hugging Face cannot be pre-trained further.",
            "It comes without its pre-training head.",
            remedy="Fine-tune it as it is, or pre-train a base here.",
        )
    values: dict[str, Any] = {"preset": preset}
    _merge(values, presets[preset]["pretrain" if recipe == "fit" else recipe])
    if base is not None:
        _merge(values, held_by(base, has_own_stages=recipe == "pretrain"))
        _merge(values, _suggested_by(base) if is_foreign else {})
        if recipe == "finetune":
            given = {**flat(file_values), **(overrides or {})}
            _merge(values, _staged(base, preset=preset, given=given))
    carried = flat(values)
    _merge(values, file_values)
    if size is not None:
        if size == "auto":
            _merge(values, {"model": {"size": "auto"}})
        elif size not in SIZES:
            problems.append(f"size: {size!r} is not one of auto, {_names(SIZES)}")
        else:
            family = values.get("model", {}).get("family", ModelSettings.family)
            _merge(values, {"model": _shape_of(size, family=family)})
    _merge(values, _nested(overrides or {}, problems))
    if recipe == "fit":
        given = flat(values)
        carried |= {key: given[key] for key in OF_FIT if key in given}
    # Only pre-training refuses settings without effect: one file may serve all recipes.
    return _validated(
        values, problems, base=base, carried=None if recipe == "finetune" else carried
    )


def _shape_of(size: str, *, family: str) -> dict[str, int]:
    width, num_layers, num_heads = SIZES[size]
    traits = FAMILIES.get(family)
    if traits is not None and not traits.has_layers:
        num_layers, num_heads = 0, 1
    return {"width": width, "num_layers": num_layers, "num_heads": num_heads}


def with_size(settings: Settings, size: str) -> Settings:
    """The settings with one of SIZES in place of `auto`."""
    sized = replace(
        settings,
        "model",
        size=None,
        **_shape_of(size, family=settings.model.family),
        feedforward_width="auto",
    )
    return _derived(sized)


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file, nested and not validated."""
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
            remedy="Fix the file, or pass single settings with --set.",
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


def settings_from_dict(values: Mapping[str, Any]) -> Settings:
    """The settings saved in a run folder, validated again."""
    return _validated(dict(values), [])


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    """Plain nested values, ready for JSON."""
    return dataclasses.asdict(settings)


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values by dotted names: `{"train": {"lr": 1}}` -> `{"train.lr": 1}`."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flattened.update({f"{key}.{name}": part for name, part in flat(value).items()})
        else:
            flattened[key] = value
    return flattened


def replace(settings: Settings, section: str, **changes: Any) -> Settings:
    """The settings with some values of one section changed."""
    part = dataclasses.replace(getattr(settings, section), **changes)
    return dataclasses.replace(settings, **{section: part})


def with_base(settings: Settings, base: Settings, *, has_own_stages: bool = False) -> Settings:
    """The settings with everything that the weights of the base determine.

    Pre-training that goes on has its own stages.
    """
    objective = base.objective
    if has_own_stages:
        own = {name: getattr(settings.objective, name) for name in OF_STAGES}
        objective = dataclasses.replace(objective, **own)
    model = dataclasses.replace(
        base.model,
        dropout=settings.model.dropout,
        attention_dropout=settings.model.attention_dropout,
    )
    return dataclasses.replace(settings, model=model, objective=objective, tokenizer=base.tokenizer)


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, change in changes.items():
        section = values.get(key, {})
        if not isinstance(change, Mapping):
            values[key] = change
        elif isinstance(section, Mapping):  # else validation reports it
            if key == "train" and LENGTHS & change.keys():
                section = {name: value for name, value in section.items() if name not in LENGTHS}
            values[key] = {**section, **change}


def _suggested_by(base: Settings) -> dict[str, dict[str, Any]]:
    """Defaults that a foreign base brings and fine-tuning may change."""
    model = {"dropout": base.model.dropout, "attention_dropout": base.model.attention_dropout}
    return {
        "model": model,
        "head": {"pooling": base.head.pooling},
        "data": {"max_length": base.data.max_length},
    }


def _staged(base: Settings, *, preset: str, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Defaults for a base that was made in stages; a regression has one label per example."""
    if not learns_documents(base.objective):
        return {}
    has_label_sets = given.get("data.label_separator") not in (None, "none")
    return {
        section: values
        for section, values in STAGED.get(preset, {}).items()
        if section != "head" or not has_label_sets
    }


def _nested(overrides: Mapping[str, Any], problems: list[str]) -> dict[str, dict[str, Any]]:
    """`{"train.lr": 1}` -> `{"train": {"lr": 1}}`; a key without a section is a problem."""
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


def _with_none(value: Any) -> Any:
    """Turn `none` into None, because neither TOML nor `--set` has a null.

    The architecture of a foreign model is left as it is.
    """
    if isinstance(value, Mapping):
        return {
            key: part if key == "architecture" else _with_none(part) for key, part in value.items()
        }
    return None if isinstance(value, str) and value.lower() == "none" else value


def _validated(
    values: dict[str, Any],
    problems: list[str],
    *,
    base: Settings | None = None,
    carried: Mapping[str, Any] | None = None,
) -> Settings:
    """Validate with pydantic and the cross-field rules; report every problem at once.

    `carried` holds the values before the user's, if settings without effect are to be refused.
    """
    from pydantic import TypeAdapter, ValidationError

    settings = None
    try:
        settings = TypeAdapter(Settings).validate_python(_with_none(values))
    except ValidationError as error:
        problems = problems + [_readable(problem) for problem in error.errors()]
    if settings is not None:
        problems = problems + list(contradictions(settings))
        if base is not None:
            # Only pre-training has anything carried.
            problems += changes_of(base, settings, has_own_stages=carried is not None)
        problems += without_effect(settings, carried=carried) if carried is not None else []
    if problems or settings is None:
        count = "1 setting is" if len(problems) == 1 else f"{len(problems)} settings are"
        raise ConfigError(
            (f"{count} wrong: " + "; ".join(problems) + ".").replace("?.", "?"),
            remedy="See `regraft settings` for every setting.",
        )
    return _derived(settings, has_base=base is not None)


def _derived(settings: Settings, *, has_base: bool = False) -> Settings:
    """The settings with derived values in place of `auto`."""
    model = settings.model
    if settings.objective.stages == "auto":
        stages = auto_stages(settings, has_base=has_base)
        settings = replace(settings, "objective", stages=stages)
    if model.feedforward_width == "auto":
        settings = replace(settings, "model", feedforward_width=feedforward_width(model))
    if model.attention == "auto":
        is_bidirectional = not settings.objective.traits.is_causal
        attention = "bidirectional" if is_bidirectional else "causal"
        settings = replace(settings, "model", attention=attention)
    return settings


def _readable(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"][:2])
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = [row.key for row in read_setting_help()] + [
            part.name for part in dataclasses.fields(Settings)
        ]
        return f"{key}: there is no such setting. {_nearest(key, known)}".rstrip(".")
    if problem["type"] == "dataclass_type":
        return f"{key}: a section holds settings, such as {key}.lr = 3e-4, not {problem['input']!r}"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{key}: {message}, not {problem['input']!r}"


def _names(names: Mapping[str, Any]) -> str:
    return ", ".join(names)


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else "See `regraft settings` for all of them."
