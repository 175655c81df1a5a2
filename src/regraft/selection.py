"""Which documents of a text are like the labelled ones? Some text of the domain beats much text.

Comes in: a token store and labelled texts. Goes out: how alike a text is, by the words in it, and
which documents of the store are alike enough. The difference of cross-entropies of Moore and Lewis
(2010), with single words. Knows no labels, only texts; trains nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regraft.store import TokenStore
from regraft.tokenizer import Tokenizer

# Documents are alike if they score better than this share of the labelled texts do, and are not
# shorter than this share of them: short ones score by chance.
_UNLIKE_SHARE = 0.05
_SHORT_SHARE = 0.1
_NUM_FOLDS = 5

# Fewer tokens teach too little: the next best documents join until there are so many.
LEAST_TOKENS = 2_500_000

# If more of the text than this is alike, it is of the domain, and all of it is taken.
MOST_SHARE = 0.5

# Tokens scored at once, and texts encoded at once.
_BLOCK_TOKENS = 4_000_000
_BLOCK_TEXTS = 2_000


@dataclass(frozen=True)
class Likeness:
    """For every token, how much more often the labelled texts say it than the text does (log)."""

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
            # Start and end tokens, which say nothing, have a ratio of 0.
            sums = np.add.reduceat(self.ratios_V[ids], offsets[:-1] - offsets[0])
            scores[start:stop] = sums / np.maximum(np.diff(offsets) - 2, 1)
            start = stop
        return scores

    def of_ids(self, rows: Iterable[Sequence[int]]) -> NDArray[np.float64]:
        """The mean over the tokens of each row; 0 for an empty one."""
        return np.array([self.ratios_V[list(row)].sum() / max(len(row), 1) for row in rows])


@dataclass(frozen=True)
class Domain:
    """From which likeness and length on a text belongs to the domain of the labelled ones."""

    likeness: Likeness
    least: float
    shortest: int

    def texts(self, texts: Iterable[str], *, tokenizer: Tokenizer) -> Iterator[str]:
        """Those of the texts that belong to it, in their order."""
        for block in _blocks(texts, size=_BLOCK_TEXTS):
            scores = self.likeness.of_ids(tokenizer.encode_batch(block))
            yield from (
                text for text, score in zip(block, scores, strict=True) if score >= self.least
            )


def find_domain(
    store: TokenStore, texts: Sequence[str], *, tokenizer: Tokenizer, seed: int
) -> tuple[Domain, TokenStore] | None:
    """(domain of these texts, the documents of the store in it), or None if most of it is.

    What counts as alike is learned from the labelled texts themselves: each is scored by words of
    the others.
    """
    counts_V = store.counts(vocab_size=tokenizer.vocab_size).astype(np.float64)
    counts_V[list(tokenizer.special_ids)] = 0
    rows = tokenizer.encode_batch(texts)
    folds = np.random.default_rng(seed).permutation(len(rows)) % _NUM_FOLDS
    own = np.empty(len(rows))
    for fold in np.unique(folds):
        others = [row for row, place in zip(rows, folds, strict=True) if place != fold]
        asked = np.flatnonzero(folds == fold)
        own[asked] = _likeness(others, counts_V).of_ids(rows[place] for place in asked)
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
    """Ratios of frequencies; those of the few texts are smoothed towards those of the text."""
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    here_V = np.bincount(ids, minlength=len(counts_V)) * (counts_V > 0)
    # Half a count for what the text does not say: it may be in the few.
    usual_V = (counts_V + 0.5) / (counts_V + 0.5).sum()
    # As much weight to the text as there are different tokens in the few (Dirichlet smoothing).
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
