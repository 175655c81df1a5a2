"""Heads: the vectors of a backbone become scores over the vocabulary or the classes.

A model is always `Model(backbone, head)`; `graft` keeps the first and replaces the second. How a
family is read, a head asks its backbone. Knows no loss.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regraft.config import ModelSettings, ObjectiveSettings, generator_settings
from regraft.models.backbones import Backbone
from regraft.models.families import build_backbone
from regraft.models.layers import (
    Pooler,
    Sight,
    Transform,
    mean_of_real,
    start_as_scaled_identity,
    start_small,
)
from regraft.models.parameter_count import Pooling

Output = TypeVar("Output")

CAUSAL = ObjectiveSettings()


def pool(
    hidden_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"], pooling: Pooling
) -> Float[Tensor, "B D"]:
    """One vector a row, from its real tokens only: padding on either side changes nothing.

    Untrained attention weighs all tokens alike: it is the mean.
    """
    if pooling in ("mean", "attention"):
        return mean_of_real(hidden_BTD, real_BT=real_BT)
    places_T = torch.arange(real_BT.shape[1], device=real_BT.device)
    if pooling == "last":
        place_B = places_T.where(real_BT, -1).amax(dim=1)
    else:
        place_B = places_T.where(real_BT, real_BT.shape[1]).amin(dim=1)
    rows_B = torch.arange(hidden_BTD.shape[0], device=hidden_BTD.device)
    return hidden_BTD[rows_B, place_B]


def attended(
    hidden_BTD: Float[Tensor, "B T D"],
    *,
    real_BT: Bool[Tensor, "B T"],
    query_D: Float[Tensor, " D"],
) -> Float[Tensor, "B D"]:
    """A mean of the real tokens, each weighed by its fit to a learned query (Yang et al. 2016)."""
    scores_BT = hidden_BTD @ query_D / math.sqrt(len(query_D))
    weights_BT = scores_BT.masked_fill(~real_BT, -math.inf).softmax(dim=1)
    return (hidden_BTD * weights_BT.unsqueeze(2)).sum(dim=1)


def _linear(width: int, num_outputs: int) -> nn.Linear:
    """The lab's head: weights uniform(-0.1, 0.1), bias 0."""
    linear = nn.Linear(width, num_outputs)
    nn.init.uniform_(linear.weight, -0.1, 0.1)
    nn.init.zeros_(linear.bias)
    return linear


class LanguageModelHead(nn.Module):
    """Scores over the vocabulary at every position.

    A tied head transforms the vector, then compares it with the embeddings themselves (Press & Wolf
    2017). The lab's has its own matrix.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        width, vocab_size = backbone.settings.width, backbone.embedding.num_embeddings
        self.is_tied = backbone.is_tied
        if self.is_tied:
            self.transform = backbone.build_transform(width)
            self.bias = nn.Parameter(torch.zeros(vocab_size))
        else:
            self.linear = _linear(width, vocab_size)

    def transformed(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What is compared with the vectors of the vocabulary."""
        return self.transform(hidden) if self.is_tied else hidden

    def vocabulary(
        self, embedding_VD: Float[Tensor, "V D"]
    ) -> tuple[Float[Tensor, "V D"], Float[Tensor, " V"]]:
        """A vector and a bias for every token, given the backbone's embeddings."""
        if self.is_tied:
            return embedding_VD, self.bias
        return self.linear.weight, self.linear.bias

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        *,
        real_BT: Bool[Tensor, "B T"],
        embedding_VD: Float[Tensor, "V D"],
    ) -> Float[Tensor, "B T V"]:
        return F.linear(self.transformed(hidden_BTD), *self.vocabulary(embedding_VD))


