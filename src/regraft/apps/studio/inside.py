"""Inside a model: parameter counts, masks and positions as plain values for the page."""

import dataclasses
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from regraft.config import PRESET_HELP, PRESETS, resolve
from regraft.errors import ConfigError
from regraft.models import SYMBOLS, ledger, mask_of, rotary_angles, sinusoids, unlearned_positions
from regraft.report import mask_title


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Shape(_Asked):
    """The values of the sliders; without classes, those of a language model."""

    preset: Literal["lab", "bert", "modern", "bag", "student"]
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
    """Every preset with its shape, where the sliders start."""
    presets = []
    for name in PRESETS:
        settings = resolve("pretrain", preset=name)
        model = settings.model
        presets.append(
            {
                "name": name,
                "help": PRESET_HELP[name],
                "family": model.family,
                "V": settings.tokenizer.size,
                "d": model.width,
                "L": model.num_layers,
                "H": model.num_heads,
                "C": 2,
            }
        )
    return presets


def parameters(shape: Shape) -> dict[str, Any]:
    """The parameters of a preset in another shape, term by term, as `regraft params` counts them.

    `letters` are those of the formulas that no slider shows.
    """
    settings = resolve("pretrain", preset=shape.preset)
    if shape.L == 0 and settings.model.traits.has_layers:
        raise ConfigError(
            f"A model of the {settings.model.family} family cannot have 0 layers.",
            remedy="Choose 1 layer or more; only a bag has none.",
        )
    model = dataclasses.replace(
        settings.model,
        width=shape.d,
        num_layers=shape.L,
        num_heads=shape.H,
        feedforward_width=shape.d * settings.model.traits.feedforward_factor,
    )
    count = ledger(
        model,
        vocab_size=shape.V,
        num_classes=shape.C,
        max_length=settings.data.max_length,
        batch_size=settings.train.batch_size,
        objective=settings.objective,
        pooling=settings.head.pooling,
    )
    letters = [
        {"letter": letter, "value": value, "name": SYMBOLS[letter]}
        for letter, value in count.symbols.items()
        if letter not in Shape.model_fields and any(letter in term.formula for term in count.terms)
    ]
    terms = [
        {"name": term.name, "formula": term.formula, "count": term.count} for term in count.terms
    ]
    return {"terms": terms, "total": count.total, "letters": letters}


def mask(shape: MaskShape) -> dict[str, Any]:
    """Which position attends to which."""
    drawn = mask_of(
        shape.length,
        is_causal=shape.causal,
        num_padding=shape.padding,
        num_documents=shape.documents,
    )
    return {
        "allowed": drawn.allowed.astype(int).tolist(),
        "real": drawn.real.tolist(),
        "documents": drawn.documents.tolist(),
        "places": drawn.places.tolist(),
        "title": mask_title(drawn).replace("\n", "; "),
    }


def positions(shape: PositionsShape) -> dict[str, Any]:
    """A table with one row per position, and what its numbers mean."""
    if shape.kind == "sinusoidal":
        table_TD = sinusoids(shape.length, width=shape.width)
        note = "Sines and cosines of decreasing frequency, added to the embedding (lab)."
    elif shape.kind == "rotary":
        table_TD = rotary_angles(shape.length, width=shape.width)
        note = "The angle by which each pair of columns of a head is rotated (modern)."
    else:
        table_TD = unlearned_positions(shape.length, width=shape.width)
        note = "Random numbers before training (bert)."
    return {"table": np.round(table_TD, 4).tolist(), "caption": note}
