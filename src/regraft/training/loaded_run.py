"""A network of a run folder in memory: its weights, checked against tokenizer and settings.

Also its attention and learned positions, as arrays.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from regraft.config import ModelSettings, Settings
from regraft.data import Tokenizer, load_tokenizer
from regraft.errors import RunFolderError
from regraft.models import (
    AttentionWeights,
    Model,
    NoHead,
    attention_over,
    build_backbone,
    build_classifier,
    build_language_model,
    learned_position_table,
)
from regraft.runtime import fingerprint, write_whole
from regraft.training.run_folder import (
    WEIGHTS_NAME,
    Kind,
    RunInfo,
    check_run_files,
    incomplete,
    read_info,
    read_settings,
)

# Numbers in the tables that a model computes for itself: half a gigabyte.
_MOST_COMPUTED = 1 << 27


@dataclass(frozen=True)
class LoadedRun:
    """A complete run, ready to use."""

    run_dir: Path
    info: RunInfo
    settings: Settings
    tokenizer: Tokenizer
    model: Model

    @property
    def fingerprint(self) -> str:
        """A hash of the weights."""
        weights = self.model.state_dict()
        return fingerprint(
            part for name in weights for part in (name, weights[name].numpy().tobytes())
        )


def load_run(run_dir: Path, *, kind: Kind | None = None) -> LoadedRun:
    """Read a complete run folder; refuse one that is incomplete, damaged or of a newer format."""
    info = read_info(run_dir)
    if info.status != "complete":
        raise RunFolderError(
            f"The run in {run_dir} is not finished: there are no final weights yet.",
            remedy="Wait if it is still running; otherwise repeat its command with --resume.",
        )
    if not info.is_network:
        raise RunFolderError(
            f"{run_dir} holds a {info.kind}, not one network.",
            remedy="Use `regraft predict` or `evaluate`, or give the folder of a base.",
        )
    if kind is not None and info.kind != kind:
        raise RunFolderError(
            f"{run_dir} holds a {info.kind}, not a {kind}.",
            remedy="Use `regraft finetune` to make a classifier, `regraft pretrain` for a base.",
        )
    check_run_files(run_dir, info, needed=("config.json", "tokenizer.json", WEIGHTS_NAME))
    settings = read_settings(run_dir)
    if len(info.thresholds) != len(info.labels) * (settings.data.label_separator is not None):
        raise RunFolderError(
            f"{run_dir / 'run.json'} has {len(info.thresholds)} thresholds for {len(info.labels)} "
            "labels.",
            "Expected one per label where a text may have several labels, and none otherwise.",
            remedy="Restore the folder or train again.",
        )
    tokenizer = load_tokenizer(run_dir / "tokenizer.json")
    tensors = _load_weights(run_dir / WEIGHTS_NAME)
    _check_vocabulary(run_dir, tensors=tensors, tokenizer=tokenizer, model=settings.model)
    _check_size(run_dir, tensors=tensors, model=settings.model)
    try:
        with torch.device("meta"):
            outline = _build(info, settings=settings, tokenizer=tokenizer)
        _check_outline(outline, tensors)
        model = _build(info, settings=settings, tokenizer=tokenizer)
        model.load_state_dict(tensors)
    except (RuntimeError, MemoryError, OverflowError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            f"{run_dir / 'model.safetensors'} does not fit {run_dir / 'config.json'}.",
            "Weights and configuration must come from the same run.",
            remedy="Restore the folder or train again.",
        ) from error
    return LoadedRun(run_dir, info, settings, tokenizer, model.eval())


def learned_positions(
    run_dir: str | Path, *, length: int | None = None
) -> Float[np.ndarray, "T D"]:
    """The vectors that a run has learned for positions, by default for those it was trained on."""
    run = load_run(Path(run_dir))
    length = run.settings.data.max_length if length is None else length
    return learned_position_table(run.model, length=length, name=str(run_dir))


def attention_of(run_dir: str | Path, text: str) -> AttentionWeights:
    """The attention of a run's model over a text; tokens beyond the model's length are cut."""
    run = load_run(Path(run_dir))
    max_length = run.settings.data.max_length
    return attention_over(run.model, text, tokenizer=run.tokenizer, max_length=max_length)


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file whole."""
    data = save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})
    write_whole(path, lambda file: file.write(data))


def _build(info: RunInfo, *, settings: Settings, tokenizer: Tokenizer) -> Model:
    if info.is_language_model:
        return build_language_model(
            settings.model, vocab_size=tokenizer.vocab_size, objective=settings.objective
        )
    if info.kind == "base":
        return Model(build_backbone(settings.model, vocab_size=tokenizer.vocab_size), NoHead())
    return build_classifier(
        settings.model,
        vocab_size=tokenizer.vocab_size,
        num_classes=len(info.labels),
        pooling=settings.head.pooling,
    )


def _check_vocabulary(
    run_dir: Path, *, tensors: dict[str, torch.Tensor], tokenizer: Tokenizer, model: ModelSettings
) -> None:
    if model.architecture is None:
        num_rows = len(tensors.get("backbone.embedding.weight", ()))
        is_right = num_rows == tokenizer.vocab_size
    else:
        # Other libraries round the vocabulary up: more rows than tokens are usual.
        num_rows = model.architecture.get("vocab_size", tokenizer.vocab_size)
        is_right = num_rows >= tokenizer.vocab_size
    if not is_right:
        raise RunFolderError(
            f"{run_dir / 'tokenizer.json'} has {tokenizer.vocab_size:,} tokens, but the weights "
            f"have {num_rows:,}.",
            "Tokenizer and weights must come from the same run.",
            remedy="Restore the tokenizer.json this model was trained with.",
        )


def _check_size(run_dir: Path, *, tensors: dict[str, torch.Tensor], model: ModelSettings) -> None:
    """Refuse a model of more layers than there are weights for, before its outline is built."""
    num_weights = sum(tensor.numel() for tensor in tensors.values())
    num_needed = model.width * (1 + model.num_layers * model.width)
    if model.architecture is None and num_needed > num_weights:
        raise RunFolderError(
            f"{run_dir / 'config.json'} describes a model of at least {num_needed:,} weights, but "
            f"there are {num_weights:,}.",
            "Weights and configuration must come from the same run.",
            remedy="Restore the folder or train again.",
        )


def _check_outline(outline: Model, tensors: dict[str, torch.Tensor]) -> None:
    """ValueError unless a model without memory has the shapes of the weights, and small tables."""
    for name, part in outline.state_dict().items():
        if name in tensors and tensors[name].shape != part.shape:
            raise ValueError(f"{name} has the shape {tuple(part.shape)}")
    # What is computed, not stored, such as a row for each position.
    num_computed = sum(buffer.numel() for buffer in outline.buffers())
    if num_computed > _MOST_COMPUTED + sum(tensor.numel() for tensor in tensors.values()):
        raise ValueError(f"its tables have {num_computed:,} numbers")


def _load_weights(path: Path) -> dict[str, torch.Tensor]:
    try:
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise incomplete(path) from error
    except (SafetensorError, OSError) as error:
        raise RunFolderError(
            f"{path} is damaged: {error}.", remedy="Restore the file or train again."
        ) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise RunFolderError(
                f"{path} is damaged: {name} holds numbers that are infinite or NaN.",
                remedy="Restore the file or train again.",
            )
    return tensors
