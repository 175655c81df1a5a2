"""Pooling reads real tokens only, and a graft swaps the head and nothing else."""

import pytest
import torch

from regraft.config import ModelSettings
from regraft.heads import build_classifier, build_language_model, graft, pool

SETTINGS = ModelSettings(
    width=12, num_layers=2, num_heads=3, feedforward_width=7, dropout=0.0, attention_dropout=0.0
)


@pytest.mark.parametrize("pooling", ["last", "mean", "first"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_pool_ignores_padding_on_either_side(pooling, side):
    row = torch.randn(1, 5, 12)
    padding = torch.full((1, 3, 12), 99.0)
    real = torch.ones(1, 5, dtype=torch.bool)
    no = torch.zeros(1, 3, dtype=torch.bool)
    order = (1, -1) if side == "right" else (-1, 1)
    padded = torch.cat([row, padding][:: order[0]], dim=1)
    mask = torch.cat([real, no][:: order[0]], dim=1)
    expected = pool(row, real_BT=real, pooling=pooling)
    torch.testing.assert_close(pool(padded, real_BT=mask, pooling=pooling), expected)


def test_pool_takes_the_place_its_name_says():
    hidden = torch.arange(5.0).reshape(1, 5, 1)
    real = torch.tensor([[False, True, True, True, False]])
    assert pool(hidden, real_BT=real, pooling="first").item() == 1
    assert pool(hidden, real_BT=real, pooling="last").item() == 3
    assert pool(hidden, real_BT=real, pooling="mean").item() == 2


@pytest.mark.parametrize("pooling", ["last", "mean", "first"])
def test_classifier_scores_do_not_depend_on_padding(pooling):
    torch.manual_seed(0)
    model = build_classifier(SETTINGS, vocab_size=17, num_classes=4, pooling=pooling).eval()
    ids = torch.randint(17, (1, 5))
    real = torch.ones(1, 5, dtype=torch.bool)
    pad, no = torch.full((1, 3), 7), torch.zeros(1, 3, dtype=torch.bool)
    alone = model(ids, real_BT=real)
    right = model(torch.cat([ids, pad], 1), real_BT=torch.cat([real, no], 1))
    left = model(torch.cat([pad, ids], 1), real_BT=torch.cat([no, real], 1))
    torch.testing.assert_close(right, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(left, alone, atol=1e-5, rtol=0)


def test_graft_keeps_every_backbone_weight_and_counts_them():
    base = build_language_model(SETTINGS, vocab_size=17)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    model, transplant = graft(base, num_classes=4, pooling="last")
    for name, tensor in base.backbone.state_dict().items():
        assert torch.equal(model.backbone.state_dict()[name], tensor)
    assert transplant.num_tensors == len(list(base.backbone.parameters()))
    assert transplant.num_parameters == sum(p.numel() for p in base.backbone.parameters())
    assert transplant.num_new_parameters == 4 * (12 + 1)
    assert str(transplant) == (
        f"{transplant.num_tensors} tensors with {transplant.num_parameters:,} parameters came from "
        "the base; the new head has 52"
    )

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(base.state_dict()[name], tensor) for name, tensor in before.items())
