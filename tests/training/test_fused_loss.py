"""The chunked loss against torch's own, and what it holds in memory."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from regraft.training import fused_loss as losses
from regraft.training.fused_loss import chunk_rows, linear_cross_entropy


def head_inputs(num_rows: int, *, vocab_size: int = 13, width: int = 5, **changes: torch.dtype):
    """(hidden, weight, bias) that want gradients, and targets."""
    torch.manual_seed(0)
    shapes = (num_rows, width), (vocab_size, width), (vocab_size,)
    inputs = [torch.randn(shape, **changes).requires_grad_() for shape in shapes]
    return inputs, torch.randint(vocab_size, (num_rows,))


def copies_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


class Witness(TorchDispatchMode):
    """Writes down the name of every operation, and by size where its results lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.places: dict[int, set[int]] = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        self.names.append(function.__name__)
        if isinstance(result, torch.Tensor):
            place = result.untyped_storage().data_ptr()
            self.places.setdefault(result.numel(), set()).add(place)
        return result


@pytest.fixture(params=["rows", "transposed"])
def small_chunks(monkeypatch, request):
    monkeypatch.setattr(losses, "CHUNK", 4)
    monkeypatch.setattr(losses, "TRANSPOSED_FROM", 0 if request.param == "transposed" else 99)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("factor", [1.0, 2.5])
@pytest.mark.parametrize("num_rows", [1, 4, 11])
def test_linear_cross_entropy_equals_torch_with_gradients(num_rows, factor):
    ours, targets = head_inputs(num_rows)
    theirs = copies_of(ours)
    total = linear_cross_entropy(*ours, targets)
    expected = F.cross_entropy(F.linear(*theirs), targets, reduction="sum")
    torch.testing.assert_close(total, expected, atol=1e-6, rtol=1e-6)
    (factor * total).backward()
    (factor * expected).backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("small_chunks")
def test_linear_cross_entropy_passes_gradcheck():
    inputs, targets = head_inputs(6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *tensors: linear_cross_entropy(*tensors, targets), inputs
    )


@pytest.mark.usefixtures("small_chunks")
def test_linear_cross_entropy_bears_large_scores():
    inputs, targets = head_inputs(11)
    scaled = [tensor.detach() * 100 for tensor in inputs]
    expected = F.cross_entropy(F.linear(*scaled), targets, reduction="sum")
    assert scaled[0].matmul(scaled[1].T).abs().max() > 1000
    torch.testing.assert_close(linear_cross_entropy(*scaled, targets), expected)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("wanted", [(0,), (1, 2), (2,)])
def test_linear_cross_entropy_makes_only_the_gradients_asked_for(wanted):
    inputs, targets = head_inputs(11)
    expected = copies_of(inputs)
    F.cross_entropy(F.linear(*expected), targets, reduction="sum").backward()
    for number, tensor in enumerate(inputs):
        tensor.requires_grad_(number in wanted)
    with Witness() as witness:
        linear_cross_entropy(*inputs, targets).backward()
    for number, tensor in enumerate(inputs):
        if number in wanted:
            torch.testing.assert_close(tensor.grad, expected[number].grad)
        else:
            assert tensor.grad is None
    assert ("mm.default" in witness.names) == (0 in wanted)
    assert ("addmm_.default" in witness.names) == (1 in wanted)


def test_linear_cross_entropy_of_nothing_is_zero():
    inputs, targets = head_inputs(0)
    total = linear_cross_entropy(*inputs, targets)
    total.backward()
    assert total.item() == 0
    assert all(tensor.grad is not None and not tensor.grad.any() for tensor in inputs)


def test_linear_cross_entropy_makes_no_gradients_in_evaluation():
    inputs, targets = head_inputs(11)
    with torch.no_grad(), Witness() as witness:
        total = linear_cross_entropy(*inputs, targets)
    assert not total.requires_grad
    assert "mm.default" not in witness.names
    assert "addmm_.default" not in witness.names


def test_linear_cross_entropy_bears_a_second_backward_pass():
    (hidden, weight, bias), targets = head_inputs(11)
    total = linear_cross_entropy(hidden, weight, bias, targets)
    total.backward(retain_graph=True)
    once = weight.grad.clone()
    total.backward()
    torch.testing.assert_close(weight.grad, 2 * once)


@pytest.mark.parametrize("num_rows", [64, 160])
@pytest.mark.parametrize("vocab_size", [610, 1220, 2440])
def test_linear_cross_entropy_holds_the_scores_of_one_chunk(monkeypatch, num_rows, vocab_size):
    # 16 positions of the largest vocabulary, 32 of the next: the bytes are the same.
    monkeypatch.setattr(losses, "CHUNK", 32)
    monkeypatch.setattr(losses, "CHUNK_BYTES", 2440 * 16 * 4)
    inputs, targets = head_inputs(num_rows, vocab_size=vocab_size, width=2)
    with Witness() as witness:
        linear_cross_entropy(*inputs, targets).backward()
    largest = max(witness.places)
    assert largest == {610: 610 * 32, 1220: 2440 * 16, 2440: 2440 * 16}[vocab_size]
    assert len(witness.places[largest]) == 1


@pytest.mark.usefixtures("small_chunks")
def test_linear_cross_entropy_multiplies_in_the_precision_of_autocast():
    ours, targets = head_inputs(11)
    theirs = copies_of(ours)
    with torch.autocast("cpu", torch.bfloat16):
        total = linear_cross_entropy(*ours, targets)
    expected = F.cross_entropy(F.linear(*theirs), targets, reduction="sum")
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, expected, atol=0, rtol=0.01)
    total.backward()
    expected.backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad.dtype == torch.float32
        assert not torch.equal(one.grad, other.grad)
        torch.testing.assert_close(one.grad, other.grad, atol=0.05, rtol=0.02)


@pytest.mark.parametrize(
    ("vocab_size", "expected"), [(300, 512), (8_192, 512), (50_001, 256), (10**6, 16)]
)
def test_chunks_are_as_many_rows_as_fit(vocab_size, expected):
    assert chunk_rows(torch.empty(vocab_size, 0)) == expected
