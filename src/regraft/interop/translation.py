"""Which class of transformers holds a model of ours exactly, and with what configuration?

Comes in: a loaded run. Goes out: `Translation`s, each a configuration and tensors for one class,
with our own scores to compare it with. What no class can express is refused, never bent. Imports no
transformers: names and numbers only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regraft.config import ModelSettings, generator_settings
from regraft.errors import ConfigError
from regraft.heads import ClassifierHead, LanguageModelHead, Model, PairHead, ReplacedHead
from regraft.interop.renaming import (
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
from regraft.model import ROTARY_BASE
from regraft.runfolder import LoadedRun

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


def check_expressible(run: LoadedRun) -> None:
    """Refuse a family that transformers has nothing like."""
    if run.settings.model.family == "bag":
        raise ConfigError(
            f"{run.run_dir} is of the bag family, which no class of transformers can express.",
            "None of them looks up vectors for pairs of neighbours.",
            remedy="Export a classifier on it with --format onnx, or take a base of another "
            "--preset.",
        )


def translations(run: LoadedRun) -> list[Translation]:
    """Every model of transformers that this run holds; the first is the export itself."""
    head, kind = run.model.head, run.settings.objective.kind
    if isinstance(head, ClassifierHead):
        return [_classifier(run, head)]
    if isinstance(head, ReplacedHead):
        return _electra(run, head)
    if run.settings.model.family == "lab" and not run.model.backbone.is_causal:
        raise _refused_lab(run)
    assert isinstance(head, LanguageModelHead)
    if kind == "causal":
        return [_causal(run, head)]
    if kind == "hybrid":
        return [_masked(run, head), _causal(run, head, folder="causal")]
    return [_masked(run, head)]


def _classifier(run: LoadedRun, head: ClassifierHead) -> Translation:
    family, pooling = run.settings.model.family, head.pooling
    backbone, between = run.model.backbone, head.between
    name, poolings = _CLASSIFIERS.get((family, backbone.is_causal), ("", ()))
    if not name:
        raise _refused_lab(run)
    if pooling not in poolings:
        raise ConfigError(
            f"{run.run_dir} is a {family} classifier that pools {pooling}, which no class of "
            "transformers does.",
            f"{name}ForSequenceClassification pools {' or '.join(poolings)}.",
            remedy=f"Fine-tune again with --set head.pooling={poolings[0]}, or take --format onnx.",
        )
    labels = dict(enumerate(run.info.labels))
    config = {
        **_config(run),
        "id2label": labels,
        "label2id": {label: number for number, label in labels.items()},
        "problem_type": f"{'multi' if run.info.thresholds else 'single'}_label_classification",
        "use_cache": False,
    }
    if between is None:
        tensors = opt_tensors(run.model, head.linear, head_name="score")
    else:
        tensors = named(head.linear, "classifier")
    if family == "bert" and between is not None:
        tensors.update(bert_tensors(backbone, "bert"), **named(between, "bert.pooler"))
        config.update(is_decoder=backbone.is_causal, classifier_dropout=0.0)
    elif family == "modern" and between is not None:
        tensors.update(named(between, "head"))
        if backbone.is_causal:
            # One switch gives both layers of this head a bias; ours has one in the second only.
            no_bias = torch.zeros(run.settings.model.width)
            tensors.update(decoder_tensors(backbone), **{"head.dense.bias": no_bias})
            config["classifier_bias"] = True
        else:
            tensors.update(modern_tensors(backbone))
            config["classifier_pooling"] = {"first": "cls", "mean": "mean"}[pooling]
    return Translation(
        architecture=f"{name}ForSequenceClassification",
        auto_class="AutoModelForSequenceClassification",
        task="text-classification",
        model_type=_MODEL_TYPES[name],
        config=config,
        tensors=tensors,
        scores=_scores(run.model),
        # Where the first token is read, it is looked for in the first column.
        outputs={"logits": Output(is_of_tokens=False, survives_left_padding=pooling != "first")},
    )


def _causal(run: LoadedRun, head: LanguageModelHead, *, folder: str = "") -> Translation:
    """The class that continues texts."""
    family, backbone = run.settings.model.family, run.model.backbone
    embedding_VD = backbone.embedding.weight
    config = _config(run)
    if family == "lab":
        name, suffix = "OPT", "ForCausalLM"
        tensors = opt_tensors(run.model, head.linear, head_name="lm_head")
    elif family == "bert":
        name, suffix = "Bert", "LMHeadModel"
        tensors = {**bert_tensors(backbone, "bert"), **bert_head_tensors(head, embedding_VD)}
        config["is_decoder"] = True
    else:
        name, suffix = "ModernBertDecoder", "ForCausalLM"
        scores_head = modern_head_tensors(head, embedding_VD, name="lm_head")
        tensors = {**decoder_tensors(backbone), **scores_head}
    return Translation(
        architecture=f"{name}{suffix}",
        auto_class="AutoModelForCausalLM",
        task="text-generation",
        model_type=_MODEL_TYPES[name],
        config=config,
        tensors=tensors,
        scores=_scores(run.model, is_causal=True),
        outputs={"logits": Output(is_of_tokens=True)},
        folder=folder,
        needs_places=family == "bert",
    )


def _masked(run: LoadedRun, head: LanguageModelHead) -> Translation:
    """The class that fills in texts; BERT's own objective has a head for pairs of sentences."""
    backbone = run.model.backbone
    embedding_VD = backbone.embedding.weight
    is_bert = run.settings.model.family == "bert"
    outputs = {"logits": Output(is_of_tokens=True)}
    auto_class, suffix = "AutoModelForMaskedLM", "ForMaskedLM"
    if is_bert:
        tensors = {**bert_tensors(backbone, "bert"), **bert_head_tensors(head, embedding_VD)}
    else:
        scores_head = modern_head_tensors(head, embedding_VD, name="head")
        tensors = {**modern_tensors(backbone), **scores_head}
    if isinstance(head, PairHead):
        auto_class, suffix = "AutoModelForPreTraining", "ForPreTraining"
        tensors.update(named(head.pooler, "bert.pooler"))
        tensors.update(named(head.pair, "cls.seq_relationship"))
        outputs = {
            "prediction_logits": Output(is_of_tokens=True),
            "seq_relationship_logits": Output(is_of_tokens=False, survives_left_padding=False),
        }
    name = "Bert" if is_bert else "ModernBert"
    return Translation(
        architecture=f"{name}{suffix}",
        auto_class=auto_class,
        task="fill-mask",
        model_type=_MODEL_TYPES[name],
        config={**_config(run), "use_cache": False},
        tensors=tensors,
        scores=_scores(run.model),
        outputs=outputs,
        needs_places=is_bert,
    )


