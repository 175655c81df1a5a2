from .contrastive_rows import SHORTEST, HalfRows, are_alike, num_divisible
from .corpora import CORPORA, fetch
from .domain_selection import Domain, find_domain
from .objective_rows import pretraining_rows
from .rows import (
    IGNORED,
    Batch,
    ExampleRows,
    Rows,
    WindowRows,
    budget_batches,
    epoch_order,
    example_rows,
    padded,
)
from .subsets import ALL, parse_sizes, rare_classes, settled_sizes, subset_numbers
from .synthetic import synthetic_reviews
from .text.clean import drop_leaks, relabel
from .text.duplicates import duplicate_key, find_leaks, normalised, without_duplicates
from .text.label_issues import (
    LabelIssue,
    accepted_issues,
    label_warnings,
    read_label_issues,
    write_label_issues,
)
from .text.lines import STANDARD_INPUT
from .text.profile import Profile, profile
from .text.readers import (
    READERS,
    Row,
    check_readable,
    load_examples,
    read_documents,
    register_reader,
)
from .text.records import (
    VALID_SHARE,
    Content,
    Document,
    Example,
    Labels,
    check_labels_known,
    check_trainable,
    examples_fingerprint,
    labels_of,
    split_examples,
    subset_examples,
)
from .tokens.lab import LAB_DICT_NAME
from .tokens.store import TokenStore, is_store, offsets_of, open_store, parse_part
from .tokens.store_writer import source_fingerprint, write_store, write_view
from .tokens.tokenizer import (
    ROLES_NAME,
    Tokenizer,
    load_tokenizer,
    parse_tokenizer,
    without_surrogates,
)
from .tokens.training import known_share, numbered_tokenizer, train_tokenizer
from .words import Span, spread_over_words, without_words, word_spans

__all__ = [
    "ALL",
    "CORPORA",
    "IGNORED",
    "LAB_DICT_NAME",
    "READERS",
    "ROLES_NAME",
    "SHORTEST",
    "STANDARD_INPUT",
    "VALID_SHARE",
    "Batch",
    "Content",
    "Document",
    "Domain",
    "Example",
    "ExampleRows",
    "HalfRows",
    "LabelIssue",
    "Labels",
    "Profile",
    "Row",
    "Rows",
    "Span",
    "TokenStore",
    "Tokenizer",
    "WindowRows",
    "accepted_issues",
    "are_alike",
    "budget_batches",
    "check_labels_known",
    "check_readable",
    "check_trainable",
    "drop_leaks",
    "duplicate_key",
    "epoch_order",
    "example_rows",
    "examples_fingerprint",
    "fetch",
    "find_domain",
    "find_leaks",
    "is_store",
    "known_share",
    "label_warnings",
    "labels_of",
    "load_examples",
    "load_tokenizer",
    "normalised",
    "num_divisible",
    "numbered_tokenizer",
    "offsets_of",
    "open_store",
    "padded",
    "parse_part",
    "parse_sizes",
    "parse_tokenizer",
    "pretraining_rows",
    "profile",
    "rare_classes",
    "read_documents",
    "read_label_issues",
    "register_reader",
    "relabel",
    "settled_sizes",
    "source_fingerprint",
    "split_examples",
    "spread_over_words",
    "subset_examples",
    "subset_numbers",
    "synthetic_reviews",
    "train_tokenizer",
    "without_duplicates",
    "without_surrogates",
    "without_words",
    "word_spans",
    "write_label_issues",
    "write_store",
    "write_view",
]
