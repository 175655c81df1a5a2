"""The backbone: token ids in, one vector a token out. No head, no loss, no training.

Letters of every shape in regraft: B batch, T positions, D width, H heads, K head width (D / H),
F feed-forward width, V vocabulary, C classes, L layers, N examples, P longest text. A name such as
`x_BTD` says the shape where it changes. Read from top to bottom: positions, mask, dropout,
attention, blocks, backbone.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regraft.config import ModelSettings

# The base of the rotary frequencies: ModernBERT's, for layers that look at the whole text.
ROTARY_BASE = 160_000.0
# The key of no pair: greater than that of any.
_NO_PAIR = 2**63 - 1
# Weights of all families but the lab's start at random with this deviation.
INITIAL_DEVIATION = 0.02


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


def square_mask(length: int) -> Bool[Tensor, "T T"]:
    """May position i (row) look at position j (column)? Yes on and below the diagonal."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def is_right_padded(real_BT: Bool[Tensor, "B T"]) -> bool:
    """Is every padding token behind the real ones? Then the square mask alone hides padding."""
    return bool((real_BT[:, :-1] >= real_BT[:, 1:]).all())


def is_one_document(segments_BT: Int[Tensor, "B T"] | None) -> bool:
    """Does every row hold one document only? Then there is none to hide from another."""
    return segments_BT is None or bool((segments_BT == segments_BT[:, :1]).all())


def attention_mask(
    real_BT: Bool[Tensor, "B T"],
    *,
    is_causal: bool,
    segments_BT: Int[Tensor, "B T"] | None = None,
) -> Bool[Tensor, "B 1 T T"]:
    """May position i look at j? Not at padding, not at other documents, not ahead if causal.

    Every position may look at itself: a padding row with nothing to look at would be 0 / 0, and
    the NaN would reach real tokens through the next layer's values.
    """
    length = real_BT.shape[1]
    allowed_BTT = real_BT.unsqueeze(1).expand(-1, length, -1)
    if is_causal:
        allowed_BTT = allowed_BTT & square_mask(length).to(real_BT.device)
    if segments_BT is not None:
        allowed_BTT = allowed_BTT & (segments_BT.unsqueeze(1) == segments_BT.unsqueeze(2))
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


@dataclass(frozen=True)
class Sight:
    """What each position of a batch may look at, and how far it has turned.

    Without a mask it is the square mask if causal, else nothing is hidden. `turns` are the cosines
    and sines of rotary positions, None in families that have others.
    """

    is_causal: bool
    mask: Bool[Tensor, "B 1 T T"] | None
    turns: Float[Tensor, "2 b 1 T half"] | None


