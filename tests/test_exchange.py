"""ONNX graphs: any batch, any length, any padding, the same scores; eight bits at a known cost."""

from pathlib import Path

import pytest
import torch
from random_runs import SHAPE, random_model, tiny_tokenizer, write_run

from regraft.config import resolve
from regraft.delivery import TOLERANCE
from regraft.exchange import Traceable, export_onnx
from regraft.runfolder import load_run

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


@pytest.mark.parametrize(("preset", "objective", "pooling"), KINDS)
@torch.no_grad()
def test_traceable_model_is_the_model(preset, objective, pooling):
    changes = {**SHAPE, "objective.kind": objective, "head.pooling": pooling}
    recipe = "pretrain" if pooling is None else "finetune"
    settings = resolve(recipe, preset=preset, overrides=changes)
    model = random_model(settings, vocab_size=330, is_classifier=pooling is not None).eval()
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


@pytest.fixture(scope="module")
def classifier_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "run"
    labels = {"preset": "modern", "objective": "masked", "pooling": "mean"}
    return write_run(folder, tokenizer=tiny_tokenizer(), **labels)


@pytest.fixture(scope="module")
def exported(classifier_dir) -> Path:
    """A classifier's export with eight bits, for reading only."""
    out = classifier_dir.parent / "out"
    export_onnx(classifier_dir, out=out, int8=True)
    return out


def test_graph_takes_any_shape_and_padding(exported, classifier_dir):
    run = load_run(classifier_dir)
    for ids_BT, real_BT in random_batches():
        ids_BT = ids_BT.masked_fill(~real_BT, run.tokenizer.pad_id)
        with torch.no_grad():
            ours_BC = run.model(ids_BT, real_BT=real_BT)
        theirs_BC = scores_of(exported / "model.onnx", ids_BT, real_BT)
        assert (theirs_BC - ours_BC).abs().max() < TOLERANCE
