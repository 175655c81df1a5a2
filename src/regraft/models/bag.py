"""The bag family: vectors of tokens and of pairs of neighbouring tokens, added up. No layers."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regraft.config import ModelSettings
from regraft.data import TokenStore, pair_key
from regraft.models.backbones import Backbone, register_family
from regraft.models.layers import Dropout, KeyValueCache, start_small

# The key of no pair: greater than that of any.
_NO_PAIR = 2**63 - 1
# Bits of a key for the number of a document in its row: no row holds 65,536 of them.
_SEGMENT_BITS = 16
# A rarer pair of neighbours teaches a bag to recognise single documents, and nothing else.
PAIRS_SEEN_AT_LEAST = 5


def repeats_weight(
    ids_BT: Int[Tensor, "B T"],
    *,
    is_counted_BT: Bool[Tensor, "B T"],
    segments_BT: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """The weight of an occurrence: n of them in a document weigh 1 + log n together (TF-IDF).

    Positions that are not counted weigh 0.
    """
    # Not len(ids_BT): a traced graph would keep the number.
    documents_BT = torch.arange(ids_BT.shape[0], device=ids_BT.device).unsqueeze(1) << _SEGMENT_BITS
    if segments_BT is not None:
        documents_BT = documents_BT + segments_BT
    keys_BT = ((documents_BT << 32) + ids_BT).where(is_counted_BT, -1)
    _, places_BT, counts = torch.unique(keys_BT, return_inverse=True, return_counts=True)
    num_BT = counts[places_BT].float()
    return (1 + num_BT.log()) / num_BT * is_counted_BT


def bag_sums(
    table: nn.Embedding, rows_N: Int[Tensor, " N"], *, places_N: Int[Tensor, " N"], num_bags: int
) -> Float[Tensor, "bags D"]:
    """The sum of the vectors in each bag, n occurrences of one counting 1 + log n together.

    `places_N` says which bag each occurrence is in. A row is read once however often it occurs, and
    with `table.sparse` the gradient holds the rows read and no others.
    """
    distinct, counts = torch.unique((places_N << 32) + rows_N, return_counts=True)
    needed, positions = torch.unique(distinct & 0xFFFFFFFF, return_inverse=True)
    # Tables may be kept in half precision; sums are of single precision.
    vectors = F.embedding(needed, table.weight, sparse=table.sparse).float()
    starts = torch.searchsorted(distinct, torch.arange(num_bags, device=distinct.device) << 32)
    weights = 1 + counts.float().log()
    return F.embedding_bag(positions, vectors, starts, mode="sum", per_sample_weights=weights)


def frequent_pair_keys(store: TokenStore, *, settings: ModelSettings) -> Int[Tensor, " known"]:
    """Keys of the frequent pairs of neighbours in a text, as many as the settings allow."""
    pairs_N2 = torch.from_numpy(
        store.frequent_pairs(num_pairs=settings.num_pairs, min_count=PAIRS_SEEN_AT_LEAST)
    )
    return pair_key(pairs_N2[:, 0], pairs_N2[:, 1])


@register_family("bag")
class BagBackbone(Backbone):
    """Neither blocks nor positions: a token, and the pair it ends, have a vector each.

    Trained by contrast, only the direction of its vectors has a meaning.
    """

    reads_direction = True
    pair_keys: Tensor

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__(settings)
        self.embedding = nn.Embedding(vocab_size, settings.width)
        self.neighbours = nn.Embedding(settings.num_pairs, settings.width)
        # Part of the vocabulary, and so of what is saved; none are known before `prepare`.
        self.register_buffer("pair_keys", torch.full((settings.num_pairs,), _NO_PAIR))
        self.dropout = Dropout(settings.dropout)
        self.blocks = nn.ModuleList()
        start_small(self)
        nn.init.zeros_(self.neighbours.weight)  # a pair never seen adds nothing

    @classmethod
    def build(cls, settings: ModelSettings, *, vocab_size: int) -> Backbone:
        return cls(settings, vocab_size=vocab_size)

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
        """The vector of every token, plus that of the pair which it makes with the one before."""
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        rows_BT, is_pair_BT = self._pairs(ids_BT, real_BT=real_BT)
        after_BT = None
        if segments_BT is not None:
            after_BT = segments_BT[:, 1:]
            is_pair_BT = is_pair_BT & (segments_BT[:, :-1] == after_BT)
        weights_BT = repeats_weight(rows_BT, is_counted_BT=is_pair_BT, segments_BT=after_BT)
        pairs_BTD = self.neighbours(rows_BT) * weights_BT.unsqueeze(2)
        weights_BT = repeats_weight(ids_BT, is_counted_BT=real_BT, segments_BT=segments_BT)
        tokens_BTD = self.embedding(ids_BT) * weights_BT.unsqueeze(2)
        return self.dropout(tokens_BTD + F.pad(pairs_BTD, (0, 0, 1, 0)))

    def mean_vectors(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B D"]:
        """The mean of a row's vectors, as a sum of its distinct ones, not one per position."""
        if self.training and self.dropout.p > 0:
            return super().mean_vectors(ids_BT, real_BT=real_BT)
        rows_BT, is_pair_BT = self._pairs(ids_BT, real_BT=real_BT)
        num_rows = ids_BT.shape[0]
        places_BT = torch.arange(num_rows, device=ids_BT.device).unsqueeze(1).expand_as(ids_BT)
        sums_BD = bag_sums(
            self.embedding, ids_BT[real_BT], places_N=places_BT[real_BT], num_bags=num_rows
        )
        pair_sums_BD = bag_sums(
            self.neighbours,
            rows_BT[is_pair_BT],
            places_N=places_BT[:, 1:][is_pair_BT],
            num_bags=num_rows,
        )
        return (sums_BD + pair_sums_BD) / real_BT.sum(dim=1, keepdim=True)

    def _pairs(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"]
    ) -> tuple[Int[Tensor, "B pairs"], Bool[Tensor, "B pairs"]]:
        """For every token but the first: the pair it ends, and whether that pair is known."""
        keys_BT = pair_key(ids_BT[:, :-1], ids_BT[:, 1:])
        rows_BT = torch.searchsorted(self.pair_keys, keys_BT).clamp(max=len(self.pair_keys) - 1)
        return rows_BT, (self.pair_keys[rows_BT] == keys_BT) & real_BT[:, :-1] & real_BT[:, 1:]

    def prepare(self, store: TokenStore) -> None:
        """Give vectors to the pairs of neighbours that are frequent in the text."""
        self.know_pairs(frequent_pair_keys(store, settings=self.settings))

    @property
    def known_pair_keys(self) -> Int[Tensor, " known"]:
        """Keys of the pairs that have vectors, sorted; the vector of the first is row 0."""
        return self.pair_keys[self.pair_keys != _NO_PAIR]

    def know_pairs(self, keys: Int[Tensor, " known"]) -> None:
        """Give these pairs of neighbours vectors, the smallest keys first."""
        self.pair_keys.fill_(_NO_PAIR)
        self.pair_keys[: len(keys)] = keys.sort().values
