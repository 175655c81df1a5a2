"""What can be set? Every setting of every section, with its help, its type and its range.

Comes in: nothing. Goes out: frozen dataclasses, which config.py fills, completes and checks against
each other. Knows no preset's values, no data, no torch.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

# annotated_types and annotated_doc instead of pydantic.Field: `regraft --help` reads the help texts
# below and must stay under 0.3 s; pydantic itself is imported when something is validated.
from annotated_doc import Doc
from annotated_types import Ge, Gt, Le, Lt

from regraft.presets import DEFAULT_PRESET, FEEDFORWARD_FACTOR


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
        Literal["last", "mean", "first", "attention"],
        Doc(
            "Which vector the classifier reads: of the last real token, the mean, the first, or a "
            "mean by learned `attention`, which starts as the mean."
        ),
    ] = "last"


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(_Section):
    """How a tokenizer is trained when none is given.

    The smallest size is 256 bytes and 6 special tokens: with them no text is unknown.
    """

    kind: Annotated[
        Literal["bpe", "unigram", "wordpiece", "words"],
        Doc(
            "Algorithm: the first three work on bytes and know any text; `words` keeps lower-case "
            "words whole, one id for all rare ones, and no punctuation but ! and ?."
        ),
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
    pair_column: Annotated[
        str | None,
        Doc("Fine-tuning: column or key of a second text; both are read as one row, in order."),
    ] = None
    label_column: Annotated[str, Doc("Column or key of the label.")] = "label"
    label_separator: Annotated[
        str | None,
        Doc(
            "Fine-tuning: examples have any number of labels, with this between them, such as `|`; "
            "JSON may list them. Off means one label each."
        ),
    ] = None
    encoding: Annotated[str, Doc("Encoding of text files.")] = "utf-8"
    documents: Annotated[
        Literal["line", "blank"],
        Doc("Plain text: a document per `line`, or documents separated by `blank` lines."),
    ] = "line"
    max_length: Annotated[
        int, Ge(8), Doc("Tokens a row: longer texts are cut (and the share cut is reported).")
    ] = 256
    windows: Annotated[
        int | None,
        Ge(2),
        Doc(
            "Prediction: read up to so many rows of a text that is longer than one; the mean of "
            "their log-probabilities counts. Training reads the first."
        ),
    ] = None
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
    least_steps: Annotated[
        int | None,
        Ge(1),
        Doc(
            "Fine-tuning for so many epochs: more of them where they would be fewer steps than "
            "this, because labels are few."
        ),
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
    layer_decay: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc("Fine-tuning: rate of a layer as a share of the rate of the one above it."),
    ] = None
    unfreeze_every: Annotated[
        int | None,
        Ge(1),
        Doc("Fine-tuning: the head trains alone; after so many epochs each, one more layer does."),
    ] = None
    reinit_layers: Annotated[
        int | None, Ge(1), Doc("Fine-tuning: so many top layers of the base start anew at random.")
    ] = None
    lora_rank: Annotated[
        int | None,
        Ge(1),
        Doc("Fine-tuning, foreign bases: train matrices of this rank beside theirs, which stay."),
    ] = None
    label_smoothing: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc("Fine-tuning: share of the target that is spread evenly over all classes."),
    ] = None
    rdrop: Annotated[
        float | None,
        Gt(0),
        Doc("Fine-tuning: weight of the difference between two passes with other dropout."),
    ] = None
    auxiliary_weight: Annotated[
        float | None,
        Gt(0),
        Doc("Fine-tuning: weight of predicting tokens of the same texts, as the base learned to."),
    ] = None
    average: Annotated[
        Literal["ema", "swa"] | None,
        Doc(
            "Fine-tuning: the weights kept are a mean over steps: `ema` forgets early ones, `swa` "
            "takes the last quarter evenly; off keeps the last."
        ),
    ] = None
    patience: Annotated[
        int | None,
        Ge(1),
        Doc("Fine-tuning: stop after so many epochs without a better valid; the best is kept."),
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
