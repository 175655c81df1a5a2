"""Where fine-tuning starts: a base with a new head, or the same network with new weights."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from regraft.config import (
    Settings,
    learns_documents,
    replace,
    settings_from_dict,
    settings_to_dict,
    with_base,
)
from regraft.data import Example, Tokenizer, TokenStore, load_tokenizer, offsets_of, train_tokenizer
from regraft.errors import ConfigError
from regraft.models import (
    BagBackbone,
    ForeignBackbone,
    LanguageModelHead,
    Model,
    Transplant,
    build_classifier,
    frequent_pair_keys,
    graft,
    with_dropout,
)
from regraft.runtime import Progress, device, seeded
from regraft.training import LoadedRun, Objective, load_base, read_on

# Settings of `train` that change how a base is used.
_OF_A_BASE = ("base_rate", "unfreeze_every", "reinit_layers", "lora_rank", "auxiliary_weight")


@dataclass(frozen=True)
class Start:
    """Where fine-tuning starts: a tokenizer, complete settings, and the base if there is one.

    Builds classifiers that differ only in their seed. The pairs of neighbours that a bag knows are
    vocabulary, so a classifier from scratch has those of the base, too.
    """

    tokenizer: Tokenizer
    settings: Settings
    base: LoadedRun | None
    pair_keys: torch.Tensor | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of the base's weights, or "scratch"."""
        return "scratch" if self.base is None else self.base.fingerprint

    def build_model(self, *, num_classes: int, seed: int) -> tuple[Model, Transplant | None]:
        """A classifier with a new head on the base, or all new. Equal seeds give equal heads."""
        pooling = self.settings.head.pooling
        if self.base is not None:
            with seeded(seed, stream="head"):
                model, transplant = graft(
                    self.base.model,
                    num_classes=num_classes,
                    pooling=pooling,
                    reads_pooled=learns_documents(self.base.settings.objective),
                    reinit_layers=self.settings.train.reinit_layers or 0,
                )
            _set_dropout(model, settings=self.settings)
            return model, transplant
        with seeded(seed, stream="weights"):
            model = build_classifier(
                self.settings.model,
                vocab_size=self.tokenizer.vocab_size,
                num_classes=num_classes,
                pooling=pooling,
            )
        if self.pair_keys is not None and isinstance(model.backbone, BagBackbone):
            model.backbone.know_pairs(self.pair_keys)
        return model, None

    def auxiliary(self) -> Objective | None:
        """The objective of the base as an auxiliary loss, if the settings ask for it."""
        if self.base is None or self.settings.train.auxiliary_weight is None:
            return None
        head = copy.deepcopy(self.base.model.head).requires_grad_(False).to(device())
        if not isinstance(head, LanguageModelHead):
            raise ConfigError(
                f"train.auxiliary_weight needs a base that predicts tokens, and "
                f"{self.base.run_dir} holds none.",
                remedy="Use a base that was pre-trained here, or omit the setting.",
            )
        return read_on(head, settings=self.settings, tokenizer=self.tokenizer)


def start_from_base(path: Path, *, settings: Settings) -> Start:
    """Tokenizer and shape are the base's; dropout, pooling and training come from the settings."""
    base = load_base(path)
    settings = with_base(settings, base.settings)
    model = settings.model
    if settings.data.max_length > model.max_positions:
        raise ConfigError(
            f"data.max_length is {settings.data.max_length}, but the base {path} has positions "
            f"for {model.max_positions} tokens.",
            remedy=f"Pass --set data.max_length={model.max_positions}.",
        )
    backbone = base.model.backbone
    if isinstance(backbone, ForeignBackbone) and model != backbone.settings:
        backbone = with_dropout(backbone, settings=model)
        base = dataclasses.replace(base, model=Model(backbone, base.model.head))
    pair_keys = backbone.pair_keys if isinstance(backbone, BagBackbone) else None
    # What was resolved without the base may contradict it.
    settings_from_dict(settings_to_dict(settings))
    return Start(base.tokenizer, settings, base, pair_keys)


def without_base(settings: Settings) -> Settings:
    """The same training for a network from scratch: without the methods that need a base."""
    return replace(replace(settings, "train", **dict.fromkeys(_OF_A_BASE)), "head", start="random")


def start_from_scratch(
    texts: Sequence[str], *, settings: Settings, tokenizer_path: Path | None, progress: Progress
) -> Start:
    """Without a base: with the tokenizer given, or one trained on the training texts."""
    methods = {f"train.{name}": getattr(settings.train, name) for name in _OF_A_BASE}
    methods["head.start"] = None if settings.head.start == "random" else settings.head.start
    for setting, value in methods.items():
        if value is not None:
            raise ConfigError(
                f"{setting} is {value}, and there is no base.",
                "It changes how a base is used.",
                remedy="Pass a base, or omit the setting.",
            )
    if tokenizer_path is not None:
        tokenizer = load_tokenizer(tokenizer_path)
    else:
        tokenizer = train_tokenizer(texts, settings=settings.tokenizer, progress=progress)
    pair_keys = None
    if settings.model.num_layers == 0:
        store = _store(texts, tokenizer=tokenizer)
        pair_keys = frequent_pair_keys(store, settings=settings.model)
    return Start(tokenizer, settings, None, pair_keys)


def texts_of(examples: Sequence[Example]) -> list[str]:
    """All texts, both of a pair: what a tokenizer is trained on."""
    pairs = [example.pair for example in examples if example.pair is not None]
    return [*(example.text for example in examples), *pairs]


def _store(texts: Sequence[str], *, tokenizer: Tokenizer) -> TokenStore:
    """A few texts as documents in memory."""
    rows = [[tokenizer.start_id, *ids, tokenizer.end_id] for ids in tokenizer.encode_batch(texts)]
    offsets = offsets_of(np.array([len(row) for row in rows]))
    ids = np.concatenate(rows).astype(np.uint32)
    num_bytes = len("".join(texts).encode("utf-8", "surrogatepass"))
    return TokenStore.from_arrays(ids, offsets, num_bytes=num_bytes)


def _set_dropout(model: Model, *, settings: Settings) -> None:
    """Set the dropout of fine-tuning in a base; its weights stay."""
    if isinstance(model.backbone, ForeignBackbone):
        return  # built with it already
    for module in model.backbone.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = settings.model.dropout
    for block in model.backbone.blocks:
        block.attention.dropout = settings.model.attention_dropout  # type: ignore[union-attr]
    model.backbone.settings = settings.model
