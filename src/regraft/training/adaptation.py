"""Adaptation: further pre-training of a base on the text of the task (Gururangan et al. 2020).

Labels are not read. The result is a new base.
"""

from collections.abc import Sequence
from pathlib import Path

from regraft.config import SINGLE_TEXTS, Settings, check_task, resolve
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Progress, num_processes
from regraft.training.bases import read_base_settings
from regraft.training.pretraining import pretrain
from regraft.training.run_folder import RunFolder

# Settings taken from the pre-training of the base.
_AS_BEFORE = ("batch_size", "optimizer", "lr", "weight_decay", "clip_norm")


def adapted_dir(out: str | Path) -> Path:
    """The folder of the adapted base, next to the classifier, so that others can use it."""
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
    """Train the base on the texts for so many minutes and return the folder of the new base.

    `out` is where the classifier will lie, and `settings` are its own: they say how files are read.
    The rate is that of the base's own training. With `resume` an adaptation goes on.
    """
    check_one_process("--adapt")
    check_task(settings.data, supported=SINGLE_TEXTS, by="--adapt")
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
        f"Adapted {base} on {result.num_tokens:,} tokens of the task; the new base is {folder}."
    )
    return folder


def check_one_process(flag: str) -> None:
    """Raise ConfigError under torchrun, for options that train several runs in turn."""
    if num_processes() > 1:
        raise ConfigError(
            f"{flag} trains more than one run and does not work under torchrun.",
            remedy="Start without torchrun, or run the steps one by one: `regraft pretrain "
            "--base`, then `regraft finetune`.",
        )
