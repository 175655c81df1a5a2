from .classifiers.base import load_classifier
from .classifiers.distillation import distill
from .classifiers.estimator import TextClassifier
from .classifiers.finetuning import finetune
from .classifiers.scoring import evaluate
from .classifiers.table_fit import fit
from .comparison.procedure import compare
from .config.resolution import resolve
from .config.schema import Settings
from .data.text.readers import load_examples, read_documents
from .data.tokens.tokenizer import load_tokenizer
from .data.tokens.tokenizer_training import train_tokenizer
from .errors import (
    ConfigError,
    CorpusError,
    DataError,
    RegraftError,
    RunFolderError,
    TrainingError,
)
from .models.parameter_count import ledger
from .report.writer import write_report
from .runtime.progress import ProgressLines
from .training.generation import generate
from .training.pretraining import pretrain

__version__: str

__all__ = [
    "ConfigError",
    "CorpusError",
    "DataError",
    "ProgressLines",
    "RegraftError",
    "RunFolderError",
    "Settings",
    "TextClassifier",
    "TrainingError",
    "__version__",
    "compare",
    "distill",
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
