"""Pre-train a small language model on your own text, graft a classifier, prove what it was worth.

The public names, each resolved when first used: `import regraft` loads neither torch nor sklearn.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regraft.classifier import TextClassifier, load_classifier
    from regraft.compare import compare
    from regraft.config import Settings, resolve
    from regraft.errors import (
        ConfigError,
        CorpusError,
        DataError,
        RegraftError,
        RunFolderError,
        TrainingError,
    )
    from regraft.evaluate import evaluate
    from regraft.finetune import finetune
    from regraft.fit import fit
    from regraft.generate import generate
    from regraft.ledger import ledger
    from regraft.pretrain import pretrain
    from regraft.report import write_report
    from regraft.text import load_examples, read_documents
    from regraft.tokenizer import load_tokenizer
    from regraft.vocabulary import train_tokenizer

    __version__: str

__all__ = [
    "ConfigError",
    "CorpusError",
    "DataError",
    "RegraftError",
    "RunFolderError",
    "Settings",
    "TextClassifier",
    "TrainingError",
    "__version__",
    "compare",
    "evaluate",
    "finetune",
    "fit",
    "generate",
    "ledger",
    "load_classifier",
    "load_examples",
    "load_tokenizer",
    "pretrain",
    "read_documents",
    "resolve",
    "train_tokenizer",
    "write_report",
]

_HOMES = {
    "ConfigError": "errors",
    "CorpusError": "errors",
    "DataError": "errors",
    "RegraftError": "errors",
    "RunFolderError": "errors",
    "Settings": "config",
    "TextClassifier": "classifier",
    "TrainingError": "errors",
    "compare": "compare",
    "evaluate": "evaluate",
    "finetune": "finetune",
    "fit": "fit",
    "generate": "generate",
    "ledger": "ledger",
    "load_classifier": "classifier",
    "load_examples": "text",
    "load_tokenizer": "tokenizer",
    "pretrain": "pretrain",
    "read_documents": "text",
    "resolve": "config",
    "train_tokenizer": "vocabulary",
    "write_report": "report",
}


class _Package(ModuleType):
    """Importing `regraft.pretrain` binds that module here; the function of the same name wins.

    The module stays in reach as `from regraft.pretrain import ...`.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in _HOMES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # a type checker knows the names from the imports above

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("regraft")
        if name not in _HOMES:
            raise AttributeError(f"module 'regraft' has no attribute {name!r}")
        value = getattr(import_module(f"regraft.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
