"""What stands on the backbone: a head, and the operation that swaps it.

Comes in: a backbone's vectors. Goes out: scores over the vocabulary or over the classes. A model is
always `Model(backbone, head)`; `graft` keeps the first and replaces the second. Knows no loss.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regraft.config import ModelSettings
from regraft.model import Backbone

Pooling = Literal["last", "mean", "first"]
Input = TypeVar("Input")
Output = TypeVar("Output")


def pool(
    hidden_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"], pooling: Pooling
) -> Float[Tensor, "B D"]:
    """One vector a row, from its real tokens only: padding on either side changes nothing."""
    if pooling == "mean":
        weights_BT1 = real_BT.unsqueeze(2).to(hidden_BTD.dtype)
        return (hidden_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1)
    places_T = torch.arange(real_BT.shape[1], device=real_BT.device)
    if pooling == "last":
        place_B = places_T.where(real_BT, -1).amax(dim=1)
    else:
        place_B = places_T.where(real_BT, real_BT.shape[1]).amin(dim=1)
    rows_B = torch.arange(hidden_BTD.shape[0], device=hidden_BTD.device)
    return hidden_BTD[rows_B, place_B]


def _linear(width: int, num_outputs: int) -> nn.Linear:
    """The lab's head: weights uniform(-0.1, 0.1), bias 0."""
    linear = nn.Linear(width, num_outputs)
    nn.init.uniform_(linear.weight, -0.1, 0.1)
    nn.init.zeros_(linear.bias)
    return linear


class LanguageModelHead(nn.Module):
    """Scores of the next token at every position."""

    def __init__(self, width: int, *, vocab_size: int) -> None:
        super().__init__()
        self.linear = _linear(width, vocab_size)

    def forward(
        self, hidden_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        return self.linear(hidden_BTD)


class ClassifierHead(nn.Module):
    """Scores of the classes, from one pooled vector a row."""

    def __init__(self, width: int, *, num_classes: int, pooling: Pooling) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.linear = _linear(width, num_classes)

    def forward(
        self, hidden_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B C"]:
        return self.linear(pool(hidden_BTD, real_BT=real_BT, pooling=self.pooling))


class Model(nn.Module):
    """A backbone and a head."""

    def __init__(self, backbone: Backbone, head: LanguageModelHead | ClassifierHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "*scores"]:
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        scores: Tensor = self.head(self.backbone(ids_BT, real_BT=real_BT), real_BT=real_BT)
        return scores

    def compute(self, function: Callable[["Model", Input], Output], given: Input) -> Output:
        """`function(self, given)`. Sharded weights (FSDP) are whole only inside such a method."""
        return function(self, given)


def build_language_model(settings: ModelSettings, *, vocab_size: int) -> Model:
    """A new random backbone with a language-model head."""
    backbone = Backbone(settings, vocab_size=vocab_size)
    return Model(backbone, LanguageModelHead(settings.width, vocab_size=vocab_size))


def build_classifier(
    settings: ModelSettings, *, vocab_size: int, num_classes: int, pooling: Pooling
) -> Model:
    """A new random backbone with a classifier head: the scratch arm."""
    backbone = Backbone(settings, vocab_size=vocab_size)
    head = ClassifierHead(settings.width, num_classes=num_classes, pooling=pooling)
    return Model(backbone, head)


@dataclass(frozen=True)
class Transplant:
    """What a graft took over from the base."""

    num_tensors: int
    num_parameters: int
    num_new_parameters: int

    def __str__(self) -> str:
        return (
            f"{self.num_tensors} tensors with {self.num_parameters:,} parameters came from the "
            f"base; the new head has {self.num_new_parameters:,}"
        )


def graft(base: Model, *, num_classes: int, pooling: Pooling) -> tuple[Model, Transplant]:
    """The base's backbone, copied, under a new random classifier head. The base stays as it is."""
    backbone = copy.deepcopy(base.backbone)
    head = ClassifierHead(backbone.settings.width, num_classes=num_classes, pooling=pooling)
    kept = list(backbone.parameters())
    return Model(backbone, head), Transplant(
        num_tensors=len(kept),
        num_parameters=sum(parameter.numel() for parameter in kept),
        num_new_parameters=sum(parameter.numel() for parameter in head.parameters()),
    )
