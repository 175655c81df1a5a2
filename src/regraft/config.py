"""What can be set? Every setting with its help and its range, and how they become complete.

Comes in: a preset, a TOML file, `section.key=value` pairs and flags. Goes out: one frozen, complete
`Settings`, or a ConfigError that names all problems at once. Knows no data, no torch.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

# annotated_types and annotated_doc instead of pydantic.Field: `regraft --help` reads the help texts
# below and must stay under 0.3 s; pydantic itself is imported when something is validated.
from annotated_doc import Doc
from annotated_types import Ge, Gt, Le, Lt

from regraft.assignments import nested, read_toml, with_none
from regraft.errors import ConfigError
from regraft.presets import (
    DEFAULT_PRESET,
    FEEDFORWARD_FACTOR,
    FOREIGN_PRESET,
    PRESETS,
    SIZES,
    Recipe,
)


class _Section:
    """Any key that is not a field is an error, and so is a number that is not finite."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, kw_only=True)
class ModelSettings(_Section):
    """The shape of the backbone. The vocabulary is not here: it flows from the tokenizer."""

    family: Annotated[
        Literal["lab", "bert", "modern", "bag", "foreign"],
        Doc(
            "Kind of block: `lab` is post-norm, ReLU, sinusoidal positions; `bert` is post-norm, "
            "GELU, learned positions, token types; `modern` is pre-norm, GeGLU, rotary positions, "
            "no biases; `bag` has no layers, only vectors of tokens and of pairs of neighbours; "
            "`foreign` is what a Hugging Face folder says, and comes as a base only."
        ),
    ] = "lab"
    attention: Annotated[
        Literal["causal", "bidirectional", "auto"],
        Doc(
            "Where a token looks: `causal` to the left only (the square mask), `bidirectional` to "
            "both sides; `auto` is what the objective needs."
        ),
    ] = "auto"
    size: Annotated[
        Literal["auto"] | None,
        Doc(
            "`auto` chooses width, layers and heads for the minutes given; what it chose is saved."
        ),
    ] = None
    width: Annotated[int, Ge(2), Doc("Width d of the embedding and of every layer.")] = 200
    num_layers: Annotated[int, Ge(0), Doc("Number of layers L; a bag has none.")] = 4
    num_heads: Annotated[int, Ge(1), Doc("Number of attention heads H; must divide the width.")] = 2
    feedforward_width: Annotated[
        Annotated[int, Ge(1)] | Literal["auto"],
        Doc("Width of the feed-forward layer; `auto` is the width times the family's factor."),
    ] = "auto"
    dropout: Annotated[
        float, Ge(0), Lt(1), Doc("Dropout after the embedding and in every sub-layer.")
    ] = 0.5
    attention_dropout: Annotated[
        float,
        Ge(0),
        Lt(1),
        Doc("Dropout on the attention weights; above 0 it closes the fast attention path."),
    ] = 0.5
    max_positions: Annotated[int, Ge(8), Doc("Longest sequence the positions are made for.")] = 5000
    num_pairs: Annotated[
        int,
        Ge(1),
        Doc("Bag: the most frequent pairs of neighbours in the text have vectors of their own."),
    ] = 131_072
    architecture: Annotated[
        dict[str, Any] | None,
        Doc(
            "Configuration of a `foreign` model, from which it is built again; the base brings it."
        ),
    ] = None


def feedforward_width(model: ModelSettings) -> int:
    """The width that is set or, where it is `auto`, the family's."""
    if model.feedforward_width == "auto":
        return model.width * FEEDFORWARD_FACTOR[model.family]
    return model.feedforward_width


def generator_settings(model: ModelSettings, *, share: float) -> ModelSettings:
    """The shape of ELECTRA's generator: heads as wide as the model's, but fewer of them."""
    num_heads = max(round(model.num_heads * share), 1)
    return dataclasses.replace(
        model,
        num_heads=num_heads,
        width=model.width // model.num_heads * num_heads,
        feedforward_width=max(round(feedforward_width(model) * share), 1),
    )


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings(_Section):
    """What pre-training learns from text without labels."""

    kind: Annotated[
        Literal["causal", "masked", "bert", "sop", "replaced", "hybrid", "contrast"],
        Doc(
            "`causal` predicts the next token; `masked` hidden tokens from both sides; `bert` adds "
            "next-sentence prediction and `sop` sentence order; `replaced` finds tokens that a "
            "small generator exchanged; `hybrid` takes causal and masked steps on one model; "
            "`contrast` finds the second half of a document by the vector of its first."
        ),
    ] = "causal"
    mask_rate: Annotated[
        float, Gt(0), Lt(1), Doc("Share of the tokens that are hidden and predicted.")
    ] = 0.15
    mask_rate_end: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc("Share at the end of training, approached in a straight line; off means no change."),
    ] = None
    masking: Annotated[
        Literal["token", "word", "span"],
        Doc("What is hidden together: single tokens, whole words, or spans of several tokens."),
    ] = "token"
    causal_share: Annotated[
        float, Gt(0), Lt(1), Doc("Hybrid: share of the steps that are causal.")
    ] = 0.25
    generator_share: Annotated[
        float,
        Gt(0),
        Le(1),
        Doc("Replaced: width of the generator as a share of the model's, in whole heads."),
    ] = 0.25
    group_size: Annotated[
        int, Ge(2), Doc("Contrast: documents at least, from whose halves the right one is told.")
    ] = 32


