"""The backbone: token ids in, one vector a token out. No head, no loss, no training.

Letters of every shape in regraft: B batch, T positions, D width, H heads, K head width (D / H),
F feed-forward width, V vocabulary, C classes, L layers, N examples. A name such as `x_BTD` says
the shape where it changes. Read from top to bottom: positions, mask, dropout, attention, block,
backbone.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regraft.config import ModelSettings


def sinusoidal_positions(length: int, *, width: int) -> Float[Tensor, "T D"]:
    """Sines and cosines of falling frequency (Vaswani et al. 2017, section 3.5); no parameters."""
    position_T1 = torch.arange(length).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table_TD = torch.zeros(length, width)
    table_TD[:, 0::2] = torch.sin(position_T1 * frequency)
    table_TD[:, 1::2] = torch.cos(position_T1 * frequency)
    return table_TD


def square_mask(length: int) -> Bool[Tensor, "T T"]:
    """May position i (row) look at position j (column)? Yes on and below the diagonal."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def is_right_padded(real_BT: Bool[Tensor, "B T"]) -> bool:
    """Is every padding token behind the real ones? Then the square mask alone hides padding."""
    return bool((real_BT[:, :-1] >= real_BT[:, 1:]).all())


def is_one_document(segments_BT: Int[Tensor, "B T"] | None) -> bool:
    """Does every row hold one document only? Then there is none to hide from another."""
    return segments_BT is None or bool((segments_BT == segments_BT[:, :1]).all())


def causal_mask(
    real_BT: Bool[Tensor, "B T"], *, segments_BT: Int[Tensor, "B T"] | None = None
) -> Bool[Tensor, "B 1 T T"]:
    """The square mask less the padding, wherever it is, and less the other documents of a row.

    Every position may look at itself: a padding row with nothing to look at would be 0 / 0, and
    the NaN would reach real tokens through the next layer's values.
    """
    length = real_BT.shape[1]
    allowed_BTT = square_mask(length).to(real_BT.device) & real_BT.unsqueeze(1)
    if segments_BT is not None:
        allowed_BTT &= segments_BT.unsqueeze(1) == segments_BT.unsqueeze(2)
    itself = torch.eye(length, dtype=torch.bool, device=real_BT.device)
    return (allowed_BTT | itself).unsqueeze(1)


def places_in_document(
    real_BT: Bool[Tensor, "B T"], *, segments_BT: Int[Tensor, "B T"] | None = None
) -> Int[Tensor, "B T"]:
    """0 at the first real token of each document, wherever in the row it stands; then 1, 2, ..."""
    places_BT = (real_BT.cumsum(dim=1) - 1).clamp(min=0)
    if segments_BT is None:
        return places_BT
    begins_BT = segments_BT.diff(dim=1, prepend=segments_BT[:, :1]) != 0
    return places_BT - places_BT.where(begins_BT, 0).cummax(dim=1).values


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


