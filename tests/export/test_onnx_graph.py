"""A model as a graph: the same scores for any batch, any length, any padding, in either form."""

from pathlib import Path

import onnx
import pytest
import torch
from random_runs import BAG_SHAPE, SHAPE, random_model
from shapes import unchecked

from regraft.config.resolution import resolve
from regraft.export.onnx_graph import Traceable, write_fused_graph
from regraft.export.parity import TOLERANCE
from regraft.models.heads import Model

onnxruntime = pytest.importorskip("onnxruntime")

# preset, objective, pooling: every family, head and pooling, those without a class among them.
KINDS = [
    ("lab", "causal", None),
    ("lab", "masked", "mean"),
    ("bert", "bert", None),
    ("bert", "replaced", None),
    ("bert", "masked", "last"),
    ("modern", "masked", None),
    ("modern", "causal", "last"),
    ("modern", "hybrid", "first"),
    ("bag", "contrast", "mean"),
]
SHAPES = [(1, 1), (1, 40), (3, 2), (5, 17)]


def random_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Several shapes, each without padding, with padding on the right and on the left."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for batch, length in SHAPES:
        ids_BT = torch.randint(6, 300, (batch, length), generator=generator)
        lengths_B1 = torch.randint(1, length + 1, (batch, 1), generator=generator)
        right_BT = torch.arange(length) < lengths_B1
        for real_BT in (torch.ones_like(right_BT), right_BT, right_BT.flip(1)):
            batches.append((ids_BT, real_BT))
    return batches


def shaken_model(preset: str, *, objective: str, pooling: str | None) -> Model:
    shape = BAG_SHAPE if preset == "bag" else SHAPE
    changes = {**shape, "objective.kind": objective, "head.pooling": pooling}
    recipe = "pretrain" if pooling is None else "finetune"
    settings = resolve(recipe, preset=preset, overrides=changes)
    return random_model(settings, vocab_size=330, is_classifier=pooling is not None).eval()


@pytest.mark.parametrize(("preset", "objective", "pooling"), KINDS)
@torch.no_grad()
def test_traceable_model_is_the_model(preset, objective, pooling):
    model = shaken_model(preset, objective=objective, pooling=pooling)
    traceable = Traceable(model).eval()
    for ids_BT, real_BT in random_batches():
        ours = model(ids_BT, real_BT=real_BT)
        plain = traceable(ids_BT, real_BT.long())
        difference = (ours - plain).abs()
        assert (difference[real_BT] if pooling is None else difference).max() < 1e-5


def scores_of(path: Path, ids_BT: torch.Tensor, real_BT: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(path)
    given = {"input_ids": ids_BT.numpy(), "attention_mask": real_BT.long().numpy()}
    return torch.from_numpy(session.run(["logits"], given)[0])


@pytest.mark.parametrize(
    ("preset", "objective", "pooling"), [kind for kind in KINDS if kind[2] is not None]
)
@torch.no_grad()
def test_fused_graph_is_the_model(preset, objective, pooling, tmp_path):
    model = shaken_model(preset, objective=objective, pooling=pooling)
    with unchecked():
        write_fused_graph(model, tmp_path / "model.onnx")
    for ids_BT, real_BT in random_batches():
        difference = model(ids_BT, real_BT=real_BT) - scores_of(
            tmp_path / "model.onnx", ids_BT, real_BT
        )
        assert difference.abs().max() < TOLERANCE


def test_fused_graph_has_one_attention_a_layer_and_leaves_the_model_alone(tmp_path):
    model = shaken_model("modern", objective="masked", pooling="mean")
    before = [type(module) for module in model.modules()]
    with unchecked():
        write_fused_graph(model, tmp_path / "model.onnx")
    nodes = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert nodes.count("Attention") == SHAPE["model.num_layers"]
    assert nodes.count("RotaryEmbedding") == 2 * SHAPE["model.num_layers"]
    assert [type(module) for module in model.modules()] == before