class Attention(nn.Module):
    """Each position takes a mean of the values of the positions it may see, weighted by fit."""

    def __init__(self, settings: ModelSettings, *, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = settings.num_heads
        self.dropout = settings.attention_dropout
        has_bias = settings.family != "modern"
        self.in_proj = nn.Linear(settings.width, 3 * settings.width, bias=has_bias)
        self.out_proj = nn.Linear(settings.width, settings.width, bias=has_bias)
        if settings.family == "lab":
            # As nn.MultiheadAttention starts: the three projections are one Xavier matrix.
            nn.init.xavier_uniform_(self.in_proj.weight)
            nn.init.zeros_(self.in_proj.bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        *,
        sight: Sight,
        cache: KeyValueCache | None = None,
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


class PostNormBlock(nn.Module):
    """Attention, then feed-forward; each is added to its input, then normalised (lab, bert)."""

    def __init__(self, settings: ModelSettings, *, layer: int) -> None:
        super().__init__()
        assert settings.feedforward_width != "auto", "settings are resolved before a model is built"
        is_lab = settings.family == "lab"
        self.attention = Attention(settings, layer=layer)
        self.linear1 = nn.Linear(settings.width, settings.feedforward_width)
        self.linear2 = nn.Linear(settings.feedforward_width, settings.width)
        self.norm1 = nn.LayerNorm(settings.width)
        self.norm2 = nn.LayerNorm(settings.width)
        self.activation = nn.ReLU() if is_lab else nn.GELU()
        self.dropout = Dropout(settings.dropout)
        # BERT drops nothing between the two feed-forward matrices.
        self.inner_dropout = Dropout(settings.dropout) if is_lab else nn.Identity()

    def forward(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "B T D"]:
        x_BTD = self.norm1(x_BTD + self.dropout(self.attention(x_BTD, sight=sight, cache=cache)))
        h_BTF = self.inner_dropout(self.activation(self.linear1(x_BTD)))
        return self.norm2(x_BTD + self.dropout(self.linear2(h_BTF)))

    def attention_weights(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight
    ) -> Float[Tensor, "B H T T"]:
        """Where each position looks, given this block's input."""
        return self.attention.weights(x_BTD, sight=sight)


class PreNormBlock(nn.Module):
    """Normalise, attend, add; normalise, GeGLU, add: the way through stays untouched (modern).

    Pre-norm after Xiong et al. 2020, GeGLU after Shazeer 2020, no biases: as in ModernBERT. The
    embedding is normalised already, so the first block does not normalise before attention.
    """

    def __init__(self, settings: ModelSettings, *, layer: int) -> None:
        super().__init__()
        assert settings.feedforward_width != "auto", "settings are resolved before a model is built"
        width = settings.width
        self.norm1 = nn.LayerNorm(width, bias=False) if layer else nn.Identity()
        self.attention = Attention(settings, layer=layer)
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
        """Where each position looks, given this block's input."""
        return self.attention.weights(self.norm1(x_BTD), sight=sight)


Block = PostNormBlock | PreNormBlock


def build_blocks(settings: ModelSettings) -> nn.ModuleList:
    """The layers of a family, new and random."""
    kind = PreNormBlock if settings.family == "modern" else PostNormBlock
    return nn.ModuleList(kind(settings, layer=layer) for layer in range(settings.num_layers))


def pair_key(before: Int[Tensor, "*shape"], here: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """One number for a token and the one before it."""
    return (before << 32) + here


def repeats_weight(
    ids_BT: Int[Tensor, "B T"],
    *,
    is_counted_BT: Bool[Tensor, "B T"],
    segments_BT: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """What one occurrence counts, if n of them in a document count 1 + log n together; else 0.

    The weight of TF-IDF: a text that says a word ten times does not mean it ten times as much.
    """
    # Not len(ids_BT), which a graph would keep for good.
    documents_BT = torch.arange(ids_BT.shape[0], device=ids_BT.device).unsqueeze(1) << 16
    if segments_BT is not None:
        documents_BT = documents_BT + segments_BT
    keys_BT = ((documents_BT << 32) + ids_BT).where(is_counted_BT, -1)
    _, places_BT, counts = torch.unique(keys_BT, return_inverse=True, return_counts=True)
    num_BT = counts[places_BT].float()
    return (1 + num_BT.log()) / num_BT * is_counted_BT


def start_small(module: nn.Module) -> None:
    """BERT's start: matrices normal with a small deviation, biases 0, gains 1."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=INITIAL_DEVIATION)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


class Backbone(nn.Module):
    """Embedded tokens through the blocks: what pre-training pays for.

    Each family tells positions in its own way: the lab adds sinusoids to embeddings times sqrt(D),
    bert adds learned vectors, and modern turns queries and keys. A bag has neither blocks nor
    positions: what a token means beside the one before it is a vector of its own, looked up.
    """

    positions_TD: Tensor
    rotary_2PK: Tensor
    pair_keys: Tensor

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        width, longest = settings.width, settings.max_positions
        self.embedding = nn.Embedding(vocab_size, width)
        if settings.family == "lab":
            table_TD = sinusoidal_positions(longest, width=width)
            self.register_buffer("positions_TD", table_TD, persistent=False)
        elif settings.family == "bert":
            self.positions = nn.Embedding(longest, width)
            self.token_types = nn.Embedding(2, width)
            self.embedding_norm = nn.LayerNorm(width)
        elif settings.family == "bag":
            self.neighbours = nn.Embedding(settings.num_pairs, width)
            # Part of the vocabulary, and so of what is saved; none are known before text was read.
            self.register_buffer("pair_keys", torch.full((settings.num_pairs,), _NO_PAIR))
        else:
            table = rotary_positions(longest, width=width // settings.num_heads)
            self.register_buffer("rotary_2PK", table, persistent=False)
            self.embedding_norm = nn.LayerNorm(width, bias=False)
            self.final_norm = nn.LayerNorm(width, bias=False)
        self.dropout = Dropout(settings.dropout)
        self.blocks = build_blocks(settings)
        if settings.family == "lab":
            nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        else:
            start_small(self)
        if settings.family == "bag":  # a pair never seen adds nothing
            nn.init.zeros_(self.neighbours.weight)

    @property
    def is_causal(self) -> bool:
        """Does a token look to the left only, unless told otherwise?"""
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

        Documents that `segments_BT` tells apart do not see each other, and each starts at position
        0. Vectors at padding positions mean nothing. With a cache, ids continue what it has read.
        """
        assert cache is None or (real_BT is None and segments_BT is None), "a cache reads one text"
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        if self.settings.family == "bag":
            return self.bag(ids_BT, real_BT=real_BT, segments_BT=segments_BT)
        is_causal = self.is_causal if is_causal is None else is_causal
        assert cache is None or is_causal, "only a causal text can be read bit by bit"
        start = 0 if cache is None else len(cache)
        places_BT = self.places(real_BT, segments_BT=segments_BT)
        sight = self.sight(
            real_BT,
            is_causal=is_causal,
            segments_BT=segments_BT,
            places_BT=places_BT,
            start=start,
        )
        x_BTD = self.embed(ids_BT, places_BT=places_BT, start=start, token_types_BT=token_types_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, sight=sight, cache=cache)
        return self.final_norm(x_BTD) if self.settings.family == "modern" else x_BTD

    @torch.no_grad()
    def attention_weights(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "L B H T T"]:
        """Where each position looks, for every layer and head."""
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
        self,
        real_BT: Bool[Tensor, "B T"],
        *,
        segments_BT: Int[Tensor, "B T"] | None = None,
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
        mask = turns = None
        # Behind the real tokens, padding is ahead of them: the square mask hides it already.
        is_hidden = is_causal or bool(real_BT.all())
        if places_BT is not None or not is_hidden:
            mask = attention_mask(real_BT, is_causal=is_causal, segments_BT=segments_BT)
        if self.settings.family == "modern":
            if places_BT is None:
                turns = self.rotary_2PK[:, None, None, start : start + real_BT.shape[1]]
            else:
                turns = self.rotary_2PK[:, places_BT].unsqueeze(2)
        return Sight(is_causal=is_causal, mask=mask, turns=turns)

    def bag(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"],
        segments_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The vector of every token, plus that of the pair which it makes with the one before."""
        keys_BT = pair_key(ids_BT[:, :-1], ids_BT[:, 1:])
        rows_BT = torch.searchsorted(self.pair_keys, keys_BT).clamp(max=len(self.pair_keys) - 1)
        is_pair_BT = (self.pair_keys[rows_BT] == keys_BT) & real_BT[:, :-1] & real_BT[:, 1:]
        after_BT = None
        if segments_BT is not None:
            after_BT = segments_BT[:, 1:]
            is_pair_BT = is_pair_BT & (segments_BT[:, :-1] == after_BT)
        weights_BT = repeats_weight(rows_BT, is_counted_BT=is_pair_BT, segments_BT=after_BT)
        pairs_BTD = self.neighbours(rows_BT) * weights_BT.unsqueeze(2)
        weights_BT = repeats_weight(ids_BT, is_counted_BT=real_BT, segments_BT=segments_BT)
        tokens_BTD = self.embedding(ids_BT) * weights_BT.unsqueeze(2)
        return self.dropout(tokens_BTD + F.pad(pairs_BTD, (0, 0, 1, 0)))

    def know_pairs(self, keys: Int[Tensor, " known"]) -> None:
        """Give these pairs of neighbours vectors, the smallest keys first."""
        self.pair_keys.fill_(_NO_PAIR)
        self.pair_keys[: len(keys)] = keys.sort().values

    def embed(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        places_BT: Int[Tensor, "B T"] | None = None,
        start: int = 0,
        token_types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Vectors of tokens at `places_BT`, or one behind the other from `start` on."""
        here = slice(start, start + ids_BT.shape[1]) if places_BT is None else places_BT
        x_BTD = self.embedding(ids_BT)
        if self.settings.family == "lab":
            return self.dropout(x_BTD * math.sqrt(self.settings.width) + self.positions_TD[here])
        if self.settings.family == "bert":
            types_BT = torch.zeros_like(ids_BT) if token_types_BT is None else token_types_BT
            x_BTD = x_BTD + self.positions.weight[here] + self.token_types(types_BT)
        return self.dropout(self.embedding_norm(x_BTD))
