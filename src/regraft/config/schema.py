"""Every setting of every section, with its help, type and range."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

# annotated_types and annotated_doc instead of pydantic.Field: `regraft --help` reads the help texts
# below and must stay under 0.3 s; pydantic itself is imported when something is validated.
from annotated_doc import Doc
from annotated_types import Ge, Gt, Le, Lt

from regraft.config.presets import DEFAULT_PRESET
from regraft.config.registry import Registry
from regraft.config.traits import FAMILIES, OBJECTIVES, FamilyTraits, ObjectiveTraits


class _Section:
    """Refuses unknown keys and numbers that are not finite."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, kw_only=True)
class ModelSettings(_Section):
    """The shape of the backbone. The vocabulary size comes from the tokenizer."""

    family: Annotated[
        str,
        FAMILIES,
        Doc(
            "Kind of block: `lab` is post-norm, ReLU, sinusoidal positions; `bert` is post-norm, "
            "GELU, learned positions, token types; `modern` is pre-norm, GeGLU, rotary positions, "
            "no biases; `bag` has no layers, only embeddings of tokens and bigrams; `foreign` is "
            "a model of a Hugging Face folder, available as a base only."
        ),
    ] = "lab"
    attention: Annotated[
        Literal["causal", "bidirectional", "auto"],
        Doc(
            "`causal` attends to the left only (the square mask), `bidirectional` to both sides; "
            "`auto` is what the objective needs."
        ),
    ] = "auto"
    size: Annotated[
        Literal["auto"] | None,
        Doc("`auto` chooses width, layers and heads for train.minutes; the choice is saved."),
    ] = None
    width: Annotated[int, Ge(2), Doc("Width of the embeddings and of every layer.")] = 200
    num_layers: Annotated[int, Ge(0), Doc("Number of layers; a bag has none.")] = 4
    num_heads: Annotated[int, Ge(1), Doc("Number of attention heads; must divide the width.")] = 2
    feedforward_width: Annotated[
        Annotated[int, Ge(1)] | Literal["auto"],
        Doc("Width of the feed-forward layer; `auto` is the family's multiple of the width."),
    ] = "auto"
    dropout: Annotated[
        float, Ge(0), Lt(1), Doc("Dropout after the embedding and in every sub-layer.")
    ] = 0.5
    attention_dropout: Annotated[
        float,
        Ge(0),
        Lt(1),
        Doc("Dropout on the attention weights; above 0 it disables the fast attention path."),
    ] = 0.5
    max_positions: Annotated[int, Ge(8), Doc("Maximum number of positions.")] = 5000
    num_pairs: Annotated[
        int, Ge(1), Doc("Bag: number of bigrams, the most frequent ones, with an embedding.")
    ] = 131_072
    architecture: Annotated[
        dict[str, Any] | None, Doc("Configuration of a `foreign` model; set by the base.")
    ] = None

    @property
    def traits(self) -> FamilyTraits:
        """What is known of the family."""
        return FAMILIES[self.family]


def feedforward_width(model: ModelSettings) -> int:
    """The width that is set or, if `auto`, the family's."""
    if model.feedforward_width == "auto":
        return model.width * model.traits.feedforward_factor
    return model.feedforward_width


def generator_settings(model: ModelSettings, *, share: float) -> ModelSettings:
    """The shape of ELECTRA's generator: heads of the same width, but fewer."""
    num_heads = max(round(model.num_heads * share), 1)
    return dataclasses.replace(
        model,
        num_heads=num_heads,
        width=model.width // model.num_heads * num_heads,
        feedforward_width=max(round(feedforward_width(model) * share), 1),
    )


