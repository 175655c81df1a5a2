"""What can be chosen by name? The presets, sizes and arms, each a plain table.

A preset is written as its differences from the defaults in config.py, once for each recipe. Comes
in: nothing. Goes out: names and values, which config.py lays under what the user gives and
validates. Knows no setting's type or range.
"""

from typing import Any, Literal

Recipe = Literal["pretrain", "finetune"]

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
    # Judged on documents alone, as a classifier reads them, a masked base is the better for it.
    "data": {"packing": "isolated"},
}
# Whole words, and all of a document: a bag does not pay for its length.
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
PRESETS: dict[str, dict[Recipe, dict[str, dict[str, Any]]]] = {
    "lab": {
        "pretrain": {**_LAB, "train": {"lr": 1e-3, "epochs": 1, "batch_size": 8}},
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
        "pretrain": {**_MODERN, "train": {"minutes": 10.0}},
        "finetune": {**_MODERN, "train": _SMALL_DATA},
    },
    "bag": {
        "pretrain": {
            **_BAG,
            "train": {"lr": 1e-2, "epochs": 1, "batch_size": 8, "warmup_steps": 20},
        },
        "finetune": {**_BAG, "train": _SMALL_DATA},
    },
}
# Where fine-tuning of a foreign base starts: a base that learned for long moves in small steps. It
# is no preset to choose, for without a base there is nothing to build.
FOREIGN_PRESET: dict[str, dict[Recipe, dict[str, dict[str, Any]]]] = {
    "foreign": {"finetune": {"train": {**_SMALL_DATA, "lr": 5e-5, "epochs": 4}}}
}
PRESET_HELP = {
    "lab": "the founding exercise exactly: V 50,001, d 200, 4 layers, 2 heads, dropout 0.5, causal",
    "bert": "BERT's block and objective, sized for two cores",
    "modern": "ModernBERT's block, masked objective, sized for two cores",
    "bag": "words and pairs of neighbours, no attention, contrast of halves: seconds, not minutes",
}
# Feed-forward width over width, where it is left to the family. A GeGLU has three matrices.
FEEDFORWARD_FACTOR = {"lab": 1, "bert": 4, "modern": 2, "bag": 1}
# One dial for the shape; the numbers are width, layers, heads.
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (64, 2, 2),
    "mini": (128, 3, 2),
    "small": (256, 4, 4),
    "base": (512, 8, 8),
}

# The arms of a comparison, and what each is. Those of a base take `:NAME` for one of several.
ARMS = {
    "pretrained": "the base with a new head, everything trained",
    "scratch": "the same model with new random weights",
    "frozen": "the base untouched, only its new head trained",
    "linear": "TF-IDF of words and characters + logistic regression, tuned on valid",
    "nbsvm": "naive Bayes ratios of words and pairs + logistic regression (NB-SVM), tuned on valid",
    "latent": "TF-IDF + SVD of text without labels + logistic regression, tuned on valid",
    "embedding": "mean vectors of the untouched base + logistic regression, tuned on valid",
    "lstm": "a new bidirectional LSTM on the tokens of the base",
    "cnn": "a new convolution over the tokens of the base (Kim 2014)",
}
DEFAULT_ARMS = ("pretrained", "scratch", "frozen", "linear")
# What takes part in gradients; the others are fitted in one go, and know no seed of their own.
NETWORKS = ("pretrained", "scratch", "frozen", "lstm", "cnn")
ARMS_OF_A_BASE = ("pretrained", "scratch", "frozen", "embedding")
