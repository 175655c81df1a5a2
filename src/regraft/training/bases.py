"""Loads a base from a run folder, a Hugging Face folder, or a checkpoint of the lab.

Pickled code is never run.
"""

import dataclasses
import os
import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch
from torch import Tensor

from regraft.config import FOREIGN_PRESET, PRESETS, Recipe, Settings, resolve
from regraft.data import LAB_DICT_NAME, Tokenizer, load_tokenizer
from regraft.errors import RunFolderError
from regraft.models import (
    ClassifierHead,
    Head,
    LanguageModelHead,
    Model,
    NoHead,
    build_backbone,
    load_foreign,
    sinusoidal_positions,
)
from regraft.runtime import read_json
from regraft.training.loaded_run import LoadedRun, load_run
from regraft.training.run_folder import (
    Kind,
    RunInfo,
    is_run_folder,
    open_run,
    read_info,
    read_settings,
)

# Reading the settings of a base that is not a run folder loads the whole model. The last one is
# cached for the recipe that needs the model next.
_waiting: dict[tuple[Any, ...], LoadedRun] = {}


def load_base(path: Path) -> LoadedRun:
    """The model to be fine-tuned, with its tokenizer and settings."""
    if is_run_folder(path):
        is_bare = read_info(path).kind == "base"
        return load_run(path, kind="base" if is_bare else "language-model")
    return _waiting.pop(_state(path), None) or _load_from_elsewhere(path)


def read_base_settings(path: Path) -> Settings:
    """The settings of a base; only a run folder stores them."""
    if is_run_folder(path):
        return read_settings(path)
    state = _state(path)
    base = _waiting.get(state) or _load_from_elsewhere(path)
    _waiting.clear()
    _waiting[state] = base
    return base.settings


def _load_from_elsewhere(path: Path) -> LoadedRun:
    if os.path.isfile(path):
        return load_lab_file(path)
    foreign = load_foreign(path)
    model = Model(foreign.backbone, NoHead()).eval()
    info = RunInfo(kind="base", status="complete")
    return LoadedRun(path, info, foreign.settings, foreign.tokenizer, model)


def _state(path: Path) -> tuple[Any, ...]:
    """Changes when a file of the base changes."""
    parts = path.iterdir() if path.is_dir() else (path, path.parent / LAB_DICT_NAME)
    files = [(part.name, part.stat()) for part in parts if part.is_file()]
    return path.absolute(), *sorted((name, s.st_mtime_ns, s.st_size) for name, s in files)


def check_preset(path: Path) -> None:
    """Raise ConfigError if the preset of the base does not exist and none is given.

    Without one in its config.json, settings would quietly take the default.
    """
    if not is_run_folder(path):
        return
    read_settings(path)  # what is damaged is called that
    config_path = path / "config.json"
    name = read_json(config_path).get("preset")
    if name not in {**PRESETS, **FOREIGN_PRESET}:
        problem = "names no preset" if name is None else f"names the preset {name!r}"
        raise RunFolderError(
            f"{config_path} {problem}, and a base is fine-tuned with its own.",
            f"Presets are {', '.join(PRESETS)}.",
            remedy="Choose one with --preset: shape and weights of the base stay as they are.",
        )


def assumed_heads(path: Path, *, settings: Settings) -> str | None:
    """A message about what was assumed for a checkpoint of the lab; None if nothing."""
    if not os.path.isfile(path):
        return None
    return (
        f"{path} does not contain its number of heads; the lab's {settings.model.num_heads} are "
        f"assumed. If that is wrong, convert it with "
        f"`regraft import {path} --heads H --out RUN`."
    )


# The lab's names of the parts of a layer, and ours.
_LAYER = re.compile(r"transformer_encoder\.layers\.(\d+)\.")
_PARTS = {
    "self_attn.in_proj_weight": "attention.in_proj.weight",
    "self_attn.in_proj_bias": "attention.in_proj.bias",
    "self_attn.out_proj.weight": "attention.out_proj.weight",
    "self_attn.out_proj.bias": "attention.out_proj.bias",
    **{
        f"{part}.{kind}": f"{part}.{kind}"
        for part in ("linear1", "linear2", "norm1", "norm2")
        for kind in ("weight", "bias")
    },
}
_EMBEDDING, _POSITIONS = "encoder.weight", "pos_encoder.pe"
_HEAD = {"classifier.decoder.weight": "linear.weight", "classifier.decoder.bias": "linear.bias"}


