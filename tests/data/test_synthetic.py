"""The grammar: reviews that are balanced, varied, repeatable, and not trivial."""

import os
import re
import subprocess
import sys
from collections import Counter

from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.duplicates import without_duplicates


def test_reviews_are_balanced_varied_and_repeatable() -> None:
    examples = synthetic_reviews(num_documents=400, seed=0)
    assert Counter(e.label for e in examples) == {"positive": 200, "negative": 200}
    assert len(without_duplicates(examples)) == 400
    assert synthetic_reviews(num_documents=100, seed=0) == examples[:100]
    assert synthetic_reviews(num_documents=100, seed=1) != examples[:100]
    words = {word for e in examples for word in re.findall(r"[\w-]+", e.text.lower())}
    assert len(words) > 300


def test_reviews_need_more_than_single_words() -> None:
    """Negation and contrast: words of both sides occur in reviews of either label."""
    examples = synthetic_reviews(num_documents=1000, seed=0)
    positives = [e.text for e in examples if e.label == "positive"]
    for word in ("good", "bad"):
        assert 40 < sum(bool(re.search(rf"\b{word}\b", text)) for text in positives) < 400
    assert sum(" not " in e.text or "never" in e.text for e in examples) > 200


def test_reviews_are_the_same_in_every_process() -> None:
    code = (
        "from regraft.data.synthetic import synthetic_reviews\n"
        "print(synthetic_reviews(num_documents=9, seed=0)[8].text)"
    )
    command = [sys.executable, "-c", code]
    texts = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert texts == {synthetic_reviews(num_documents=9, seed=0)[8].text}


def test_reviews_know_their_place() -> None:
    examples = synthetic_reviews(num_documents=5, seed=0)
    assert {example.source for example in examples} == {"synthetic"}
    assert [example.row for example in examples] == [1, 2, 3, 4, 5]
    assert synthetic_reviews(num_documents=0, seed=0) == []
