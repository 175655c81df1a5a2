"""Parameters, arithmetic and memory of a model in closed form, term by term.

A term is written once, as the formula that is shown; its value is computed from that. Each family
counts its own terms (`FamilyCount`). torch is imported only to build the model that a count is
checked against.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from regraft.config import (
    SIZES,
    ModelSettings,
    ObjectiveSettings,
    ObjectiveTraits,
    Registry,
    Settings,
    feedforward_width,
    generator_settings,
    with_size,
)
from regraft.errors import ConfigError

SYMBOLS = {
    "V": "vocabulary",
    "d": "width",
    "L": "layers",
    "H": "heads",
    "F": "feed-forward width",
    "M": "learned positions",
    "N": "pairs of neighbours",
    "G": "documents a group",
    "g": "generator's width",
    "f": "generator's feed-forward width",
    "h": "generator's heads",
    "m": "share of the tokens predicted",
    "C": "classes",
    "T": "tokens a row",
    "B": "rows a step",
    "P": "parameters",
}
Shape = Mapping[str, float]
Pooling = Literal["last", "mean", "first", "attention"]

CAUSAL = ObjectiveSettings()


@dataclass(frozen=True)
class Term:
    """One summand: `formula` in the letters of `SYMBOLS`, `count` its value.

    `per_layer` is the share of one layer; None for a term that the layers do not share evenly. No
    gradient is taken of a product that is `forward_only`.
    """

    name: str
    formula: str
    count: int
    per_layer: int | None = None
    forward_only: bool = False


@dataclass(frozen=True)
class Ledger:
    """The parameters of one model, and what it takes to train it with Adam in 32 bits.

    `terms` belong to the classifier when a number of classes was given, else to the language model.
    """

    symbols: dict[str, float]
    terms: tuple[Term, ...]
    layers: int
    base: int
    language_model: int
    classifier: int | None
    flops_per_token: tuple[Term, ...]
    training_memory_bytes: tuple[Term, ...]
    whole_scores_bytes: Term

    @property
    def total(self) -> int:
        """Parameters of the model the terms belong to."""
        return _sum(self.terms)

    @property
    def flops_forward(self) -> int:
        """Floating-point operations per token in the forward pass."""
        return _sum(self.flops_per_token)

    @property
    def flops_forward_backward(self) -> int:
        """The backward pass computes two products for every forward one that has a gradient."""
        has_gradient = (term for term in self.flops_per_token if not term.forward_only)
        return self.flops_forward + 2 * _sum(has_gradient)

    @property
    def memory_bytes(self) -> int:
        """Estimate of what a training step holds, its scores in chunks."""
        return _sum(self.training_memory_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        counts: dict[str, Any] = {
            "layers": self.layers,
            "base": self.base,
            "language_model": self.language_model,
        }
        if self.classifier is not None:
            counts["classifier"] = self.classifier
        return {
            **counts,
            "symbols": self.symbols,
            "terms": [asdict(term) for term in self.terms],
            "flops_per_token": {
                "forward": self.flops_forward,
                "forward_backward": self.flops_forward_backward,
                "terms": [asdict(term) for term in self.flops_per_token],
            },
            "training_memory_bytes": {
                "total": self.memory_bytes,
                "terms": [asdict(term) for term in self.training_memory_bytes],
                "scores_if_held_whole": asdict(self.whole_scores_bytes),
            },
        }


# A size is worth its budget when every weight of its layers is trained on at least so many tokens;
# a model with fewer has not left its random start. See docs/log.md for what was measured.
TOKENS_PER_WEIGHT = 5
# Share of the arithmetic of a large matrix product that training reaches.
REACHED_SHARE = 0.5


def size_for_budget(settings: Settings, *, flops_per_second: float) -> str:
    """The largest of SIZES that the minutes of the settings can train; at least the smallest."""
    assert settings.train.minutes is not None
    fitting = [next(iter(SIZES))]
    for size in SIZES:
        counted = ledger(
            with_size(settings, size).model,
            vocab_size=settings.tokenizer.size,
            max_length=settings.data.max_length,
            batch_size=settings.train.batch_size,
            objective=settings.objective,
        )
        per_second = REACHED_SHARE * flops_per_second / counted.flops_forward_backward
        num_tokens = settings.train.minutes * 60 * per_second
        if num_tokens >= TOKENS_PER_WEIGHT * counted.layers:
            fitting.append(size)
    return fitting[-1]


def ledger(
    model: ModelSettings,
    *,
    vocab_size: int,
    num_classes: int | None = None,
    max_length: int,
    batch_size: int,
    objective: ObjectiveSettings = CAUSAL,
    pooling: Pooling = "last",
) -> Ledger:
    """Count a language model, and a classifier on the same base when `num_classes` is given.

    The objective decides about the head of the language model, the pooling about the classifier's.
    """
    if model.family not in COUNTS:
        raise ConfigError(
            f"The parameters of the {model.family} family cannot be counted without building it.",
            remedy=f"Count a preset: {', '.join(COUNTS)}.",
        )
    family, traits = COUNTS[model.family], objective.traits
    shape: dict[str, float] = {
        "V": vocab_size,
        "d": model.width,
        "L": model.num_layers,
        "H": model.num_heads,
        "F": feedforward_width(model),
        **{letter: getattr(model, name) for letter, name in family.extra_symbols.items()},
        **({} if num_classes is None else {"C": num_classes}),
        "T": max_length,
        "B": batch_size,
    }
    if traits.rows == "halves" and num_classes is None:
        shape["G"] = objective.group_size
    with_generator = shape
    if traits.head == "replaced":
        narrow = generator_settings(model, share=objective.generator_share)
        with_generator = shape | {
            "g": narrow.width,
            "f": feedforward_width(narrow),
            "h": narrow.num_heads,
        }
    base = family.base_terms(shape)
    language_head = _language_head_terms(family, with_generator, head=traits.head)
    predicted = {"m": _predicted_share(objective)}
    if num_classes is None:
        shape, head = with_generator, language_head
        flops = _language_head_flops(family, shape | predicted, traits=traits)
    else:
        head = _classifier_terms(family, shape, pooling=pooling)
        flops = _classifier_flops(family, shape, pooling=pooling)
    shape["P"] = _sum(base) + _sum(head)
    is_share_shown = num_classes is None and not traits.is_causal and traits.head != "none"
    return Ledger(
        symbols=shape | (predicted if is_share_shown else {}),
        terms=(*base, *head),
        layers=_sum(family.layer_terms(shape)),
        base=_sum(base),
        language_model=_sum(base) + _sum(language_head),
        classifier=None if num_classes is None else _sum(base) + _sum(head),
        flops_per_token=(*family.layer_flops(shape), *flops),
        training_memory_bytes=_memory(family, shape, attention_dropout=model.attention_dropout),
        whole_scores_bytes=_whole_scores(shape | predicted),
    )


def _predicted_share(objective: ObjectiveSettings) -> float:
    """Share of the tokens at which something is predicted, averaged over a whole training."""
    if objective.traits.is_causal:
        return 1.0
    if objective.traits.head == "none":
        return 0.0
    first, last = objective.mask_rate, objective.mask_rate_end
    hidden = first if last is None else (first + last) / 2
    if objective.kind == "hybrid":
        return objective.causal_share + (1 - objective.causal_share) * hidden
    return hidden


def _sum(terms: Iterable[Term]) -> int:
    return sum(term.count for term in terms)


def _of_generator(terms: Iterable[Term]) -> tuple[Term, ...]:
    return tuple(dataclasses.replace(term, name=f"generator: {term.name}") for term in terms)


def formula_value(formula: str, shape: Shape) -> int:
    """What a formula comes to; what stands side by side is multiplied, as in `2 V d²`."""
    product = re.sub(r"(?<=[\w²)]) (?=[\w(])", " * ", formula.replace("·", "*"))
    return round(eval(product.replace("²", " ** 2"), {}, dict(shape)))


def _term(shape: Shape, name: str, formula: str, *, forward_only: bool = False) -> Term:
    return Term(name, formula, formula_value(formula, shape), forward_only=forward_only)


def _layered(shape: Shape, name: str, formula: str) -> Term:
    whole = f"L · {formula}"
    return Term(name, whole, formula_value(whole, shape), per_layer=formula_value(formula, shape))


def _linear_terms(shape: Shape, name: str, *, outputs: str = "d") -> tuple[Term, ...]:
    """A dense layer from d numbers to as many, or to another number: a letter, or itself."""
    product = {"d": "d²", "1": "d"}.get(outputs, f"{outputs} d")
    return _term(shape, f"{name} weight", product), _term(shape, f"{name} bias", outputs)


class FamilyCount:
    """Counts a family whose layers are BERT's; others override what differs.

    Methods take a shape, numbers by the letters of SYMBOLS. `letters` are those of the width and
    the feed-forward width, of which a generator has its own.
    """

    # Numbers that a layer keeps for the backward pass, for each token: vectors of width d and of
    # width F. Counted from what autograd saved, with dropout (2026-11-16).
    kept_vectors = (10, 2)
    # Products of a width by a feed-forward width, multiplication and addition counted as two.
    feedforward_products = 4
    is_tied = True
    # Letters that only this family has, and the settings they stand for.
    extra_symbols: Mapping[str, str] = {"M": "max_positions"}

    def base_terms(self, shape: Shape) -> tuple[Term, ...]:
        """The backbone. What is computed and not learned is a term of zero."""
        term = partial(_term, shape)
        return (
            term("token embedding", "V d"),
            term("learned positions", "M d"),
            term("token types", "2 d"),
            term("embedding norm (gain, offset)", "2 d"),
            *self.layer_terms(shape),
        )

    def layer_terms(
        self, shape: Shape, *, letters: tuple[str, str] = ("d", "F")
    ) -> tuple[Term, ...]:
        """All layers."""
        wide, inner = letters
        layered = partial(_layered, shape)
        return (
            layered("query, key, value weights", f"3 {wide}²"),
            layered("query, key, value biases", f"3 {wide}"),
            layered("output projection weight", f"{wide}²"),
            layered("output projection bias", wide),
            layered("feed-forward weights", f"2 {wide} {inner}"),
            layered("feed-forward biases", f"({inner} + {wide})"),
            layered("norms (2 gains, 2 offsets)", f"4 {wide}"),
        )

    def final_norm_terms(self, shape: Shape, *, letter: str = "d") -> tuple[Term, ...]:
        """What follows the last layer."""
        return ()

    def transform_terms(self, shape: Shape) -> tuple[Term, ...]:
        """What is between the backbone and tied scores."""
        norm = _term(shape, "transform norm (gain, offset)", "2 d")
        return (*_linear_terms(shape, "transform"), norm)

    def between(self, pooling: Pooling) -> Literal["pooler", "transform"] | None:
        """What is between the pooled vector and the scores of a classifier."""
        return "pooler" if pooling == "first" else None

    def layer_flops(
        self, shape: Shape, *, letters: tuple[str, str] = ("d", "F")
    ) -> tuple[Term, ...]:
        """Matrix products only, a multiplication and an addition counted as two."""
        wide, inner = letters
        layered = partial(_layered, shape)
        return (
            layered("attention projections", f"8 {wide}²"),
            layered("attention scores and mixing", f"4 T {wide}"),
            layered("feed-forward", f"{self.feedforward_products} {wide} {inner}"),
        )


class _LabCount(FamilyCount):
    kept_vectors = (10, 3)
    is_tied = False
    extra_symbols: Mapping[str, str] = {}

    def base_terms(self, shape: Shape) -> tuple[Term, ...]:
        term = partial(_term, shape)
        embedding = term("token embedding", "V d")
        return (embedding, term("sinusoidal positions", "0"), *self.layer_terms(shape))

    def between(self, pooling: Pooling) -> None:
        return None


class _ModernCount(FamilyCount):
    kept_vectors = (12, 5)
    # GeGLU: up to F values and to F gates, and down once.
    feedforward_products = 6
    extra_symbols: Mapping[str, str] = {}

    def base_terms(self, shape: Shape) -> tuple[Term, ...]:
        term = partial(_term, shape)
        return (
            term("token embedding", "V d"),
            term("rotary positions", "0"),
            term("embedding norm (gain)", "d"),
            *self.layer_terms(shape),
            *self.final_norm_terms(shape),
        )

    def layer_terms(
        self, shape: Shape, *, letters: tuple[str, str] = ("d", "F")
    ) -> tuple[Term, ...]:
        wide, inner = letters
        layered = partial(_layered, shape)
        return (
            layered("query, key, value weights", f"3 {wide}²"),
            layered("output projection weight", f"{wide}²"),
            layered("feed-forward weights (values, gates, down)", f"3 {wide} {inner}"),
            _term(shape, "biases", "0"),
            _term(shape, "norms before attention, from layer 2 on (gain)", f"(L - 1) {wide}"),
            layered("norms before feed-forward (gain)", wide),
        )

    def final_norm_terms(self, shape: Shape, *, letter: str = "d") -> tuple[Term, ...]:
        return (_term(shape, "final norm (gain)", letter),)

    def transform_terms(self, shape: Shape) -> tuple[Term, ...]:
        term = partial(_term, shape)
        return (term("transform weight", "d²"), term("transform norm (gain)", "d"))

    def between(self, pooling: Pooling) -> Literal["transform"]:
        return "transform"


class _BagCount(_LabCount):
    kept_vectors = (0, 0)
    extra_symbols: Mapping[str, str] = {"N": "num_pairs"}

    def base_terms(self, shape: Shape) -> tuple[Term, ...]:
        term = partial(_term, shape)
        return (term("token embedding", "V d"), term("pairs of neighbours", "N d"))

    def layer_terms(
        self, shape: Shape, *, letters: tuple[str, str] = ("d", "F")
    ) -> tuple[Term, ...]:
        return ()

    def layer_flops(
        self, shape: Shape, *, letters: tuple[str, str] = ("d", "F")
    ) -> tuple[Term, ...]:
        return ()


COUNTS: Registry[FamilyCount] = Registry("counted family")
COUNTS.register("lab")(_LabCount())
COUNTS.register("bert")(FamilyCount())
COUNTS.register("modern")(_ModernCount())
COUNTS.register("bag")(_BagCount())


def _language_head_terms(family: FamilyCount, shape: Shape, *, head: str) -> tuple[Term, ...]:
    if head == "replaced":
        return _replaced_terms(family, shape)
    if head == "none":
        return ()
    if family.is_tied:
        scores = (*family.transform_terms(shape), *_tied_terms(shape))
    else:
        scores = _linear_terms(shape, "head", outputs="V")
    if head != "pairs":
        return scores
    return (*scores, *_linear_terms(shape, "pooler"), *_linear_terms(shape, "pair", outputs="2"))


def _tied_terms(shape: Shape) -> tuple[Term, ...]:
    term = partial(_term, shape)
    return term("head weight, tied to the embedding", "0"), term("head bias", "V")


def _replaced_terms(family: FamilyCount, shape: Shape) -> tuple[Term, ...]:
    """ELECTRA's two models; the generator reads and scores with the embeddings of the other."""
    term = partial(_term, shape)
    return (
        *_of_generator(
            (
                term("narrowing weight", "d g"),
                term("narrowing bias", "g"),
                *family.layer_terms(shape, letters=("g", "f")),
                *family.final_norm_terms(shape, letter="g"),
                term("widening weight", "d g"),
                term("widening bias", "d"),
                term("norm (gain, offset)", "2 d"),
                *_tied_terms(shape),
            )
        ),
        *_linear_terms(shape, "detector: dense"),
        *_linear_terms(shape, "detector: score", outputs="1"),
    )


