"""What the rules must know of each family and objective, as plain facts that need no torch.

The network of a family is a class in regraft.models, the loss of an objective a function in
regraft.training. `register_family` and `register_objective` add to these tables.
"""

from dataclasses import dataclass
from typing import Literal

from regraft.config.registry import Registry


@dataclass(frozen=True)
class FamilyTraits:
    """Facts about a family of backbones.

    Without layers there is no attention: nothing is predicted from the tokens around. A foreign
    family is built by another library and comes as a base only. `feedforward_factor` times the
    width is the feed-forward width that `auto` stands for.
    """

    feedforward_factor: int = 4
    positions: Literal["sinusoidal", "learned", "rotary", "none", "unknown"] = "learned"
    has_layers: bool = True
    has_token_types: bool = False
    is_foreign: bool = False


@dataclass(frozen=True)
class ObjectiveTraits:
    """Facts about a pre-training objective.

    `rows` is how text is cut for it, `head` what it trains on the backbone: scores over the
    vocabulary, also over pairs of sentences, ELECTRA's two heads, or none.
    """

    is_causal: bool = False
    hides_tokens: bool = False
    continues_text: bool = False
    head: Literal["tokens", "pairs", "replaced", "none"] = "tokens"
    rows: Literal["text", "sentence pairs", "halves"] = "text"

    @property
    def predicts_tokens(self) -> bool:
        """Does the base score the vocabulary?"""
        return self.head in ("tokens", "pairs")

    @property
    def shares_a_step(self) -> bool:
        """Can the loss be added to contrast, on the halves of documents that contrast reads?"""
        return self.head == "tokens" and self.rows == "text"

    @property
    def fills_masks(self) -> bool:
        """Does the base learn to guess hidden tokens?"""
        return self.hides_tokens and self.predicts_tokens


FAMILIES: Registry[FamilyTraits] = Registry("family")
FAMILIES.register("lab")(FamilyTraits(feedforward_factor=1, positions="sinusoidal"))
FAMILIES.register("bert")(FamilyTraits(has_token_types=True))
# A GeGLU has three matrices.
FAMILIES.register("modern")(FamilyTraits(feedforward_factor=2, positions="rotary"))
FAMILIES.register("bag")(FamilyTraits(feedforward_factor=1, positions="none", has_layers=False))
FAMILIES.register("foreign")(FamilyTraits(positions="unknown", is_foreign=True))

OBJECTIVES: Registry[ObjectiveTraits] = Registry("objective")
OBJECTIVES.register("causal")(ObjectiveTraits(is_causal=True, continues_text=True))
OBJECTIVES.register("masked")(ObjectiveTraits(hides_tokens=True))
for _name in ("bert", "sop"):
    OBJECTIVES.register(_name)(
        ObjectiveTraits(hides_tokens=True, head="pairs", rows="sentence pairs")
    )
OBJECTIVES.register("replaced")(ObjectiveTraits(hides_tokens=True, head="replaced"))
OBJECTIVES.register("hybrid")(ObjectiveTraits(hides_tokens=True, continues_text=True))
OBJECTIVES.register("contrast")(ObjectiveTraits(head="none", rows="halves"))
