"""Presets, sizes and arms as plain tables.

A preset lists its differences from the defaults in schema.py, once for each recipe.
"""

from typing import Any, Literal

# `fit` pre-trains, and reads labels as well.
Recipe = Literal["pretrain", "finetune", "fit"]

DEFAULT_PRESET = "modern"
LAB_VOCABULARY = 50_001

_LAB: dict[str, dict[str, Any]] = {
    "tokenizer": {"size": LAB_VOCABULARY},
    "data": {"max_length": 512},
}
_SMALL_MODEL: dict[str, Any] = {
    "width": 256,
    "num_layers": 3,
    "num_heads": 4,
    "dropout": 0.1,
    "attention_dropout": 0,
}
_SMALL_DATA: dict[str, Any] = {"lr": 5e-4, "epochs": 10, "batch_size": 8, "warmup_steps": 20}
_BERT: dict[str, dict[str, Any]] = {
    "model": {**_SMALL_MODEL, "family": "bert", "max_positions": 512},
    "objective": {"kind": "bert"},
    "head": {"pooling": "first"},
}
_MODERN: dict[str, dict[str, Any]] = {
    "model": {**_SMALL_MODEL, "family": "modern"},
    "objective": {"kind": "masked"},
    "head": {"pooling": "mean"},
    # Measured: a masked base classifies single documents better if it was trained on them alone.
    "data": {"packing": "isolated"},
}
# Whole words and whole documents: a bag is cheap at any length.
_BAG: dict[str, dict[str, Any]] = {
    "model": {
        "family": "bag",
        "width": 256,
        "num_layers": 0,
        "num_heads": 1,
        "dropout": 0,
        "attention_dropout": 0,
    },
    "objective": {"kind": "contrast"},
    "head": {"pooling": "mean"},
    "tokenizer": {"kind": "words", "size": 32_768},
    "data": {"max_length": 1024},
}
# Whole words, so that the stage words gives it what a bag knows. Its one layer passes that on.
_STUDENT: dict[str, dict[str, Any]] = {
    "model": {**_SMALL_MODEL, "family": "modern", "num_layers": 1},
    "objective": {"kind": "masked", "stages": "words"},
    "head": {"pooling": "mean"},
    "tokenizer": {"kind": "words", "size": 32_768},
    "data": {"max_length": 512, "packing": "isolated"},
}
PRESETS: dict[str, dict[Recipe, dict[str, dict[str, Any]]]] = {
    "lab": {
        # Lighter dropout than in fine-tuning: minutes of two cores are not hours of a GPU.
        "pretrain": {
            **_LAB,
            "model": {"dropout": 0.1, "attention_dropout": 0},
            # Halves as long as most reviews: positions that are never read are never learned.
            "objective": {
                "stages": "auto",
                "group_size": 16,
                "half_length": 256,
                "sampled_tokens": 1024,
                "num_bags": 8,
                # Language modelling at full weight, or fast lower layers, undo what the bags know.
                "language_weight": 0.3,
            },
            "train": {"lr": 1e-3, "minutes": 15.0, "batch_size": 8, "layer_decay": 0.75},
        },
        "finetune": {
            **_LAB,
            "train": {
                "optimizer": "adam",
                "lr": 1e-4,
                "weight_decay": 0.0,
                "clip_norm": None,
                "schedule": "constant",
                "warmup_steps": 0,
                "batch_size": 8,
                "epochs": 10,
            },
        },
    },
    "bert": {
        "pretrain": {**_BERT, "train": {"minutes": 10.0}},
        "finetune": {**_BERT, "train": _SMALL_DATA},
    },
    "modern": {
        "pretrain": {
            **_MODERN,
            "objective": {**_MODERN["objective"], "stages": "auto"},
            "train": {"minutes": 10.0},
        },
        "finetune": {**_MODERN, "train": _SMALL_DATA},
    },
    "bag": {
        "pretrain": {
            **_BAG,
            "train": {
                "optimizer": "rowwise",
                "lr": 1e-2,
                "epochs": 1,
                "batch_size": 8,
                "warmup_steps": 20,
                # Distinct tokens are read once per half: a step fits in memory whole.
                "micro_batch_tokens": 262_144,
            },
        },
        "finetune": {**_BAG, "train": _SMALL_DATA},
    },
    "student": {
        "pretrain": {**_STUDENT, "train": {"minutes": 10.0}},
        "finetune": {
            **_STUDENT,
            "train": {
                "optimizer": "rowwise",
                "lr": 1e-3,
                "minutes": 10.0,
                "batch_size": 32,
                "warmup_steps": 20,
                # Layers read a tenth of the texts in the same time: five passes of embeddings and
                # head agree with the teacher in 94.7 %, with layers in 93.2 (2026-11-19).
                "layers_after": 1.0,
            },
        },
    },
}
# The defaults for fine-tuning a foreign base, which needs a low learning rate. Users cannot choose
# this preset: without a base there is nothing to build.
FOREIGN_PRESET: dict[str, dict[Recipe, dict[str, dict[str, Any]]]] = {
    "foreign": {"finetune": {"train": {**_SMALL_DATA, "lr": 5e-5, "epochs": 4}}}
}
# Defaults for fine-tuning a base that was made in stages, by preset; the lab's stays as it is. Few
# labels would undo what contrast taught at the rate that networks from scratch need.
STAGED: dict[str, dict[str, dict[str, Any]]] = {
    "modern": {"head": {"start": "regression"}, "train": {"base_rate": 0.1}}
}
PRESET_HELP = {
    "lab": "the lab exercise: vocabulary 50,001, width 200, 4 layers, 2 heads, dropout 0.5, causal",
    "bert": "BERT blocks and objective, sized for two cores",
    "modern": "ModernBERT blocks, masked language modelling, sized for two cores",
    "student": "whole words, stage words, one ModernBERT block: what `regraft distill` trains",
    "bag": "bag of words and bigrams, no attention, contrastive objective; trains in seconds",
}
# Width, layers, heads.
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (64, 2, 2),
    "mini": (128, 3, 2),
    "small": (256, 4, 4),
    "base": (512, 8, 8),
}

# The built-in arms of a comparison. Those of a base take `:NAME` for one of several.
ARMS = {
    "pretrained": "the base with a new head, everything trained",
    "scratch": "the same model with new random weights",
    "frozen": "the base frozen, only its new head trained",
    "linear": "TF-IDF of words and characters + logistic regression, tuned on valid",
    "nbsvm": "naive Bayes ratios of words and pairs + logistic regression (NB-SVM), tuned on valid",
    "latent": "TF-IDF + SVD of unlabelled text + logistic regression, tuned on valid",
    "embedding": "vectors of the frozen base + logistic regression, tuned on valid",
    "lstm": "a new bidirectional LSTM on the tokens of the base",
    "cnn": "a new convolution over the tokens of the base (Kim 2014)",
    "fit": "the blend of `regraft fit`, pre-trained on unlabelled text",
}
DEFAULT_ARMS = ("pretrained", "scratch", "frozen", "linear")
# The blend of `regraft fit` and its members.
FIT_MEMBERS = {
    "blend": "all members together: what regraft predict uses",
    "linear": "TF-IDF of the labelled texts + logistic regression",
    "latent": "TF-IDF + SVD of all text + logistic regression",
    "features": "vectors of the pre-trained bases + logistic regression",
    "encoder": "vectors of the encoder of --base + logistic regression",
}
