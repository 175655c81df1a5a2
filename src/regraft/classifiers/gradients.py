"""Integrated gradients: which tokens moved a network, and so which words.

Letters: W words, T tokens, S points on a path.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from regraft.classifiers.explanation import Attribution
from regraft.data import Span, spread_over_words
from regraft.training import EVALUATION_TOKENS, LoadedRun

# Points on the path of integrated gradients: doubled until the gap is small enough.
FEWEST_STEPS = 16
MOST_STEPS = 512
# Small enough: this share of the difference that is explained, or this much in log-odds.
SMALL_GAP_SHARE = 0.01
SMALL_GAP = 0.01


def integrated_gradients(
    run: LoadedRun, text: str, spans: Sequence[Span], *, target: int
) -> Attribution:
    """Gradients averaged on the path from average tokens to those of the text (arXiv 1703.01365).

    Not captum's implementation, though a test checks that the scores agree: captum's path starts at
    tokens, not at their average; a bag's two tables have to move together; and the number of steps
    is to follow from the gap.
    """
    tokenizer, max_length = run.tokenizer, run.settings.data.max_length
    ids, places = tokenizer.encode(text), tokenizer.spans(text)
    row = tokenizer.framed(ids, max_length=max_length)
    num_before, num_kept = len(tokenizer.prefix_ids), max_length - tokenizer.num_framing
    places = places[:num_kept]
    is_text_T = torch.zeros(len(row), dtype=torch.bool)
    is_text_T[num_before : num_before + len(places)] = True
    model = run.model.eval()
    device = next(model.parameters()).device
    path = _Path(model, torch.tensor(row, device=device), is_text_T.to(device), target=target)
    num_steps = FEWEST_STEPS
    while True:
        scores_T, start, end = path.integrated(num_steps)
        gap = abs(scores_T.sum() - (end - start))
        if gap <= max(SMALL_GAP, SMALL_GAP_SHARE * abs(end - start)) or num_steps >= MOST_STEPS:
            break
        num_steps *= 2
    starts_T, stops_T = np.zeros((2, len(row)), dtype=np.int64)
    if places:
        here = slice(num_before, num_before + len(places))
        starts_T[here], stops_T[here] = np.array(places).T
    words_W1, rest_1 = spread_over_words(
        scores_T[:, None], starts_N=starts_T, stops_N=stops_T, spans=spans
    )
    return Attribution(
        words_W1[:, 0],
        baseline=start,
        baseline_name="as many average tokens",
        elsewhere=float(rest_1[0]),
        num_steps=num_steps,
    )


class _Path:
    """The straight path from a text of average tokens to one text, in the space of embeddings."""

    def __init__(
        self, model: nn.Module, ids_T: Tensor, is_text_T: Bool[Tensor, " T"], *, target: int
    ) -> None:
        backbone: Any = model.backbone
        self._model, self._ids_T, self._target = model, ids_T, target
        is_text_T1 = is_text_T.unsqueeze(1)
        self._tables: list[tuple[nn.Module, Tensor, Tensor]] = [
            (backbone.embedding, backbone.embedding.weight.detach().mean(dim=0), is_text_T1)
        ]
        if backbone.settings.num_layers == 0:
            # An absent pair adds nothing.
            nothing = torch.zeros_like(backbone.neighbours.weight[0])
            self._tables.append((backbone.neighbours, nothing, torch.ones_like(is_text_T1[1:])))

    def integrated(self, num_steps: int) -> tuple[Float[np.ndarray, " T"], float, float]:
        """The score of every token, and the log-odds at both ends of the path."""
        points_S, weights_S = np.polynomial.legendre.leggauss(num_steps)
        shares_S = torch.tensor(
            [0.0, 1.0, *((points_S + 1) / 2)], dtype=torch.float32, device=self._ids_T.device
        )
        weights_S = np.concatenate([[0.0, 0.0], weights_S / 2])
        scores_T = np.zeros(len(self._ids_T))
        outputs: list[float] = []
        at_once = max(EVALUATION_TOKENS // len(self._ids_T), 1)
        for start in range(0, len(shares_S), at_once):
            here = slice(start, start + at_once)
            odds_S, slopes_ST = self._slopes(shares_S[here])
            outputs += odds_S.tolist()
            scores_T += weights_S[here] @ slopes_ST
        return scores_T, outputs[0], outputs[1]

    def _slopes(
        self, shares_S: Float[Tensor, " S"]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log-odds at points of the path, and their slopes along each token's part of it."""
        ids_ST = self._ids_T.expand(len(shares_S), -1)
        with torch.enable_grad(), self._replaced(shares_S) as ways:
            scores_SC = self._model(ids_ST).double()
            others_SC = torch.cat(
                [scores_SC[:, : self._target], scores_SC[:, self._target + 1 :]], dim=1
            )
            odds_S = scores_SC[:, self._target] - others_SC.logsumexp(dim=1)
            slopes = torch.autograd.grad(odds_S.sum(), [points for points, _ in ways])
        slopes_ST = np.zeros(ids_ST.shape)
        for slope, (_, way) in zip(slopes, ways, strict=True):
            products = (slope * way).sum(dim=2).double().cpu().numpy()
            if products.shape == slopes_ST.shape:
                slopes_ST += products
            else:  # pairs of neighbours: half each
                slopes_ST[:, 1:] += products / 2
                slopes_ST[:, :-1] += products / 2
        return odds_S.detach().cpu().numpy(), slopes_ST

    @contextlib.contextmanager
    def _replaced(self, shares_S: Float[Tensor, " S"]) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Inside, the model reads points of the path; yields them and the distances still to go."""
        ways: list[tuple[Tensor, Tensor]] = []
        shares_S11 = shares_S[:, None, None]

        def hook(average_D: Tensor, is_text_T1: Tensor) -> Any:
            def replaced(module: nn.Module, given: Any, vectors_STD: Tensor) -> Tensor:
                way_STD = (vectors_STD.detach() - average_D) * is_text_T1
                point_STD = vectors_STD.detach() - (1 - shares_S11) * way_STD
                ways.append((point_STD.requires_grad_(), way_STD))
                return point_STD

            return replaced

        hooks = [
            table.register_forward_hook(hook(average_D, is_text_T1))
            for table, average_D, is_text_T1 in self._tables
        ]
        try:
            yield ways
        finally:
            for handle in hooks:
                handle.remove()
