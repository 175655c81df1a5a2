"""Masks: which positions of a batch may look at which, and the place of each in its document."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def square_mask(length: int) -> Bool[Tensor, "T T"]:
    """May position i (row) look at position j (column)? Yes on and below the diagonal."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def is_right_padded(real_BT: Bool[Tensor, "B T"]) -> bool:
    """Is every padding token behind the real ones? Then the square mask alone hides padding."""
    return bool((real_BT[:, :-1] >= real_BT[:, 1:]).all())


def is_one_document(segments_BT: Int[Tensor, "B T"] | None) -> bool:
    """Does every row hold one document only? Then there is none to hide from another."""
    return segments_BT is None or bool((segments_BT == segments_BT[:, :1]).all())


def attention_mask(
    real_BT: Bool[Tensor, "B T"], *, is_causal: bool, segments_BT: Int[Tensor, "B T"] | None = None
) -> Bool[Tensor, "B 1 T T"]:
    """May position i look at j? Not at padding, not at other documents, not ahead if causal.

    Every position may look at itself: a padding row with nothing to look at would be 0 / 0, and
    the NaN would reach real tokens through the next layer's values.
    """
    length = real_BT.shape[1]
    allowed_BTT = real_BT.unsqueeze(1).expand(-1, length, -1)
    if is_causal:
        allowed_BTT = allowed_BTT & square_mask(length).to(real_BT.device)
    if segments_BT is not None:
        allowed_BTT = allowed_BTT & (segments_BT.unsqueeze(1) == segments_BT.unsqueeze(2))
    itself = torch.eye(length, dtype=torch.bool, device=real_BT.device)
    return (allowed_BTT | itself).unsqueeze(1)


def places_in_document(
    real_BT: Bool[Tensor, "B T"], *, segments_BT: Int[Tensor, "B T"] | None = None
) -> Int[Tensor, "B T"]:
    """0 at the first real token of each document, wherever in the row it is; then 1, 2, ..."""
    places_BT = (real_BT.cumsum(dim=1) - 1).clamp(min=0)
    if segments_BT is None:
        return places_BT
    begins_BT = segments_BT.diff(dim=1, prepend=segments_BT[:, :1]) != 0
    return places_BT - places_BT.where(begins_BT, 0).cummax(dim=1).values
