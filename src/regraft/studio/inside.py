"""Inside a model: masks, positions and the parameter ledger, as plain values for the page.

Comes in: a few small numbers. Goes out: what explain.py and ledger.py say of them. The page counts
parameters by itself while a slider moves; what it counts is compared with `counted`.
"""

import dataclasses
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from regraft import explain
from regraft.config import resolve
from regraft.errors import ConfigError
from regraft.ledger import ledger
from regraft.presets import FEEDFORWARD_FACTOR, PRESET_HELP, PRESETS


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Shape(_Asked):
    """The sliders; without classes a language model is counted."""

    preset: Literal["lab", "bert", "modern", "bag"]
    V: int = Field(ge=2, le=1_000_000)
    d: int = Field(ge=2, le=16_384)
    L: int = Field(ge=0, le=256)
    H: int = Field(ge=1, le=256)
    C: int | None = Field(default=None, ge=2, le=10_000)


class MaskShape(_Asked):
    """One row of a batch."""

    causal: bool
    length: int = Field(ge=1, le=48)
    padding: int = Field(ge=0, le=47)
    documents: int = Field(ge=1, le=8)


class PositionsShape(_Asked):
    """Which positions, how many, and how wide."""

    kind: Literal["sinusoidal", "rotary", "learned"]
    length: int = Field(ge=2, le=256)
    width: int = Field(ge=4, le=256, multiple_of=2)


def shapes() -> list[dict[str, Any]]:
    """Every preset with the numbers that its ledger starts from."""
    found = []
    for name in PRESETS:
        settings = resolve("pretrain", preset=name)
        model = settings.model
        found.append(
            {
                "name": name,
                "help": PRESET_HELP[name],
                "family": model.family,
                "V": settings.tokenizer.size,
                "d": model.width,
                "L": model.num_layers,
                "H": model.num_heads,
                "C": 2,
                "M": model.max_positions,
                "N": model.num_pairs,
                "factor": FEEDFORWARD_FACTOR[model.family],
                "objective": settings.objective.kind,
                "pooling": settings.head.pooling,
            }
        )
    return found


def counted(shape: Shape) -> dict[str, Any]:
    """The terms of a preset in another shape, as `regraft params` counts them."""
    settings = resolve("pretrain", preset=shape.preset)
    if shape.L == 0 and settings.model.family != "bag":
        raise ConfigError(
            f"A model of the {settings.model.family} family cannot have 0 layers.",
            "Only a bag has none.",
            remedy="Give 1 layer or more.",
        )
    model = dataclasses.replace(
        settings.model,
        width=shape.d,
        num_layers=shape.L,
        num_heads=shape.H,
        feedforward_width=shape.d * FEEDFORWARD_FACTOR[settings.model.family],
    )
    found = ledger(
        model,
        vocab_size=shape.V,
        num_classes=shape.C,
        max_length=settings.data.max_length,
        batch_size=settings.train.batch_size,
        objective=settings.objective,
        pooling=settings.head.pooling,
    )
    terms = [
        {"name": term.name, "formula": term.formula, "count": term.count} for term in found.terms
    ]
    return {"terms": terms, "total": found.total}


def mask(shape: MaskShape) -> dict[str, Any]:
    """Who may read whom."""
    found = explain.mask_of(
        shape.length,
        is_causal=shape.causal,
        num_padding=shape.padding,
        num_documents=shape.documents,
    )
    return {
        "allowed": found.allowed.astype(int).tolist(),
        "real": found.real.tolist(),
        "documents": found.documents.tolist(),
        "places": found.places.tolist(),
        "title": explain.mask_title(found).replace("\n", "; "),
    }


def positions(shape: PositionsShape) -> dict[str, Any]:
    """A table of positions, one row each, and what its numbers are."""
    if shape.kind == "sinusoidal":
        table_TD = explain.sinusoids(shape.length, width=shape.width)
        told = "Sine and cosine at falling speeds, added to the embedding (lab)."
    elif shape.kind == "rotary":
        table_TD = explain.rotary_angles(shape.length, width=shape.width)
        told = (
            "By how much each pair of a head's columns is turned, from 0 to a full turn (modern)."
        )
    else:
        table_TD = explain.unlearned_positions(shape.length, width=shape.width)
        told = "Before training: random numbers that tell no position from another (bert)."
    return {"table": np.round(table_TD, 4).tolist(), "told": told}