# What a base can be made of, one after the other; the last is two losses in one step.
STAGES = ("words", "documents", "language", "documents+language")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings(_Section):
    """What pre-training learns from unlabelled text."""

    kind: Annotated[
        str,
        OBJECTIVES,
        Doc(
            "`causal` predicts the next token; `masked` predicts masked tokens; `bert` adds "
            "next-sentence prediction and `sop` sentence order; `replaced` detects tokens replaced "
            "by a small generator (ELECTRA); `hybrid` alternates causal and masked steps; "
            "`contrast` matches the two halves of a document against those of others."
        ),
    ] = "causal"
    mask_rate: Annotated[
        float, Gt(0), Lt(1), Doc("Share of tokens that are masked and predicted.")
    ] = 0.15
    mask_rate_end: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc("Mask rate at the end of training, reached linearly; none keeps it constant."),
    ] = None
    masking: Annotated[
        Literal["token", "word", "span"],
        Doc("Unit of masking: single tokens, whole words, or spans of several tokens."),
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
        int, Ge(2), Doc("Contrast: minimum number of documents whose halves are matched together.")
    ] = 32
    stages: Annotated[
        str,
        Doc(
            "Stages of pre-training in order, separated by commas: `words` trains the embeddings "
            "alone by contrast of halves, `documents` all layers by contrast on the vector that "
            "the classifier reads, `language` by the objective, `documents+language` by both in "
            "one step; `auto` is the best order for the objective."
        ),
    ] = "language"
    language_weight: Annotated[
        float, Gt(0), Doc("Stage documents+language: weight of the objective; contrast has 1.")
    ] = 1.0
    language_weight_end: Annotated[
        float | None,
        Gt(0),
        Doc("Weight at the end of the stage, approached in a straight line; off means no change."),
    ] = 0.1
    num_bags: Annotated[
        int, Ge(1), Doc("Stage words: so many bags are trained and folded into the embeddings.")
    ] = 4
    half_length: Annotated[
        int, Ge(8), Doc("Stages with documents: tokens of each half at most.")
    ] = 96
    sampled_tokens: Annotated[
        int | None,
        Ge(1),
        Doc(
            "Sampled softmax: train against so many tokens, drawn by frequency, instead of the "
            "whole vocabulary; off computes the exact loss. Validation always does."
        ),
    ] = None

    @property
    def traits(self) -> ObjectiveTraits:
        """What is known of the objective."""
        return OBJECTIVES[self.kind]


@dataclass(frozen=True, kw_only=True)
class HeadSettings(_Section):
    """How the classifier reads the output of the backbone."""

    pooling: Annotated[
        Literal["last", "mean", "first", "attention"],
        Doc(
            "Vector that the classifier reads: of the `last` token, the `mean`, of the `first` "
            "token, or a mean weighted by learned `attention`."
        ),
    ] = "last"
    start: Annotated[
        Literal["random", "regression"],
        Doc(
            "Fine-tuning of a base: first weights of the new head; `regression` is the logistic "
            "regression on the frozen vectors, tuned on folds of train, and keeps the best epoch "
            "on valid, the start included."
        ),
    ] = "random"


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(_Section):
    """How a tokenizer is trained if none is given.

    The smallest size is 256 bytes and 6 special tokens, enough to encode any text.
    """

    kind: Annotated[
        Literal["bpe", "unigram", "wordpiece", "words"],
        Doc(
            "Algorithm: the first three work on bytes and encode any text; `words` uses whole "
            "lower-case words, one id for all rare ones, and no punctuation except ! and ?."
        ),
    ] = "bpe"
    size: Annotated[int, Ge(262), Doc("Vocabulary size, including special tokens.")] = 8192
    sample_bytes: Annotated[
        int,
        Ge(1000),
        Doc("Maximum number of bytes of text, sampled evenly, to train the tokenizer on."),
    ] = 100_000_000


