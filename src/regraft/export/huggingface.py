"""Export to a Hugging Face folder that needs no code of ours, checked by loading it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from regraft.export.common import (
    check_ids,
    exported_tokenizer,
    first_scores,
    load_exportable,
    needed,
    reads_pairs,
    sample_pairs,
    sample_texts,
    special_names,
)
from regraft.export.mapping import Translation, check_expressible, translations
from regraft.export.model_card import huggingface_card
from regraft.export.parity import ExportResult, Parity, check_parity
from regraft.models import is_right_padded, places_in_document, quiet_transformers
from regraft.runtime import SILENT, Progress, whole_folder, write_json, write_text
from regraft.training import LoadedRun

# Longer samples are compared alone: scores over a large vocabulary fill the memory.
_LONGEST_IN_BATCH = 64


def export_huggingface(
    run_dir: str | Path, *, out: str | Path, progress: Progress = SILENT
) -> ExportResult:
    """Write the model of a run folder to `out`, a new or empty folder, as transformers has it.

    The folder is loaded again, and refused unless it scores as regraft does.
    """
    run = load_exportable(Path(run_dir))
    check_expressible(run)
    transformers = needed("transformers", extra="hf")
    parts = translations(run)
    with quiet_transformers(), whole_folder(Path(out)) as folder:
        for part in parts:
            progress.start(f"writing {part.architecture}", total=None)
            _write_model(part, folder / part.folder, run=run, transformers=transformers)
            _write_tokenizer(part, folder / part.folder, run=run)
            progress.finish()
        parities = []
        for part in parts:
            progress.start(f"comparing {part.architecture}", total=None)
            parity = _parity(part, folder / part.folder, run=run, transformers=transformers)
            check_parity(parity, made_by="transformers")
            parities.append(parity)
            progress.finish()
        card = huggingface_card(run, parts=parts, parities=parities, name=Path(out).resolve().name)
        write_text(folder / "README.md", card)
    return ExportResult(
        out=str(out),
        format="hf",
        parity=tuple(parities),
        note=parts[0].note,
    )


def _write_model(part: Translation, folder: Path, *, run: LoadedRun, transformers: Any) -> None:
    config = transformers.AutoConfig.for_model(part.model_type, **part.config)
    model = getattr(transformers, part.architecture)(config)
    # Strict: every tensor of theirs is one of ours, and none of ours is left.
    model.load_state_dict(part.tensors)
    if part.task == "text-generation":
        # As in regraft, padding and start never continue a text.
        never = [run.tokenizer.pad_id, run.tokenizer.start_id]
        model.generation_config.suppress_tokens = never
    model.save_pretrained(folder)


def _write_tokenizer(part: Translation, folder: Path, *, run: LoadedRun) -> None:
    write_text(folder / "tokenizer.json", exported_tokenizer(run).to_str(pretty=True) + "\n")
    types = ["token_type_ids"] if run.settings.model.traits.has_token_types else []
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.settings.data.max_length,
        "truncation_side": "right",
        # A text is continued at its end, so padding goes to the left.
        "padding_side": "left" if part.task == "text-generation" else "right",
        "model_input_names": ["input_ids", *types, "attention_mask"],
        "clean_up_tokenization_spaces": False,
        # In a text "</s>" is text; but to fill in a text, "<mask>" has to be read as the token.
        "split_special_tokens": part.task != "fill-mask",
        **special_names(run),
    }
    write_json(folder / "tokenizer_config.json", config)


@torch.no_grad()
def _parity(part: Translation, folder: Path, *, run: LoadedRun, transformers: Any) -> Parity:
    """The export, loaded as a user would, compared with our own model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    auto_class = getattr(transformers, part.auto_class)
    model = auto_class.from_pretrained(folder, local_files_only=True).eval()
    assert type(model).__name__ == part.architecture, "the Auto class chose another one"
    texts = sample_texts(run, has_special_names=part.task != "fill-mask")
    has_pairs = "seq_relationship_logits" in part.outputs or reads_pairs(run)
    # Each is what the tokenizer is given: a text, or two.
    samples = sample_pairs(texts) if has_pairs else [(text,) for text in texts]
    for sample in samples:
        content = sample if len(sample) == 2 else sample[0]
        ids = tokenizer(*sample, truncation=True)["input_ids"]
        check_ids(run, content, ids, made_by="transformers")

    def encoded(samples: Sequence[tuple[str, ...]], **padding: Any) -> Any:
        columns = [list(column) for column in zip(*samples, strict=True)]
        return tokenizer(*columns, truncation=True, return_tensors="pt", **padding)

    short = [each for each in samples if len(tokenizer(*each)["input_ids"]) <= _LONGEST_IN_BATCH]
    rows = {
        "no padding": [encoded([sample]) for sample in samples],
        "padding on the right": [encoded(short, padding=True, padding_side="right")],
        "padding on the left": [encoded(short, padding=True, padding_side="left")],
    }
    scores = getattr(model(**encoded(samples[:1])), next(iter(part.outputs)))[0]
    return Parity(
        name=part.architecture,
        differences={
            padding: _largest(_differences(part, model, batch) for batch in batches)
            for padding, batches in rows.items()
        },
        num_texts=len(samples),
        text=" / ".join(samples[0]),
        vector=first_scores(scores),
    )


def _largest(batches: Iterator[list[Tensor]]) -> float | None:
    values = [difference for batch in batches for difference in batch]
    return float(torch.stack(values).max()) if values else None


def _differences(part: Translation, model: Any, batch: Any) -> list[Tensor]:
    """The largest difference of every output that can be compared under this padding."""
    ids_BT, real_BT = batch["input_ids"], batch["attention_mask"].bool()
    types_BT = batch.get("token_type_ids", torch.zeros_like(ids_BT))
    is_left_padded = not is_right_padded(real_BT)
    places = _places(real_BT) if is_left_padded and part.needs_places else {}
    theirs = model(**batch, **places)
    ours = part.scores(ids_BT, real_BT, types_BT)
    differences = []
    for name, output in part.outputs.items():
        if is_left_padded and not output.survives_left_padding:
            continue
        difference = (ours[name] - getattr(theirs, name)).abs()
        differences.append((difference[real_BT] if output.is_of_tokens else difference).max())
    return differences


def _places(real_BT: Bool[Tensor, "B T"]) -> dict[str, Tensor]:
    return {"position_ids": places_in_document(real_BT)}
