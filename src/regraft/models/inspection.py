"""What a model looks at: masks, positions and attention weights, as arrays.

They come from the functions that the backbone itself uses. report/attention_figures draws them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from regraft.errors import ConfigError

if TYPE_CHECKING:
    from regraft.data import Tokenizer
    from regraft.models.heads import Model


@dataclass(frozen=True)
class Mask:
    """One row of a batch: who (rows of `allowed`) may read whom (columns), and what is there.

    `places` are the positions as the model counts them: each document begins at 0.
    """

    allowed: Bool[np.ndarray, "T T"]
    real: Bool[np.ndarray, " T"]
    documents: Int[np.ndarray, " T"]
    places: Int[np.ndarray, " T"]
    is_causal: bool


@dataclass(frozen=True)
class AttentionWeights:
    """Where every position of a text looks, for each layer and head, and the tokens themselves."""

    weights: Float[np.ndarray, "L H T T"]
    tokens: list[str]
    num_cut: int


def attention_over(
    model: "Model", text: str, *, tokenizer: "Tokenizer", max_length: int
) -> AttentionWeights:
    """The attention of a model over a text, cut to `max_length` tokens."""
    import torch

    ids = tokenizer.encode(text)
    framed = tokenizer.framed(ids, max_length=max_length)
    weights_LBHTT = model.backbone.attention_weights(torch.tensor([framed]))
    num_cut = max(len(ids) + tokenizer.num_framing - len(framed), 0)
    return AttentionWeights(weights_LBHTT[:, 0].numpy(), tokenizer.tokens(framed), num_cut=num_cut)


def learned_position_table(model: "Model", *, length: int, name: str) -> Float[np.ndarray, "T D"]:
    """The vectors that a model has learned for its first positions; `name` is for errors."""
    table_PD, family = model.backbone.learned_positions(), model.backbone.settings.family
    if table_PD is None:
        raise ConfigError(
            f"{name} is of the {family} family, which learns no positions.",
            remedy="Use a run of the bert family.",
        )
    if length > len(table_PD):
        raise ConfigError(
            f"{name} has {len(table_PD):,} positions, not {length:,}.", remedy="Lower --length."
        )
    return table_PD[:length].numpy()


def mask_of(length: int, *, is_causal: bool, num_padding: int = 0, num_documents: int = 1) -> Mask:
    """The mask of a row that ends in padding and holds some documents, isolated from each other."""
    import torch

    from regraft.models.masks import attention_mask, places_in_document

    num_real = length - num_padding
    if num_documents > num_real:
        raise ConfigError(
            f"{num_padding} of {length} positions are padding: {max(num_real, 0)} are left for "
            f"{num_documents} document{'s' if num_documents > 1 else ''}.",
            "Every document has at least one token.",
            remedy="Raise --length, or take less --padding or --packed.",
        )
    parts = np.array_split(np.arange(num_real), num_documents)
    documents = np.repeat(np.arange(num_documents), [len(part) for part in parts])
    documents = np.concatenate([documents, np.full(num_padding, num_documents - 1)])
    real_BT = torch.arange(length).unsqueeze(0) < num_real
    segments_BT = torch.from_numpy(documents).unsqueeze(0)
    allowed = attention_mask(real_BT, is_causal=is_causal, segments_BT=segments_BT)
    places_BT = places_in_document(real_BT, segments_BT=segments_BT)
    return Mask(
        allowed=allowed[0, 0].numpy(),
        real=real_BT[0].numpy(),
        documents=documents,
        places=places_BT[0].numpy(),
        is_causal=is_causal,
    )


def sinusoids(length: int, *, width: int) -> Float[np.ndarray, "T D"]:
    """The positions that the lab's backbone adds to the embedding."""
    from regraft.models.layers import sinusoidal_positions

    return sinusoidal_positions(length, width=width).numpy()


def rotary_angles(length: int, *, width: int) -> Float[np.ndarray, "T half"]:
    """Angles by which each pair of a head's columns is turned at each position, from 0 to 2 pi."""
    from regraft.models.layers import rotary_positions

    cos, sin = rotary_positions(length, width=width).numpy()
    angles: Float[np.ndarray, "T half"] = np.arctan2(sin, cos) % (2 * np.pi)
    return angles


def rotary_products(length: int, *, width: int, num_vectors: int = 200) -> Float[np.ndarray, "N T"]:
    """Random queries, each with a key equal to it but for its distance; 1 at distance 0."""
    import torch

    from regraft.models.layers import rotary_positions, turned

    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, num_vectors, 1, width, generator=generator)
    turns = rotary_positions(length, width=width)[:, None, None]
    keys = turned(vectors.expand(-1, -1, length, -1), turns)
    products = (vectors * keys).sum(dim=-1) / vectors.square().sum(dim=-1)
    return products[0].numpy()


def unlearned_positions(length: int, *, width: int) -> Float[np.ndarray, "T D"]:
    """What a bert backbone starts with: random numbers, which say nothing of positions."""
    import torch

    from regraft.models.layers import INITIAL_DEVIATION

    generator = torch.Generator().manual_seed(0)
    return (torch.randn(length, width, generator=generator) * INITIAL_DEVIATION).numpy()


def attention_rollout(weights: Float[np.ndarray, "L H T T"]) -> Float[np.ndarray, "L T T"]:
    """Which input tokens (columns) have reached a position (row) after each layer.

    Abnar & Zuidema 2020, arXiv 2005.00928: a layer passes on half of what a position was and half
    of what its heads read, on the average; layers are multiplied. Rows still add up to 1. It leaves
    out what values and feed-forward layers do, so it is a picture of the paths, not a cause.
    """
    heads_LTT = weights.mean(axis=1, dtype=np.float64)
    steps_LTT = (heads_LTT + np.eye(weights.shape[-1])) / 2
    reached = [steps_LTT[0]]
    for step_TT in steps_LTT[1:]:
        reached.append(step_TT @ reached[-1])
    return np.stack(reached)
