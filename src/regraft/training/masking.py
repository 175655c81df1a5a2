"""Masking: which tokens a masked objective hides, and what replaces them.

From ids and a `Moment`, the only source of randomness, it makes ids with tokens hidden and the
targets to predict. Knows no model and no loss.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regraft.config import ObjectiveSettings
from regraft.data import IGNORED, Tokenizer
from regraft.errors import ConfigError
from regraft.runtime import hashed_number

# Devlin et al. 2018: of the tokens to predict, these shares become <mask> and a random token. The
# rest is kept, so that the model also learns vectors for tokens it can see.
MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1

# Mean length of a span in tokens (Joshi et al. 2019).
SPAN_LENGTH = 3.8


@dataclass(frozen=True)
class Moment:
    """The position in training of these rows: the only source of an objective's randomness.

    Every row has its own numbers, derived from (seed, step, row): how a batch is split into
    micro-batches or over processes cannot change them. `done` is the completed share of training.
    """

    seed: int
    step: int
    rows: NDArray[np.int64]
    done: float

    def uniform(self, length: int, *, stream: str) -> Float[Tensor, "B T"]:
        """Numbers from [0, 1) for each row; a longer row has the same ones at its beginning."""
        # A list would become floats, and keys beyond 2**53 would be rounded.
        keys = [
            np.array([self.key(stream=stream), row], dtype=np.uint64) for row in self.rows.tolist()
        ]
        rows = [
            np.random.Generator(np.random.Philox(key=key)).random(length, dtype=np.float32)
            for key in keys
        ]
        return torch.from_numpy(np.stack(rows))

    def chance(self, *, stream: str) -> float:
        """One number from [0, 1) for the whole step."""
        # 53 bits are what a float holds: more would be rounded, and up to 1.
        return (self.key(stream=stream) >> 11) / 2**53

    def key(self, *, stream: str) -> int:
        """64 bits for the whole step: what seeds its own generator."""
        return hashed_number(f"{self.seed}:{self.step}:{stream}")


@dataclass(frozen=True)
class Corruption:
    """How tokens of one vocabulary are hidden. Made by `build_corruption`."""

    settings: ObjectiveSettings
    mask_id: int
    ordinary_ids: Int[Tensor, " N"]
    is_ordinary_V: Bool[Tensor, " V"]
    continues_V: Bool[Tensor, " V"]
    can_be_continued_V: Bool[Tensor, " V"]

    def hide(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"],
        moment: Moment,
        masked_share: float = MASKED_SHARE,
        random_share: float = RANDOM_SHARE,
    ) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """(ids with some hidden, targets at the hidden ones); special tokens are never hidden."""
        device = ids_BT.device
        ids_BT, real_BT = ids_BT.cpu(), real_BT.cpu()
        chosen_BT = self._choose(ids_BT, real_BT=real_BT, moment=moment)
        targets_BT = ids_BT.where(chosen_BT, IGNORED)
        draw_BT = moment.uniform(ids_BT.shape[1], stream="what takes the place")
        hidden_BT = ids_BT.masked_fill(chosen_BT & (draw_BT < masked_share), self.mask_id)
        if random_share:
            place_BT = (draw_BT - masked_share) / random_share
            is_random_BT = chosen_BT & (place_BT >= 0) & (place_BT < 1)
            number_BT = (place_BT.clamp(0, 1) * len(self.ordinary_ids)).long()
            random_BT = self.ordinary_ids[number_BT.clamp(max=len(self.ordinary_ids) - 1)]
            hidden_BT = random_BT.where(is_random_BT, hidden_BT)
        return hidden_BT.to(device), targets_BT.to(device)

    def rate(self, moment: Moment) -> float:
        """Share of the tokens to hide now."""
        first, last = self.settings.mask_rate, self.settings.mask_rate_end
        return first if last is None else first + (last - first) * moment.done

    def _choose(self, ids_BT: Tensor, *, real_BT: Tensor, moment: Moment) -> Bool[Tensor, "B T"]:
        """Units (tokens, words or spans) in random order, until the rate is reached in each row."""
        length = ids_BT.shape[1]
        maskable_BT = real_BT & self.is_ordinary_V[ids_BT]
        begins_BT = self._begins(ids_BT, moment=moment)
        # The first token of a unit speaks for all of it: its column, the number it drew.
        columns_T = torch.arange(length)
        first_BT = columns_T.where(begins_BT, 0).cummax(dim=1).values
        draw_BT = moment.uniform(length, stream="what is hidden").gather(1, first_BT)
        size_BT = torch.zeros_like(first_BT).scatter_add_(1, first_BT, maskable_BT.long())
        size_BT = size_BT.gather(1, first_BT)

        # Rows shorter than one target a rate would have none: one token at least.
        wanted_B1 = (maskable_BT.sum(dim=1, keepdim=True) * self.rate(moment)).round().clamp(min=1)
        # A unit of more than twice that comes last: alone it would hide far too much.
        is_long_BT = size_BT > 2 * wanted_B1
        order_BT = (draw_BT + is_long_BT).masked_fill(~maskable_BT, 3.0).argsort(dim=1, stable=True)
        ranked_BT = first_BT.gather(1, order_BT)
        new_unit_BT = ranked_BT.diff(dim=1, prepend=torch.full_like(ranked_BT[:, :1], -1)) != 0
        start_BT = columns_T.where(new_unit_BT, 0).cummax(dim=1).values
        # The unit that crosses the line is hidden if half of it or more lies before the line.
        is_hidden_BT = start_BT + size_BT.gather(1, order_BT) / 2 <= wanted_B1
        # Of a long one, a part: where nothing is written between words, a whole text is a word.
        is_hidden_BT |= is_long_BT.gather(1, order_BT) & (columns_T < wanted_B1)
        chosen_BT = torch.zeros_like(maskable_BT).scatter(1, order_BT, is_hidden_BT)
        return chosen_BT & maskable_BT

    def _begins(self, ids_BT: Tensor, *, moment: Moment) -> Bool[Tensor, "B T"]:
        """Does a unit begin here?"""
        begins_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        if self.settings.masking == "word":
            before = self.can_be_continued_V[ids_BT[:, :-1]]
            begins_BT[:, 1:] = ~(before & self.continues_V[ids_BT[:, 1:]])
        elif self.settings.masking == "span":
            draw_BT = moment.uniform(ids_BT.shape[1], stream="where a span begins")
            begins_BT[:, 1:] = draw_BT[:, 1:] < 1 / SPAN_LENGTH
        return begins_BT


def build_corruption(settings: ObjectiveSettings, *, tokenizer: Tokenizer) -> Corruption:
    """The corruption that the settings ask for, in the ids of this tokenizer."""
    if tokenizer.mask_id is None:
        raise ConfigError(
            f"The objective {settings.kind} needs a token <mask>, which this tokenizer lacks.",
            "The lab's dict.txt has none; a tokenizer trained here has.",
            remedy="Take --objective causal, or another tokenizer.",
        )
    is_ordinary = np.ones(tokenizer.vocab_size, dtype=bool)
    is_ordinary[sorted(tokenizer.special_ids)] = False
    continues, can_be_continued = tokenizer.word_joints()
    return Corruption(
        settings=settings,
        mask_id=tokenizer.mask_id,
        ordinary_ids=torch.from_numpy(np.flatnonzero(is_ordinary)),
        is_ordinary_V=torch.from_numpy(is_ordinary),
        continues_V=torch.from_numpy(continues),
        can_be_continued_V=torch.from_numpy(can_be_continued),
    )
