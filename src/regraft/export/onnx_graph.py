"""A model as an ONNX graph for any batch and length.

In plain operators for every runtime, or fused for the recent runtime of our own server.
"""

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regraft.export.common import needed
from regraft.models import Attention, KeyValueCache, Model, Sight

TEXT_INPUTS = ("input_ids", "attention_mask")
# The first that has attention and rotary positions as operators.
_FUSED_OPSET = 23
# A protobuf file ends here; a larger model keeps its weights in another file.
_MAX_BYTES = 2**31 - 2**24


class Traceable(nn.Module):
    """The same model by `Backbone.traced`: without shortcuts that look at values."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        ids_BT: Int[Tensor, "B T"],
        mask_BT: Int[Tensor, "B T"],
        types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "*scores"]:
        backbone = self.model.backbone
        real_BT = mask_BT != 0
        hidden_BTD = backbone.traced(ids_BT, real_BT=real_BT, token_types_BT=types_BT)
        scores: Tensor = self.model.head(
            hidden_BTD, real_BT=real_BT, embedding_VD=backbone.embedding.weight
        )
        return scores


class FusedAttention(nn.Module):
    """The same attention in two operators of opset 23 instead of two dozen.

    A classifier of the default shape takes 0.82 of the time for a sentence and 0.90 for a review
    (onnxruntime 1.31, one thread, 2026-11-18).
    """

    def __init__(self, inner: Attention) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, x_BTD: Float[Tensor, "B T D"], *, sight: Sight, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "B T D"]:
        assert cache is None, "a graph reads whole texts"
        num_heads = self.inner.num_heads
        q_BTD, k_BTD, v_BTD = self.inner.in_proj(x_BTD).chunk(3, dim=-1)
        if sight.turns is not None:
            cosines, sines = sight.turns[0, :, 0], sight.turns[1, :, 0]
            q_BTD, k_BTD = (
                torch.onnx.ops.rotary_embedding(part, cosines, sines, num_heads=num_heads)
                for part in (q_BTD, k_BTD)
            )
        y_BTD, *_ = torch.onnx.ops.attention(
            q_BTD, k_BTD, v_BTD, sight.mask, q_num_heads=num_heads, kv_num_heads=num_heads
        )
        attended_BTD: Tensor = self.inner.out_proj(y_BTD)
        return attended_BTD


def write_graph(model: Model, path: Path, *, inputs: Sequence[str] = TEXT_INPUTS) -> None:
    """Write the model in plain operators."""
    _export(model, path, inputs=inputs, opset=None)


def write_fused_graph(model: Model, path: Path) -> None:
    """Write the model in the fused operators of a recent runtime; reads texts, not pairs."""
    fused = copy.deepcopy(model)
    for block in fused.backbone.blocks:
        assert isinstance(block.attention, Attention)
        block.attention = FusedAttention(block.attention)
    _export(fused, path, inputs=TEXT_INPUTS, opset=_FUSED_OPSET)


def _export(model: Model, path: Path, *, inputs: Sequence[str], opset: int | None) -> None:
    mask_BT = torch.tensor([[1, 1, 1], [0, 1, 1]])
    given = (torch.arange(6).reshape(2, 3), mask_BT, torch.tensor([[0, 0, 1], [0, 0, 1]]))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with quiet():
        program = torch.onnx.export(
            Traceable(model).eval(),
            given[: len(inputs)],
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_shapes=(sizes,) * len(inputs),
            opset_version=opset,
            dynamo=True,
            verbose=False,
            custom_translation_table={torch.ops.aten.searchsorted.Tensor: _searchsorted},
        )
    assert program is not None
    # Every node names the file and line on this machine that it comes from.
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.save(path, external_data=is_large(model))


def _searchsorted(table: Any, keys: Any, **options: Any) -> Any:
    """How many numbers of a sorted table are smaller than each key, found bit by bit.

    A bag looks up its pairs so, and ONNX has no such operator.
    """
    op = needed("onnxscript", extra="onnx").opset18
    assert not any(options.values()), "only the plain search is translated"
    size: int = table.shape[0]
    found = op.Sub(keys, keys)
    for power in reversed(range(size.bit_length())):
        more = op.Add(found, op.Constant(value_int=2**power))
        inside = op.Min(more, op.Constant(value_int=size))
        last = op.Gather(table, op.Sub(inside, op.Constant(value_int=1)))
        is_smaller = op.And(op.Less(last, keys), op.Equal(more, inside))
        found = op.Where(is_smaller, more, found)
    return found


def is_large(model: Model) -> bool:
    """Is it too large for one file?"""
    num_bytes: int = sum(tensor.nbytes for tensor in model.state_dict().values())
    return num_bytes > _MAX_BYTES


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and logs of the exporter and the quantiser."""
    loggers = [logging.getLogger("torch.onnx"), logging.getLogger()]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