@dataclass(frozen=True, kw_only=True)
class HeadSettings(_Section):
    """How a classifier reads the backbone."""

    pooling: Annotated[
        Literal["last", "mean", "first"],
        Doc("Which vector the classifier reads: of the last real token, the mean, or the first."),
    ] = "last"


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(_Section):
    """How a tokenizer is trained when none is given.

    The smallest size is 256 bytes and 6 special tokens: with them no text is unknown.
    """

    kind: Annotated[
        Literal["bpe", "unigram", "wordpiece"], Doc("Algorithm; `bpe` works on bytes.")
    ] = "bpe"
    size: Annotated[int, Ge(262), Doc("Size of the vocabulary, special tokens included.")] = 8192
    sample_bytes: Annotated[
        int, Ge(1000), Doc("At most this many bytes of text, sampled evenly, train the tokenizer.")
    ] = 100_000_000


@dataclass(frozen=True, kw_only=True)
class DataSettings(_Section):
    """How files become documents and examples, and these become rows of tokens."""

    text_column: Annotated[str, Doc("Column (csv, tsv, parquet) or key (jsonl) of the text.")] = (
        "text"
    )
    label_column: Annotated[str, Doc("Column or key of the label.")] = "label"
    encoding: Annotated[str, Doc("Encoding of text files.")] = "utf-8"
    documents: Annotated[
        Literal["line", "blank"],
        Doc("Plain text: a document per `line`, or documents separated by `blank` lines."),
    ] = "line"
    max_length: Annotated[
        int, Ge(8), Doc("Tokens a row: longer texts are cut (and the share cut is reported).")
    ] = 256
    packing: Annotated[
        Literal["stream", "isolated", "document"],
        Doc(
            "Pre-training rows: a `stream` of documents cut into full rows; the same with the "
            "documents of a row `isolated` from each other; or one `document` each."
        ),
    ] = "stream"


@dataclass(frozen=True, kw_only=True)
class TrainSettings(_Section):
    """How long, how fast and in what order to train."""

    steps: Annotated[int | None, Ge(1), Doc("Length of training in optimiser steps.")] = None
    epochs: Annotated[int | None, Ge(1), Doc("Length of training in passes over the data.")] = None
    minutes: Annotated[
        float | None,
        Gt(0),
        Le(525_600),
        Doc("Length of training in minutes; late in it, the pace decides how many steps are left."),
    ] = None
    batch_size: Annotated[int, Ge(1), Doc("Rows an optimiser step.")] = 16
    micro_batch_tokens: Annotated[
        int | None,
        Ge(8),
        Doc("Positions, padding included, in memory at once; a larger batch is read in parts."),
    ] = 16_384
    optimizer: Annotated[
        Literal["adam", "adamw", "muon"],
        Doc(
            "Optimiser; `muon` moves hidden matrices by Muon and the rest by AdamW; it wants about "
            "twice the rate."
        ),
    ] = "adamw"
    lr: Annotated[float, Gt(0), Le(1), Doc("Peak learning rate.")] = 1e-3
    weight_decay: Annotated[float, Ge(0), Doc("Decay of matrices (adamw only).")] = 0.01
    clip_norm: Annotated[float | None, Gt(0), Doc("Largest gradient norm; off means no clip.")] = (
        1.0
    )
    schedule: Annotated[
        Literal["constant", "linear", "cosine"], Doc("Learning rate after the warm-up.")
    ] = "linear"
    warmup_steps: Annotated[int, Ge(0), Doc("Steps over which the learning rate rises.")] = 50
    freeze_base: Annotated[bool, Doc("Fine-tuning: train the head only.")] = False
    class_weight: Annotated[
        Literal["balanced"] | None, Doc("Fine-tuning: weigh classes by inverse frequency.")
    ] = None
    valid_share: Annotated[
        float, Ge(0), Lt(0.5), Doc("Pre-training: share of documents kept for validation.")
    ] = 0.01
    seed: Annotated[int, Ge(0), Doc("Seed of weights, order and dropout.")] = 0
    threads: Annotated[
        int | Literal["auto"],
        Doc("Threads of one process, at least 1; `auto` tries a few and keeps the fastest."),
    ] = "auto"
    parallel: Annotated[
        Literal["ddp", "fsdp"],
        Doc("Under torchrun: `ddp` holds the model in every process, `fsdp` shards it over them."),
    ] = "ddp"
    compile: Annotated[
        bool, Doc("torch.compile the model: a slow first step, worth it on GPUs only.")
    ] = False
    checkpoint_every: Annotated[
        int | None, Ge(1), Doc("Steps between checkpoints; off means only on interruption.")
    ] = 200
    keep_checkpoints: Annotated[int, Ge(1), Doc("Checkpoints kept while training.")] = 2


@dataclass(frozen=True, kw_only=True)
class Settings(_Section):
    """All settings of one run, complete: what is saved in the run folder. `resolve` makes one.

    `train` has no default: without a length, training would never end.
    """

    preset: Annotated[str, Doc("Name of the preset the settings started from.")] = DEFAULT_PRESET
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    head: HeadSettings = field(default_factory=HeadSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    data: DataSettings = field(default_factory=DataSettings)
    train: TrainSettings


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


def _without_effect(settings: Settings, *, carried: Mapping[str, Any]) -> Iterator[str]:
    """What was given and the objective does not read; a preset or a default may well say it."""
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
