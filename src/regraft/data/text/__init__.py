"""What is in the files: documents, examples, labels, duplicates."""
