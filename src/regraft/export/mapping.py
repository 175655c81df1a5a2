"""Which class of transformers holds a model of ours exactly, and with what configuration.

Each family has a `FamilyMapping`. What no class can express is refused, never approximated. Imports
no transformers: names and numbers only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from regraft.config import Registry, generator_settings
from regraft.errors import ConfigError
from regraft.export.renaming import (
    Tensors,
    bert_block_tensors,
    bert_embedding_tensors,
    bert_head_tensors,
    bert_tensors,
    decoder_tensors,
    modern_head_tensors,
    modern_tensors,
    named,
    opt_tensors,
)
from regraft.models import (
    ROTARY_BASE,
    BertBackbone,
    ClassifierHead,
    LanguageModelHead,
    Model,
    PairHead,
    ReplacedHead,
    Transformer,
)
from regraft.training import LoadedRun

# nn.LayerNorm's; BERT's own default is another.
_EPSILON = 1e-5

Task = Literal["text-classification", "text-generation", "fill-mask", "feature-extraction"]

# (ids_BT, real_BT, token_types_BT) -> scores by the name of the output.
Scores = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class Output:
    """One output of a class: has every token a score, and may padding stand on the left?"""

    is_of_tokens: bool
    survives_left_padding: bool = True


@dataclass(frozen=True)
class Translation:
    """A model of transformers that computes what ours does.

    `scores` are ours, by the names of `outputs`. `task` is the hub's word for what it does, and
    `folder` "" for the export itself, else a folder inside it. With `needs_places`, positions have
    to be passed when padding is on the left.
    """

    architecture: str
    auto_class: str
    task: Task
    model_type: str
    config: dict[str, Any]
    tensors: Tensors
    scores: Scores
    outputs: Mapping[str, Output]
    folder: str = ""
    needs_places: bool = False
    note: str = ""


class FamilyMapping:
    """How transformers expresses a family: its classes, their configuration and their tensors.

    `classifiers` maps is_causal to a class, without its suffix, and the poolings it has. `name` and
    `decoder` are the classes of language models that look both ways and to the left only.
    """

    classifiers: ClassVar[Mapping[bool, tuple[str, tuple[str, ...]]]]
    name: str
    decoder: str
    decoder_suffix = "ForCausalLM"
    # With padding on the left, positions have to be passed.
    needs_places = False

    def config(self, run: LoadedRun) -> dict[str, Any]:
        """What all classes of the family need beyond the shape."""
        raise NotImplementedError

    def classifier(self, run: LoadedRun, head: ClassifierHead) -> tuple[Tensors, dict[str, Any]]:
        """Tensors of a classifier, and its own part of the configuration."""
        raise NotImplementedError

    def causal(self, model: Model, head: LanguageModelHead) -> tuple[Tensors, dict[str, Any]]:
        """Tensors of a language model that continues text, and its part of the configuration."""
        raise NotImplementedError

    def masked(self, model: Model, head: LanguageModelHead) -> Tensors:
        """Tensors of a language model that fills in text."""
        raise NotImplementedError


MAPPINGS: Registry[FamilyMapping] = Registry("family that transformers expresses")


class _LabMapping(FamilyMapping):
    """OPT has the lab's block, but looks to the left only."""

    classifiers: ClassVar = {True: ("OPT", ("last",))}
    name = decoder = "OPT"

    def config(self, run: LoadedRun) -> dict[str, Any]:
        settings = run.settings.model
        return {
            "ffn_dim": settings.feedforward_width,
            "word_embed_proj_dim": settings.width,
            "do_layer_norm_before": False,
            "activation_function": "relu",
            "dropout": settings.dropout,
            "attention_dropout": settings.attention_dropout,
            "tie_word_embeddings": False,
        }

    def classifier(self, run: LoadedRun, head: ClassifierHead) -> tuple[Tensors, dict[str, Any]]:
        return opt_tensors(run.model, head.linear, head_name="score"), {}

    def causal(self, model: Model, head: LanguageModelHead) -> tuple[Tensors, dict[str, Any]]:
        return opt_tensors(model, head.linear, head_name="lm_head"), {}


