"""What stands on the backbone: a head, and the operation that swaps it.

Comes in: a backbone's vectors. Goes out: scores over the vocabulary or over the classes. A model is
always `Model(backbone, head)`; `graft` keeps the first and replaces the second. Knows no loss.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regraft.config import ModelSettings, ObjectiveSettings, generator_settings
from regraft.foreign import build_foreign
from regraft.model import Backbone, Sight, build_blocks, pair_key, start_small
from regraft.store import TokenStore

Pooling = Literal["last", "mean", "first", "attention"]
Output = TypeVar("Output")

CAUSAL = ObjectiveSettings()

# A pair of neighbours that is rarer teaches a bag to know documents again, and nothing else.
PAIRS_SEEN_AT_LEAST = 5


def pool(
    hidden_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"], pooling: Pooling
) -> Float[Tensor, "B D"]:
    """One vector a row, from its real tokens only: padding on either side changes nothing.

    Attention that nobody has trained yet weighs all tokens alike: it is the mean.
    """
    if pooling in ("mean", "attention"):
        weights_BT1 = real_BT.unsqueeze(2).to(hidden_BTD.dtype)
        return (hidden_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1)
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


class Transform(nn.Module):
    """Dense, GELU, norm: what BERT and ModernBERT put between the backbone and the scores."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        has_bias = settings.family == "bert"
        self.dense = nn.Linear(settings.width, settings.width, bias=has_bias)
        self.norm = nn.LayerNorm(settings.width, bias=has_bias)
        start_small(self)

    def forward(self, hidden: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return self.norm(F.gelu(self.dense(hidden)))


class Pooler(nn.Module):
    """Dense and tanh over the vector of the first token, where BERT reads a whole text."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.dense = nn.Linear(settings.width, settings.width)
        start_small(self)

    def forward(self, pooled_BD: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        return torch.tanh(self.dense(pooled_BD))


class LanguageModelHead(nn.Module):
    """Scores over the vocabulary at every position.

    The lab has a matrix of its own for them. The other families transform the vector, then compare
    it with the embeddings themselves (tied weights, Press & Wolf 2017).
    """

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__()
        if settings.family == "lab":
            self.linear = _linear(settings.width, vocab_size)
        else:
            self.transform = Transform(settings)
            self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.is_tied = settings.family != "lab"

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

    def __init__(self, settings: ModelSettings, *, vocab_size: int) -> None:
        super().__init__(settings, vocab_size=vocab_size)
        self.pooler = Pooler(settings)
        self.pair = nn.Linear(settings.width, 2)
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

    def __init__(self, settings: ModelSettings, *, vocab_size: int, share: float) -> None:
        super().__init__()
        narrow = generator_settings(settings, share=share)
        self.narrow = nn.Linear(settings.width, narrow.width)
        self.blocks = build_blocks(narrow)
        self.final_norm = (
            nn.LayerNorm(narrow.width, bias=False) if settings.family == "modern" else nn.Identity()
        )
        self.widen = nn.Linear(narrow.width, settings.width)
        self.norm = nn.LayerNorm(settings.width)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        # Beside the lab's embeddings times sqrt(D), torch's own start is small enough.
        if settings.family != "lab":
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

    def __init__(self, settings: ModelSettings, *, vocab_size: int, share: float) -> None:
        super().__init__()
        self.generator = Generator(settings, vocab_size=vocab_size, share=share)
        self.dense = nn.Linear(settings.width, settings.width)
        self.linear = nn.Linear(settings.width, 1)
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
    """Scores of the classes, from one pooled vector a row.

    The bert family reads its first token through a pooler; the modern one transforms what it pooled
    as its language model does. Both can be taken over from the base. A bag learned directions only,
    by contrast, and is read so. The lab reads the vector itself.
    """

    def __init__(self, settings: ModelSettings, *, num_classes: int, pooling: Pooling) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.between: Pooler | Transform | None = None
        self.reads_direction = settings.family == "bag"
        if settings.family == "bert" and pooling == "first":
            self.between = Pooler(settings)
        elif settings.family == "modern":
            self.between = Transform(settings)
        self.linear = _linear(settings.width, num_classes)
        # At 0 every token weighs the same: training starts from the mean.
        self.query = nn.Parameter(torch.zeros(settings.width)) if pooling == "attention" else None

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        *,
        real_BT: Bool[Tensor, "B T"],
        embedding_VD: Float[Tensor, "V _"],
    ) -> Float[Tensor, "B C"]:
        if self.query is None:
            pooled_BD = pool(hidden_BTD, real_BT=real_BT, pooling=self.pooling)
        else:
            pooled_BD = attended(hidden_BTD, real_BT=real_BT, query_D=self.query)
        if self.reads_direction:
            pooled_BD = F.normalize(pooled_BD, dim=1) * math.sqrt(pooled_BD.shape[1])
        return self.linear(pooled_BD if self.between is None else self.between(pooled_BD))

    @torch.no_grad()
    def divide_scores(self, temperature: float) -> None:
        """From now on, give the scores divided by a temperature: the order of classes stays."""
        for parameter in self.linear.parameters():
            parameter.div_(temperature)


class NoHead(nn.Module):
    """Of a base that needs none or came without: its scores are the backbone's own vectors."""

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
    settings: ModelSettings,
    *,
    vocab_size: int,
    objective: ObjectiveSettings = CAUSAL,
) -> Model:
    """A new random backbone with the head that its objective needs."""
    backbone = Backbone(settings, vocab_size=vocab_size)
    head: Head
    if objective.kind in ("bert", "sop"):
        head = PairHead(settings, vocab_size=vocab_size)
    elif objective.kind == "replaced":
        head = ReplacedHead(settings, vocab_size=vocab_size, share=objective.generator_share)
    elif objective.kind == "contrast":
        head = NoHead()
    else:
        head = LanguageModelHead(settings, vocab_size=vocab_size)
    return Model(backbone, head)