@dataclass(frozen=True, kw_only=True)
class DataSettings(_Section):
    """How files become documents and examples, and those become rows of tokens."""

    text_column: Annotated[str, Doc("Column (csv, tsv, parquet) or key (jsonl) of the text.")] = (
        "text"
    )
    pair_column: Annotated[
        str | None,
        Doc("Fine-tuning: column or key of the second text of a pair; both form one row."),
    ] = None
    label_column: Annotated[str, Doc("Column or key of the label.")] = "label"
    id_column: Annotated[
        str, Doc("Column or key that names a row, where there is one; lists of errors show it.")
    ] = "id"
    label_separator: Annotated[
        str | None,
        Doc(
            "Separator between several labels of an example, such as `|`; JSON may "
            "list them. None means one label per example."
        ),
    ] = None
    encoding: Annotated[str, Doc("Encoding of text files.")] = "utf-8"
    documents: Annotated[
        Literal["line", "blank"],
        Doc("Plain text: a document per `line`, or documents separated by `blank` lines."),
    ] = "line"
    max_length: Annotated[
        int,
        Ge(8),
        Doc("Maximum tokens per row; longer texts are truncated (the share is reported)."),
    ] = 256
    windows: Annotated[
        int | None,
        Ge(2),
        Doc(
            "Prediction: read up to this many rows of a long text and average their "
            "log-probabilities. Training reads the first row."
        ),
    ] = None
    packing: Annotated[
        Literal["stream", "isolated", "document"],
        Doc(
            "Pre-training rows: a `stream` of documents cut into full rows; the same with "
            "attention `isolated` to each document; or one `document` per row."
        ),
    ] = "stream"


@dataclass(frozen=True, kw_only=True)
class TrainSettings(_Section):
    """How long, how fast and in what order to train."""

    steps: Annotated[int | None, Ge(1), Doc("Length of training in optimizer steps.")] = None
    epochs: Annotated[int | None, Ge(1), Doc("Length of training in passes over the data.")] = None
    minutes: Annotated[
        float | None,
        Gt(0),
        Le(525_600),
        Doc("Length of training in minutes; the measured pace sets the number of steps."),
    ] = None
    least_steps: Annotated[
        int | None,
        Ge(1),
        Doc("Fine-tuning: minimum number of steps; with few labels, epochs are added to reach it."),
    ] = None
    batch_size: Annotated[int, Ge(1), Doc("Rows per optimizer step.")] = 16
    micro_batch_tokens: Annotated[
        int | None,
        Ge(8),
        Doc("Maximum tokens, including padding, in memory at once; larger batches are split."),
    ] = 16_384
    optimizer: Annotated[
        Literal["adam", "adamw", "muon", "rowwise"],
        Doc(
            "Optimizer; `muon` updates hidden matrices with Muon and the rest with AdamW, and "
            "needs about twice the learning rate. `rowwise` updates large embedding tables by "
            "token (no momentum, one second moment per token, only tokens of the batch) and the "
            "rest with AdamW."
        ),
    ] = "adamw"
    lr: Annotated[float, Gt(0), Le(1), Doc("Peak learning rate.")] = 1e-3
    weight_decay: Annotated[float, Ge(0), Doc("Weight decay of matrices (adamw only).")] = 0.01
    clip_norm: Annotated[
        float | None, Gt(0), Doc("Maximum gradient norm; none disables clipping.")
    ] = 1.0
    schedule: Annotated[
        Literal["constant", "linear", "cosine"], Doc("Learning rate schedule after the warm-up.")
    ] = "linear"
    warmup_steps: Annotated[int, Ge(0), Doc("Steps of linear learning rate warm-up.")] = 50
    freeze_base: Annotated[bool, Doc("Fine-tuning: train the head only.")] = False
    class_weight: Annotated[
        Literal["balanced"] | None, Doc("Fine-tuning and fit: weight classes by inverse frequency.")
    ] = None
    base_rate: Annotated[
        float | None,
        Gt(0),
        Le(1),
        Doc(
            "Fine-tuning of a base: share of train.lr that is used, so that it keeps what it "
            "learned; a network from scratch has the whole rate."
        ),
    ] = None
    layer_decay: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc(
            "Learning rate of a layer relative to the layer above, so that what is known below "
            "stays; the stage words does not use it."
        ),
    ] = None
    unfreeze_every: Annotated[
        int | None,
        Ge(1),
        Doc("Fine-tuning: train the head first and unfreeze one more layer every N epochs."),
    ] = None
    reinit_layers: Annotated[
        int | None, Ge(1), Doc("Fine-tuning: number of top layers of the base to reinitialize.")
    ] = None
    layers_after: Annotated[
        float | None,
        Gt(0),
        Le(1),
        Doc(
            "Fine-tuning: share of the training in which the layers are skipped and only "
            "embeddings and head learn, many times as fast; for layers not trained before, which "
            "stay as they are with 1."
        ),
    ] = None
    lora_rank: Annotated[
        int | None,
        Ge(1),
        Doc("Fine-tuning of foreign bases: rank of the LoRA matrices; the base is frozen."),
    ] = None
    label_smoothing: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc("Fine-tuning: share of the target distributed evenly over all classes."),
    ] = None
    rdrop: Annotated[
        float | None,
        Gt(0),
        Doc("Fine-tuning: weight of the R-Drop loss, the divergence of two dropout passes."),
    ] = None
    auxiliary_weight: Annotated[
        float | None,
        Gt(0),
        Doc("Fine-tuning: weight of the language-model loss of the base on the same texts."),
    ] = None
    average: Annotated[
        Literal["ema", "swa"] | None,
        Doc(
            "Fine-tuning: average the weights over steps: `ema` exponentially, `swa` evenly over "
            "the last quarter; none keeps the last weights."
        ),
    ] = None
    patience: Annotated[
        int | None,
        Ge(1),
        Doc("Fine-tuning: stop after N epochs without a better validation score; keep the best."),
    ] = None
    valid_share: Annotated[
        float, Ge(0), Lt(0.5), Doc("Pre-training: share of documents held out for validation.")
    ] = 0.01
    seed: Annotated[int, Ge(0), Doc("Random seed for weights, data order and dropout.")] = 0
    threads: Annotated[
        int | Literal["auto"],
        Doc("Threads per process; `auto` measures a few numbers and keeps the fastest."),
    ] = "auto"
    parallel: Annotated[
        Literal["ddp", "fsdp"], Doc("Under torchrun: `ddp` replicates the model, `fsdp` shards it.")
    ] = "ddp"
    compile: Annotated[
        bool, Doc("Use torch.compile: slow first step, worthwhile on GPUs only.")
    ] = False
    checkpoint_every: Annotated[
        int | None, Ge(1), Doc("Steps between checkpoints; none saves one on interruption only.")
    ] = 200
    keep_checkpoints: Annotated[
        int, Ge(1), Doc("Number of checkpoints to keep while training.")
    ] = 2


