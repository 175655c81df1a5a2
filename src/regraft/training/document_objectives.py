"""Objectives on halves of documents: contrast through the layers, alone or with a language model.

The rows are `HalfRows`; the vector compared is the one that a classifier will read.
"""

import dataclasses

import numpy as np

from regraft.config import ObjectiveSettings
from regraft.data import Batch
from regraft.models import Model, Pooling, pool
from regraft.training.masking import Corruption, Moment
from regraft.training.objectives import LossSum, Objective, contrast_loss, token_loss
from regraft.training.sampled_softmax import TokenSampler

# Bits for the place of a half in its group; a group has far fewer than a million.
_HALF_BITS = 20


def documents(model: Model, batch: Batch, moment: Moment, *, pooling: Pooling) -> LossSum:
    """Contrast of halves through all layers, on the vector that a classifier will read."""
    hidden_BTD = model.backbone(batch.ids_BT, real_BT=batch.real_BT)
    vectors_BD = pool(hidden_BTD, real_BT=batch.real_BT, pooling=pooling)
    return contrast_loss(vectors_BD, groups_B=batch.targets)


def documents_and_language(
    settings: ObjectiveSettings,
    *,
    corruption: Corruption | None,
    sampler: TokenSampler | None,
    pooling: Pooling,
    tokens_per_document: float,
) -> Objective:
    """Contrast and the language objective on one reading of the same halves, as in DeCLUTR.

    One after the other, language undoes what contrast learned (docs/log.md, 2026-11-18). The count
    is that of documents; the loss of tokens is divided by how many a document has on average, so
    that it stays a mean however a batch is split. Without a corruption it is causal.
    """
    causal_share = settings.causal_share if settings.kind == "hybrid" else 0.0
    hidden_rate = (settings.mask_rate + (settings.mask_rate_end or settings.mask_rate)) / 2

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        is_causal = corruption is None
        if corruption is not None and causal_share:
            is_causal = moment.chance(stream="which objective") < causal_share
        ids_BT = batch.ids_BT
        if is_causal:
            assert batch.next_BT is not None, "the rows name the next token"
            targets_BT, targets_share = batch.next_BT, 1.0
        else:
            assert corruption is not None, "only a causal objective hides nothing"
            ids_BT, targets_BT = corruption.hide(
                ids_BT, real_BT=batch.real_BT, moment=_of_halves(moment, batch)
            )
            targets_share = hidden_rate
        hidden_BTD = model.backbone(ids_BT, real_BT=batch.real_BT, is_causal=is_causal)
        vectors_BD = pool(hidden_BTD, real_BT=batch.real_BT, pooling=pooling)
        halves = contrast_loss(vectors_BD, groups_B=batch.targets)
        tokens = token_loss(model, hidden_BTD, targets_BT, moment=moment, sampler=sampler)
        weight = _language_weight(settings, done=moment.done)
        total = halves.total + weight / (tokens_per_document * targets_share) * tokens.total
        return LossSum(total, halves.count, {**tokens.readings, **halves.readings})

    return objective


def _language_weight(settings: ObjectiveSettings, *, done: float) -> float:
    """Falls in a straight line: first the language, then documents."""
    first, last = settings.language_weight, settings.language_weight_end
    return first if last is None else first + (last - first) * done


def _of_halves(moment: Moment, batch: Batch) -> Moment:
    """Random numbers for each half instead of for each group, from the same seed and step."""
    groups_B = batch.targets.cpu().numpy()
    first_B = np.searchsorted(groups_B, groups_B)
    places_B = np.arange(len(groups_B)) - first_B
    return dataclasses.replace(moment, rows=(moment.rows[groups_B] << _HALF_BITS) + places_B)