class _BertMapping(FamilyMapping):
    """BERT, which also reads to the left only, by a switch."""

    classifiers: ClassVar = {False: ("Bert", ("first",)), True: ("Bert", ("first",))}
    name = decoder = "Bert"
    decoder_suffix = "LMHeadModel"
    needs_places = True

    def config(self, run: LoadedRun) -> dict[str, Any]:
        settings = run.settings.model
        return {
            "intermediate_size": settings.feedforward_width,
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "layer_norm_eps": _EPSILON,
            "hidden_dropout_prob": settings.dropout,
            "attention_probs_dropout_prob": settings.attention_dropout,
        }

    def classifier(self, run: LoadedRun, head: ClassifierHead) -> tuple[Tensors, dict[str, Any]]:
        assert head.between is not None
        tensors = {
            **named(head.linear, "classifier"),
            **bert_tensors(run.model.backbone, "bert"),
            **named(head.between, "bert.pooler"),
        }
        return tensors, {"is_decoder": run.model.backbone.is_causal, "classifier_dropout": 0.0}

    def causal(self, model: Model, head: LanguageModelHead) -> tuple[Tensors, dict[str, Any]]:
        return self.masked(model, head), {"is_decoder": True}

    def masked(self, model: Model, head: LanguageModelHead) -> Tensors:
        backbone = model.backbone
        return {
            **bert_tensors(backbone, "bert"),
            **bert_head_tensors(head, backbone.embedding.weight),
        }


class _ModernMapping(FamilyMapping):
    """ModernBERT, and its decoder for what looks to the left only."""

    classifiers: ClassVar = {
        False: ("ModernBert", ("mean", "first")),
        True: ("ModernBertDecoder", ("last",)),
    }
    name, decoder = "ModernBert", "ModernBertDecoder"

    def config(self, run: LoadedRun) -> dict[str, Any]:
        settings, separator_id = run.settings.model, run.tokenizer.separator_id
        rotary = {"rope_type": "default", "rope_theta": ROTARY_BASE}
        return {
            "intermediate_size": settings.feedforward_width,
            "norm_eps": _EPSILON,
            # Every layer looks at the whole text; ModernBERT itself does so in one of three.
            "layer_types": ["full_attention"] * settings.num_layers,
            "rope_parameters": {"full_attention": rotary, "sliding_attention": rotary},
            "embedding_dropout": settings.dropout,
            "mlp_dropout": settings.dropout,
            "attention_dropout": settings.attention_dropout,
            "cls_token_id": run.tokenizer.start_id,
            "sep_token_id": run.tokenizer.end_id if separator_id is None else separator_id,
        }

    def classifier(self, run: LoadedRun, head: ClassifierHead) -> tuple[Tensors, dict[str, Any]]:
        assert head.between is not None
        backbone = run.model.backbone
        tensors = {**named(head.linear, "classifier"), **named(head.between, "head")}
        if not backbone.is_causal:
            pooling = {"first": "cls", "mean": "mean"}[head.pooling]
            return {**tensors, **modern_tensors(backbone)}, {"classifier_pooling": pooling}
        # One switch gives both layers of this head a bias; ours has one in the second only.
        no_bias = {"head.dense.bias": torch.zeros(backbone.settings.width)}
        return {**tensors, **decoder_tensors(backbone), **no_bias}, {"classifier_bias": True}

    def causal(self, model: Model, head: LanguageModelHead) -> tuple[Tensors, dict[str, Any]]:
        backbone = model.backbone
        scores = modern_head_tensors(head, backbone.embedding.weight, name="lm_head")
        return {**decoder_tensors(backbone), **scores}, {}

    def masked(self, model: Model, head: LanguageModelHead) -> Tensors:
        backbone = model.backbone
        scores = modern_head_tensors(head, backbone.embedding.weight, name="head")
        return {**modern_tensors(backbone), **scores}


MAPPINGS.register("lab")(_LabMapping())
MAPPINGS.register("bert")(_BertMapping())
MAPPINGS.register("modern")(_ModernMapping())


def check_expressible(run: LoadedRun) -> None:
    """Refuse a family that transformers has nothing like."""
    model = run.settings.model
    if model.family not in MAPPINGS and not model.traits.is_foreign:
        raise ConfigError(
            f"{run.run_dir} is of the {model.family} family, which no class of transformers can "
            "express.",
            remedy="Export a classifier on it with --format onnx, or use a base of another "
            "--preset.",
        )


