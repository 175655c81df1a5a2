"""Backbones: token ids in, one vector per token out. No head, no loss, no training.

`Backbone` is what heads, objectives and exports know. A family is a subclass, registered by name;
`Transformer` is what the families lab, bert and modern have in common.
"""

import math
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regraft.config import FAMILIES, FamilyTraits, ModelSettings, Registry
from regraft.data import TokenStore
from regraft.errors import ConfigError
from regraft.models.layers import (
    Block,
    Dropout,
    KeyValueCache,
    LabBlock,
    Pooler,
    PostNormBlock,
    PreNormBlock,
    Sight,
    Transform,
    mean_of_real,
    rotary_positions,
    sinusoidal_positions,
    start_small,
)
from regraft.models.masks import (
    attention_mask,
    is_one_document,
    is_right_padded,
    places_in_document,
)
from regraft.models.parameter_count import COUNTS, FamilyCount

# Blocks of the lab pass on vectors of this size: attention, whose scores are products of two, then
# learns slowly, and sums keep their shares.
_QUIET = 0.3

BackboneClass = TypeVar("BackboneClass", bound="type[Backbone]")


class Backbone(nn.Module):
    """The part of a model that pre-training pays for: ids in, a vector per token out.

    A subclass has an embedding, a list of blocks and a `forward`. The class attributes tell heads
    how to read its vectors: is the language model's output tied to the embedding (Press & Wolf
    2017), do its dense layers have biases, does only the direction of a pooled vector count, do its
    weights start as small as BERT's?
    """

    embedding: nn.Embedding
    blocks: nn.ModuleList
    is_tied: ClassVar[bool] = True
    has_bias: ClassVar[bool] = True
    reads_direction: ClassVar[bool] = False
    starts_small: ClassVar[bool] = True
    # While training: embeddings go past the layers (train.layers_after).
    skips_layers: bool = False

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings

    @classmethod
    def build(cls, settings: ModelSettings, *, vocab_size: int) -> "Backbone":
        """A new random backbone of this family."""
        raise NotImplementedError

    @property
    def is_causal(self) -> bool:
        """Does a token look to the left only by default?"""
        return self.settings.attention != "bidirectional"

    def forward(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"] | None = None,
        segments_BT: Int[Tensor, "B T"] | None = None,
        token_types_BT: Int[Tensor, "B T"] | None = None,
        is_causal: bool | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Vectors of every position; `real_BT` is False at padding, on either side.

        Documents with different `segments_BT` do not see each other, and each starts at position
        0. Vectors at padding positions mean nothing. With a cache, ids continue what it has read.
        """
        raise NotImplementedError

    def traced(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"],
        token_types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """`forward` without shortcuts that depend on values, which a traced graph cannot take."""
        return self(ids_BT, real_BT=real_BT, token_types_BT=token_types_BT)

    def mean_vectors(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B D"]:
        """The mean of the vectors of each row."""
        return mean_of_real(self(ids_BT, real_BT=real_BT), real_BT=real_BT)

    def attention_weights(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "L B H T T"]:
        """Where each position looks, for every layer and head."""
        raise ConfigError(
            f"The {self.settings.family} family has no attention: no token looks at others.",
            remedy="Use a model of another family, such as lab, bert or modern.",
        )

    def learned_positions(self) -> Float[Tensor, "P D"] | None:
        """The vectors learned for positions; None in families that learn none."""
        return None

    def prepare(self, store: TokenStore) -> None:
        """Count in the training text what is counted rather than trained; mostly nothing."""

    def pass_on_embeddings(
        self, *, num_kept: int | None, position_shares_T: Float[Tensor, " T"]
    ) -> None:
        """Let untrained layers read a text as the mean of its embeddings; here are none.

        With `num_kept` the mean is gathered in each vector, except in its last `num_kept` columns.
        `position_shares_T` says how often a token stands at each position.
        """

    @classmethod
    def build_blocks(cls, settings: ModelSettings) -> nn.ModuleList:
        """New random layers of this family, as ELECTRA's generator needs them, too."""
        raise NotImplementedError

    @classmethod
    def build_final_norm(cls, width: int) -> nn.Module:
        """What follows the last layer."""
        return nn.Identity()

    @classmethod
    def build_transform(cls, width: int) -> Transform:
        """What a language model puts between the backbone and the scores, where they are tied."""
        return Transform(width, has_bias=cls.has_bias)

    @classmethod
    def build_between(cls, width: int, *, pooling: str) -> Pooler | Transform | None:
        """What a classifier puts between the pooled vector and its scores."""
        return None


_BACKBONES: Registry[type[Backbone]] = Registry("family")


def register_family(
    name: str, traits: FamilyTraits | None = None, *, count: FamilyCount | None = None
) -> Callable[[BackboneClass], BackboneClass]:
    """A decorator that makes a Backbone the family of this name, for `--set model.family=`.

    The traits are what rules need to know without building it; `count` counts its parameters.
    """

    def register(backbone_class: BackboneClass) -> BackboneClass:
        _BACKBONES.register(name)(backbone_class)
        if traits is not None or name not in FAMILIES:
            FAMILIES.register(name)(traits or FamilyTraits())
        if count is not None:
            COUNTS.register(name)(count)
        return backbone_class

    return register


def unregister_family(name: str) -> None:
    """Forget a family."""
    _BACKBONES.unregister(name)
    FAMILIES.unregister(name)
    if name in COUNTS:
        COUNTS.unregister(name)


def family_class(name: str) -> type[Backbone]:
    """The class that is registered for a family."""
    return _BACKBONES[name]


class Transformer(Backbone):
    """Embedded tokens through blocks with attention; families differ in blocks and positions."""

    block: ClassVar[type[Block]]

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__(settings)
        self.embedding = nn.Embedding(vocab_size, settings.width)
        self.build_positions()
        self.dropout = Dropout(settings.dropout)
        self.blocks = self.build_blocks(settings)
        self.start()

    @classmethod
    def build(cls, settings: ModelSettings, *, vocab_size: int) -> Backbone:
        return cls(settings, vocab_size=vocab_size)

    @classmethod
    def build_blocks(cls, settings: ModelSettings) -> nn.ModuleList:
        layers = range(settings.num_layers)
        return nn.ModuleList(cls.block(settings, layer=layer) for layer in layers)

    def build_positions(self) -> None:
        """Tables and norms of the embedding, before any block is built."""
        raise NotImplementedError

    def start(self) -> None:
        """The initial weights."""
        start_small(self)

    def pass_on_embeddings(
        self, *, num_kept: int | None, position_shares_T: Float[Tensor, " T"]
    ) -> None:
        for block in self.blocks:
            assert isinstance(block, Block)
            # A vector that stands for the whole text has to gather it once, as late as possible.
            if num_kept is not None and block is self.blocks[-1]:
                block.start_as_mean(num_kept=num_kept)
            else:
                block.start_as_identity()

    def embed(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        places_BT: Int[Tensor, "B T"] | None = None,
        start: int = 0,
        token_types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Vectors of tokens at `places_BT`, or at consecutive positions from `start` on."""
        raise NotImplementedError

    def turns(
        self, places_BT: Int[Tensor, "B T"] | None, *, start: int = 0, length: int = 0
    ) -> Float[Tensor, "2 b 1 T half"] | None:
        """Cosines and sines of rotary positions, where a family has them.

        `start` and `length` count only where no places are given.
        """
        return None

    def forward(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"] | None = None,
        segments_BT: Int[Tensor, "B T"] | None = None,
        token_types_BT: Int[Tensor, "B T"] | None = None,
        is_causal: bool | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        assert cache is None or (real_BT is None and segments_BT is None), "a cache reads one text"
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        is_causal = self.is_causal if is_causal is None else is_causal
        assert cache is None or is_causal, "only a causal text can be read bit by bit"
        start = 0 if cache is None else len(cache)
        places_BT = self.places(real_BT, segments_BT=segments_BT)
        sight = self.sight(
            real_BT, is_causal=is_causal, segments_BT=segments_BT, places_BT=places_BT, start=start
        )
        x_BTD = self.embed(ids_BT, places_BT=places_BT, start=start, token_types_BT=token_types_BT)
        return self._through_blocks(x_BTD, sight=sight, cache=cache)

    def traced(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"],
        token_types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        places_BT = places_in_document(real_BT)
        sight = Sight(
            is_causal=self.is_causal,
            mask=attention_mask(real_BT, is_causal=self.is_causal),
            turns=self.turns(places_BT),  # the length is symbolic while a graph is traced
        )
        x_BTD = self.embed(ids_BT, places_BT=places_BT, token_types_BT=token_types_BT)
        return self._through_blocks(x_BTD, sight=sight)

    def _through_blocks(
        self, x_BTD: Tensor, *, sight: Sight, cache: KeyValueCache | None = None
    ) -> Tensor:
        if self.training and self.skips_layers:
            return x_BTD
        for block in self.blocks:
            x_BTD = block(x_BTD, sight=sight, cache=cache)
        return x_BTD

    @torch.no_grad()
    def attention_weights(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "L B H T T"]:
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        places_BT = self.places(real_BT)
        sight = self.sight(real_BT, is_causal=self.is_causal, places_BT=places_BT)
        x_BTD = self.embed(ids_BT, places_BT=places_BT)
        weights = []
        for block in self.blocks:
            assert isinstance(block, Block)
            weights.append(block.attention_weights(x_BTD, sight=sight))
            x_BTD = block(x_BTD, sight=sight)
        return torch.stack(weights)

    def places(
        self, real_BT: Bool[Tensor, "B T"], *, segments_BT: Int[Tensor, "B T"] | None = None
    ) -> Int[Tensor, "B T"] | None:
        """The position of every token; None where it is simply the column."""
        if is_right_padded(real_BT) and is_one_document(segments_BT):
            return None
        return places_in_document(real_BT, segments_BT=segments_BT)

    def sight(
        self,
        real_BT: Bool[Tensor, "B T"],
        *,
        is_causal: bool,
        places_BT: Int[Tensor, "B T"] | None,
        segments_BT: Int[Tensor, "B T"] | None = None,
        start: int = 0,
    ) -> Sight:
        """What the tokens of a batch may look at. Without a mask, attention is on its fast path."""
        mask = None
        # Behind the real tokens, padding is ahead of them: the square mask hides it already.
        is_hidden = is_causal or bool(real_BT.all())
        if places_BT is not None or not is_hidden:
            mask = attention_mask(real_BT, is_causal=is_causal, segments_BT=segments_BT)
        turns = self.turns(places_BT, start=start, length=real_BT.shape[1])
        return Sight(is_causal=is_causal, mask=mask, turns=turns)


def _columns(
    ids_BT: Tensor, *, places_BT: Tensor | None, start: int
) -> "slice[int, int, None] | Tensor":
    return slice(start, start + ids_BT.shape[1]) if places_BT is None else places_BT


@register_family("lab")
class LabBackbone(Transformer):
    """Post-norm and ReLU; sinusoids are added to embeddings times sqrt(D)."""

    block = LabBlock
    is_tied = False
    starts_small = False
    positions_TD: Tensor

    def build_positions(self) -> None:
        settings = self.settings
        table_TD = sinusoidal_positions(settings.max_positions, width=settings.width)
        self.register_buffer("positions_TD", table_TD, persistent=False)

    def start(self) -> None:
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def pass_on_embeddings(
        self, *, num_kept: int | None, position_shares_T: Float[Tensor, " T"]
    ) -> None:
        super().pass_on_embeddings(num_kept=num_kept, position_shares_T=position_shares_T)
        # Slow sinusoids are nearly the same everywhere. What all texts have in common, and where
        # attention looks, is another with dropout than without, so that fine-tuned classes drift
        # apart: after five epochs of the lab the median logit on valid was -4 (2026-11-18).
        common_D = position_shares_T @ self.positions_TD[: len(position_shares_T)]
        with torch.no_grad():
            self.embedding.weight -= common_D / math.sqrt(self.settings.width)
            for block in list(self.blocks)[:-1]:
                assert isinstance(block, LabBlock)
                block.norm2.weight.mul_(_QUIET)

    def embed(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        places_BT: Int[Tensor, "B T"] | None = None,
        start: int = 0,
        token_types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        here = _columns(ids_BT, places_BT=places_BT, start=start)
        scaled_BTD = self.embedding(ids_BT) * math.sqrt(self.settings.width)
        return self.dropout(scaled_BTD + self.positions_TD[here])


@register_family("bert")
class BertBackbone(Transformer):
    """Post-norm and GELU; learned positions and token types are added and normalised."""

    block = PostNormBlock

    def build_positions(self) -> None:
        width = self.settings.width
        self.positions = nn.Embedding(self.settings.max_positions, width)
        self.token_types = nn.Embedding(2, width)
        self.embedding_norm = nn.LayerNorm(width)

    @classmethod
    def build_between(cls, width: int, *, pooling: str) -> Pooler | None:
        return Pooler(width) if pooling == "first" else None

    def learned_positions(self) -> Float[Tensor, "P D"]:
        return self.positions.weight.detach()

    def embed(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        places_BT: Int[Tensor, "B T"] | None = None,
        start: int = 0,
        token_types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        here = _columns(ids_BT, places_BT=places_BT, start=start)
        types_BT = torch.zeros_like(ids_BT) if token_types_BT is None else token_types_BT
        x_BTD = self.embedding(ids_BT) + self.positions.weight[here] + self.token_types(types_BT)
        return self.dropout(self.embedding_norm(x_BTD))


@register_family("modern")
class ModernBackbone(Transformer):
    """Pre-norm, GeGLU and no biases; rotary positions turn queries and keys."""

    block = PreNormBlock
    has_bias = False
    rotary_2PK: Tensor

    def build_positions(self) -> None:
        settings = self.settings
        table = rotary_positions(settings.max_positions, width=settings.width // settings.num_heads)
        self.register_buffer("rotary_2PK", table, persistent=False)
        self.embedding_norm = nn.LayerNorm(settings.width, bias=False)
        self.final_norm = self.build_final_norm(settings.width)

    @classmethod
    def build_final_norm(cls, width: int) -> nn.Module:
        return nn.LayerNorm(width, bias=False)

    @classmethod
    def build_between(cls, width: int, *, pooling: str) -> Transform:
        return cls.build_transform(width)

    def turns(
        self, places_BT: Int[Tensor, "B T"] | None, *, start: int = 0, length: int = 0
    ) -> Float[Tensor, "2 b 1 T half"]:
        if places_BT is None:
            return self.rotary_2PK[:, None, None, start : start + length]
        return self.rotary_2PK[:, places_BT].unsqueeze(2)

    def embed(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        places_BT: Int[Tensor, "B T"] | None = None,
        start: int = 0,
        token_types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        return self.dropout(self.embedding_norm(self.embedding(ids_BT)))

    def _through_blocks(
        self, x_BTD: Tensor, *, sight: Sight, cache: KeyValueCache | None = None
    ) -> Tensor:
        return self.final_norm(super()._through_blocks(x_BTD, sight=sight, cache=cache))
