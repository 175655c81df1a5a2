"""What formats for networks share: what can be exported, the tokenizer, and sample texts.

An export is complete and checked, or nothing is written.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from jaxtyping import Float
from tokenizers import processors
from torch import Tensor

from regraft.classifiers import load_classifier
from regraft.config import ModelSettings
from regraft.data import Content
from regraft.errors import ConfigError, RegraftError
from regraft.export.parity import SENTENCES
from regraft.models import NoHead
from regraft.runtime import optional
from regraft.training import LoadedRun, load_run, read_info

# How many scores of one text the card shows.
_VECTOR_LENGTH = 4

# For the first place of a pair; sample texts stand in the second.
_FIRST = "The first sentence of a pair."
_SPECIAL_SENTENCE = "In a review, </s> or <mask> or <pad> is text like any other."


def needed(module: str, *, extra: str) -> Any:
    """A module that only an extra of regraft installs."""
    with optional("This export", extra=extra):
        return importlib.import_module(module)


def load_exportable(run_dir: Path) -> LoadedRun:
    """The network in a folder; ConfigError for what cannot be exported in any format."""
    if not is_network(run_dir):
        kind = load_classifier(run_dir).kind
        raise ConfigError(
            f"{run_dir} holds a classifier of the kind {kind!r}, which is not a network of "
            "regraft's own.",
            "A student of it can be exported: a network trained to give the same answers.",
            remedy="Use --format numpy for a classifier of `regraft fit`, or add --text FILE for a "
            "student.",
        )
    run = load_run(run_dir)
    check_family(run)
    return run


def is_network(run_dir: str | Path) -> bool:
    """Does the folder hold one network that regraft trained?"""
    folder = Path(run_dir)
    has_info = (folder / "run.json").exists() or not folder.exists()
    return has_info and read_info(folder).is_network


def check_family(run: LoadedRun) -> None:
    """Refuse a model that is not one of our own, and one without a head."""
    if isinstance(run.model.head, NoHead):
        raise ConfigError(
            f"{run.run_dir} holds a base without a head, which scores nothing.",
            "Language models and classifiers can be exported.",
            remedy="Fine-tune it first: `regraft finetune --base ...`.",
        )
    refuse_foreign(run.settings.model, run_dir=run.run_dir)


def refuse_foreign(settings: ModelSettings, *, run_dir: Path) -> None:
    """Refuse a model that is not one of our own."""
    if settings.traits.is_foreign:
        raise ConfigError(
            f"{run_dir} is based on a Hugging Face model, whose layers regraft does not know.",
            "Models of regraft's own families can be exported.",
            remedy=f"Train a student of it, which can be exported: `regraft distill {run_dir} "
            "--text FILE --out STUDENT`.",
        )


def sample_texts(run: LoadedRun, *, has_special_names: bool) -> list[str]:
    """Texts to compare an export on; the last one is longer than the model reads."""
    long = " ".join([SENTENCES[0]] * (run.settings.data.max_length // 8 + 1))
    special = [_SPECIAL_SENTENCE] if has_special_names else []
    return [*SENTENCES, *special, long]


def reads_pairs(run: LoadedRun) -> bool:
    """Is it a classifier of pairs of texts?"""
    return run.info.is_classifier and run.settings.data.pair_column is not None


def has_token_types(run: LoadedRun) -> bool:
    """Does it mark the two texts of a pair by token types?"""
    return reads_pairs(run) and run.settings.model.traits.has_token_types


def sample_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs to compare an export on, of sample texts; the last of these is cut, in either place."""
    *short, long = filter(None, texts)  # no text of a pair is empty
    return [*((_FIRST, text) for text in short), (long, _FIRST), (_FIRST, long)]


def read_row(run: LoadedRun, content: Content) -> tuple[list[int], list[int]]:
    """The ids that a model of ours reads, and their types: start token, text or pair, cut."""
    tokenizer, longest = run.tokenizer, run.settings.data.max_length
    if isinstance(content, tuple):
        first, second = (tokenizer.encode(text) for text in content)
        return tokenizer.framed_pair(first, second, max_length=longest)
    ids = [tokenizer.start_id, *tokenizer.encode(content)][:longest]
    return ids, [0] * len(ids)


def special_names(run: LoadedRun) -> dict[str, str]:
    """The special tokens of a run by the names of their roles in transformers."""
    tokenizer = run.tokenizer
    ids = {
        "pad_token": tokenizer.pad_id,
        "unk_token": tokenizer.unknown_id,
        "bos_token": tokenizer.start_id,
        "cls_token": tokenizer.start_id,
        "eos_token": tokenizer.end_id,
        "sep_token": tokenizer.separator_id,
        "mask_token": tokenizer.mask_id,
    }
    return {role: tokenizer.tokens([n])[0] for role, n in ids.items() if n is not None}


def exported_tokenizer(run: LoadedRun) -> tokenizers.Tokenizer:
    """The run's tokenizer with regraft's framing built in: `<s>` before a text.

    Families with token types, and classifiers of pairs, read a pair as `<s> A <sep> B <sep>`.
    """
    inner = tokenizers.Tokenizer.from_file(str(run.run_dir / "tokenizer.json"))
    names = special_names(run)
    start, separator = names["bos_token"], names.get("sep_token")
    pair = f"{start} $A $B"
    if reads_pairs(run):
        separator = run.tokenizer.tokens(run.tokenizer.pair_frame[1])[0]
    if reads_pairs(run) or (run.settings.model.traits.has_token_types and separator is not None):
        pair = f"{start} $A {separator} $B:1 {separator}:1"
    used = [name for name in (start, separator) if name is not None]
    inner.post_processor = processors.TemplateProcessing(
        single=f"{start} $A",
        pair=pair,
        special_tokens=[(name, inner.token_to_id(name)) for name in used],
    )
    inner.no_truncation()
    inner.no_padding()
    return inner


def first_scores(scores: Float[Tensor, "*shape"]) -> tuple[float, ...]:
    """A few scores of one text, to recognise a model by: those of its last token or its classes."""
    last = scores.reshape(-1, scores.shape[-1])[-1]
    return tuple(last[:_VECTOR_LENGTH].tolist())


def check_ids(run: LoadedRun, content: Content, ids: list[int], *, made_by: str) -> None:
    """Refuse an export that would read other tokens than regraft."""
    expected, _ = read_row(run, content)
    if ids != expected:
        raise RegraftError(
            f"{made_by} reads {content!r:.40} as {ids[:8]} ..., regraft as {expected[:8]} ....",
            "An export has to read the same tokens; nothing was written.",
            remedy="Please report this with the tokenizer.json of the run.",
        )
