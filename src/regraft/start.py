"""Where does fine-tuning start? A tokenizer, complete settings, and a base or none.

Comes in: a base or training texts, and settings. Goes out: a `Start`, which builds classifiers that
differ in their seed alone, and what the base goes on learning beside the classes. Trains nothing.
"""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from regraft.bases import load_base
from regraft.config import Settings, replace, settings_from_dict, settings_to_dict, with_base
from regraft.errors import ConfigError
from regraft.foreign import ForeignBackbone, with_dropout
from regraft.heads import (
    LanguageModelHead,
    Model,
    Transplant,
    build_classifier,
    frequent_pair_keys,
    graft,
)
from regraft.objectives import Objective, read_on
from regraft.runfolder import LoadedRun
from regraft.runtime import Progress, device, seeded
from regraft.store import TokenStore, offsets_of
from regraft.tokenizer import Tokenizer, load_tokenizer
from regraft.vocabulary import train_tokenizer


@dataclass(frozen=True)
class Start:
    """Where fine-tuning starts: a tokenizer, complete settings, the base's run if there is one.

    The pairs of neighbours that a bag knows are vocabulary: scratch has those of the base, too.
    """

    tokenizer: Tokenizer
    settings: Settings
    base: LoadedRun | None
    pair_keys: torch.Tensor | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of the base's weights; scratch is scratch."""
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
        if self.pair_keys is not None:
            model.backbone.know_pairs(self.pair_keys)
        return model, None

    def auxiliary(self) -> Objective | None:
        """What the base goes on learning beside the classes, if the settings ask for it."""
        if self.base is None or self.settings.train.auxiliary_weight is None:
            return None
        head = copy.deepcopy(self.base.model.head).requires_grad_(False).to(device())
        if not isinstance(head, LanguageModelHead):
            raise ConfigError(
                f"train.auxiliary_weight needs a base that predicts tokens, and "
                f"{self.base.run_dir} holds none.",
                remedy="Take a base that was pre-trained here, or leave the setting away.",
            )
        return read_on(head, settings=self.settings, tokenizer=self.tokenizer)


def start_from_base(path: Path, *, settings: Settings) -> Start:
    """The base decides tokenizer and shape; dropout, pooling and training are the settings'."""
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
    pair_keys = backbone.pair_keys if model.family == "bag" else None
    # What was resolved without the base may contradict it.
    settings_from_dict(settings_to_dict(settings))
    return Start(base.tokenizer, settings, base, pair_keys)


# Methods that change how a base is used.
_OF_A_BASE = ("unfreeze_every", "reinit_layers", "lora_rank", "auxiliary_weight")


def without_base(settings: Settings) -> Settings:
    """The same training for weights that are all new: methods that spare or use a base are off."""
    return replace(settings, "train", **dict.fromkeys(_OF_A_BASE))


def start_from_scratch(
    texts: Sequence[str], *, settings: Settings, tokenizer_path: Path | None, progress: Progress
) -> Start:
    """No base: the tokenizer given, or one trained on the training texts."""
    if given := [name for name in _OF_A_BASE if getattr(settings.train, name) is not None]:
        raise ConfigError(
            f"train.{given[0]} is {getattr(settings.train, given[0])}, and there is no base.",
            "It changes how what a base has learned is used.",
            remedy="Give a base, or leave the setting away.",
        )
    if tokenizer_path is not None:
        tokenizer = load_tokenizer(tokenizer_path)
    else:
        tokenizer = train_tokenizer(texts, settings=settings.tokenizer, progress=progress)
    pair_keys = None
    if settings.model.family == "bag":
        store = _store(texts, tokenizer=tokenizer)
        pair_keys = frequent_pair_keys(store, settings=settings.model)
    return Start(tokenizer, settings, None, pair_keys)


def _store(texts: Sequence[str], *, tokenizer: Tokenizer) -> TokenStore:
    """A few texts as documents in memory."""
    rows = [[tokenizer.start_id, *ids, tokenizer.end_id] for ids in tokenizer.encode_batch(texts)]
    offsets = offsets_of(np.array([len(row) for row in rows]))
    ids = np.concatenate(rows).astype(np.uint32)
    num_bytes = len("".join(texts).encode("utf-8", "surrogatepass"))
    return TokenStore.from_arrays(ids, offsets, num_bytes=num_bytes)


def _set_dropout(model: Model, *, settings: Settings) -> None:
    """A base keeps its weights and takes the fine-tuning's dropout."""
    if isinstance(model.backbone, ForeignBackbone):
        return  # it was built with it
    for module in model.backbone.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = settings.model.dropout
    for block in model.backbone.blocks:
        block.attention.dropout = settings.model.attention_dropout  # type: ignore[union-attr]
    model.backbone.settings = settings.model
