"""How do settings become complete? From a preset, files and flags, all problems told at once.

Comes in: a preset, a TOML file, `section.key=value` pairs and flags. Goes out: one frozen, complete
`Settings`, or a ConfigError that names all problems at once. Knows no data, no torch.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_doc import Doc

from regraft.assignments import nested, read_toml, with_none
from regraft.errors import ConfigError
from regraft.presets import DEFAULT_PRESET, FOREIGN_PRESET, PRESETS, SIZES, Recipe
from regraft.sections import DataSettings as DataSettings
from regraft.sections import HeadSettings as HeadSettings
from regraft.sections import ModelSettings as ModelSettings
from regraft.sections import ObjectiveSettings as ObjectiveSettings
from regraft.sections import Settings as Settings
from regraft.sections import TokenizerSettings as TokenizerSettings
from regraft.sections import TrainSettings as TrainSettings
from regraft.sections import feedforward_width as feedforward_width
from regraft.sections import generator_settings as generator_settings


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

    Without a preset, the one the TOML file names, else the base's. With the settings of a base,
    its shape and tokenizer hold, and a value that would change them is a problem.
    A length (`train.steps`, `train.epochs`, `train.minutes`) given later replaces any given before.
    Override values that are None are skipped, so flags can be passed as they come.
    """
    problems: list[str] = []
    file_values = read_toml(config_path) if config_path else {}
    named = file_values.pop("preset", base.preset if base else DEFAULT_PRESET)
    preset = named if preset is None else preset
    is_foreign = base is not None and base.model.family == "foreign"
    presets = {**PRESETS, **FOREIGN_PRESET} if is_foreign else PRESETS
    if not isinstance(preset, str) or preset not in presets:
        raise ConfigError(
            f"There is no preset {preset!r}.",
            f"Presets are {_names(presets)}.",
            remedy=_nearest(str(preset), presets),
        )
    if is_foreign and recipe == "pretrain":
        raise ConfigError(
            "A base from Hugging Face cannot be pre-trained further.",
            "It comes without the head that it learned with.",
            remedy="Fine-tune it as it is, or pre-train a base here.",
        )
    values: dict[str, Any] = {"preset": preset}
    _merge(values, presets[preset][recipe])
    if base is not None:
        _merge(values, _held_by(base))
        _merge(values, _suggested_by(base) if is_foreign else {})
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
    _merge(values, nested(overrides or {}, problems))
    # Fine-tuning has no use for these settings at all, and one file may serve both recipes.
    return _validated(
        values, problems, base=base, carried=carried if recipe == "pretrain" else None
    )


def _shape_of(size: str, *, family: str) -> dict[str, int]:
    width, num_layers, num_heads = SIZES[size]
    if family == "bag":
        num_layers, num_heads = 0, 1
    return {"width": width, "num_layers": num_layers, "num_heads": num_heads}


def with_size(settings: Settings, size: str) -> Settings:
    """Settings of one of SIZES, where `auto` left it open."""
    sized = replace(
        settings,
        "model",
        size=None,
        **_shape_of(size, family=settings.model.family),
        feedforward_width="auto",
    )
    return _derived(sized)


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
    """Settings with some values of one section changed; for values derived by a recipe."""
    part = dataclasses.replace(getattr(settings, section), **changes)
    return dataclasses.replace(settings, **{section: part})


def with_base(settings: Settings, base: Settings) -> Settings:
    """Settings in which the base decides about all that its weights are made for."""
    model = dataclasses.replace(
        base.model,
        dropout=settings.model.dropout,
        attention_dropout=settings.model.attention_dropout,
    )
    return dataclasses.replace(
        settings, model=model, objective=base.objective, tokenizer=base.tokenizer
    )


@dataclass(frozen=True)
class SettingHelp:
    """One row of the settings reference."""

    key: str
    type: str
    default: Any
    help: str


def read_setting_help() -> Iterator[SettingHelp]:
    """Every setting with its help, in order: the one source of CLI help and docs/reference."""
    for section_field in dataclasses.fields(Settings):
        if section_field.name == "preset":
            continue
        section = get_type_hints(Settings)[section_field.name]
        hints = get_type_hints(section, include_extras=True)
        for setting in dataclasses.fields(section):
            hint, *extras = get_args(hints[setting.name])
            text = next(extra.documentation for extra in extras if isinstance(extra, Doc))
            key = f"{section_field.name}.{setting.name}"
            yield SettingHelp(key, _type_name(hint), setting.default, text)


