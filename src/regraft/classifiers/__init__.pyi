from .abstention import check_share
from .attribution import Explainer
from .base import (
    Classifier,
    classifier_kinds,
    load_classifier,
    prediction,
    register_classifier,
    run_fingerprint,
)
from .base_table import FoldedModel, FoldedSpace
from .base_table_making import fold_bases
from .blend import Blend, baselines_dir
from .distillation import STUDENT_PRESET, DistillResult, distill
from .embeddings import BaseSpace, EmbeddingModel, document_vectors
from .epochs import EpochRecord, kept_epoch
from .estimator import TextClassifier
from .explanation import (
    NUM_LEVELS,
    NUM_OF_CLASS,
    ClassWords,
    Explanation,
    StrongWord,
    harmless,
    signed,
    trust_facts,
)
from .finetuning import (
    FinetuneResult,
    finetune,
    load_splits,
    train_classifier,
)
from .fit_plan import FitLimit
from .fit_result import FitResult, ScoreChange, Update, read_finished
from .fitting import FEWEST_LABELS, fit, fit_again, fit_examples, remove_baselines
from .held_out import find_label_issues
from .journal import journal_folder
from .kept_examples import EXAMPLES_NAME, KeptExamples
from .learning_curve import expected_gain
from .logistic import RegressionModel, TunedRegression, fit_in_space, fit_regression, unit_length
from .neural import NeuralClassifier
from .scoring import (
    Answered,
    Evaluation,
    LabelScore,
    SetEvaluation,
    checked_probabilities,
    evaluate,
    evaluation,
    score_classifier,
    score_probabilities,
)
from .seen import part_in_training, seen_warning
from .self_training import self_train
from .starts import Start, start_from_base, without_base
from .storage import Stored, load_member, save_member
from .table_explanation import TableExplanation, WordTotals, class_words, explain_table
from .table_prediction import TablePrediction, TableTask, predict_to_file, predict_to_stream
from .tfidf import (
    LatentModel,
    LatentSpace,
    LinearModel,
    NaiveBayesModel,
    fit_linear,
    fit_naive_bayes,
    fit_space,
    linear_score,
)
from .updating import fit_update, fitted_data
from .weights import blended

__all__ = [
    "EXAMPLES_NAME",
    "FEWEST_LABELS",
    "NUM_LEVELS",
    "NUM_OF_CLASS",
    "STUDENT_PRESET",
    "Answered",
    "BaseSpace",
    "Blend",
    "ClassWords",
    "Classifier",
    "DistillResult",
    "EmbeddingModel",
    "EpochRecord",
    "Evaluation",
    "Explainer",
    "Explanation",
    "FinetuneResult",
    "FitLimit",
    "FitResult",
    "FoldedModel",
    "FoldedSpace",
    "KeptExamples",
    "LabelScore",
    "LatentModel",
    "LatentSpace",
    "LinearModel",
    "NaiveBayesModel",
    "NeuralClassifier",
    "RegressionModel",
    "ScoreChange",
    "SetEvaluation",
    "Start",
    "Stored",
    "StrongWord",
    "TableExplanation",
    "TablePrediction",
    "TableTask",
    "TextClassifier",
    "TunedRegression",
    "Update",
    "WordTotals",
    "baselines_dir",
    "blended",
    "check_share",
    "checked_probabilities",
    "class_words",
    "classifier_kinds",
    "distill",
    "document_vectors",
    "evaluate",
    "evaluation",
    "expected_gain",
    "explain_table",
    "find_label_issues",
    "finetune",
    "fit",
    "fit_again",
    "fit_examples",
    "fit_in_space",
    "fit_linear",
    "fit_naive_bayes",
    "fit_regression",
    "fit_space",
    "fit_update",
    "fitted_data",
    "fold_bases",
    "harmless",
    "journal_folder",
    "kept_epoch",
    "linear_score",
    "load_classifier",
    "load_member",
    "load_splits",
    "part_in_training",
    "predict_to_file",
    "predict_to_stream",
    "prediction",
    "read_finished",
    "register_classifier",
    "remove_baselines",
    "run_fingerprint",
    "save_member",
    "score_classifier",
    "score_probabilities",
    "seen_warning",
    "self_train",
    "signed",
    "start_from_base",
    "train_classifier",
    "trust_facts",
    "unit_length",
    "without_base",
]
