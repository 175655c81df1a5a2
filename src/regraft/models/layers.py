"""What backbones and heads are built of: positions, dropout, attention, blocks.

The letters of every shape in regraft: B batch, T positions, D width, H heads, K head width (D / H),
F feed-forward width, V vocabulary, C classes, L layers, N examples, P longest text. A suffix such
as `x_BTD` gives the shape where it changes. No layer here knows the families.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from regraft.config import ModelSettings
from regraft.models.masks import square_mask

# The base of the rotary frequencies: ModernBERT's, for layers that look at the whole text.
ROTARY_BASE = 160_000.0
# Standard deviation of the initial weights in all families but the lab's.
INITIAL_DEVIATION = 0.02
# How much the mean of all vectors counts against one of them, where a block starts as the mean.
# Logistic regression on the last token of 2,000 reviews: 80.2 % with 8, 82.7 with 30 (2026-11-18).
MEAN_SHARE = 30.0
# Scale at which a dense layer with GELU or tanh passes pooled vectors on almost unchanged.
NEARLY_LINEAR = 0.5


def sinusoidal_positions(length: int, *, width: int) -> Float[Tensor, "T D"]:
    """Sines and cosines of falling frequency (Vaswani et al. 2017, section 3.5); no parameters."""
    position_T1 = torch.arange(length).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table_TD = torch.zeros(length, width)
    table_TD[:, 0::2] = torch.sin(position_T1 * frequency)
    table_TD[:, 1::2] = torch.cos(position_T1 * frequency)
    return table_TD


def rotary_positions(length: int, *, width: int) -> Float[Tensor, "2 T half"]:
    """Cosines and sines of the angles by which a head's columns turn (Su et al. 2021).

    Queries and keys turn with their position, so that their product depends on the distance only.
    """
    frequency = ROTARY_BASE ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length).unsqueeze(1) * frequency
    return torch.stack([angles.cos(), angles.sin()])


def turned(
    x_BHTK: Float[Tensor, "B H T K"], turns: Float[Tensor, "2 b 1 T half"]
) -> Float[Tensor, "B H T K"]:
    """Columns i and i + K/2 turned together, by the angle of their position."""
    cos, sin = turns
    left, right = x_BHTK.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def mean_of_real(
    hidden_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"]
) -> Float[Tensor, "B D"]:
    """The mean of the vectors that are not padding."""
    weights_BT1 = real_BT.unsqueeze(2).to(hidden_BTD.dtype)
    return (hidden_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1)


def dropout(x: Float[Tensor, "*shape"], *, p: float) -> Float[Tensor, "*shape"]:
    """Zero a share p of the numbers and scale up the rest, so that the mean stays.

    On a CPU 16 random bits decide about each: with torch's Bernoulli draws, dropout takes 3 to 6
    times as long, backward pass included (2026-11-16, p 0.1 and 0.5).
    """
    if not x.is_cpu or p in (0, 1):
        return F.dropout(x, p)
    words = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64)
    bits = words.random_(torch.iinfo(torch.int64).min, None).view(torch.int16)[: x.numel()]
    num_dropped = min(round(p * 2**16), 2**16 - 1)  # of the 2**16 values that 16 bits can take
    kept = bits.ge_(num_dropped - 2**15).view(x.shape)
    return x * kept.to(x.dtype).mul_(2**16 / (2**16 - num_dropped))


class Dropout(nn.Dropout):
    """`dropout` while training, nothing else."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return dropout(x, p=self.p) if self.training else x