def _electra(run: LoadedRun, head: ReplacedHead) -> list[Translation]:
    """The discriminator, and its generator in a folder of its own."""
    settings, backbone, generator = run.settings.model, run.model.backbone, head.generator
    if settings.family != "bert":
        raise ConfigError(
            f"{run.run_dir} is a {settings.family} model pre-trained by the objective replaced, "
            "which no class of transformers holds.",
            "ELECTRA's block is BERT's: biases, learned positions.",
            remedy="Export a classifier grafted onto it, take --format onnx, or pre-train with "
            "--preset bert.",
        )
    config = {**_config(run), "embedding_size": settings.width, "use_cache": False}
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
            scores=_generator_scores(run.model, head),
            outputs=outputs,
            folder="generator",
            needs_places=True,
        ),
    ]


_NO_GENERATOR = (
    "The generator is as wide as the model itself, a shape that ELECTRA's class lacks: it is not "
    "in this export."
)
# (family, is it causal?) -> the class of its classifiers, and which vectors that class can pool.
_CLASSIFIERS = {
    ("lab", True): ("OPT", ("last",)),
    ("bert", False): ("Bert", ("first",)),
    ("bert", True): ("Bert", ("first",)),
    ("modern", False): ("ModernBert", ("mean", "first")),
    ("modern", True): ("ModernBertDecoder", ("last",)),
}
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
        found = model.head(hidden_BTD, real_BT=real_BT, embedding_VD=embedding_VD)
        if not isinstance(model.head, PairHead):
            return {"logits": found}
        pairs_B2 = model.head.pair_scores(hidden_BTD, real_BT=real_BT)
        return {"prediction_logits": found, "seq_relationship_logits": pairs_B2}

    return scores


def _generator_scores(model: Model, head: ReplacedHead) -> Scores:
    def scores(ids_BT: Tensor, real_BT: Tensor, token_types_BT: Tensor) -> dict[str, Tensor]:
        places_BT = model.backbone.places(real_BT)
        sight = model.backbone.sight(real_BT, is_causal=False, places_BT=places_BT)
        embedded_BTD = model.backbone.embed(
            ids_BT, places_BT=places_BT, token_types_BT=token_types_BT
        )
        proposed_BTD = head.generator(embedded_BTD, sight=sight)
        embedding_VD = model.backbone.embedding.weight
        return {"logits": proposed_BTD @ embedding_VD.T + head.generator.bias}

    return scores


def _config(run: LoadedRun) -> dict[str, Any]:
    """What every class of the family is told."""
    settings, tokenizer = run.settings.model, run.tokenizer
    config: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": settings.width,
        "num_hidden_layers": settings.num_layers,
        "num_attention_heads": settings.num_heads,
        "max_position_embeddings": settings.max_positions,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": tokenizer.end_id,
    }
    return {**config, **_FAMILY_CONFIGS[settings.family](settings, run)}


def _opt_config(settings: ModelSettings, run: LoadedRun) -> dict[str, Any]:
    return {
        "ffn_dim": settings.feedforward_width,
        "word_embed_proj_dim": settings.width,
        "do_layer_norm_before": False,
        "activation_function": "relu",
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "tie_word_embeddings": False,
    }


def _bert_config(settings: ModelSettings, run: LoadedRun) -> dict[str, Any]:
    return {
        "intermediate_size": settings.feedforward_width,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": _EPSILON,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.attention_dropout,
    }


def _modern_config(settings: ModelSettings, run: LoadedRun) -> dict[str, Any]:
    separator_id = run.tokenizer.separator_id
    return {
        "intermediate_size": settings.feedforward_width,
        "norm_eps": _EPSILON,
        # Every layer looks at the whole text; ModernBERT itself does so in one of three.
        "layer_types": ["full_attention"] * settings.num_layers,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": ROTARY_BASE},
            "sliding_attention": {"rope_type": "default", "rope_theta": ROTARY_BASE},
        },
        "embedding_dropout": settings.dropout,
        "mlp_dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "cls_token_id": run.tokenizer.start_id,
        "sep_token_id": run.tokenizer.end_id if separator_id is None else separator_id,
    }


_FAMILY_CONFIGS = {"lab": _opt_config, "bert": _bert_config, "modern": _modern_config}


def _refused_lab(run: LoadedRun) -> ConfigError:
    return ConfigError(
        f"{run.run_dir} is a lab model that looks both ways, which no class of transformers holds.",
        "OPT has the lab's block, but looks to the left only.",
        remedy="Take --format onnx, or pre-train with --objective causal or --preset bert.",
    )
