"""What is in the files: documents, examples, labels, duplicates, leaks, and a profile of it all.

Comes in: paths and data settings. Goes out: records that know their source and row. Knows nothing
of tokens or models.
"""

from regraft.text.clean import drop_leaks
from regraft.text.duplicates import Leak, find_leaks, normalised, without_duplicates
from regraft.text.profile import FileProfile, Profile, profile
from regraft.text.readers import check_readable, load_examples, read_documents, read_examples
from regraft.text.records import (
    Content,
    Document,
    Example,
    Labels,
    check_labels_known,
    check_trainable,
    labels_of,
    split_examples,
    subset_examples,
)

__all__ = [
    "Content",
    "Document",
    "Example",
    "FileProfile",
    "Labels",
    "Leak",
    "Profile",
    "check_labels_known",
    "check_readable",
    "check_trainable",
    "drop_leaks",
    "find_leaks",
    "labels_of",
    "load_examples",
    "normalised",
    "profile",
    "read_documents",
    "read_examples",
    "split_examples",
    "subset_examples",
    "without_duplicates",
]
