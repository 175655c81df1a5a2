"""Probabilities and vectors of rows: a forward pass without gradients. Imports no objective."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regraft.data import Batch, ExampleRows, Rows, budget_batches
from regraft.models import Backbone, ClassifierHead, Model, Pooling, pool
from regraft.stats import log_probabilities, softmax

# Tokens per forward pass, including padding: 32 texts of 256 tokens, or more shorter ones.
EVALUATION_TOKENS = 8192


@runtime_checkable
class Scorer(Protocol):
    """Gives every row a score for every class, in the order of the rows."""

    def __call__(self, rows: Rows, *, on_batch: Callable[[int], None]) -> NDArray[np.float64]:
        """N x C scores."""


def class_probabilities(
    model: Model, rows: Rows, *, on_batch: Callable[[int], None] = lambda num_rows: None
) -> NDArray[np.float64]:
    """N x C probabilities in the order of the rows."""
    return probabilities_of(rows, scores=partial(_scores, model), on_batch=on_batch)


def probabilities_of(
    rows: Rows, *, scores: Scorer, on_batch: Callable[[int], None] = lambda num_rows: None
) -> NDArray[np.float64]:
    """N x C probabilities from any scorer: our model, or an export of it.

    Of a text that goes on in windows, the mean of their log-probabilities counts.
    """
    windows = rows.windows if isinstance(rows, ExampleRows) else None
    if windows is not None:
        logs_WC = log_probabilities(probabilities_of(windows, scores=scores))
        sums_NC = np.zeros((len(rows.lengths), logs_WC.shape[1]))
        np.add.at(sums_NC, windows.text_numbers, logs_WC)
        means_NC = sums_NC / np.bincount(windows.text_numbers)[:, None]
        on_batch(len(rows.lengths))
        return softmax(means_NC, np.isfinite(means_NC))[0]
    return torch.from_numpy(scores(rows, on_batch=on_batch)).softmax(dim=1).numpy()


def label_probabilities(
    model: Model, rows: Rows, *, on_batch: Callable[[int], None] = lambda num_rows: None
) -> NDArray[np.float64]:
    """N x C independent probabilities of every label, for multi-label tasks.

    Of a text that goes on in windows, the mean of their log-odds counts.
    """
    windows = rows.windows if isinstance(rows, ExampleRows) else None
    if windows is None:
        scores_NC = _scores(model, rows, on_batch=on_batch)
    else:
        scores_WC = _scores(model, windows, on_batch=lambda num_rows: None)
        scores_NC = np.zeros((len(rows.lengths), scores_WC.shape[1]))
        np.add.at(scores_NC, windows.text_numbers, scores_WC)
        scores_NC /= np.bincount(windows.text_numbers)[:, None]
        on_batch(len(rows.lengths))
    return torch.from_numpy(scores_NC).sigmoid().numpy()


def class_scores(model: Model, batch: Batch) -> Float[Tensor, "B C"]:
    """What a classifier makes of a batch of texts or pairs."""
    scores_BC: Tensor = model(
        batch.ids_BT, real_BT=batch.real_BT, token_types_BT=batch.token_types_BT
    )
    return scores_BC


def head_vectors(model: Model, rows: Rows) -> NDArray[np.float64]:
    """N x D vectors that the scores of a classifier are a linear map of."""
    return _by_row(model, rows, _head_vector, on_batch=lambda num_rows: None)


def _head_vector(model: Model, batch: Batch) -> Float[Tensor, "B D"]:
    assert isinstance(model.head, ClassifierHead), "only classifiers read one vector per row"
    hidden_BTD = model.backbone(
        batch.ids_BT, real_BT=batch.real_BT, token_types_BT=batch.token_types_BT
    )
    return model.head.vector(hidden_BTD, real_BT=batch.real_BT)


def _scores(model: Model, rows: Rows, *, on_batch: Callable[[int], None]) -> NDArray[np.float64]:
    return _by_row(model, rows, class_scores, on_batch=on_batch)


@torch.no_grad()
def _by_row(
    model: Model,
    rows: Rows,
    compute: Callable[[Model, Batch], Tensor],
    *,
    on_batch: Callable[[int], None],
) -> NDArray[np.float64]:
    """What the model, in evaluation mode, computes of every row, in the order of the rows."""
    model.eval()
    device = next(model.parameters()).device
    parts, places = [], []
    for numbers in inference_batches(rows.lengths):
        values_BX = compute(model, rows.batch(numbers).to(device))
        # Moved to the CPU first: MPS has no double precision.
        parts.append(values_BX.cpu().double().numpy())
        places.append(numbers)
        on_batch(len(numbers))
    values_NX = np.empty((len(rows.lengths), parts[0].shape[1]))
    values_NX[np.concatenate(places)] = np.concatenate(parts)
    return values_NX


@torch.no_grad()
def pooled_vectors(
    backbone: Backbone,
    rows: Rows,
    *,
    pooling: Pooling,
    on_batch: Callable[[int], None] = lambda num_rows: None,
) -> NDArray[np.float32]:
    """N x D pooled vectors in the order of the rows: the input of a head."""
    backbone.eval()
    device = next(backbone.parameters()).device
    vectors_ND = np.empty((len(rows.lengths), backbone.settings.width), dtype=np.float32)
    for numbers in inference_batches(rows.lengths):
        batch = rows.batch(numbers).to(device)
        if pooling == "mean":
            vectors_BD = backbone.mean_vectors(batch.ids_BT, real_BT=batch.real_BT)
        else:
            hidden_BTD = backbone(batch.ids_BT, real_BT=batch.real_BT)
            vectors_BD = pool(hidden_BTD, real_BT=batch.real_BT, pooling=pooling)
        vectors_ND[numbers] = vectors_BD.float().cpu().numpy()
        on_batch(len(numbers))
    return vectors_ND


def inference_batches(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """All rows, grouped by length for the least padding."""
    return budget_batches(lengths, numbers=np.arange(len(lengths)), max_tokens=EVALUATION_TOKENS)