@dataclass(frozen=True, kw_only=True)
class Settings(_Section):
    """All settings of one run, as saved in the run folder. `resolve` makes one.

    `train` has no default because it must have a length.
    """

    preset: Annotated[str, Doc("Name of the preset.")] = DEFAULT_PRESET
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    head: HeadSettings = field(default_factory=HeadSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    data: DataSettings = field(default_factory=DataSettings)
    train: TrainSettings


@dataclass(frozen=True)
class SettingHelp:
    """One row of the settings reference."""

    key: str
    type: str
    default: Any
    help: str


def read_setting_help() -> Iterator[SettingHelp]:
    """Every setting with its help, in order; CLI help and docs/reference come from here."""
    for section_field in dataclasses.fields(Settings):
        if section_field.name == "preset":
            continue
        section = get_type_hints(Settings)[section_field.name]
        hints = get_type_hints(section, include_extras=True)
        for setting in dataclasses.fields(section):
            hint, *extras = get_args(hints[setting.name])
            text = next(extra.documentation for extra in extras if isinstance(extra, Doc))
            names = next((extra for extra in extras if isinstance(extra, Registry)), None)
            kind = _type_name(hint) if names is None else " \\| ".join(names)
            key = f"{section_field.name}.{setting.name}"
            yield SettingHelp(key, kind, setting.default, text)


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
