"""What the configuration of a Hugging Face folder says; needs neither torch nor transformers."""

import json
from pathlib import Path
from typing import Any

CONFIG_NAME = "config.json"


def is_foreign_folder(path: Path) -> bool:
    """Does the folder have a Hugging Face configuration?"""
    return "model_type" in read_config(path)


def read_config(path: Path) -> dict[str, Any]:
    """config.json; empty if there is none, or if it cannot be read."""
    try:
        values = json.loads((path / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def has_classification_head(path: Path) -> bool:
    """Whether a folder holds a Hugging Face model for the classification of texts."""
    names = read_config(path).get("architectures") or []
    return any(str(name).endswith("ForSequenceClassification") for name in names)