def _classifier_terms(family: FamilyCount, shape: Shape, *, pooling: Pooling) -> tuple[Term, ...]:
    head = _linear_terms(shape, "head", outputs="C")
    if pooling == "attention":
        head = (_term(shape, "attention query", "d"), *head)
    match family.between(pooling):
        case "pooler":
            return (*_linear_terms(shape, "pooler"), *head)
        case "transform":
            return (*family.transform_terms(shape), *head)
        case None:
            return head


def _language_head_flops(
    family: FamilyCount, shape: Shape, *, traits: ObjectiveTraits
) -> tuple[Term, ...]:
    """The share `m` of the tokens is predicted."""
    term = partial(_term, shape)
    if traits.head == "replaced":
        return (
            *_of_generator(
                (
                    term("narrowing and widening", "4 d g"),
                    *family.layer_flops(shape, letters=("g", "f")),
                    term("head, at predicted tokens", "2 m V d"),
                    term("head again, to draw tokens", "2 m V d", forward_only=True),
                )
            ),
            term("detector, at every token", "(2 d² + 2 d)"),
        )
    if traits.head == "none":
        # G² products of two vectors for 2 G halves; their cost is shared by the T tokens of each.
        return (term("similarity of halves, once a group", "G d / T"),)
    where, share = ("every token", "") if traits.is_causal else ("predicted tokens", "m ")
    terms: tuple[Term, ...] = (term(f"head, at {where}", f"2 {share}V d"),)
    if family.is_tied:
        terms = (term(f"transform, at {where}", f"2 {share}d²"), *terms)
    if traits.head != "pairs":
        return terms
    # One vector a row is judged; its cost is shared by the T tokens of the row.
    return (*terms, term("pooler and pair, once a row", "(2 d² + 4 d) / T"))