def build_backbone(settings: ModelSettings, *, vocab_size: int) -> Backbone:
    """A new random backbone of any family; a foreign one has a vocabulary of its own."""
    if settings.family == "foreign":
        return build_foreign(settings)
    return Backbone(settings, vocab_size=vocab_size)


def tell_frequencies(model: Model, counts_V: Int[np.ndarray, " V"]) -> None:
    """Start the scores of a tied head at the frequencies of tokens instead of at none.

    Adam moves a bias by one learning rate a step: to learn that some tokens are thousands of times
    as frequent as others took a masked model its first thousand steps, in which it learned nothing
    else (2026-11-16). The lab starts at 0, as it always did.
    """
    shares_V = torch.from_numpy(counts_V + 1.0)
    for module in (model.head, getattr(model.head, "generator", None)):
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            with torch.no_grad():
                bias.copy_((shares_V / shares_V.sum()).log())


def frequent_pair_keys(store: TokenStore, *, settings: ModelSettings) -> Int[Tensor, " known"]:
    """Keys of the pairs of neighbours that a bag is to know, given its text."""
    pairs_N2 = torch.from_numpy(
        store.frequent_pairs(num_pairs=settings.num_pairs, min_count=PAIRS_SEEN_AT_LEAST)
    )
    return pair_key(pairs_N2[:, 0], pairs_N2[:, 1])


def tell_pairs(model: Model, store: TokenStore) -> None:
    """Let a bag know the pairs of neighbours that are frequent in a text."""
    backbone = model.backbone
    if backbone.settings.family == "bag":
        backbone.know_pairs(frequent_pair_keys(store, settings=backbone.settings))


def build_classifier(
    settings: ModelSettings, *, vocab_size: int, num_classes: int, pooling: Pooling
) -> Model:
    """A new random backbone with a classifier head: the scratch arm."""
    backbone = build_backbone(settings, vocab_size=vocab_size)
    head = ClassifierHead(settings, num_classes=num_classes, pooling=pooling)
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
    base: Model, *, num_classes: int, pooling: Pooling, reinit_layers: int = 0
) -> tuple[Model, Transplant]:
    """The base's backbone, copied, under a new random classifier head. The base stays as it is.

    Where the old head pooled or transformed vectors as the new one does, this part is taken, too.
    The top `reinit_layers` are not taken but drawn anew: they know most of the old objective, and
    least of what a classifier can use (Zhang et al. 2020).
    """
    backbone = copy.deepcopy(base.backbone)
    head = ClassifierHead(backbone.settings, num_classes=num_classes, pooling=pooling)
    renewed = _renew_layers(backbone, num_layers=reinit_layers) if reinit_layers else []
    taken: list[nn.Module] = [backbone]
    for name in ("pooler", "transform"):
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
