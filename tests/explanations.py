"""Explanations made by hand, for tests of what shows them."""

import dataclasses

from regraft.classifiers.explanation import Explanation, Word
from regraft.data.words import word_spans


def explanation(text: str, scores: list[float], **changes) -> Explanation:
    words = tuple(
        Word(text[a:b], a, b, score) for (a, b), score in zip(word_spans(text), scores, strict=True)
    )
    made = Explanation(
        text=text,
        label="good",
        predicted="good",
        probabilities={"bad": 0.25, "good": 0.75},
        method="contributions",
        words=words,
        output=1.1,
        baseline=0.0,
        baseline_name="even odds",
    )
    return dataclasses.replace(made, **changes)
