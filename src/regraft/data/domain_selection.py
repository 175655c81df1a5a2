"""Selects the documents of a corpus that are similar to the labelled texts.

The cross-entropy difference of Moore and Lewis (2010) with unigrams.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regraft.data.tokens.store import TokenStore
from regraft.data.tokens.tokenizer import Tokenizer

# A document is in the domain if it scores higher than this share of the labelled texts, and is not
# shorter than this share of them: scores of short texts are mostly chance.
_UNLIKE_SHARE = 0.05
_SHORT_SHARE = 0.1
_NUM_FOLDS = 5

# The best documents are taken until there are at least this many tokens.
LEAST_TOKENS = 2_500_000

# If more of the corpus than this is in the domain, all of it is used.
MOST_SHARE = 0.5

# Tokens scored at once, and texts encoded at once.
_BLOCK_TOKENS = 4_000_000
_BLOCK_TEXTS = 2_000


@dataclass(frozen=True)
class Likeness:
    """Log ratio of each token's frequency in the labelled texts to that in the corpus."""

    ratios_V: NDArray[np.float64]

    def of_store(self, store: TokenStore) -> NDArray[np.float64]:
        """The mean over the tokens of each document."""
        scores = np.empty(store.num_documents)
        start = 0
        while start < store.num_documents:
            stop = int(np.searchsorted(store.offsets, store.offsets[start] + _BLOCK_TOKENS))
            stop = min(max(stop, start + 1), store.num_documents)
            offsets = store.offsets[start : stop + 1]
            ids = store.read(int(offsets[0]), int(offsets[-1]))
            # Start and end tokens have a ratio of 0.
            sums = np.add.reduceat(self.ratios_V[ids], offsets[:-1] - offsets[0])
            scores[start:stop] = sums / np.maximum(np.diff(offsets) - 2, 1)
            start = stop
        return scores

    def of_ids(self, rows: Iterable[Sequence[int]]) -> NDArray[np.float64]:
        """The mean over the tokens of each row; 0 for an empty one."""
        return np.array([self.ratios_V[list(row)].sum() / max(len(row), 1) for row in rows])


@dataclass(frozen=True)
class Domain:
    """The least likeness and length of texts in the domain of the labelled ones."""

    likeness: Likeness
    least: float
    shortest: int

    def texts(self, texts: Iterable[str], *, tokenizer: Tokenizer) -> Iterator[str]:
        """The texts that are in the domain, in their order."""
        for block in _blocks(texts, size=_BLOCK_TEXTS):
            rows = tokenizer.encode_batch(block)
            scores = self.likeness.of_ids(rows)
            for text, row, score in zip(block, rows, scores, strict=True):
                if score >= self.least and len(row) >= self.shortest:
                    yield text


def find_domain(
    store: TokenStore, texts: Sequence[str], *, tokenizer: Tokenizer, seed: int
) -> tuple[Domain, TokenStore] | None:
    """(domain of these texts, the documents of the store in it), or None if most of it is.

    The threshold comes from the labelled texts themselves: each is scored against the others.
    """
    counts_V = store.counts(vocab_size=tokenizer.vocab_size).astype(np.float64)
    counts_V[list(tokenizer.special_ids)] = 0
    rows = tokenizer.encode_batch(texts)
    folds = np.random.default_rng(seed).permutation(len(rows)) % _NUM_FOLDS
    own = np.empty(len(rows))
    for fold in np.unique(folds):
        others = [row for row, place in zip(rows, folds, strict=True) if place != fold]
        held_out = np.flatnonzero(folds == fold)
        own[held_out] = _likeness(others, counts_V).of_ids(rows[place] for place in held_out)
    likeness = _likeness(rows, counts_V)
    scores = likeness.of_store(store)
    lengths = np.diff(store.offsets) - 2
    shortest = int(np.quantile([len(row) for row in rows], _SHORT_SHARE))
    scores[lengths < shortest] = -np.inf
    order = np.argsort(-scores, kind="stable")
    num_least = int(np.searchsorted(np.cumsum(lengths[order]), LEAST_TOKENS)) + 1
    last = float(scores[order[min(num_least, len(order)) - 1]])
    domain = Domain(likeness, min(float(np.quantile(own, _UNLIKE_SHARE)), last), shortest)
    is_alike = scores >= domain.least
    if lengths[is_alike].sum() > MOST_SHARE * lengths.sum():
        return None
    return domain, store.view(is_alike)


def _likeness(rows: Sequence[Sequence[int]], counts_V: NDArray[np.float64]) -> Likeness:
    """Frequency ratios; frequencies of the few texts are smoothed towards the corpus."""
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    here_V = np.bincount(ids, minlength=len(counts_V)) * (counts_V > 0)
    # Half a count for tokens that are not in the corpus.
    usual_V = (counts_V + 0.5) / (counts_V + 0.5).sum()
    # Dirichlet smoothing with the number of distinct tokens in the few texts as weight.
    weight = max(int((here_V > 0).sum()), 1)
    shares_V = (here_V + weight * usual_V) / (here_V.sum() + weight)
    return Likeness(np.where(counts_V > 0, np.log(shares_V / usual_V), 0.0))


def _blocks(texts: Iterable[str], *, size: int) -> Iterator[list[str]]:
    block: list[str] = []
    for text in texts:
        block.append(text)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