class PairHead(LanguageModelHead):
    """BERT's: scores over the vocabulary, and whether two sentences belong together."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.pooler = Pooler(backbone.settings.width)
        self.pair = nn.Linear(backbone.settings.width, 2)
        start_small(self.pair)

    def pair_scores(
        self, hidden_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B 2"]:
        """Scores of: the second sentence is the right one, it is not."""
        return self.pair(self.pooler(pool(hidden_BTD, real_BT=real_BT, pooling="first")))


class Generator(nn.Module):
    """ELECTRA's small masked model: it proposes the tokens that the backbone has to find out.

    It reads the backbone's own embeddings, narrowed, and scores over them, too: they are shared.
    """

    def __init__(self, backbone: Backbone, *, share: float) -> None:
        super().__init__()
        narrow = generator_settings(backbone.settings, share=share)
        width = backbone.settings.width
        self.narrow = nn.Linear(width, narrow.width)
        self.blocks = backbone.build_blocks(narrow)
        self.final_norm = backbone.build_final_norm(narrow.width)
        self.widen = nn.Linear(narrow.width, width)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(backbone.embedding.num_embeddings))
        # Next to the lab's embeddings times sqrt(D), torch's own start is small enough.
        if backbone.starts_small:
            start_small(self)

    def forward(
        self, embedded_BTD: Float[Tensor, "B T D"], *, sight: Sight
    ) -> Float[Tensor, "B T D"]:
        x = self.narrow(embedded_BTD)
        for block in self.blocks:
            x = block(x, sight=sight)
        return self.norm(F.gelu(self.widen(self.final_norm(x))))


class ReplacedHead(nn.Module):
    """ELECTRA's: one score a token, is it the original one? And the generator that replaces."""

    def __init__(self, backbone: Backbone, *, share: float) -> None:
        super().__init__()
        width = backbone.settings.width
        self.generator = Generator(backbone, share=share)
        self.dense = nn.Linear(width, width)
        self.linear = nn.Linear(width, 1)
        start_small(self.dense)
        start_small(self.linear)

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        *,
        real_BT: Bool[Tensor, "B T"],
        embedding_VD: Float[Tensor, "V D"],
    ) -> Float[Tensor, "B T"]:
        return self.linear(F.gelu(self.dense(hidden_BTD))).squeeze(2)


class ClassifierHead(nn.Module):
    """Scores of the classes, from one pooled vector per row.

    `between` is the pooler or transform that some families put before the scores; a graft takes it
    over from the base.
    """

    def __init__(self, backbone: Backbone, *, num_classes: int, pooling: Pooling) -> None:
        super().__init__()
        width = backbone.settings.width
        self.pooling: Pooling = pooling
        self.reads_direction = backbone.reads_direction
        self.between = backbone.build_between(width, pooling=pooling)
        self.linear = _linear(width, num_classes)
        # At 0 every token weighs the same: training starts from the mean.
        self.query = nn.Parameter(torch.zeros(width)) if pooling == "attention" else None

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        *,
        real_BT: Bool[Tensor, "B T"],
        embedding_VD: Float[Tensor, "V _"],
    ) -> Float[Tensor, "B C"]:
        return self.linear(self.vector(hidden_BTD, real_BT=real_BT))

    def vector(
        self, hidden_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B D"]:
        """What the scores are a linear map of."""
        if self.query is None:
            pooled_BD = pool(hidden_BTD, real_BT=real_BT, pooling=self.pooling)
        else:
            pooled_BD = attended(hidden_BTD, real_BT=real_BT, query_D=self.query)
        if self.reads_direction:
            pooled_BD = F.normalize(pooled_BD, dim=1) * math.sqrt(pooled_BD.shape[1])
        return pooled_BD if self.between is None else self.between(pooled_BD)

    @torch.no_grad()
    def divide_scores(self, temperature: float) -> None:
        """From now on, give the scores divided by a temperature: the order of classes stays."""
        for parameter in self.linear.parameters():
            parameter.div_(temperature)


class NoHead(nn.Module):
    """The head of a base without one: its scores are the backbone's own vectors."""

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        *,
        real_BT: Bool[Tensor, "B T"],
        embedding_VD: Float[Tensor, "V _"],
    ) -> Float[Tensor, "B T D"]:
        return hidden_BTD


Head = LanguageModelHead | PairHead | ReplacedHead | ClassifierHead | NoHead


