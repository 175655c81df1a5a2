"""Whether a classifier was made from the examples that it is scored on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from regraft.data import VALID_SHARE, Example, examples_fingerprint, split_examples
from regraft.training import read_info, read_settings

# Why a score on a file that was used for training is too good.
_WARNINGS = {
    "train": "{run} was trained on {file}, so this score is too good.",
    "valid": "{run} was selected on {file}, so this score is probably a little too good.",
}


def seen_warning(run_dir: Path, file: Path, examples: Sequence[Example]) -> str | None:
    """Why a score of this run on these examples, which are from `file`, is too good, if it is."""
    part = part_in_training(run_dir, examples)
    if part is None:
        return None
    what = _WARNINGS[part].format(run=run_dir, file=file)
    return f"note: {what} Evaluate it on examples that it has not seen."


def part_in_training(
    run_dir: Path, examples: Sequence[Example]
) -> Literal["train", "valid"] | None:
    """Whether a run was trained or validated on these examples, as far as run.json shows.

    A run records hashes of the examples in order: it does not recognise a part of its file, or the
    file in another order.
    """
    if not (run_dir / "run.json").exists():
        return None
    known = read_info(run_dir).fingerprints
    # Without a valid file, the hash is that of the file without its held-out part.
    seed = read_settings(run_dir).train.seed
    rest, _ = split_examples(list(examples), share=VALID_SHARE, seed=seed)
    if known.get("train") in [examples_fingerprint(part) for part in (examples, rest)]:
        return "train"
    return "valid" if known.get("valid") == examples_fingerprint(examples) else None