class KeyValueCache:
    """Keys and values of the tokens read so far, layer by layer: generation reads each once."""

    def __init__(self, num_layers: int) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * num_layers

    def __len__(self) -> int:
        first = self.layers[0]
        return 0 if first is None else first[0].shape[2]

    def extend(self, layer: int, k_BHTK: Tensor, v_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, the new ones appended."""
        past = self.layers[layer]
        if past is not None:
            k_BHTK = torch.cat([past[0], k_BHTK], dim=2)
            v_BHTK = torch.cat([past[1], v_BHTK], dim=2)
        self.layers[layer] = (k_BHTK, v_BHTK)
        return k_BHTK, v_BHTK


@dataclass(frozen=True)
class Sight:
    """What each position of a batch may attend to, and its rotary angle.

    Without a mask it is the square mask if causal, else nothing is hidden. `turns` are the cosines
    and sines of rotary positions, None in families that have others.
    """

    is_causal: bool
    mask: Bool[Tensor, "B 1 T T"] | None
    turns: Float[Tensor, "2 b 1 T half"] | None


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017) over the positions that each may see."""

    def __init__(
        self, settings: ModelSettings, *, layer: int, has_bias: bool = True, is_xavier: bool = False
    ) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = settings.num_heads
        self.dropout = settings.attention_dropout
        self.in_proj = nn.Linear(settings.width, 3 * settings.width, bias=has_bias)
        self.out_proj = nn.Linear(settings.width, settings.width, bias=has_bias)
        if is_xavier:  # as nn.MultiheadAttention starts: the three projections are one matrix
            nn.init.xavier_uniform_(self.in_proj.weight)
            nn.init.zeros_(self.in_proj.bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "B T D"]:
        q_BHTK, k_BHTK, v_BHTK = self._project(x_BTD, turns=sight.turns)
        if cache is not None:
            k_BHTK, v_BHTK = cache.extend(self.layer, k_BHTK, v_BHTK)
        if self.training and self.dropout > 0 and x_BTD.is_cpu:
            # On a CPU dropout closes the fast path of scaled_dot_product_attention, and the slow
            # one draws slowly: this takes 0.7 of its time (2026-11-16, 16 x 256 tokens, D 200).
            weights_BHTT = _attention_weights(q_BHTK, k_BHTK, sight=sight)
            y_BHTK = dropout(weights_BHTT, p=self.dropout) @ v_BHTK
        else:
            y_BHTK = F.scaled_dot_product_attention(
                q_BHTK,
                k_BHTK,
                v_BHTK,
                attn_mask=sight.mask,
                # One new token behind a cache sees everything; a longer row needs the square mask.
                is_causal=sight.is_causal and sight.mask is None and x_BTD.shape[1] > 1,
                dropout_p=self.dropout if self.training else 0.0,
            )
        return self.out_proj(y_BHTK.transpose(1, 2).flatten(2))

    def weights(self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight) -> Float[Tensor, "B H T T"]:
        """The weights that `forward` only uses: row i says where position i looks."""
        q_BHTK, k_BHTK, _ = self._project(x_BTD, turns=sight.turns)
        return _attention_weights(q_BHTK, k_BHTK, sight=sight)

    def look_evenly(self) -> None:
        """Until trained, attend to all that may be seen alike: without queries all scores are 0.

        Keys stay, or queries would never learn.
        """
        with torch.no_grad():
            self.in_proj.weight[: self.in_proj.in_features].zero_()
            if self.in_proj.bias is not None:
                self.in_proj.bias.zero_()

    def _project(self, x_BTD: Tensor, *, turns: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, width = x_BTD.shape
        qkv = self.in_proj(x_BTD).view(batch, length, 3, self.num_heads, width // self.num_heads)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        if turns is not None:
            q_BHTK, k_BHTK = turned(q_BHTK, turns), turned(k_BHTK, turns)
        return q_BHTK, k_BHTK, v_BHTK


def _attention_weights(q_BHTK: Tensor, k_BHTK: Tensor, *, sight: Sight) -> Tensor:
    scores_BHTT = q_BHTK / math.sqrt(q_BHTK.shape[-1]) @ k_BHTK.transpose(2, 3)
    mask = sight.mask
    if mask is None and sight.is_causal:
        mask = square_mask(q_BHTK.shape[2]).to(q_BHTK.device)
    if mask is not None:
        barrier = torch.zeros_like(mask, dtype=q_BHTK.dtype).masked_fill(~mask, -math.inf)
        scores_BHTT = scores_BHTT + barrier
    return scores_BHTT.softmax(dim=-1)


class Block(nn.Module):
    """One layer: attention and feed-forward, each with a residual connection."""

    attention: Attention
    linear2: nn.Linear

    def forward(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """The vectors of the layer; positions attend to what `sight` shows."""
        raise NotImplementedError

    def start_as_identity(self) -> None:
        """Until trained, change nothing but the scale."""
        for linear in (self.attention.out_proj, self.linear2):
            nn.init.zeros_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def start_as_mean(self, *, num_kept: int) -> None:
        """Until trained, add to each vector the mean of those it may look at, many times over.

        In the last `num_kept` columns it stays what it was: a language model needs the token.
        """
        self.start_as_identity()
        self.attention.look_evenly()
        width = self.attention.out_proj.in_features
        factors_D = torch.full((width,), math.sqrt(MEAN_SHARE))
        factors_D[width - num_kept :] = 0
        with torch.no_grad():
            self.attention.in_proj.weight[2 * width :].copy_(factors_D.diag())
            self.attention.out_proj.weight.copy_(factors_D.diag())

    def attention_weights(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight
    ) -> Float[Tensor, "B H T T"]:
        """Where each position looks, given the input of the block."""
        return self.attention.weights(x_BTD, sight=sight)


class PostNormBlock(Block):
    """Attention, then feed-forward; each is added to its input, then normalised: BERT's layer.

    BERT drops nothing between the two feed-forward matrices.
    """

    is_xavier: ClassVar[bool] = False

    def __init__(self, settings: ModelSettings, *, layer: int) -> None:
        super().__init__()
        assert settings.feedforward_width != "auto", "settings are resolved before a model is built"
        self.attention = Attention(settings, layer=layer, is_xavier=self.is_xavier)
        self.linear1 = nn.Linear(settings.width, settings.feedforward_width)
        self.linear2 = nn.Linear(settings.feedforward_width, settings.width)
        self.norm1 = nn.LayerNorm(settings.width)
        self.norm2 = nn.LayerNorm(settings.width)
        self.activation: nn.Module = nn.GELU()
        self.dropout = Dropout(settings.dropout)
        self.inner_dropout: nn.Module = nn.Identity()

    def start_as_mean(self, *, num_kept: int) -> None:
        super().start_as_mean(num_kept=num_kept)
        # The norm shrinks all columns as much as the mean made the others grow.
        with torch.no_grad():
            self.norm2.weight[len(self.norm2.weight) - num_kept :] *= math.sqrt(MEAN_SHARE)

    def forward(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "B T D"]:
        x_BTD = self.norm1(x_BTD + self.dropout(self.attention(x_BTD, sight=sight, cache=cache)))
        h_BTF = self.inner_dropout(self.activation(self.linear1(x_BTD)))
        return self.norm2(x_BTD + self.dropout(self.linear2(h_BTF)))


class LabBlock(PostNormBlock):
    """As nn.TransformerEncoderLayer: ReLU, dropout inside the feed-forward, attention by Xavier."""

    is_xavier = True

    def __init__(self, settings: ModelSettings, *, layer: int) -> None:
        super().__init__(settings, layer=layer)
        self.activation = nn.ReLU()
        self.inner_dropout = Dropout(settings.dropout)

    def start_as_identity(self) -> None:
        super().start_as_identity()
        self.attention.look_evenly()


class PreNormBlock(Block):
    """Normalise, attend, add; normalise, GeGLU, add: ModernBERT's layer.

    Pre-norm after Xiong et al. 2020, GeGLU after Shazeer 2020, no biases. The embedding is
    normalised already, so the first block does not normalise before attention.
    """

    def __init__(self, settings: ModelSettings, *, layer: int) -> None:
        super().__init__()
        assert settings.feedforward_width != "auto", "settings are resolved before a model is built"
        width = settings.width
        self.norm1 = nn.LayerNorm(width, bias=False) if layer else nn.Identity()
        self.attention = Attention(settings, layer=layer, has_bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.linear1 = nn.Linear(width, 2 * settings.feedforward_width, bias=False)
        self.linear2 = nn.Linear(settings.feedforward_width, width, bias=False)
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "B T D"]:
        y_BTD = self.attention(self.norm1(x_BTD), sight=sight, cache=cache)
        x_BTD = x_BTD + self.dropout(y_BTD)
        h_BTF, gate_BTF = self.linear1(self.norm2(x_BTD)).chunk(2, dim=-1)
        return x_BTD + self.linear2(self.dropout(F.gelu(h_BTF) * gate_BTF))

    def attention_weights(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight
    ) -> Float[Tensor, "B H T T"]:
        return self.attention.weights(self.norm1(x_BTD), sight=sight)


def start_as_scaled_identity(dense: nn.Linear) -> None:
    """Small enough that what follows, GELU or tanh, is nearly linear."""
    nn.init.eye_(dense.weight)
    with torch.no_grad():
        dense.weight.mul_(NEARLY_LINEAR)
    if dense.bias is not None:
        nn.init.zeros_(dense.bias)


def start_small(module: nn.Module) -> None:
    """BERT's start: matrices normal with a small deviation, biases 0, gains 1."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=INITIAL_DEVIATION)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


class Transform(nn.Module):
    """Dense, GELU, norm: what BERT and ModernBERT put between the backbone and the scores."""

    def __init__(self, width: int, *, has_bias: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width, bias=has_bias)
        self.norm = nn.LayerNorm(width, bias=has_bias)
        start_small(self)

    def forward(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return self.norm(F.gelu(self.dense(hidden)))


class Pooler(nn.Module):
    """Dense and tanh over the vector of the first token, where BERT reads a whole text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        start_small(self)

    def forward(self, pooled_BD: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        return torch.tanh(self.dense(pooled_BD))