@lru_cache(maxsize=1)
def _help_by_key() -> dict[str, str]:
    return {row.key: row.help for row in read_setting_help()}


def setting_help(key: str) -> str:
    """The help text of one setting."""
    return _help_by_key()[key]


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _type_name(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return " \\| ".join(str(value) for value in get_args(hint))
    if get_origin(hint) is dict:
        return "table"
    if get_args(hint):
        return " \\| ".join(_type_name(part) for part in get_args(hint))
    return "none" if hint is type(None) else hint.__name__


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, change in changes.items():
        section = values.get(key, {})
        if not isinstance(change, Mapping):
            values[key] = change
        elif isinstance(section, Mapping):  # else it is a mistake that validation has to see
            if key == "train" and _LENGTHS & change.keys():
                section = {name: value for name, value in section.items() if name not in _LENGTHS}
            values[key] = {**section, **change}


_LENGTHS = {"steps", "epochs", "minutes"}


def _held_by(base: Settings) -> dict[str, dict[str, Any]]:
    """What fine-tuning cannot change: how the base was made, but for its dropout."""
    values = settings_to_dict(base)
    model = {key: value for key, value in values["model"].items() if not key.endswith("dropout")}
    return {"model": model, "objective": values["objective"], "tokenizer": values["tokenizer"]}


def _suggested_by(base: Settings) -> dict[str, dict[str, Any]]:
    """What a foreign base brings and fine-tuning may change; our own leave it to the preset."""
    model = {"dropout": base.model.dropout, "attention_dropout": base.model.attention_dropout}
    return {
        "model": model,
        "head": {"pooling": base.head.pooling},
        "data": {"max_length": base.data.max_length},
    }


def _validated(
    values: dict[str, Any],
    problems: list[str],
    *,
    base: Settings | None = None,
    carried: Mapping[str, Any] | None = None,
) -> Settings:
    """Validate by pydantic and by the rules that span fields; report every problem at once.

    `carried` is what stood there before the user gave anything, where that makes a difference.
    """
    from pydantic import TypeAdapter, ValidationError

    settings = None
    try:
        settings = TypeAdapter(Settings).validate_python(with_none(values))
    except ValidationError as error:
        problems = problems + [_readable(problem) for problem in error.errors()]
    if settings is not None:
        problems = problems + list(_contradictions(settings))
        problems += _changes_of(base, settings) if base is not None else []
        problems += _without_effect(settings, carried=carried) if carried is not None else []
    if problems or settings is None:
        count = "1 setting is" if len(problems) == 1 else f"{len(problems)} settings are"
        raise ConfigError(
            (f"{count} wrong: " + "; ".join(problems) + ".").replace("?.", "?"),
            remedy="See `regraft settings` for every setting.",
        )
    return _derived(settings)


def _derived(settings: Settings) -> Settings:
    """What was left `auto` and follows from other settings, filled in."""
    model = settings.model
    if model.feedforward_width == "auto":
        settings = replace(settings, "model", feedforward_width=feedforward_width(model))
    if model.attention == "auto":
        looks_both_ways = settings.objective.kind != "causal"
        attention = "bidirectional" if looks_both_ways else "causal"
        settings = replace(settings, "model", attention=attention)
    return settings


def _changes_of(base: Settings, settings: Settings) -> Iterator[str]:
    for section, held in _held_by(base).items():
        for key, value in held.items():
            wanted = getattr(getattr(settings, section), key)
            # "auto" asks for what the base has settled already.
            if wanted not in (value, "auto"):
                yield f"{section}.{key}: the base has {value!r}, which {wanted!r} cannot change"


def _contradictions(settings: Settings) -> Iterator[str]:
    model, train = settings.model, settings.train
    if model.family == "foreign" and model.architecture is None:
        yield (
            "model.family: foreign is a Hugging Face folder as --base of finetune or compare, and "
            "cannot be built from settings"
        )
    if model.family != "foreign" and model.architecture is not None:
        yield f"model.architecture: the {model.family} family has none; a foreign base brings it"
    if (model.family == "bag") != (model.num_layers == 0):
        needed = "has no layers" if model.family == "bag" else "needs at least 1 layer"
        yield f"model.num_layers: {model.num_layers}, and the {model.family} family {needed}"
    if model.family != "foreign" and model.width % model.num_heads:
        yield f"model.num_heads: {model.num_heads} does not divide model.width {model.width}"
    if model.family == "lab" and model.width % 2:
        yield f"model.width: {model.width} is odd; sinusoidal positions come in pairs"
    if model.family == "modern" and model.width // model.num_heads % 2:
        yield (
            f"model.num_heads: {model.num_heads} heads of width {model.width // model.num_heads}; "
            "rotary positions turn pairs of columns, the width of a head must be even"
        )
    yield from _objective_contradictions(settings)
    yield from _method_contradictions(settings)
    yield from _task_contradictions(settings)
    if model.size == "auto" and train.minutes is None:
        yield "model.size: auto chooses for a time budget; give train.minutes"
    if settings.data.max_length > model.max_positions:
        yield (
            f"data.max_length: {settings.data.max_length} exceeds "
            f"model.max_positions {model.max_positions}"
        )
    lengths = [name for name in sorted(_LENGTHS) if getattr(train, name) is not None]
    if not lengths:
        yield "train: give steps, epochs or minutes"
    if len(lengths) > 1:
        yield f"train: {' and '.join(lengths)} are both set; give one"
    if train.least_steps is not None and train.epochs is None:
        yield "train.least_steps: it makes a length in epochs longer; give train.epochs"
    if train.threads != "auto" and train.threads < 1:
        yield f"train.threads: {train.threads} is not at least 1"
    if train.optimizer == "muon" and train.parallel == "fsdp":
        yield "train.optimizer: muon needs whole matrices, and train.parallel fsdp shards them"


def _objective_contradictions(settings: Settings) -> Iterator[str]:
    model, kind = settings.model, settings.objective.kind
    if kind in ("bert", "sop") and model.family != "bert":
        yield (
            f"objective.kind: {kind} reads two sentences, told apart by token types, which the "
            f"{model.family} family does not have; take --preset bert, or --objective masked"
        )
    if model.family == "bag" and kind != "contrast":
        yield (
            f"objective.kind: {kind} predicts tokens from those around them, and the bag family "
            "has no layers that look around; take --preset modern, or --objective contrast"
        )
    if kind == "causal" and model.attention == "bidirectional":
        yield (
            "model.attention: bidirectional would show a causal objective the token that it has "
            "to predict"
        )
    if kind != "causal" and model.attention == "causal":
        yield f"model.attention: causal hides the right side, which {kind} has to read"


def _method_contradictions(settings: Settings) -> Iterator[str]:
    """Of the methods of fine-tuning, with each other and with what they need of the model."""
    model, train = settings.model, settings.train
    if train.reinit_layers is not None and train.reinit_layers > model.num_layers:
        yield f"train.reinit_layers: {train.reinit_layers} of {model.num_layers} layers"
    if train.rdrop is not None and not (model.dropout or model.attention_dropout):
        yield "train.rdrop: two passes differ by dropout, and model.dropout is 0"
    if train.auxiliary_weight is not None and model.family == "foreign":
        yield "train.auxiliary_weight: a foreign base has no head that predicts tokens"
    elif train.auxiliary_weight is not None and settings.objective.kind in ("replaced", "contrast"):
        yield f"train.auxiliary_weight: a base of {settings.objective.kind} predicts no tokens"
    if train.lora_rank is not None and model.family != "foreign":
        yield f"train.lora_rank: for foreign bases only; the {model.family} family is trained whole"
    for stays, names in _BASE_STAYS.items():
        moving = [name for name in names if getattr(train, name) is not None]
        if getattr(train, stays) and moving:
            yield f"train.{moving[0]}: has no effect where the base stays (train.{stays})"


def _task_contradictions(settings: Settings) -> Iterator[str]:
    """Of pairs of texts, and of several labels, with what can read them."""
    data = settings.data
    if data.label_separator == "":
        yield "data.label_separator: it is empty, and has to stand between labels"
    if data.label_separator is not None and settings.train.rdrop is not None:
        yield (
            "train.rdrop: compares one distribution over all classes, and data.label_separator "
            "makes one of each"
        )
    if data.pair_column is None:
        return
    if data.pair_column == data.text_column:
        yield f"data.pair_column: {data.pair_column!r} is data.text_column, too"
    if data.windows is not None:
        yield "data.windows: reads on in one long text, and data.pair_column makes rows of two"
    if settings.model.family == "bag":
        yield (
            "data.pair_column: the bag family adds up the words of both texts and cannot tell them "
            "apart; take a base of another preset"
        )


def refuse_pairs(data: DataSettings, *, who: str) -> None:
    """Refuse a task about two texts, for whoever reads one."""
    if data.pair_column is not None:
        raise ConfigError(
            f"data.pair_column is {data.pair_column!r}, and {who} reads single texts.",
            "Pairs of texts are for `regraft finetune`, `evaluate`, `predict` and `export`.",
            remedy="Use one of these, or leave the second text away.",
        )


def refuse_label_sets(data: DataSettings, *, who: str) -> None:
    """Refuse examples with any number of labels, for whoever expects one each."""
    if data.label_separator is not None:
        raise ConfigError(
            f"data.label_separator is {data.label_separator!r}, and {who} knows one label a text.",
            "Several labels are for `regraft finetune`, `evaluate`, `predict` and `export`.",
            remedy="Use one of these, or leave --label-separator away.",
        )


def check_same_task(data: DataSettings, *, learned: DataSettings, run: str) -> None:
    """Refuse to ask a run, by its name, about pairs if it learned single texts; and the reverse.

    The same for several labels.
    """
    if (data.label_separator is None) != (learned.label_separator is None):
        number = "one label each" if learned.label_separator is None else "several labels"
        raise ConfigError(
            f"{run} learned {number}, and data.label_separator is {data.label_separator!r}.",
            remedy="Read the file as the run learned, or fine-tune anew.",
        )
    if (data.pair_column is None) == (learned.pair_column is None):
        return
    if learned.pair_column is None:
        raise ConfigError(
            f"{run} learned single texts, and --text-pair is {data.pair_column!r}.",
            remedy="Leave --text-pair away, or fine-tune on pairs.",
        )
    raise ConfigError(
        f"{run} learned pairs of texts, and data.pair_column is off.",
        remedy="Name the column of the second text.",
    )


# What keeps the weights of the base as they are, and the methods that would move them.
_BASE_STAYS = {
    "freeze_base": (
        *("layer_decay", "unfreeze_every", "reinit_layers", "lora_rank", "auxiliary_weight"),
    ),
    "lora_rank": ("unfreeze_every", "reinit_layers"),
}

_HIDING = ("masked", "bert", "sop", "replaced", "hybrid")
# Settings that some objectives do not read, with those that do.
_READERS: dict[str, tuple[str, ...]] = {
    "objective.mask_rate": _HIDING,
    "objective.mask_rate_end": _HIDING,
    "objective.masking": _HIDING,
    "objective.causal_share": ("hybrid",),
    "objective.generator_share": ("replaced",),
    "objective.group_size": ("contrast",),
    "data.packing": ("causal", "masked", "replaced", "hybrid"),  # others make rows of two sentences
}


# Settings of the section `train` that fine-tuning alone reads.
OF_FINETUNING = (
    *("freeze_base", "class_weight", "layer_decay", "unfreeze_every", "reinit_layers"),
    *("lora_rank", "label_smoothing", "rdrop", "auxiliary_weight", "average", "patience"),
    "least_steps",
)


def _without_effect(settings: Settings, *, carried: Mapping[str, Any]) -> Iterator[str]:
    """What was given and pre-training does not read; a preset or a default may well say it."""
    for name in OF_FINETUNING:
        value, default = getattr(settings.train, name), getattr(TrainSettings, name)
        if value not in (default, carried.get(f"train.{name}", default)):
            yield f"train.{name}: {value} has no effect on pre-training; leave it for fine-tuning"
    if settings.data.windows is not None:
        yield "data.windows: pre-training reads all text anyway; leave it for fine-tuning"
    if settings.data.pair_column is not None:
        yield "data.pair_column: pre-training reads single texts; leave it for fine-tuning"
    if settings.data.label_separator is not None:
        yield "data.label_separator: pre-training reads no labels; leave it for fine-tuning"
    if settings.head.pooling == "attention":
        yield "head.pooling: attention is learned with labels; leave it for fine-tuning"
    kind = settings.objective.kind
    for key, readers in _READERS.items():
        section_name, _, name = key.partition(".")
        section = getattr(settings, section_name)
        value, default = getattr(section, name), getattr(type(section), name)
        if kind not in readers and value not in (default, carried.get(key, default)):
            yield (
                f"{key}: {value} has no effect on the objective {kind}, only on "
                f"{', '.join(readers)}; leave it out, or take another --objective"
            )


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
