"""Adapters: the base stays, few weights learn, and plain weights are left that say the same."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Recorder
from foreign_models import make_folder
from models.test_huggingface import foreign_settings
from safetensors.torch import load_file

from regraft.classifiers.finetuning import finetune
from regraft.config.resolution import resolve
from regraft.errors import ConfigError
from regraft.models.heads import ClassifierHead, Model
from regraft.models.huggingface import load_foreign
from regraft.models.lowrank import add_adapters, merge_adapters
from regraft.training.loaded_run import load_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model whose matrices are Linear, and one whose are not: for reading only."""
    root = tmp_path_factory.mktemp("foreign")
    return {name: make_folder(root / name, name) for name in ("bert", "gpt2")}


def new_model(folder: Path) -> Model:
    base = load_foreign(folder)
    head = ClassifierHead(base.backbone, num_classes=2, pooling="mean")
    return Model(base.backbone, head).eval()


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_adapters_start_without_effect_and_are_merged_away(folders: dict[str, Path], name: str):
    model = new_model(folders[name])
    names = set(model.state_dict())
    ids_BT = torch.tensor([[5, 6, 7, 8]])
    before = model(ids_BT)
    adapters = add_adapters(model, rank=2, seed=0)
    moving = [n for n, p in model.named_parameters() if p.requires_grad]
    assert all("lora_" in n or n.startswith("head.") for n in moving)
    assert any("lora_" in n for n in moving)
    torch.testing.assert_close(model(ids_BT), before)
    with torch.no_grad():
        for n, parameter in model.named_parameters():
            if "lora_B" in n:
                parameter.fill_(0.1)
    learned = model.eval()(ids_BT)
    assert not torch.allclose(learned, before)
    merge_adapters(adapters)
    assert set(model.state_dict()) == names
    torch.testing.assert_close(model(ids_BT), learned, rtol=1e-4, atol=1e-5)


def test_equal_seeds_give_equal_adapters(folders: dict[str, Path]):
    model = new_model(folders["bert"])
    other = copy.deepcopy(model)
    for one in (model, other):
        add_adapters(one, rank=2, seed=7)
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_finetuning_by_adapters_resumes_exactly(
    folders: dict[str, Path],
    splits: dict[str, Path],
    tmp_path: Path,
):
    base = folders["bert"]
    settings = foreign_settings(base, **{"train.lora_rank": 3, "train.epochs": 1})
    inputs: dict[str, Any] = {"base": base, "train": splits["train"], "settings": settings}
    finetune(out=tmp_path / "straight", **inputs)
    with pytest.raises(KeyboardInterrupt):
        finetune(out=tmp_path / "stopped", progress=Recorder(interrupt_at=2), **inputs)
    finetune(out=tmp_path / "stopped", resume=True, **inputs)
    first, second = (
        load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    moved = load_run(tmp_path / "straight").model.backbone.state_dict()
    old = load_foreign(base).backbone.state_dict()
    assert moved.keys() == old.keys()
    changed = {name for name in old if not torch.equal(moved[name], old[name])}
    assert changed
    assert all("embeddings" not in name and "LayerNorm" not in name for name in changed)


def test_adapters_on_a_base_of_ours_are_refused():
    with pytest.raises(ConfigError, match=r"train.lora_rank: for foreign bases only"):
        resolve("finetune", overrides={"train.lora_rank": 4})
