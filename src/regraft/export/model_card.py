"""The model card (README.md) of an export, from the run itself, with the hub's front matter.

Its text is in templates/; here are the numbers. Paths of the user's machine stay out of it.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regraft.config import OF_FINETUNING
from regraft.export.common import has_token_types, reads_pairs
from regraft.export.mapping import Translation
from regraft.export.parity import TOLERANCE, Int8Cost, Parity, parity_rows
from regraft.runtime import in_percent
from regraft.stats import accuracy_interval
from regraft.training import LoadedRun

if TYPE_CHECKING:
    from jinja2 import Environment

# Settings of fine-tuning only.
_METHODS = tuple(f"train.{name}" for name in OF_FINETUNING)
# The settings of a training that readers ask for first.
_RECIPE = (
    *("objective.kind", "objective.mask_rate", "objective.masking"),
    *("model.attention", "model.width", "model.num_layers", "model.num_heads"),
    *("model.feedforward_width", "model.dropout", "head.pooling"),
    *("data.max_length", "data.packing", "train.optimizer", "train.lr", "train.schedule"),
    *("train.batch_size", "train.steps", "train.epochs", "train.minutes"),
    *_METHODS,
    "train.seed",
)
_ONLY_CLASSIFIER = ("head.", *_METHODS)
_ONLY_LANGUAGE_MODEL = ("data.packing", "objective.mask")


def huggingface_card(
    run: LoadedRun, *, parts: Sequence[Translation], parities: Sequence[Parity], name: str
) -> str:
    """The card of a Hugging Face folder."""
    return _card(
        "huggingface.jinja",
        run,
        name=name,
        front={
            "library_name": "transformers",
            "pipeline_tag": parts[0].task,
            "tags": ["regraft"],
        },
        parities=parities,
        packages=("regraft", "torch", "transformers"),
        parts=parts,
    )


def onnx_card(run: LoadedRun, *, parity: Parity, name: str, int8: Int8Cost | None) -> str:
    """The card of an ONNX folder."""
    task = {"pipeline_tag": "text-classification"} if run.info.is_classifier else {}
    return _card(
        "onnx.jinja",
        run,
        name=name,
        front={"library_name": "onnx", "tags": ["regraft", "onnx"], **task},
        parities=[parity],
        packages=("regraft", "torch", "onnx", "onnxruntime"),
        has_types=has_token_types(run),
        int8=int8,
    )


def int8_rows(cost: Int8Cost) -> list[tuple[str, str]]:
    """What int8 costs and gains, in words."""
    rows = [
        ("same answers", f"{in_percent(cost.agreement, digits=2)} on {cost.num_texts:,} texts"),
        ("largest difference of a score", f"{cost.largest_difference:.2g}"),
        ("speed", f"{cost.speed_ratio:.2f} times"),
        ("size", f"{cost.num_bytes / cost.num_bytes_fp32:.2f} times"),
    ]
    if cost.accuracy is not None and cost.accuracy_fp32 is not None:
        lost = (cost.accuracy_fp32 - cost.accuracy) * 100
        before, after = (in_percent(each, digits=2) for each in (cost.accuracy_fp32, cost.accuracy))
        change = f"{after}, was {before}: {lost:+.2f} points lost"
        rows.insert(0, ("accuracy", change))
    return rows


def _card(template: str, run: LoadedRun, **values: Any) -> str:
    base = run.info.base
    return (
        _environment()
        .get_template(template)
        .render(
            run=run,
            info=run.info,
            result=run.info.result,
            model=run.settings.model,
            longest=run.settings.data.max_length,
            num_parameters=sum(parameter.numel() for parameter in run.model.parameters()),
            has_pairs=reads_pairs(run),
            start="scratch" if base is None else Path(base["run_dir"]).name,
            recipe=_recipe(run),
            **values,
        )
    )


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("regraft.export", "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        # JSON is YAML: no name needs quotes of its own.
        "json": json.dumps,
        "line": lambda text: " ".join(text.split()) + "\n",
        "code": lambda text: f"`{text}`",
        "percent": in_percent,
        "version": version,
    }
    environment.globals |= {
        "columns_of_shares": ("score", "value", "95 % interval", "over"),
        "share_row": _share_row,
        "student_rows": _student_rows,
        "kept_score": _kept_score,
        "int8_rows": int8_rows,
        "parity_rows": parity_rows,
        "tolerance": TOLERANCE,
    }
    return environment


def _share_row(name: str, share: float, count: int, what: str) -> tuple[str, ...]:
    """A share of `count` things, with its interval."""
    interval = accuracy_interval((np.arange(count) < round(share * count))[None])
    reach = f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %"
    return name, in_percent(share), reach, f"{count:,} {what}"


def _student_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """How often a student answers as its teacher does, and is right."""
    agreement, num_examples = result["agreement"][-1], result["num_examples"]
    rows = [_share_row("same label as its teacher", agreement, result["num_held_out"], "texts")]
    if result["accuracy"] is None:
        return rows
    both = {"accuracy": "accuracy", "accuracy of its teacher": "teacher_accuracy"}
    others = [_share_row(name, result[key], num_examples, "examples") for name, key in both.items()]
    return [*rows, *others]


def _kept_score(result: Mapping[str, Any]) -> float:
    """The score on valid of the epoch whose weights were kept."""
    kept = result.get("best_epoch")
    score: float = result["valid_accuracy"][-1 if kept is None else kept]
    return score


def _recipe(run: LoadedRun) -> list[tuple[str, str]]:
    left_out: tuple[str, ...] = _ONLY_CLASSIFIER
    if run.info.is_classifier:
        # The objective is the base's; what was trained from scratch never had one.
        left_out = _ONLY_LANGUAGE_MODEL if run.info.base else (*_ONLY_LANGUAGE_MODEL, "objective.")
    if run.settings.objective.kind == "causal":
        left_out = (*left_out, "objective.mask")
    rows = [("preset", run.settings.preset), ("vocabulary", f"{run.tokenizer.vocab_size:,} tokens")]
    for key in _RECIPE:
        section, _, name = key.partition(".")
        value = getattr(getattr(run.settings, section), name)
        if not key.startswith(left_out) and value is not None and value is not False:
            rows.append((key, f"{value:.4g}" if isinstance(value, float) else f"{value}"))
    return rows