def translations(run: LoadedRun) -> list[Translation]:
    """Every model of transformers that this run holds; the first is the export itself."""
    head, kind = run.model.head, run.settings.objective.kind
    mapping = MAPPINGS[run.settings.model.family]
    if isinstance(head, ClassifierHead):
        return [_classifier(run, head, mapping)]
    if isinstance(head, ReplacedHead):
        return _electra(run, head)
    if run.model.backbone.is_causal not in mapping.classifiers:
        raise _refused_direction(run)
    assert isinstance(head, LanguageModelHead)
    if kind == "causal":
        return [_causal(run, head, mapping)]
    if kind == "hybrid":
        return [_masked(run, head, mapping), _causal(run, head, mapping, folder="causal")]
    return [_masked(run, head, mapping)]


def _classifier(run: LoadedRun, head: ClassifierHead, mapping: FamilyMapping) -> Translation:
    pooling, is_causal = head.pooling, run.model.backbone.is_causal
    if is_causal not in mapping.classifiers:
        raise _refused_direction(run)
    name, poolings = mapping.classifiers[is_causal]
    if pooling not in poolings:
        raise ConfigError(
            f"{run.run_dir} is a {run.settings.model.family} classifier that pools {pooling}, "
            "which no class of transformers does.",
            f"{name}ForSequenceClassification pools {' or '.join(poolings)}.",
            remedy=f"Fine-tune again with --set head.pooling={poolings[0]}, or use --format onnx.",
        )
    labels = dict(enumerate(run.info.labels))
    tensors, config = mapping.classifier(run, head)
    return Translation(
        architecture=f"{name}ForSequenceClassification",
        auto_class="AutoModelForSequenceClassification",
        task="text-classification",
        model_type=_MODEL_TYPES[name],
        config={
            **_config(run, mapping),
            "id2label": labels,
            "label2id": {label: number for number, label in labels.items()},
            "problem_type": f"{'multi' if run.info.thresholds else 'single'}_label_classification",
            "use_cache": False,
            **config,
        },
        tensors=tensors,
        scores=_scores(run.model),
        # Where the first token is read, it is looked for in the first column.
        outputs={"logits": Output(is_of_tokens=False, survives_left_padding=pooling != "first")},
    )


def _causal(
    run: LoadedRun, head: LanguageModelHead, mapping: FamilyMapping, *, folder: str = ""
) -> Translation:
    """The class that continues texts."""
    tensors, config = mapping.causal(run.model, head)
    return Translation(
        architecture=f"{mapping.decoder}{mapping.decoder_suffix}",
        auto_class="AutoModelForCausalLM",
        task="text-generation",
        model_type=_MODEL_TYPES[mapping.decoder],
        config={**_config(run, mapping), **config},
        tensors=tensors,
        scores=_scores(run.model, is_causal=True),
        outputs={"logits": Output(is_of_tokens=True)},
        folder=folder,
        needs_places=mapping.needs_places,
    )


def _masked(run: LoadedRun, head: LanguageModelHead, mapping: FamilyMapping) -> Translation:
    """The class that fills in texts; BERT's own objective has a head for pairs of sentences."""
    tensors = mapping.masked(run.model, head)
    outputs = {"logits": Output(is_of_tokens=True)}
    auto_class, suffix = "AutoModelForMaskedLM", "ForMaskedLM"
    if isinstance(head, PairHead):
        auto_class, suffix = "AutoModelForPreTraining", "ForPreTraining"
        tensors.update(named(head.pooler, "bert.pooler"))
        tensors.update(named(head.pair, "cls.seq_relationship"))
        outputs = {
            "prediction_logits": Output(is_of_tokens=True),
            "seq_relationship_logits": Output(is_of_tokens=False, survives_left_padding=False),
        }
    return Translation(
        architecture=f"{mapping.name}{suffix}",
        auto_class=auto_class,
        task="fill-mask",
        model_type=_MODEL_TYPES[mapping.name],
        config={**_config(run, mapping), "use_cache": False},
        tensors=tensors,
        scores=_scores(run.model),
        outputs=outputs,
        needs_places=mapping.needs_places,
    )