def load_lab_file(
    path: Path, *, tokenizer_path: Path | None = None, num_heads: int | None = None
) -> LoadedRun:
    """A lab checkpoint as a run of the lab family; its tensors give the shape.

    They do not record the number of heads: without one, it is the lab's. A head over the vocabulary
    makes a language model, another a classifier of as many classes; without one it is a base.
    """
    found = _read_lab_tensors(path)
    layers = {int(match[1]) for name in found if (match := _LAYER.match(name))}
    names = _backbone_names(num_layers=len(layers))
    has_head = any(name in found for name in _HEAD)
    expected = {*names, *(_HEAD if has_head else ())}
    if missing := sorted(expected - found.keys()):
        _refuse_lab_file(path, f"lacks {missing[0]}")
    if unknown := sorted(found.keys() - expected - {_POSITIONS}):
        _refuse_lab_file(path, f"has {unknown[0]}, which the lab's model has not")

    if found[_EMBEDDING].dim() != 2:
        _refuse_lab_file(path, f"has no matrix in {_EMBEDDING}")
    tokenizer = _lab_tokenizer(path, tokenizer_path=tokenizer_path)
    vocab_size, width = found[_EMBEDDING].shape
    if vocab_size != tokenizer.vocab_size:
        raise RunFolderError(
            f"{path} is made for {vocab_size:,} tokens, but its tokenizer has "
            f"{tokenizer.vocab_size:,}.",
            "The ids of a text must be those that the model was trained with.",
            remedy=f"Give the {LAB_DICT_NAME} that it was trained with.",
        )
    num_classes = len(found["classifier.decoder.bias"]) if has_head else None
    recipe: Recipe = "pretrain" if num_classes in (None, vocab_size) else "finetune"
    longest = _num_positions(path, found=found, width=width)
    settings = resolve(
        recipe,
        preset="lab",
        overrides={
            "objective.stages": "language",
            "model.width": width,
            "model.num_layers": len(layers),
            "model.num_heads": num_heads,
            "model.feedforward_width": len(found["transformer_encoder.layers.0.linear1.bias"]),
            "model.max_positions": longest,
            "data.max_length": longest
            and min(longest, PRESETS["lab"][recipe]["data"]["max_length"]),
        },
    )
    head: Head = NoHead()
    kind: Kind = "base"
    labels: tuple[str, ...] = ()
    backbone = build_backbone(settings.model, vocab_size=vocab_size)
    if num_classes == vocab_size:
        kind, head = "language-model", LanguageModelHead(backbone)
    elif num_classes is not None:
        kind, labels = "classifier", tuple(map(str, range(num_classes)))
        head = ClassifierHead(backbone, num_classes=num_classes, pooling=settings.head.pooling)
    model = Model(backbone, head)
    try:
        model.backbone.load_state_dict({ours: found[name] for name, ours in names.items()})
        head.load_state_dict({ours: found[name] for name, ours in _HEAD.items() if has_head})
    except RuntimeError as error:
        _refuse_lab_file(path, f"does not fit together: {str(error).splitlines()[-1].strip()}")
    info = RunInfo(kind=kind, status="complete", labels=labels)
    return LoadedRun(path, info, settings, tokenizer, model.eval())


def import_lab_file(
    path: Path, *, out: Path, tokenizer_path: Path | None = None, num_heads: int | None = None
) -> LoadedRun:
    """Convert a lab checkpoint to a run folder."""
    with open_run(out, resume=False) as (folder, _):
        run = load_lab_file(path, tokenizer_path=tokenizer_path, num_heads=num_heads)
        info = dataclasses.replace(run.info, status="training", result={"imported": str(path)})
        info = folder.start(info, settings=run.settings, tokenizer=run.tokenizer, resume=False)
        folder.finish(info, model=run.model)
    return load_run(out)


def _read_lab_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors by name, without the prefix `base.`, in full precision."""
    try:
        checkpoint: Any = torch.load(path, weights_only=True, map_location="cpu")
    except UnpicklingError as error:
        raise RunFolderError(
            f"{path} is not a checkpoint, or contains pickled objects other than weights.",
            "Code from a file is never run.",
            remedy='Save it again with torch.save({"model_state_dict": model.state_dict()}, FILE).',
        ) from error
    except Exception as error:  # torch.load meets any file with any exception
        reason = (str(error).splitlines() or ["it is empty"])[0]
        raise RunFolderError(
            f"{path} cannot be read: {reason[:120]}.",
            "Expected a run folder, a Hugging Face folder, or a checkpoint of the lab.",
            remedy="Check the path given as the base.",
        ) from error
    tensors = checkpoint.get("model_state_dict") if isinstance(checkpoint, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        _refuse_lab_file(path, "has no model_state_dict")
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        _refuse_lab_file(path, "holds something else than tensors in its model_state_dict")
    return {name.removeprefix("base."): tensor.float() for name, tensor in tensors.items()}


def _backbone_names(*, num_layers: int) -> dict[str, str]:
    """The lab's name of every tensor of the backbone, and ours."""
    names = {_EMBEDDING: "embedding.weight"}
    for layer in range(max(num_layers, 1)):
        for theirs, ours in _PARTS.items():
            names[f"transformer_encoder.layers.{layer}.{theirs}"] = f"blocks.{layer}.{ours}"
    return names


def _num_positions(path: Path, *, found: dict[str, Tensor], width: int) -> int | None:
    """The number of positions in the file, which must be sinusoidal."""
    if _POSITIONS not in found:
        return None
    table_TD = found[_POSITIONS]
    table_TD = table_TD.squeeze(1) if table_TD.dim() == 3 else table_TD
    if table_TD.shape[1:] != (width,) or not torch.allclose(
        table_TD, sinusoidal_positions(len(table_TD), width=width), atol=1e-4
    ):
        _refuse_lab_file(path, f"has positions in {_POSITIONS} that are not the lab's sinusoids")
    return len(table_TD)


def _lab_tokenizer(path: Path, *, tokenizer_path: Path | None) -> Tokenizer:
    if tokenizer_path is None and not (path.parent / LAB_DICT_NAME).is_file():
        raise RunFolderError(
            f"There is no {LAB_DICT_NAME} in the folder of {path}.",
            "A checkpoint of the lab does not contain its vocabulary.",
            remedy=f"Put {LAB_DICT_NAME} and its SentencePiece model there, or make a run folder: "
            f"regraft import {path} --tokenizer PATH --out RUN.",
        )
    return load_tokenizer(tokenizer_path or path.parent / LAB_DICT_NAME)


def _refuse_lab_file(path: Path, problem: str) -> NoReturn:
    raise RunFolderError(
        f"{path} {problem}.",
        "Expected a checkpoint of the lab: embedding, layers of nn.TransformerEncoder, one head.",
        remedy="Check the file, or pre-train a base with `regraft pretrain`.",
    )
