"""Our tensors by the names that transformers gives them: OPT, BERT, ELECTRA, ModernBERT.

Values change in two places only: where OPT lacks the lab's factor sqrt(D), and where its heads lack
a bias. Knows no configuration and no transformers.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regraft.models import (
    Backbone,
    BertBackbone,
    LabBackbone,
    LanguageModelHead,
    Model,
    ModernBackbone,
)

# OPT leaves two rows of its table of positions unused.
_OPT_OFFSET = 2

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class _BlockNames:
    """What the parts of a block are called; `projections` is one name for all three, or three."""

    projections: tuple[str, ...]
    parts: dict[str, str]


_OPT = _BlockNames(
    projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    parts={
        "attention.out_proj": "self_attn.out_proj",
        "norm1": "self_attn_layer_norm",
        "linear1": "fc1",
        "linear2": "fc2",
        "norm2": "final_layer_norm",
    },
)
_BERT = _BlockNames(
    projections=("attention.self.query", "attention.self.key", "attention.self.value"),
    parts={
        "attention.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    },
)
_MODERN_PARTS = {
    "attention.out_proj": "attn.Wo",
    "norm1": "attn_norm",
    "norm2": "mlp_norm",
    "linear1": "mlp.Wi",
    "linear2": "mlp.Wo",
}
_MODERN = _BlockNames(projections=("attn.Wqkv",), parts=_MODERN_PARTS)
_DECODER = _BlockNames(
    projections=("attn.q_proj", "attn.k_proj", "attn.v_proj"), parts=_MODERN_PARTS
)


def opt_tensors(model: Model, linear: nn.Linear, *, head_name: str) -> Tensors:
    """The lab's backbone and its linear head, whose bias goes into the last norm."""
    backbone = model.backbone
    assert isinstance(backbone, LabBackbone)
    width = backbone.settings.width
    unused = torch.zeros(_OPT_OFFSET, width)
    layers = "model.decoder.layers"
    tensors = {
        "model.decoder.embed_tokens.weight": backbone.embedding.weight * math.sqrt(width),
        "model.decoder.embed_positions.weight": torch.cat([unused, backbone.positions_TD]),
        **_block_tensors(backbone.blocks, _OPT, prefix=layers),
    }
    last_norm = f"{layers}.{len(backbone.blocks) - 1}.final_layer_norm"
    shift_D, weight_CD = without_bias(
        linear, gain_D=tensors[f"{last_norm}.weight"], shift_D=tensors[f"{last_norm}.bias"]
    )
    return {**tensors, f"{last_norm}.bias": shift_D, f"{head_name}.weight": weight_CD}


def without_bias(
    linear: nn.Linear, *, gain_D: Float[Tensor, " D"], shift_D: Float[Tensor, " D"]
) -> tuple[Float[Tensor, " D"], Float[Tensor, "C D"]]:
    """(another shift of the norm before it, another weight): the same scores without a bias.

    A norm gives h = gain * x + shift, where the entries of x sum to 0. So a = 1 / gain, for which
    a.h = sum(shift / gain) whatever x is, turns any bias into a weight. Shifting by the gain, away
    from 0, keeps that constant large. Where a gain is 0, its entry of h is the constant already.
    """
    gain, shift = gain_D.double(), shift_D.double()
    weight, bias = linear.weight.double(), linear.bias.double()
    is_constant = gain == 0
    if is_constant.any():
        detector = is_constant.double()
        step = detector
    else:
        detector = 1 / gain
        step = gain
    constant = (detector * shift).sum()
    step = step if constant >= 0 else -step
    constant = (detector * (shift + step)).sum()
    missing_C = (bias - weight @ step) / constant
    return (shift + step).float(), (weight + torch.outer(missing_C, detector)).float()


def bert_tensors(backbone: Backbone, name: str) -> Tensors:
    """A bert backbone; `name` is bert or electra."""
    return {**bert_embedding_tensors(backbone, name), **bert_block_tensors(backbone.blocks, name)}


def bert_embedding_tensors(backbone: Backbone, name: str) -> Tensors:
    """The embeddings below the blocks."""
    assert isinstance(backbone, BertBackbone)
    return {
        **named(backbone.embedding, f"{name}.embeddings.word_embeddings"),
        **named(backbone.positions, f"{name}.embeddings.position_embeddings"),
        **named(backbone.token_types, f"{name}.embeddings.token_type_embeddings"),
        **named(backbone.embedding_norm, f"{name}.embeddings.LayerNorm"),
    }


def bert_block_tensors(blocks: nn.ModuleList, name: str) -> Tensors:
    """The blocks alone: a generator has its own over the same embeddings."""
    return _block_tensors(blocks, _BERT, prefix=f"{name}.encoder.layer")


def bert_head_tensors(head: LanguageModelHead, embedding_VD: Float[Tensor, "V D"]) -> Tensors:
    """Scores over the vocabulary."""
    return {
        **named(head.transform.dense, "cls.predictions.transform.dense"),
        **named(head.transform.norm, "cls.predictions.transform.LayerNorm"),
        "cls.predictions.bias": head.bias,
        "cls.predictions.decoder.weight": embedding_VD,
        "cls.predictions.decoder.bias": head.bias,
    }


def modern_tensors(backbone: Backbone) -> Tensors:
    """A modern backbone, for the class that looks both ways."""
    return _modern_tensors(backbone, _MODERN)


def decoder_tensors(backbone: Backbone) -> Tensors:
    """The same for the class that looks to the left: queries, keys and values apart."""
    return _modern_tensors(backbone, _DECODER)


def _modern_tensors(backbone: Backbone, names: _BlockNames) -> Tensors:
    assert isinstance(backbone, ModernBackbone)
    return {
        **named(backbone.embedding, "model.embeddings.tok_embeddings"),
        **named(backbone.embedding_norm, "model.embeddings.norm"),
        **_block_tensors(backbone.blocks, names, prefix="model.layers"),
        **named(backbone.final_norm, "model.final_norm"),
    }


def modern_head_tensors(
    head: LanguageModelHead, embedding_VD: Float[Tensor, "V D"], *, name: str
) -> Tensors:
    """Scores over the vocabulary; `name` is that of the transform."""
    return {
        **named(head.transform, name),
        "decoder.weight": embedding_VD,
        "decoder.bias": head.bias,
    }


def named(part: nn.Module, name: str) -> Tensors:
    """The tensors of one part under another name."""
    return {f"{name}.{key}": tensor for key, tensor in part.state_dict().items()}


def _block_tensors(blocks: nn.ModuleList, names: _BlockNames, *, prefix: str) -> Tensors:
    tensors: Tensors = {}
    for number, block in enumerate(blocks):
        for ours, theirs in names.parts.items():
            tensors.update(named(block.get_submodule(ours), f"{prefix}.{number}.{theirs}"))
        joint = block.get_submodule("attention.in_proj").state_dict()
        for key, tensor in joint.items():
            parts = tensor.chunk(len(names.projections))
            for projection, part in zip(names.projections, parts, strict=True):
                tensors[f"{prefix}.{number}.{projection}.{key}"] = part
    return tensors
