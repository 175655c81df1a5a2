"""The models behind the page: loaded when they are first asked, kept while they are used.

Answers are plain values. One thread computes them one at a time; when too many requests wait, the
next is refused.
"""

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from regraft.apps.serve.limits import RefusedError
from regraft.classifiers import Explainer, StrongWord, harmless, run_fingerprint, trust_facts
from regraft.errors import ConfigError
from regraft.report import darkest_weight
from regraft.runtime import in_percent
from regraft.training import LoadedRun, generate, learned_positions, load_run

_Answer = TypeVar("_Answer")
# In memory at once; the one that was not used for longest goes.
MOST_MODELS = 3
_MOST_WAITING = 8
# One byte a weight: more tokens than fit are not drawn.
_MOST_WEIGHTS = 2_000_000
MOST_DRAWN_TOKENS = 96
MOST_DRAWN_POSITIONS = 256
MOST_NEW_TOKENS = 300


class Models:
    """Loaded runs, and the one thread that asks them."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[tuple[str, str], Explainer | LoadedRun] = OrderedDict()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="regraft-studio")
        self._num_waiting = 0

    async def ask(self, work: Callable[[], _Answer]) -> _Answer:
        """What `work` returns, done by the thread; 429 when too many wait already."""
        if self._num_waiting >= _MOST_WAITING:
            raise RefusedError(
                429,
                f"{self._num_waiting} requests wait already.",
                remedy="Try again in a moment.",
                headers={"Retry-After": "2"},
            )
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._num_waiting -= 1

    def explained(self, run_dir: Path, text: str) -> dict[str, Any]:
        """Label, probabilities, and the text in pieces with what each word was worth."""
        explainer = self._explainer(run_dir)
        found = explainer.explain(text)
        pieces = [
            {
                "text": harmless(piece),
                "level": level,
                "score": word and word.score,
                "is_unread": word is not None and found.is_unread(word),
            }
            for piece, word, level in found.pieces()
        ]
        pro, contra = found.strongest()
        facts, below = trust_facts(found), explainer.classifier.abstain_below
        if below is not None and found.probabilities[found.predicted] < below:
            facts = [f"Not sure enough to answer: that needs {in_percent(below)}.", *facts]
        return {
            "label": found.predicted,
            "probability": found.probabilities[found.predicted],
            "probabilities": found.probabilities,
            "pieces": pieces,
            "strongest": {"for": _word_scores(pro), "against": _word_scores(contra)},
            "facts": facts,
        }

    def attention(self, run_dir: Path, text: str) -> dict[str, Any]:
        """Tokens, and where each looks: L x H x T x T bytes, 255 times the root of a weight.

        `darkest` is the weight of the strongest colour: in a long text all weights are small.
        """
        run = self._explainer(run_dir).classifier.network
        if run is None or run.settings.model.num_layers == 0:
            raise ConfigError(
                "This run has no attention: no token looks at others.",
                remedy="Choose a classifier of `regraft finetune` with layers.",
            )
        model, tokenizer = run.settings.model, run.tokenizer
        num_maps = max(model.num_layers * model.num_heads, 1)
        longest = min(
            run.settings.data.max_length, MOST_DRAWN_TOKENS, int((_MOST_WEIGHTS / num_maps) ** 0.5)
        )
        ids = tokenizer.encode(text)
        read = tokenizer.framed(ids, max_length=longest)
        weights_LBHTT = run.model.backbone.attention_weights(torch.tensor([read]))
        weights_LHTT = weights_LBHTT[:, 0].numpy()
        shades = np.rint(np.sqrt(weights_LHTT) * 255).astype(np.uint8)
        return {
            "tokens": [harmless(token) for token in tokenizer.tokens(read)],
            "num_layers": shades.shape[0],
            "num_heads": shades.shape[1],
            "darkest": darkest_weight(weights_LHTT),
            "weights": base64.b64encode(shades.tobytes()).decode("ascii"),
            "num_cut": max(len(ids) + tokenizer.num_framing - len(read), 0),
        }

    def positions(self, run_dir: Path) -> dict[str, Any]:
        """What a run of the bert family has learned of its positions, as much as is drawn."""
        table_TD = learned_positions(run_dir)
        drawn_TD = table_TD[:MOST_DRAWN_POSITIONS, :MOST_DRAWN_POSITIONS]
        caption = "A vector for each position that the run was trained on"
        if drawn_TD.shape != table_TD.shape:
            num_positions, width = table_TD.shape
            caption += f": the beginning of {num_positions:,} positions and {width:,} dimensions"
        return {"table": np.round(drawn_TD, 4).tolist(), "caption": f"{caption}."}

    def continued(
        self, run_dir: Path, prompt: str, *, temperature: float, max_tokens: int, seed: int
    ) -> dict[str, Any]:
        """The prompt with what the base makes follow it."""
        base = self._kept(run_dir, "base", lambda: load_run(run_dir, kind="language-model"))
        assert isinstance(base, LoadedRun)
        text = generate(base, prompt, temperature=temperature, max_tokens=max_tokens, seed=seed)
        return {"text": harmless(text)}

    def close(self) -> None:
        """No more work; what is being done is finished."""
        self._thread.shutdown(cancel_futures=True)

    def _explainer(self, run_dir: Path) -> Explainer:
        found = self._kept(run_dir, "classifier", lambda: Explainer.load(run_dir))
        assert isinstance(found, Explainer)
        return found

    def _kept(
        self, run_dir: Path, use: str, load: Callable[[], Explainer | LoadedRun]
    ) -> Explainer | LoadedRun:
        # A rewritten run has another fingerprint.
        key = (f"{use} {run_dir}", run_fingerprint(run_dir))
        if key not in self._loaded:
            for old in [old for old in self._loaded if old[0] == key[0]]:
                del self._loaded[old]
            self._loaded[key] = load()
            if len(self._loaded) > MOST_MODELS:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(key)
        return self._loaded[key]


def _word_scores(words: Sequence[StrongWord]) -> list[dict[str, Any]]:
    return [{**asdict(word), "text": harmless(word.text)} for word in words]
