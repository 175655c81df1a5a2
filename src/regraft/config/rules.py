"""Settings that contradict each other, have no effect, or conflict with those of the base.

Every rule yields problems as `section.key: problem`; resolution reports all of them at once.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from regraft.config.registry import Registry
from regraft.config.schema import STAGES, ModelSettings, ObjectiveSettings, Settings, TrainSettings
from regraft.config.traits import FAMILIES, OBJECTIVES, FamilyTraits
from regraft.errors import ConfigError

# The three ways to give the length of training.
LENGTHS = {"steps", "epochs", "minutes"}
# Methods that freeze weights of the base, and the settings that would train or replace them.
_BASE_STAYS = {
    "freeze_base": (
        *("layer_decay", "unfreeze_every", "reinit_layers", "lora_rank", "auxiliary_weight"),
    ),
    "lora_rank": ("unfreeze_every", "reinit_layers"),
}

# Settings that some objectives do not read: is it read by the objective of this name?
_IS_READ: dict[str, Callable[[str], bool]] = {
    "objective.mask_rate": lambda kind: OBJECTIVES[kind].hides_tokens,
    "objective.mask_rate_end": lambda kind: OBJECTIVES[kind].hides_tokens,
    "objective.masking": lambda kind: OBJECTIVES[kind].hides_tokens,
    "objective.causal_share": lambda kind: kind == "hybrid",
    "objective.generator_share": lambda kind: OBJECTIVES[kind].head == "replaced",
    "data.packing": lambda kind: OBJECTIVES[kind].rows == "text",
}


# Settings of the section `objective` about the stages, with the stages that read them.
OF_STAGES: dict[str, tuple[str, ...]] = {
    "stages": STAGES,
    "num_bags": ("words",),
    "language_weight": ("documents+language",),
    "language_weight_end": ("documents+language",),
    "half_length": ("documents", "documents+language"),
    "sampled_tokens": ("language", "documents+language"),
}

# Settings of the section `train` that only fine-tuning reads.
OF_FINETUNING = (
    *("freeze_base", "base_rate", "class_weight", "unfreeze_every", "reinit_layers", "lora_rank"),
    *("label_smoothing", "rdrop", "auxiliary_weight", "average", "patience", "least_steps"),
    "layers_after",
)


# Settings of fine-tuning that `regraft fit` reads, too.
OF_FIT = ("data.label_separator", "train.class_weight")


def contradictions(settings: Settings) -> Iterator[str]:
    """All contradictions; if the family or objective is unknown, only that."""
    unknown = [*_unknown("model.family", settings.model.family, FAMILIES)]
    unknown += _unknown("objective.kind", settings.objective.kind, OBJECTIVES)
    if unknown:
        yield from unknown
        return
    model, train = settings.model, settings.train
    yield from _family_contradictions(model, model.traits)
    yield from _objective_contradictions(settings)
    yield from _stage_contradictions(settings)
    yield from _method_contradictions(settings)
    yield from _task_contradictions(settings)
    if model.size == "auto" and train.minutes is None:
        yield "model.size: auto needs a time budget; set train.minutes"
    if settings.data.max_length > model.max_positions:
        yield (
            f"data.max_length: {settings.data.max_length} exceeds "
            f"model.max_positions {model.max_positions}"
        )
    lengths = [name for name in sorted(LENGTHS) if getattr(train, name) is not None]
    if not lengths:
        yield "train: set steps, epochs or minutes"
    if len(lengths) > 1:
        yield f"train: {' and '.join(lengths)} are both set; choose one"
    if train.least_steps is not None and train.epochs is None:
        yield "train.least_steps: applies to a length in epochs only; set train.epochs"
    if train.threads != "auto" and train.threads < 1:
        yield f"train.threads: {train.threads} is less than 1"
    if train.optimizer == "muon" and train.parallel == "fsdp":
        yield "train.optimizer: muon needs whole matrices, but train.parallel fsdp shards them"
    if train.optimizer == "rowwise" and train.parallel == "fsdp":
        yield "train.optimizer: rowwise needs whole tables, but train.parallel fsdp shards them"
    if train.optimizer == "rowwise" and train.layer_decay is not None:
        yield "train.layer_decay: has no effect on train.optimizer rowwise"


def _unknown(key: str, name: str, registry: Registry[Any]) -> Iterator[str]:
    try:
        registry[name]
    except ConfigError as error:
        text = str(error).rstrip(".")
        yield f"{key}: {text[0].lower()}{text[1:]}"


def _family_contradictions(model: ModelSettings, traits: FamilyTraits) -> Iterator[str]:
    """Between the shape and the family."""
    if traits.is_foreign and model.architecture is None:
        yield (
            f"model.family: {model.family} cannot be built from settings; pass a Hugging Face "
            "folder as --base of finetune or compare"
        )
    if not traits.is_foreign and model.architecture is not None:
        yield f"model.architecture: only a foreign base has one, not the {model.family} family"
    if traits.has_layers == (model.num_layers == 0):
        needed = "needs at least 1 layer" if traits.has_layers else "has no layers"
        yield f"model.num_layers: {model.num_layers}, but the {model.family} family {needed}"
    if not traits.is_foreign and model.width % model.num_heads:
        yield f"model.num_heads: {model.num_heads} does not divide model.width {model.width}"
    if traits.positions == "sinusoidal" and model.width % 2:
        yield f"model.width: {model.width} is odd; sinusoidal positions need an even width"
    if traits.positions == "rotary" and model.width // model.num_heads % 2:
        yield (
            f"model.num_heads: {model.num_heads} heads of width {model.width // model.num_heads}; "
            "rotary positions need an even head width"
        )


def _objective_contradictions(settings: Settings) -> Iterator[str]:
    model, kind, traits = settings.model, settings.objective.kind, settings.objective.traits
    if traits.rows == "sentence pairs" and not model.traits.has_token_types:
        yield (
            f"objective.kind: {kind} reads two sentences and needs token types, which the "
            f"{model.family} family does not have; use --preset bert, or --objective masked"
        )
    if traits.head != "none" and not model.traits.has_layers:
        yield (
            f"objective.kind: {kind} predicts tokens from their context, but the "
            f"{model.family} family has no layers; use --preset modern, or --objective contrast"
        )
    if traits.is_causal and model.attention == "bidirectional":
        yield (
            "model.attention: bidirectional would show a causal objective the token that it "
            "predicts"
        )
    if not traits.is_causal and model.attention == "causal":
        yield f"model.attention: causal hides the right context, which {kind} needs"


def stage_names(objective: ObjectiveSettings) -> tuple[str, ...]:
    """The stages of pre-training, in order."""
    return tuple(name.strip() for name in objective.stages.split(","))


def learns_documents(objective: ObjectiveSettings) -> bool:
    """Is the vector that a classifier reads trained by a stage, and not only its tokens?"""
    return any(name != "language" for name in stage_names(objective))


def auto_stages(settings: Settings, *, has_base: bool) -> str:
    """The order that transfers best and still writes (docs/log.md, 2026-11-18)."""
    if _learns_in_one_stage(settings):
        return "language"
    shares_a_step = settings.objective.traits.shares_a_step
    stages = ["documents+language"] if shares_a_step else ["documents", "language"]
    # The embeddings of a base know more than those of a bag.
    return ",".join(stages if has_base else ["words", *stages])


def _learns_in_one_stage(settings: Settings) -> bool:
    """Does the objective, or the family, know nothing but contrast?"""
    return not settings.model.traits.has_layers or settings.objective.traits.rows == "halves"


def _stage_contradictions(settings: Settings) -> Iterator[str]:
    """Contradictions of the stages of pre-training, with each other and with the objective."""
    objective, names = settings.objective, stage_names(settings.objective)
    if names in (("auto",), ("language",)):
        return
    for name in names:
        if name not in STAGES:
            close = difflib.get_close_matches(name, STAGES, n=1, cutoff=0.5)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            yield f"objective.stages: {name!r} is not one of {', '.join(STAGES)}.{hint}".rstrip(".")
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        yield f"objective.stages: {repeated[0]} is there twice; each stage runs once"
    if "words" in names[1:]:
        yield (
            f"objective.stages: words after {names[0]} would replace the embeddings that it "
            "trained; words comes first"
        )
    if _learns_in_one_stage(settings):
        what = (
            f"the objective {objective.kind}"
            if settings.model.traits.has_layers
            else f"the {settings.model.family} family"
        )
        yield f"objective.stages: {what} learns in one stage, by contrast; omit the setting"
    elif "documents+language" in names and not objective.traits.shares_a_step:
        yield (
            f"objective.stages: {objective.kind} makes its own rows and shares no step with "
            "contrast; write documents,language"
        )


def _method_contradictions(settings: Settings) -> Iterator[str]:
    """Between methods of fine-tuning, and between them and the model."""
    model, train = settings.model, settings.train
    if train.reinit_layers is not None and train.reinit_layers > model.num_layers:
        yield f"train.reinit_layers: {train.reinit_layers} exceeds the {model.num_layers} layers"
    if train.layers_after is not None and not model.num_layers:
        yield f"train.layers_after: the {model.family} family has no layers"
    if train.rdrop is not None and not (model.dropout or model.attention_dropout):
        yield "train.rdrop: needs dropout, but model.dropout is 0"
    if train.auxiliary_weight is not None and model.traits.is_foreign:
        yield "train.auxiliary_weight: a foreign base has no language-model head"
    elif train.auxiliary_weight is not None and not settings.objective.traits.predicts_tokens:
        yield f"train.auxiliary_weight: the objective {settings.objective.kind} predicts no tokens"
    if train.lora_rank is not None and not model.traits.is_foreign:
        yield f"train.lora_rank: for foreign bases only, not for the {model.family} family"
    for stays, names in _BASE_STAYS.items():
        moving = [name for name in names if getattr(train, name) is not None]
        if getattr(train, stays) and moving:
            yield f"train.{moving[0]}: has no effect on a frozen base (train.{stays})"


def _task_contradictions(settings: Settings) -> Iterator[str]:
    """Between the task (text pairs, several labels) and the other settings."""
    data = settings.data
    if data.label_separator == "":
        yield "data.label_separator: is empty; give the text between two labels"
    if data.label_separator is not None and settings.train.rdrop is not None:
        yield ("train.rdrop: needs one label per example, but data.label_separator allows several")
    if data.label_separator is not None and settings.head.start == "regression":
        yield (
            "head.start: regression needs one label per example, but data.label_separator allows "
            "several"
        )
    if data.pair_column is None:
        return
    if data.pair_column == data.text_column:
        yield f"data.pair_column: {data.pair_column!r} is also data.text_column"
    if data.windows is not None:
        yield "data.windows: needs single texts, but data.pair_column makes pairs"
    if not settings.model.traits.has_layers:
        yield (
            f"data.pair_column: the {settings.model.family} family cannot distinguish two texts; "
            "use a base of another preset"
        )


def without_effect(settings: Settings, *, carried: Mapping[str, Any]) -> Iterator[str]:
    """Settings that the user changed and pre-training does not read."""
    for name in OF_FINETUNING:
        value, default = getattr(settings.train, name), getattr(TrainSettings, name)
        if value not in (default, carried.get(f"train.{name}", default)):
            yield f"train.{name}: {value} has no effect on pre-training, only on fine-tuning"
    if settings.data.windows is not None:
        yield "data.windows: pre-training reads all text anyway; set it for fine-tuning only"
    if settings.data.pair_column is not None:
        yield "data.pair_column: pre-training reads single texts; set it for fine-tuning only"
    if settings.data.label_separator not in (None, carried.get("data.label_separator")):
        yield "data.label_separator: pre-training reads no labels; set it for fine-tuning only"
    if settings.head.start != "random":
        yield "head.start: pre-training makes no classifier head; set it for fine-tuning only"
    if settings.head.pooling == "attention":
        yield "head.pooling: attention is learned from labels; set it for fine-tuning only"
    kind = settings.objective.kind
    if kind not in OBJECTIVES or settings.model.family not in FAMILIES:
        return
    yield from _stages_without_effect(settings, carried=carried)
    for key, is_read in _IS_READ.items():
        section_name, _, name = key.partition(".")
        section = getattr(settings, section_name)
        value, default = getattr(section, name), getattr(type(section), name)
        if not is_read(kind) and value not in (default, carried.get(key, default)):
            readers = [name for name in OBJECTIVES if is_read(name)]
            yield (
                f"{key}: {value} has no effect on the objective {kind}, only on "
                f"{', '.join(readers)}; omit it, or use another --objective"
            )


def _stages_without_effect(settings: Settings, *, carried: Mapping[str, Any]) -> Iterator[str]:
    objective = settings.objective
    names = stage_names(objective)
    if names == ("auto",):
        names = tuple(auto_stages(settings, has_base=False).split(","))
    readers = {**OF_STAGES, "group_size": ("words", "documents", "documents+language")}
    for name, stages in readers.items():
        value, default = getattr(objective, name), getattr(ObjectiveSettings, name)
        is_given = value not in (default, carried.get(f"objective.{name}", default))
        is_read = any(stage in names for stage in stages)
        if name == "group_size":
            is_read = is_read or objective.traits.rows == "halves"
        elif name == "sampled_tokens":
            is_read = is_read and objective.traits.predicts_tokens
        if is_given and not is_read:
            yield (
                f"objective.{name}: {value} has no effect on the objective {objective.kind} in the "
                f"stages {', '.join(names)}; omit it"
            )


def held_by(base: Settings, *, has_own_stages: bool = False) -> dict[str, dict[str, Any]]:
    """Settings that cannot change: everything about the base except dropout.

    Pre-training that goes on from a base has its own stages.
    """
    values = dataclasses.asdict(base)
    model = {key: value for key, value in values["model"].items() if not key.endswith("dropout")}
    free = OF_STAGES if has_own_stages else ()
    objective = {key: value for key, value in values["objective"].items() if key not in free}
    return {"model": model, "objective": objective, "tokenizer": values["tokenizer"]}


def changes_of(
    base: Settings, settings: Settings, *, has_own_stages: bool = False
) -> Iterator[str]:
    """Settings that differ from the fixed ones of the base."""
    if has_own_stages and "words" in stage_names(settings.objective):
        yield "objective.stages: words would replace the embeddings of the base; omit words"
    for section, held in held_by(base, has_own_stages=has_own_stages).items():
        for key, value in held.items():
            wanted = getattr(getattr(settings, section), key)
            # "auto" means the value of the base.
            if wanted not in (value, "auto"):
                yield f"{section}.{key}: the base has {value!r}; it cannot be changed to {wanted!r}"
