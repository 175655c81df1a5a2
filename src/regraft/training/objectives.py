"""Training objectives: each is one function, (model, batch, moment) -> LossSum.

The sum and the count stay apart: the trainer divides once by the count of the whole step, so that
micro-batches, padding and masking cannot change the result. `register_objective` adds one from
anywhere.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from regraft.config import OBJECTIVES, ObjectiveTraits, Registry, Settings
from regraft.data import IGNORED, Batch, Rows, Tokenizer
from regraft.models import LanguageModelHead, Model, PairHead, ReplacedHead, Transformer
from regraft.training.fused_loss import chunk_rows, linear_cross_entropy
from regraft.training.inference import class_scores, inference_batches
from regraft.training.masking import Corruption, Moment, build_corruption
from regraft.training.sampled_softmax import TokenSampler, sampled_cross_entropy

# Clark et al. 2020: how much more the discriminator's mean loss weighs than the generator's.
DETECTION_WEIGHT = 50.0

# Similarities of vectors are divided by it before the softmax.
TEMPERATURE = 0.07

# The loss in nats a token that is compared with the corpus' unigram entropy.
TOKEN_LOSS = "loss"

Part = TypeVar("Part")


class Reading(NamedTuple):
    """A metric reported with the loss: a sum over `count` cases."""

    total: Tensor
    count: int  # type: ignore[assignment]


class LossSum(NamedTuple):
    """Summed loss in nats and the number of targets; readings are only reported.

    A tuple, because FSDP looks for tensors with gradients in tuples and not in other objects.
    """

    total: Tensor
    count: int  # type: ignore[assignment] # the field hides tuple.count, which nobody needs here
    readings: Mapping[str, Reading] = MappingProxyType({})


Objective = Callable[[Model, Batch, Moment], LossSum]


def causal(model: Model, batch: Batch, moment: Moment) -> LossSum:
    """Predict the next token from those before it (the lab's objective)."""
    return _causal(model, batch, moment, sampler=None)


def sampled_causal(sampler: TokenSampler) -> Objective:
    """The same with a sampled softmax, for training on a large vocabulary."""
    return partial(_causal, sampler=sampler)


def _causal(model: Model, batch: Batch, moment: Moment, *, sampler: TokenSampler | None) -> LossSum:
    hidden_BTD = model.backbone(
        batch.ids_BT,
        real_BT=batch.real_BT,
        segments_BT=batch.segments_BT,
        token_types_BT=batch.token_types_BT,
        is_causal=True,
    )
    return token_loss(model, hidden_BTD, batch.targets, moment=moment, sampler=sampler)


def masked(corruption: Corruption, sampler: TokenSampler | None = None) -> Objective:
    """Predict hidden tokens from both sides (Devlin et al. 2018)."""

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        ids_BT, targets_BT = corruption.hide(batch.ids_BT, real_BT=batch.real_BT, moment=moment)
        hidden_BTD = model.backbone(
            ids_BT,
            real_BT=batch.real_BT,
            segments_BT=batch.segments_BT,
            token_types_BT=batch.token_types_BT,
        )
        return token_loss(model, hidden_BTD, targets_BT, moment=moment, sampler=sampler)

    return objective


def paired(corruption: Corruption, sampler: TokenSampler | None = None) -> Objective:
    """Masked, and do the two sentences of a row belong together? Targets are 0 if they do, else 1.

    A pair weighs as much as the hidden tokens of its row together: divided by the count of tokens,
    both losses are means, whose sum is BERT's, however long rows are and whatever the mask rate.
    """

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        head = _expected(model.head, PairHead)
        ids_BT, targets_BT = corruption.hide(batch.ids_BT, real_BT=batch.real_BT, moment=moment)
        hidden_BTD = model.backbone(
            ids_BT, real_BT=batch.real_BT, token_types_BT=batch.token_types_BT
        )
        tokens = token_loss(model, hidden_BTD, targets_BT, moment=moment, sampler=sampler)
        scores_B2 = head.pair_scores(hidden_BTD, real_BT=batch.real_BT)
        losses_B = F.cross_entropy(scores_B2, batch.targets, reduction="none")
        num_hidden_B = (targets_BT != IGNORED).sum(dim=1)
        num_right = (scores_B2.argmax(dim=1) == batch.targets).sum()
        readings = {**tokens.readings, "pair_accuracy": Reading(num_right, len(batch.targets))}
        return LossSum(tokens.total + (num_hidden_B * losses_B).sum(), tokens.count, readings)

    return objective


def replaced(corruption: Corruption) -> Objective:
    """Detect the tokens that a small generator replaced (ELECTRA, Clark et al. 2020)."""

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        head = _expected(model.head, ReplacedHead)
        backbone, real_BT = _expected(model.backbone, Transformer), batch.real_BT
        hidden_ids_BT, targets_BT = corruption.hide(
            batch.ids_BT, real_BT=real_BT, moment=moment, masked_share=1.0, random_share=0.0
        )
        places_BT = backbone.places(real_BT, segments_BT=batch.segments_BT)
        sight = backbone.sight(
            real_BT, is_causal=False, places_BT=places_BT, segments_BT=batch.segments_BT
        )
        embedded_BTD = backbone.embed(hidden_ids_BT, places_BT=places_BT)
        proposed_BTD = head.generator(embedded_BTD, sight=sight)
        proposed_ND, targets_N = _at_targets(proposed_BTD, targets_BT)
        embedding_VD = backbone.embedding.weight
        generator_total = linear_cross_entropy(
            proposed_ND, embedding_VD, head.generator.bias, targets_N
        )

        # The sampled tokens carry no gradient: the generator learns from its own loss only.
        with torch.no_grad():
            draws_BT = moment.uniform(batch.ids_BT.shape[1], stream="which token")
            is_target_BT = targets_BT != IGNORED
            draws_N = draws_BT.to(proposed_ND.device)[is_target_BT]
            chunk = chunk_rows(embedding_VD)
            parts = zip(proposed_ND.split(chunk), draws_N.split(chunk), strict=True)
            sampled_N = torch.cat(
                [
                    _sampled(F.linear(part_ND, embedding_VD, head.generator.bias), draws)
                    for part_ND, draws in parts
                ]
            )
            ids_BT = batch.ids_BT.masked_scatter(is_target_BT, sampled_N)
        is_replaced_BT = ids_BT != batch.ids_BT
        hidden_BTD = backbone(ids_BT, real_BT=real_BT, segments_BT=batch.segments_BT)
        scores_BT = head(hidden_BTD, real_BT=real_BT, embedding_VD=embedding_VD)
        losses_BT = F.binary_cross_entropy_with_logits(
            scores_BT, is_replaced_BT.to(scores_BT), reduction="none"
        )
        num_real = int(real_BT.sum())
        # A mean over the tokens of a row, which weighs as much as its targets: divided by the count
        # of targets it is the mean of the paper, however long rows are.
        detection_B = losses_BT.masked_fill(~real_BT, 0.0).sum(dim=1)
        weight_B = DETECTION_WEIGHT * is_target_BT.sum(dim=1) / real_BT.sum(dim=1)
        flagged_BT = (scores_BT > 0) & real_BT
        num_replaced = int((is_replaced_BT & real_BT).sum())
        readings = {
            TOKEN_LOSS: Reading(generator_total.detach(), len(targets_N)),
            "detection_loss": Reading(detection_B.detach().sum(), num_real),
            "found": Reading((flagged_BT & is_replaced_BT).sum(), num_replaced),
            "false_alarms": Reading((flagged_BT & ~is_replaced_BT).sum(), num_real - num_replaced),
        }
        total = generator_total + (weight_B * detection_B).sum()
        return LossSum(total, len(targets_N), readings)

    return objective


def hybrid(
    corruption: Corruption, *, causal_share: float, sampler: TokenSampler | None = None
) -> Objective:
    """Steps of both kinds on one model (GPT-BERT, Charpentier & Samuel 2024), unshifted."""
    look_left, look_both_ways = partial(_causal, sampler=sampler), masked(corruption, sampler)

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        is_causal = moment.chance(stream="which objective") < causal_share
        return (look_left if is_causal else look_both_ways)(model, batch, moment)

    return objective


def contrast(model: Model, batch: Batch, moment: Moment) -> LossSum:
    """Match the two halves of each document among those of its group, in both directions.

    InfoNCE (van den Oord et al. 2018) on the mean vector, as in DeCLUTR (Giorgi et al. 2020). Rows
    2 i and 2 i + 1 are halves of one document, and targets are the groups: negatives come from the
    same group only, whatever else is in the batch.
    """
    vectors_BD = model.backbone.mean_vectors(batch.ids_BT, real_BT=batch.real_BT)
    return contrast_loss(vectors_BD, groups_B=batch.targets)


def contrast_loss(vectors_BD: Float[Tensor, "B D"], *, groups_B: Int[Tensor, " B"]) -> LossSum:
    """The loss of `contrast`, given the vectors of all halves and the groups they belong to."""
    vectors_BD = F.normalize(vectors_BD, dim=1)
    groups_N = groups_B[0::2]
    scores_NN = vectors_BD[0::2] @ vectors_BD[1::2].T / TEMPERATURE
    scores_NN = scores_NN.masked_fill(groups_N.unsqueeze(1) != groups_N, -torch.inf)
    own_N = torch.arange(len(groups_N), device=scores_NN.device)
    total = F.cross_entropy(scores_NN, own_N, reduction="sum")
    total = total + F.cross_entropy(scores_NN.T, own_N, reduction="sum")
    num_found = (scores_NN.argmax(dim=1) == own_N).sum()
    return LossSum(total / 2, len(own_N), {"halves_found": Reading(num_found, len(own_N))})


@dataclass(frozen=True)
class ObjectiveContext:
    """What an objective may be built from.

    With a sampler the loss over the vocabulary is estimated, by objectives that have one.
    """

    settings: Settings
    tokenizer: Tokenizer
    sampler: TokenSampler | None = None

    @property
    def corruption(self) -> Corruption:
        """How the settings hide tokens."""
        return build_corruption(self.settings.objective, tokenizer=self.tokenizer)


ObjectiveBuilder = Callable[[ObjectiveContext], Objective]
_BUILDERS: Registry[ObjectiveBuilder] = Registry("objective")


def register_objective(
    name: str, traits: ObjectiveTraits | None = None
) -> Callable[[ObjectiveBuilder], ObjectiveBuilder]:
    """A decorator that makes a builder the objective of this name, for `--set objective.kind=`.

    The traits say which rows it reads, which head it trains and which context it sees.
    """

    def register(builder: ObjectiveBuilder) -> ObjectiveBuilder:
        _BUILDERS.register(name)(builder)
        if traits is not None or name not in OBJECTIVES:
            OBJECTIVES.register(name)(traits or ObjectiveTraits())
        return builder

    return register


def unregister_objective(name: str) -> None:
    """Remove an objective."""
    _BUILDERS.unregister(name)
    OBJECTIVES.unregister(name)


register_objective("masked")(lambda context: masked(context.corruption, context.sampler))
register_objective("bert")(lambda context: paired(context.corruption, context.sampler))
register_objective("sop")(lambda context: paired(context.corruption, context.sampler))
register_objective("replaced")(lambda context: replaced(context.corruption))
register_objective("contrast")(lambda context: contrast)


@register_objective("causal")
def _build_causal(context: ObjectiveContext) -> Objective:
    return causal if context.sampler is None else sampled_causal(context.sampler)


@register_objective("hybrid")
def _build_hybrid(context: ObjectiveContext) -> Objective:
    share = context.settings.objective.causal_share
    return hybrid(context.corruption, causal_share=share, sampler=context.sampler)


def build_objective(
    settings: Settings, *, tokenizer: Tokenizer, sampler: TokenSampler | None = None
) -> Objective:
    """The objective that the settings name, in the ids of this tokenizer."""
    return _BUILDERS[settings.objective.kind](ObjectiveContext(settings, tokenizer, sampler))


def build_validation(settings: Settings, *, tokenizer: Tokenizer) -> dict[str, Objective]:
    """The validation objectives: the one trained; for a hybrid, masked and causal separately."""
    if settings.objective.kind != "hybrid":
        return {"valid": build_objective(settings, tokenizer=tokenizer)}
    corruption = build_corruption(settings.objective, tokenizer=tokenizer)
    return {"valid": masked(corruption), "valid_causal": causal}


def classify(
    class_weights_C: Float[Tensor, " C"] | None = None,
    *,
    label_smoothing: float = 0.0,
    rdrop: float | None = None,
) -> Objective:
    """Predict the class of a row; with weights, a row counts as its class weighs.

    A share of each target can be spread over all classes (Szegedy et al. 2015). With `rdrop` every
    row is read twice, and the two predictions, which differ by dropout, are pulled together by that
    weight (Liang et al. 2021).
    """

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        def loss(scores_BC: Tensor) -> Tensor:
            weights = None if class_weights_C is None else class_weights_C.to(scores_BC)
            return F.cross_entropy(
                scores_BC,
                batch.targets,
                weight=weights,
                reduction="sum",
                label_smoothing=label_smoothing,
            )

        scores_BC = class_scores(model, batch)
        if rdrop is None:
            return LossSum(loss(scores_BC), len(batch.targets))
        again_BC = class_scores(model, batch)
        total = (loss(scores_BC) + loss(again_BC)) / 2
        return LossSum(total + rdrop * disagreement(scores_BC, again_BC), len(batch.targets))

    return objective


def classify_each(
    weights_C: Float[Tensor, " C"] | None = None, *, label_smoothing: float = 0.0
) -> Objective:
    """Predict for every class by itself whether a row bears it: targets are rows of 0 and 1.

    The loss of a row is summed over the classes: minus the log-probability of its set of labels.
    With weights, to bear a class counts as the class weighs. Smoothing moves targets towards one
    half.
    """

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        scores_BC = class_scores(model, batch)
        targets_BC = batch.targets.to(scores_BC) * (1 - label_smoothing) + label_smoothing / 2
        weights = None if weights_C is None else weights_C.to(scores_BC)
        total = F.binary_cross_entropy_with_logits(
            scores_BC, targets_BC, pos_weight=weights, reduction="sum"
        )
        return LossSum(total, len(batch.targets))

    return objective


def disagreement(one_BC: Float[Tensor, "B C"], other_BC: Float[Tensor, "B C"]) -> Float[Tensor, ""]:
    """Kullback-Leibler divergence of two predictions, the mean of both directions, summed."""
    one, other = one_BC.log_softmax(dim=1), other_BC.log_softmax(dim=1)
    there = F.kl_div(one, other, reduction="sum", log_target=True)
    back = F.kl_div(other, one, reduction="sum", log_target=True)
    return (there + back) / 2


def read_on(head: LanguageModelHead, *, settings: Settings, tokenizer: Tokenizer) -> Objective:
    """The base's own task on labelled texts: predict their tokens, by the head it learned with.

    The head stays as it is, the backbone learns. A causal base predicts the next token, others
    hidden ones.
    """
    is_causal = settings.objective.traits.is_causal
    hide = None if is_causal else build_corruption(settings.objective, tokenizer=tokenizer)
    own = causal if hide is None else masked(hide)

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        next_BT = F.pad(batch.ids_BT, (0, 1))[:, 1:]
        is_next_BT = F.pad(batch.real_BT, (0, 1))[:, 1:]
        targets_BT = next_BT.masked_fill(~is_next_BT, IGNORED)
        text = dataclasses.replace(batch, targets=targets_BT)
        return own(Model(model.backbone, head), text, moment)

    return objective


def with_auxiliary(
    main: Objective, auxiliary: Objective, *, weight: float, targets_per_row: float
) -> Objective:
    """An objective plus a weighted auxiliary one (Radford et al. 2018).

    Divided by the targets that a row has on average, the second is a mean over targets, too, and
    stays one however a batch is split.
    """

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        first, second = main(model, batch, moment), auxiliary(model, batch, moment)
        total = first.total + weight / targets_per_row * second.total
        return LossSum(total, first.count, {**second.readings, **first.readings})

    return objective


def token_loss(
    model: Model,
    hidden_BTD: Float[Tensor, "B T D"],
    targets_BT: Int[Tensor, "B T"],
    *,
    moment: Moment,
    sampler: TokenSampler | None = None,
) -> LossSum:
    """The head runs where something is to be predicted, and nowhere else.

    All micro-batches and processes of a step draw the same negatives: splitting changes nothing.
    """
    head = _expected(model.head, LanguageModelHead)
    hidden_ND, targets_N = _at_targets(hidden_BTD, targets_BT)
    weight_VD, bias_V = head.vocabulary(model.backbone.embedding.weight)
    transformed_ND = head.transformed(hidden_ND)
    if sampler is None:
        total = linear_cross_entropy(transformed_ND, weight_VD, bias_V, targets_N)
    else:
        total = sampled_cross_entropy(
            transformed_ND,
            weight_VD,
            bias_V,
            targets_N,
            negatives_K=sampler.draw(moment.key(stream="negatives")),
            log_shares_V=sampler.log_shares_V,
        )
    return LossSum(total, len(targets_N), {TOKEN_LOSS: Reading(total.detach(), len(targets_N))})


def _expected(part: object, kind: type[Part]) -> Part:
    assert isinstance(part, kind), f"the objective needs a {kind.__name__}"
    return part


def _sampled(scores_NV: Float[Tensor, "N V"], draws_N: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """A token for each row, drawn as its probabilities say, by the number that the row drew."""
    cumulated_NV = scores_NV.softmax(dim=1).cumsum(dim=1)
    wanted_N1 = (draws_N * cumulated_NV[:, -1]).unsqueeze(1)
    return (
        torch.searchsorted(cumulated_NV, wanted_N1, right=True)
        .squeeze(1)
        .clamp(max=scores_NV.shape[1] - 1)
    )


def _at_targets(
    hidden_BTD: Float[Tensor, "B T D"], targets_BT: Int[Tensor, "B T"]
) -> tuple[Float[Tensor, "N D"], Int[Tensor, " N"]]:
    """The vectors at positions that have a target, and these targets: the head runs there only."""
    hidden_ND, targets_N = hidden_BTD.flatten(0, 1), targets_BT.flatten()
    places_N = (targets_N != IGNORED).nonzero().squeeze(1)
    if len(places_N) == len(targets_N):
        return hidden_ND, targets_N
    return hidden_ND.index_select(0, places_N), targets_N.index_select(0, places_N)


@torch.no_grad()
def readings(
    model: Model, rows: Rows, *, objective: Objective, max_tokens: int
) -> dict[str, float]:
    """The readings of an objective, as means over the first rows that hold `max_tokens`.

    An objective without a loss per token is judged by its whole loss. Masking does not depend on
    training: the same rows are masked in the same way every time.
    """
    model.eval()
    device = next(model.parameters()).device
    num_rows = int(np.searchsorted(np.cumsum(rows.lengths), max_tokens)) + 1
    totals: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for numbers in inference_batches(rows.lengths[:num_rows]):
        moment = Moment(seed=0, step=0, rows=numbers, done=1.0)
        loss_sum = model.compute(objective, rows.batch(numbers).to(device), moment)
        values = {TOKEN_LOSS: Reading(loss_sum.total, loss_sum.count), **loss_sum.readings}
        for name, reading in values.items():
            totals[name] += float(reading.total)
            counts[name] += reading.count
    return {name: totals[name] / max(counts[name], 1) for name in counts}
