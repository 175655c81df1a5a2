"""A base that first goes on learning the task's own text (Gururangan et al. 2020), then is grafted.

Comes in: a base, the labelled file and any other text of the same kind, minutes. Goes out: a run
folder that is a base of its own, to be fine-tuned or compared. Labels are not read.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from regraft.bases import read_base_settings
from regraft.config import Settings, refuse_pairs, resolve
from regraft.errors import ConfigError
from regraft.pretrain import pretrain
from regraft.runfolder import RunFolder
from regraft.runtime import SILENT, Progress

# What goes on as the base itself was trained.
_AS_BEFORE = ("batch_size", "optimizer", "lr", "weight_decay", "clip_norm")


def adapted_dir(out: str | Path) -> Path:
    """Where the adapted base of a classifier lies: beside it, for it can serve others, too."""
    return Path(f"{out}-base")


def adapt(
    base: str | Path,
    *,
    texts: Sequence[str | Path],
    minutes: float,
    out: str | Path,
    settings: Settings,
    resume: bool = False,
    progress: Progress = SILENT,
) -> Path:
    """Train the base on the texts for so many minutes; the folder of the adapted one.

    `out` is where the classifier will lie, and `settings` are its own: they say how files are read.
    The rate is that of the base's own training. With `resume` an adaptation goes on.
    """
    check_one_process("--adapt")
    refuse_pairs(settings.data, who="--adapt")
    RunFolder(Path(out)).check_free(resume=resume)
    before = read_base_settings(Path(base))
    data = settings.data
    pretraining = resolve(
        "pretrain",
        base=before,
        overrides={
            **{f"train.{name}": getattr(before.train, name) for name in _AS_BEFORE},
            "train.minutes": minutes,
            "train.seed": settings.train.seed,
            "train.threads": settings.train.threads,
            "data.max_length": before.data.max_length,
            "data.packing": before.data.packing,
            "data.text_column": data.text_column,
            "data.encoding": data.encoding,
            "data.documents": data.documents,
        },
    )
    folder = adapted_dir(out)
    result = pretrain(
        texts, out=folder, base=base, settings=pretraining, resume=resume, progress=progress
    )
    progress.say(
        f"Adapted: {base} read {result.num_tokens:,} tokens of the task's text and is now {folder}."
    )
    return folder


def check_one_process(flag: str) -> None:
    """Refuse what trains several runs one after the other under torchrun, which starts one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"{flag} trains more than one run, and torchrun starts one.",
            remedy="Start without torchrun, or take the steps one by one: `regraft pretrain "
            "--base`, then `regraft finetune`.",
        )
