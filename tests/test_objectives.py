"""Sums and counts, the chunked loss against torch's own, and what an objective may not see."""

import pytest
import torch
from torch.nn import functional as F

from regraft import objectives
from regraft.batches import IGNORED, Batch
from regraft.config import ModelSettings
from regraft.heads import build_classifier, build_language_model
from regraft.objectives import causal, classify, linear_cross_entropy

SETTINGS = ModelSettings(
    width=12, num_layers=2, num_heads=3, feedforward_width=7, dropout=0.0, attention_dropout=0.0
)


@pytest.mark.parametrize("num_rows", [1, 4, 11])
def test_linear_cross_entropy_equals_torch_with_gradients(monkeypatch, num_rows):
    monkeypatch.setattr(objectives, "CHUNK", 4)
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(num_rows, 5), torch.randn(13, 5), torch.randn(13)
    targets = torch.randint(13, (num_rows,))
    ours = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
    theirs = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
    total = linear_cross_entropy(*ours, targets)
    expected = F.cross_entropy(F.linear(*theirs), targets, reduction="sum")
    torch.testing.assert_close(total, expected)
    (2.5 * total).backward()
    (2.5 * expected).backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_causal_counts_real_targets_only():
    torch.manual_seed(0)
    model = build_language_model(SETTINGS, vocab_size=17).eval()
    ids, targets = torch.randint(17, (2, 5)), torch.randint(17, (2, 5))
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    targets[~real] = IGNORED
    loss = causal(model, Batch(ids, real, targets))
    scores = model(ids, real_BT=real)
    expected = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
    assert loss.count == 7
    torch.testing.assert_close(loss.total, expected)


def test_classify_sums_over_rows_and_weighs_classes():
    torch.manual_seed(0)
    model = build_classifier(SETTINGS, vocab_size=17, num_classes=3, pooling="mean").eval()
    batch = Batch(
        torch.randint(17, (4, 5)), torch.ones(4, 5, dtype=torch.bool), torch.tensor([0, 1, 2, 2])
    )
    scores = model(batch.ids_BT, real_BT=batch.real_BT)
    losses = F.cross_entropy(scores, batch.targets, reduction="none")
    plain = classify()(model, batch)
    assert plain.count == 4
    torch.testing.assert_close(plain.total, losses.sum())
    weighted = classify(torch.tensor([2.0, 1.0, 0.5]))(model, batch)
    torch.testing.assert_close(weighted.total, (losses * torch.tensor([2.0, 1.0, 0.5, 0.5])).sum())
    assert weighted.count == 4
