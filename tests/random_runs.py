"""Complete run folders with random weights: every family, objective and pooling, in no time.

Biases and gains are random, too: with zeros and ones a wrong place for them would not show.
"""

from pathlib import Path
from typing import Any

import torch
from conftest import make_examples

from regraft.config.resolution import resolve
from regraft.config.schema import Settings, TokenizerSettings
from regraft.data.tokens.store import pair_key
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.models.heads import Model, build_classifier, build_language_model
from regraft.training.run_folder import RunFolder, RunInfo

LABELS = ("bad", "good", "so so")
THRESHOLDS = (0.5, 0.4, 0.6)
SHAPE = {
    "model.width": 24,
    "model.num_layers": 3,
    "model.num_heads": 4,
    "model.feedforward_width": 20,
    "model.max_positions": 40,
    "data.max_length": 32,
    "train.steps": 1,
}
BAG_SHAPE = {**SHAPE, "model.num_layers": 0, "model.num_pairs": 900}


def tiny_tokenizer() -> Tokenizer:
    """Three hundred tokens, most of them bytes."""
    texts = [text for text, _ in make_examples(60, seed=1)]
    return train_tokenizer(texts, settings=TokenizerSettings(size=330))


def shaken(model: Model, *, seed: int = 0) -> Model:
    """Noise on every weight, biases and gains among them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def random_model(settings: Settings, *, vocab_size: int, is_classifier: bool) -> Model:
    """What the settings describe, with shaken weights; a bag knows some pairs.

    The same in every run: two scores that are nearly equal may change places between libraries.
    """
    torch.manual_seed(3)
    if is_classifier:
        model = build_classifier(
            settings.model,
            vocab_size=vocab_size,
            num_classes=len(LABELS),
            pooling=settings.head.pooling,
        )
    else:
        model = build_language_model(
            settings.model, vocab_size=vocab_size, objective=settings.objective
        )
    if settings.model.family == "bag":
        generator = torch.Generator().manual_seed(0)
        pairs_N2 = torch.randint(vocab_size, (800, 2), generator=generator)
        model.backbone.know_pairs(pair_key(pairs_N2[:, 0], pairs_N2[:, 1]).unique())
    return shaken(model)


def write_run(
    run_dir: Path,
    *,
    preset: str,
    objective: str,
    pooling: str | None = None,
    tokenizer: Tokenizer | None = None,
    overrides: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
) -> Path:
    """A run folder: of a classifier if there is a pooling, else of a language model."""
    shape = BAG_SHAPE if preset == "bag" else SHAPE
    changes = {**shape, "objective.kind": objective, "head.pooling": pooling, **(overrides or {})}
    recipe = "pretrain" if pooling is None else "finetune"
    settings = resolve(recipe, preset=preset, overrides=changes)
    tokenizer = tokenizer or tiny_tokenizer()
    model = random_model(
        settings, vocab_size=tokenizer.vocab_size, is_classifier=pooling is not None
    )
    info = RunInfo(
        kind="language-model" if pooling is None else "classifier",
        status="training",
        labels=() if pooling is None else LABELS,
        thresholds=THRESHOLDS if settings.data.label_separator else (),
        fingerprints={"text": "0123456789abcdef"},
        result=result or {},
    )
    folder = RunFolder(run_dir)
    run_dir.mkdir(parents=True)
    info = folder.start(info, settings=settings, tokenizer=tokenizer, resume=False)
    folder.finish(info, model=model)
    return run_dir