class Attention(nn.Module):
    """Each position takes a mean of the values of the positions it may see, weighted by fit."""

    def __init__(self, settings: ModelSettings, *, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = settings.num_heads
        self.dropout = settings.attention_dropout
        self.in_proj = nn.Linear(settings.width, 3 * settings.width)
        self.out_proj = nn.Linear(settings.width, settings.width)
        # As nn.MultiheadAttention starts: the three projections are one Xavier matrix.
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "B 1 T T"] | None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        q_BHTK, k_BHTK, v_BHTK = self._project(x_BTD)
        if cache is not None:
            k_BHTK, v_BHTK = cache.extend(self.layer, k_BHTK, v_BHTK)
        if self.training and self.dropout > 0 and x_BTD.is_cpu:
            # On a CPU dropout closes the fast path of scaled_dot_product_attention, and the slow
            # one draws slowly: this takes 0.7 of its time (2026-11-16, 16 x 256 tokens, D 200).
            weights_BHTT = _attention_weights(q_BHTK, k_BHTK, mask=mask)
            y_BHTK = dropout(weights_BHTT, p=self.dropout) @ v_BHTK
        else:
            y_BHTK = F.scaled_dot_product_attention(
                q_BHTK,
                k_BHTK,
                v_BHTK,
                attn_mask=mask,
                # One new token behind a cache sees everything; a longer row needs the square mask.
                is_causal=mask is None and x_BTD.shape[1] > 1,
                dropout_p=self.dropout if self.training else 0.0,
            )
        return self.out_proj(y_BHTK.transpose(1, 2).flatten(2))

    def weights(
        self, x_BTD: Float[Tensor, "B T D"], *, mask: Bool[Tensor, "B 1 T T"] | None
    ) -> Float[Tensor, "B H T T"]:
        """The weights that `forward` only uses: row i says where position i looks."""
        q_BHTK, k_BHTK, _ = self._project(x_BTD)
        return _attention_weights(q_BHTK, k_BHTK, mask=mask)

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, width = x_BTD.shape
        qkv = self.in_proj(x_BTD).view(batch, length, 3, self.num_heads, width // self.num_heads)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        return q_BHTK, k_BHTK, v_BHTK


def _attention_weights(q_BHTK: Tensor, k_BHTK: Tensor, *, mask: Tensor | None) -> Tensor:
    mask = square_mask(q_BHTK.shape[2]).to(q_BHTK.device) if mask is None else mask
    barrier = torch.zeros_like(mask, dtype=q_BHTK.dtype).masked_fill(~mask, -math.inf)
    scores_BHTT = q_BHTK / math.sqrt(q_BHTK.shape[-1]) @ k_BHTK.transpose(2, 3)
    return (scores_BHTT + barrier).softmax(dim=-1)


class Block(nn.Module):
    """Attention, then feed-forward; each is added to its input, then normalised (post-norm)."""

    def __init__(self, settings: ModelSettings, *, layer: int) -> None:
        super().__init__()
        assert settings.feedforward_width != "auto", "settings are resolved before a model is built"
        self.attention = Attention(settings, layer=layer)
        self.linear1 = nn.Linear(settings.width, settings.feedforward_width)
        self.linear2 = nn.Linear(settings.feedforward_width, settings.width)
        self.norm1 = nn.LayerNorm(settings.width)
        self.norm2 = nn.LayerNorm(settings.width)
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "B 1 T T"] | None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        x_BTD = self.norm1(x_BTD + self.dropout(self.attention(x_BTD, mask=mask, cache=cache)))
        h_BTF = self.dropout(F.relu(self.linear1(x_BTD)))
        return self.norm2(x_BTD + self.dropout(self.linear2(h_BTF)))


class Backbone(nn.Module):
    """Embedding times sqrt(D), plus positions, through the blocks: what pre-training pays for."""

    positions_TD: Tensor

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Embedding(vocab_size, settings.width)
        self.register_buffer(
            "positions_TD",
            sinusoidal_positions(settings.max_positions, width=settings.width),
            persistent=False,
        )
        self.dropout = Dropout(settings.dropout)
        self.blocks = nn.ModuleList(
            Block(settings, layer=layer) for layer in range(settings.num_layers)
        )
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"] | None = None,
        segments_BT: Int[Tensor, "B T"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Vectors of every position; `real_BT` is False at padding, on either side.

        Documents that `segments_BT` tells apart do not see each other, and each starts at position
        0. Vectors at padding positions mean nothing. With a cache, ids continue what it has read.
        """
        assert cache is None or (real_BT is None and segments_BT is None), "a cache reads one text"
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        mask = places_BT = None
        if not (is_right_padded(real_BT) and is_one_document(segments_BT)):
            mask = causal_mask(real_BT, segments_BT=segments_BT)
            places_BT = places_in_document(real_BT, segments_BT=segments_BT)
        x_BTD = self._embed(ids_BT, places_BT=places_BT, start=0 if cache is None else len(cache))
        for block in self.blocks:
            x_BTD = block(x_BTD, mask=mask, cache=cache)
        return x_BTD

    @torch.no_grad()
    def attention_weights(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "L B H T T"]:
        """Where each position looks, for every layer and head."""
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        mask = causal_mask(real_BT)
        x_BTD = self._embed(ids_BT, places_BT=places_in_document(real_BT))
        weights = []
        for block in self.blocks:
            assert isinstance(block, Block)
            weights.append(block.attention.weights(x_BTD, mask=mask))
            x_BTD = block(x_BTD, mask=mask)
        return torch.stack(weights)

    def _embed(self, ids_BT: Tensor, *, places_BT: Tensor | None, start: int = 0) -> Tensor:
        """Tokens at `places_BT`, or one behind the other from `start` on."""
        here = slice(start, start + ids_BT.shape[1]) if places_BT is None else places_BT
        x_BTD = self.embedding(ids_BT) * math.sqrt(self.settings.width) + self.positions_TD[here]
        return self.dropout(x_BTD)
