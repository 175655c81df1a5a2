"""Text generation with a causal base, and predictions for `<mask>` with a masked one."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from regraft.config import OBJECTIVES
from regraft.errors import ConfigError
from regraft.models import KeyValueCache, LanguageModelHead
from regraft.runtime import Plain, seed_generator
from regraft.training.loaded_run import LoadedRun, load_run

# Below, divided scores overflow and sampling is practically greedy; above, it is noise.
LOWEST_TEMPERATURE = 0.01
HIGHEST_TEMPERATURE = 100

MASK = "<mask>"


@dataclass(frozen=True)
class Guess(Plain):
    """A candidate token for a `<mask>`."""

    token: str
    probability: float


@torch.no_grad()
def fill(run: str | Path | LoadedRun, text: str, *, top: int = 5) -> list[list[Guess]]:
    """The most likely tokens for each `<mask>` in the text, best first."""
    if top < 1:
        raise ConfigError(f"top is {top}, it must be 1 or more.", remedy="Give 1 or more.")
    if not isinstance(run, LoadedRun):
        run = load_run(Path(run), kind="language-model")
    objective, tokenizer = run.settings.objective, run.tokenizer
    if not objective.traits.fills_masks or tokenizer.mask_id is None:
        *names, last = (name for name in OBJECTIVES if OBJECTIVES[name].fills_masks)
        raise ConfigError(
            f"{run.run_dir} was pre-trained with the objective {objective.kind}, which does not "
            "mask tokens; it cannot predict masked ones.",
            remedy=f"Pre-train with --objective {', '.join(names)} or {last}.",
        )
    # The space before a word is part of its token, so that before a mask belongs to the mask.
    *parts, last = text.split(MASK)
    first, *others = map(tokenizer.encode, [*(part.removesuffix(" ") for part in parts), last])
    if not others:
        raise ConfigError(
            f"The text has no {MASK}: {text!r:.60}.",
            remedy=f"Write {MASK} where a token is to be guessed.",
        )
    ids = [tokenizer.start_id, *first]
    places = []
    for part in others:
        places.append(len(ids))
        ids += [tokenizer.mask_id, *part]
    _check_fits(ids, run=run)
    scores_TV = run.model(torch.tensor([ids]))[0]
    scores_TV[:, sorted(tokenizer.special_ids)] = -torch.inf
    best = scores_TV[places].softmax(dim=1).topk(min(top, scores_TV.shape[1]), dim=1)
    return [
        [
            Guess(token, float(probability))
            for token, probability in zip(tokenizer.tokens(row), probabilities, strict=True)
        ]
        for row, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


@torch.no_grad()
def generate(
    run: str | Path | LoadedRun,
    prompt: str,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_tokens: int = 100,
    seed: int = 0,
) -> str:
    """Continue `prompt` with a language model, given as a run folder or loaded."""
    _check(temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=max_tokens)
    if not isinstance(run, LoadedRun):
        run = load_run(Path(run), kind="language-model")
    objective = run.settings.objective
    if not objective.traits.continues_text:
        predicts = objective.traits.head != "none"
        reads = "both sides of a token" if predicts else "whole texts and predicts none"
        raise ConfigError(
            f"{run.run_dir} was pre-trained with the objective {objective.kind}, which reads "
            f"{reads}; it cannot continue a text.",
            remedy="Pre-train with --objective causal or hybrid"
            + ("; `regraft fill` asks this one." if objective.traits.fills_masks else "."),
        )
    tokenizer, backbone, head = run.tokenizer, run.model.backbone, run.model.head
    assert isinstance(head, LanguageModelHead)
    weight_VD, bias_V = head.vocabulary(backbone.embedding.weight)
    generator = seed_generator(seed, stream="generate")
    ids = [tokenizer.start_id, *tokenizer.encode(prompt)]
    _check_fits(ids, run=run)
    max_positions = run.settings.model.max_positions
    never = sorted(tokenizer.special_ids - {tokenizer.end_id})
    cache = KeyValueCache(run.settings.model.num_layers)
    unread, num_prompt = ids, len(ids)
    while len(ids) < min(num_prompt + max_tokens, max_positions):
        hidden_BTD = backbone(torch.tensor([unread]), is_causal=True, cache=cache)
        scores_V = F.linear(head.transformed(hidden_BTD[0, -1]), weight_VD, bias_V)
        # The end token is the only special token that may be generated.
        scores_V[never] = -torch.inf
        token = _choose(
            scores_V, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator
        )
        if token == tokenizer.end_id:
            break
        ids.append(token)
        unread = [token]
    return tokenizer.decode(ids[1:])


def _check_fits(ids: list[int], *, run: LoadedRun) -> None:
    max_positions = run.settings.model.max_positions
    if len(ids) >= max_positions:
        raise ConfigError(
            f"The prompt has {len(ids):,} tokens; the model has {max_positions:,} positions.",
            remedy="Shorten the prompt.",
        )


def _choose(
    scores_V: Float[Tensor, " V"],
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator,
) -> int:
    if temperature == 0:
        return int(scores_V.argmax())
    probabilities_V, order_V = (scores_V / temperature).softmax(dim=0).sort(descending=True)
    if top_k is not None:
        probabilities_V[top_k:] = 0
    if top_p is not None:
        # Keep the smallest set with probability top_p, including the token that crosses it.
        probabilities_V[(probabilities_V.cumsum(dim=0) - probabilities_V) >= top_p] = 0
    return int(order_V[torch.multinomial(probabilities_V, 1, generator=generator)])


def _check(*, temperature: float, top_k: int | None, top_p: float | None, max_tokens: int) -> None:
    problems = []
    if temperature != 0 and not LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
        problems.append(
            f"temperature is {temperature}, it must be 0 (greedy) or between "
            f"{LOWEST_TEMPERATURE} and {HIGHEST_TEMPERATURE}"
        )
    if top_k is not None and top_k < 1:
        problems.append(f"top_k is {top_k}, it must be 1 or more")
    if top_p is not None and not 0 < top_p <= 1:
        problems.append(f"top_p is {top_p}, it must lie above 0 and at most at 1")
    if max_tokens < 1:
        problems.append(f"max_tokens is {max_tokens}, it must be 1 or more")
    if problems:
        raise ConfigError(f"Cannot sample: {'; '.join(problems)}.", remedy="Correct these options.")