def _classifier_flops(family: FamilyCount, shape: Shape, *, pooling: Pooling) -> tuple[Term, ...]:
    """One vector a row is classified; its cost is shared by the T tokens of the row."""
    term = partial(_term, shape)
    head: tuple[Term, ...] = (term("head, once a row", "2 C d / T"),)
    if pooling == "attention":
        head = (term("attention query and mean", "4 d"), *head)
    if (name := family.between(pooling)) is not None:
        return (term(f"{name}, once a row", "2 d² / T"), *head)
    return head


def _memory(family: FamilyCount, shape: Shape, *, attention_dropout: float) -> tuple[Term, ...]:
    """Four bytes a number; a matrix that embedding and head share is there once.

    Activations are what layers keep for the backward pass. Attention weights are kept only where
    some are dropped, once before, once after, and what was dropped; the fast path has none.
    """
    num_wide, num_inner = family.kept_vectors

    def activations(name: str, *, wide: str, inner: str, heads: str) -> Term:
        weights = f" + 3 {heads} T" if attention_dropout else ""
        return _layered(shape, name, f"4 B T ({num_wide} {wide} + {num_inner} {inner}{weights})")

    terms = (
        _term(shape, "weights", "4 P"),
        _term(shape, "gradients", "4 P"),
        _term(shape, "Adam's two moments", "8 P"),
        activations("activations", wide="d", inner="F", heads="H"),
    )
    if "g" not in shape:
        return terms
    return (*terms, activations("generator: activations", wide="g", inner="f", heads="h"))