def _electra(run: LoadedRun, head: ReplacedHead) -> list[Translation]:
    """The discriminator, and its generator in its own folder."""
    settings, backbone, generator = run.settings.model, run.model.backbone, head.generator
    if not isinstance(backbone, BertBackbone):
        raise ConfigError(
            f"{run.run_dir} is a {settings.family} model pre-trained by the objective replaced, "
            "which no class of transformers holds.",
            "ELECTRA's block is BERT's: biases, learned positions.",
            remedy="Export a classifier grafted onto it, use --format onnx, or pre-train with "
            "--preset bert.",
        )
    mapping = MAPPINGS[settings.family]
    config = {**_config(run, mapping), "embedding_size": settings.width, "use_cache": False}
    outputs = {"logits": Output(is_of_tokens=True)}
    narrow = generator_settings(settings, share=run.settings.objective.generator_share)
    # ELECTRA projects embeddings only where the widths differ; our generator always does.
    has_generator = narrow.width != settings.width
    discriminator = Translation(
        architecture="ElectraForPreTraining",
        auto_class="AutoModelForPreTraining",
        task="feature-extraction",
        model_type="electra",
        config=config,
        tensors={
            **bert_tensors(backbone, "electra"),
            **named(head.dense, "discriminator_predictions.dense"),
            **named(head.linear, "discriminator_predictions.dense_prediction"),
        },
        scores=_scores(run.model),
        outputs=outputs,
        needs_places=True,
        note="" if has_generator else _NO_GENERATOR,
    )
    if not has_generator:
        return [discriminator]
    return [
        discriminator,
        Translation(
            architecture="ElectraForMaskedLM",
            auto_class="AutoModelForMaskedLM",
            task="fill-mask",
            model_type="electra",
            config={
                **config,
                "hidden_size": narrow.width,
                "num_attention_heads": narrow.num_heads,
                "intermediate_size": narrow.feedforward_width,
            },
            tensors={
                **bert_embedding_tensors(backbone, "electra"),
                **named(generator.narrow, "electra.embeddings_project"),
                **bert_block_tensors(generator.blocks, "electra"),
                **named(generator.widen, "generator_predictions.dense"),
                **named(generator.norm, "generator_predictions.LayerNorm"),
                "generator_lm_head.weight": backbone.embedding.weight,
                "generator_lm_head.bias": generator.bias,
            },
            scores=_generator_scores(backbone, head),
            outputs=outputs,
            folder="generator",
            needs_places=True,
        ),
    ]


_NO_GENERATOR = (
    "The generator is as wide as the model itself, a shape that ELECTRA's class lacks: it is not "
    "in this export."
)

_MODEL_TYPES = {
    "OPT": "opt",
    "Bert": "bert",
    "ModernBert": "modernbert",
    "ModernBertDecoder": "modernbert-decoder",
}


def _scores(model: Model, *, is_causal: bool | None = None) -> Scores:
    def scores(ids_BT: Tensor, real_BT: Tensor, token_types_BT: Tensor) -> dict[str, Tensor]:
        hidden_BTD = model.backbone(
            ids_BT, real_BT=real_BT, token_types_BT=token_types_BT, is_causal=is_causal
        )
        embedding_VD = model.backbone.embedding.weight
        scores_of_head = model.head(hidden_BTD, real_BT=real_BT, embedding_VD=embedding_VD)
        if not isinstance(model.head, PairHead):
            return {"logits": scores_of_head}
        pairs_B2 = model.head.pair_scores(hidden_BTD, real_BT=real_BT)
        return {"prediction_logits": scores_of_head, "seq_relationship_logits": pairs_B2}

    return scores


def _generator_scores(backbone: Transformer, head: ReplacedHead) -> Scores:
    def scores(ids_BT: Tensor, real_BT: Tensor, token_types_BT: Tensor) -> dict[str, Tensor]:
        places_BT = backbone.places(real_BT)
        sight = backbone.sight(real_BT, is_causal=False, places_BT=places_BT)
        embedded_BTD = backbone.embed(ids_BT, places_BT=places_BT, token_types_BT=token_types_BT)
        proposed_BTD = head.generator(embedded_BTD, sight=sight)
        embedding_VD = backbone.embedding.weight
        return {"logits": proposed_BTD @ embedding_VD.T + head.generator.bias}

    return scores


def _config(run: LoadedRun, mapping: FamilyMapping) -> dict[str, Any]:
    """What every class of the family is configured with."""
    settings, tokenizer = run.settings.model, run.tokenizer
    return {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": settings.width,
        "num_hidden_layers": settings.num_layers,
        "num_attention_heads": settings.num_heads,
        "max_position_embeddings": settings.max_positions,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": tokenizer.end_id,
        **mapping.config(run),
    }


def _refused_direction(run: LoadedRun) -> ConfigError:
    family = run.settings.model.family
    both = "to the left only" if run.model.backbone.is_causal else "both ways"
    return ConfigError(
        f"{run.run_dir} is a {family} model that looks {both}, which no class of transformers "
        "does.",
        remedy="Use --format onnx, or pre-train with --objective causal or --preset bert.",
    )
