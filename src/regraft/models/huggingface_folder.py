"""What the configuration of a Hugging Face folder says; needs neither torch nor transformers."""

from pathlib import Path
from typing import Any

from regraft.runtime import read_object

CONFIG_NAME = "config.json"


def is_foreign_folder(path: Path) -> bool:
    """Does the folder have a Hugging Face configuration?"""
    return "model_type" in read_config(path)


def read_config(path: Path) -> dict[str, Any]:
    """config.json; empty if there is none, or if it cannot be read."""
    try:
        return read_object(path / CONFIG_NAME)
    except (OSError, ValueError):
        return {}


def has_classification_head(path: Path) -> bool:
    """Whether a folder holds a Hugging Face model for the classification of texts."""
    names = read_config(path).get("architectures") or []
    return any(str(name).endswith("ForSequenceClassification") for name in names)