def _whole_scores(shape: Shape) -> Term:
    """What the scores and their gradient add when all are held at once, as the plain lab does."""
    share = "" if shape["m"] == 1 else "m "
    formula = "8 B C" if "C" in shape else "8 B G²" if "G" in shape else f"8 {share}B T V"
    return _term(shape, "scores, if held whole", formula)


def check_ledger(
    counted: Ledger,
    model: ModelSettings,
    *,
    vocab_size: int,
    num_classes: int | None,
    objective: ObjectiveSettings = CAUSAL,
    pooling: Pooling = "last",
) -> int:
    """Build the model itself (without memory for its weights), compare, return its parameters."""
    import torch

    from regraft.models.heads import Model, build_classifier, build_language_model

    def num_parameters(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    def check(what: str, count: int | None, built: int) -> None:
        if count != built:
            raise AssertionError(f"the ledger counts {count} for the {what}, the model has {built}")

    built: Model
    with torch.device("meta"):
        language_model = build_language_model(model, vocab_size=vocab_size, objective=objective)
        built = language_model
        if num_classes is not None:
            built = build_classifier(
                model, vocab_size=vocab_size, num_classes=num_classes, pooling=pooling
            )
            check("classifier", counted.classifier, num_parameters(built))
    check("layers", counted.layers, num_parameters(built.backbone.blocks))
    check("base", counted.base, num_parameters(built.backbone))
    check("language model", counted.language_model, num_parameters(language_model))
    check("sum of the terms", counted.total, num_parameters(built))
    return num_parameters(built)
