"""The attention and the learned positions of a run folder, as arrays."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from regraft.models import AttentionWeights, attention_over, learned_position_table
from regraft.training.loaded_run import load_run


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