class Model(nn.Module):
    """A backbone and a head."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"] | None = None,
        token_types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "*scores"]:
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        hidden_BTD = self.backbone(ids_BT, real_BT=real_BT, token_types_BT=token_types_BT)
        embedding_VD = self.backbone.embedding.weight
        scores: Tensor = self.head(hidden_BTD, real_BT=real_BT, embedding_VD=embedding_VD)
        return scores

    def compute(self, function: Callable[..., Output], *given: Any) -> Output:
        """`function(self, *given)`. Sharded weights (FSDP) are whole only inside such a method."""
        return function(self, *given)


def build_language_model(
    settings: ModelSettings, *, vocab_size: int, objective: ObjectiveSettings = CAUSAL
) -> Model:
    """A new random backbone with the head that its objective needs."""
    backbone = build_backbone(settings, vocab_size=vocab_size)
    head: Head
    match objective.traits.head:
        case "tokens":
            head = LanguageModelHead(backbone)
        case "pairs":
            head = PairHead(backbone)
        case "replaced":
            head = ReplacedHead(backbone, share=objective.generator_share)
        case "none":
            head = NoHead()
    return Model(backbone, head)


def set_frequency_bias(
    model: Model, counts_V: Int[np.ndarray, " V"], *, includes_untied: bool = False
) -> None:
    """Start the bias of a tied head at the log-frequencies of tokens instead of at 0.

    Adam moves a bias by one learning rate per step: a masked model spent its first thousand steps
    on learning that some tokens are thousands of times as frequent as others (2026-11-16). The
    lab's untied head starts at 0, unless `includes_untied`.
    """
    shares_V = torch.from_numpy(counts_V + 1.0)
    modules = [model.head, getattr(model.head, "generator", None)]
    if includes_untied:
        modules.append(getattr(model.head, "linear", None))
    for module in modules:
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            with torch.no_grad():
                bias.copy_((shares_V / shares_V.sum()).log())


def build_classifier(
    settings: ModelSettings, *, vocab_size: int, num_classes: int, pooling: Pooling
) -> Model:
    """A new random backbone with a classifier head: the scratch arm."""
    backbone = build_backbone(settings, vocab_size=vocab_size)
    head = ClassifierHead(backbone, num_classes=num_classes, pooling=pooling)
    return Model(backbone, head)


@dataclass(frozen=True)
class Transplant:
    """What a graft took over from the base."""

    num_tensors: int
    num_parameters: int
    num_new_parameters: int
    num_new_layers: int = 0

    def __str__(self) -> str:
        layers = "layer" if self.num_new_layers == 1 else "layers"
        more = f" and {self.num_new_layers} new {layers} have" if self.num_new_layers else " has"
        return (
            f"{self.num_tensors} tensors with {self.num_parameters:,} parameters came from the "
            f"base; the new head{more} {self.num_new_parameters:,}"
        )


def graft(
    base: Model,
    *,
    num_classes: int,
    pooling: Pooling,
    reads_pooled: bool = False,
    reinit_layers: int = 0,
) -> tuple[Model, Transplant]:
    """A copy of the base's backbone under a new random classifier head. The base does not change.

    Where the old head pooled or transformed vectors as the new one does, this part is taken, too.
    With `reads_pooled`, for bases that learned the pooled vector itself, it starts close to the
    identity instead.
    The top `reinit_layers` start again at random: they know most about the old objective, and
    least of what a classifier can use (Zhang et al. 2020).
    """
    backbone = copy.deepcopy(base.backbone)
    head = ClassifierHead(backbone, num_classes=num_classes, pooling=pooling)
    renewed = _renew_layers(backbone, num_layers=reinit_layers) if reinit_layers else []
    taken: list[nn.Module] = [backbone]
    if reads_pooled and head.between is not None:
        start_as_scaled_identity(head.between.dense)
    for name in () if reads_pooled else ("pooler", "transform"):
        part = getattr(base.head, name, None)
        if isinstance(part, Pooler | Transform) and type(part) is type(head.between):
            head.between = copy.deepcopy(part)
            taken.append(head.between)
    new = {parameter for layer in renewed for parameter in layer.parameters()}
    kept = [p for part in taken for p in part.parameters() if p not in new]
    num_parameters = sum(parameter.numel() for parameter in kept)
    model = Model(backbone, head)
    return model, Transplant(
        num_tensors=len(kept),
        num_parameters=num_parameters,
        num_new_parameters=sum(p.numel() for p in model.parameters()) - num_parameters,
        num_new_layers=len(renewed),
    )


def _renew_layers(backbone: Backbone, *, num_layers: int) -> list[nn.Module]:
    """The top layers, started as those of a new model are."""
    fresh = build_backbone(backbone.settings, vocab_size=len(backbone.embedding.weight))
    top = list(backbone.blocks)[-num_layers:]
    for layer, new in zip(top, list(fresh.blocks)[-num_layers:], strict=True):
        layer.load_state_dict(new.state_dict())
    return top
