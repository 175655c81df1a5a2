"""A fitted classifier that needs numpy alone: `from classifier import load`.

`regraft export RUN --format numpy` writes this file next to the classifier's parts, which are JSON
and arrays. It is written to be read: one text at a time, each step as it is defined. Letters: C
classes, D features, K dimensions.
"""

import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Smaller probabilities count as this one.
LEAST_CHANCE = 1e-12


def load(folder: str | Path) -> "Classifier":
    """The classifier in a folder that `regraft export --format numpy` wrote."""
    folder = Path(folder)
    facts = json.loads((folder / "classifier.json").read_text(encoding="utf-8"))
    with np.load(folder / "arrays.npz") as stored:
        return Classifier(facts, dict(stored))


class Classifier:
    """The weighted mean of the log-probabilities of its members, as probabilities."""

    def __init__(self, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.labels: list[str] = facts["labels"]
        self.facts = facts
        self.members = []
        for name, part in facts["members"].items():
            own = {
                key.removeprefix(f"{name}."): array
                for key, array in arrays.items()
                if key.startswith(f"{name}.")
            }
            self.members.append((part["weight"], KINDS[part["kind"]](part, own)))

    def predict_proba(self, texts: Iterable[str]) -> np.ndarray:
        """A row of probabilities per text, in the order of `labels`."""
        rows = [self._probabilities(text) for text in texts]
        return np.array(rows).reshape(-1, len(self.labels))

    def predict(self, texts: Iterable[str]) -> list[Any]:
        """The label of each text: None if the classifier does not answer; a list of a label set."""
        thresholds, least = self.facts["thresholds"], self.facts["abstain_below"] or 0.0
        answers: list[Any] = []
        for row in self.predict_proba(texts).tolist():
            if thresholds:
                places = zip(self.labels, row, thresholds, strict=True)
                answers.append([label for label, p, needed in places if p >= max(needed, least)])
            else:
                answers.append(self.labels[int(np.argmax(row))] if max(row) >= least else None)
        return answers

    def _probabilities(self, text: str) -> np.ndarray:
        chances_MC = np.array([member.probabilities(text) for _, member in self.members])
        weights_M = np.array([weight for weight, _ in self.members])
        if self.facts["thresholds"]:  # every label is its own decision
            decisions_M2C = np.stack([1 - chances_MC, chances_MC], axis=1)
            return np.asarray(self._blended(decisions_M2C, weights_M)[1])
        chances_C = self._blended(chances_MC, weights_M)
        if self.facts["priors"]:  # decide as if all classes were equally frequent
            chances_C = chances_C / np.array(self.facts["priors"])
            chances_C /= chances_C.sum()
        return chances_C

    def _blended(self, chances_MX: np.ndarray, weights_M: np.ndarray) -> np.ndarray:
        logs_MX = np.log(np.maximum(chances_MX, LEAST_CHANCE))
        scores_X = np.tensordot(weights_M, logs_MX, axes=1) / self.facts["temperature"]
        scores_X = np.where((chances_MX > 0).any(axis=0), scores_X, -np.inf)
        return softmax(scores_X)


class Member:
    """Logistic regression on features of a text."""

    def __init__(self, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.facts, self.arrays = facts, arrays

    def scores(self, text: str) -> np.ndarray:
        """The features times the coefficients, a number for each row of these."""
        raise NotImplementedError

    def probabilities(self, text: str) -> np.ndarray:
        """The probability of every label; 0 for one that training did not have."""
        scores = self.scores(text) + self.arrays["intercepts"]
        classes = self.arrays["classes"]
        if self.facts["has_label_sets"]:
            known = 1 / (1 + np.exp(-scores.clip(-35, 35)))
        else:  # two classes have one row
            known = softmax(np.append(0, scores) if len(classes) == 2 else scores)
        chances_C = np.zeros(len(self.facts["labels"]))
        chances_C[classes] = known
        return chances_C


class Linear(Member):
    """TF-IDF of words, pairs of words, and characters of words."""

    def __init__(self, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(facts, arrays)
        self.words, self.characters = (
            Vectoriser(facts["terms"][name], arrays[f"{name}.idf"])
            for name in ("words", "characters")
        )

    def scores(self, text: str) -> np.ndarray:
        """Words have the first columns, characters the others."""
        text, coefficients = text.lower(), self.arrays["coefficients"]
        num_words = len(self.words.columns)
        sizes = self.facts["vectorisers"]["characters"]["ngram_range"]
        return np.asarray(
            self.words.product(word_terms(text), coefficients[:, :num_words].T)
            + self.characters.product(character_terms(text, *sizes), coefficients[:, num_words:].T)
        )


class NaiveBayes(Member):
    """Which words and pairs of words a text has."""

    def __init__(self, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(facts, arrays)
        self.columns = {term: column for column, term in enumerate(facts["terms"]["words"])}

    def scores(self, text: str) -> np.ndarray:
        """The sum of their coefficients."""
        terms = set(word_terms(text.lower()))
        columns = [self.columns[term] for term in terms if term in self.columns]
        return np.asarray(self.arrays["coefficients"][:, columns].sum(axis=1))


class Latent(Member):
    """TF-IDF of words and pairs of words, projected on a few axes (latent semantic analysis)."""

    def __init__(self, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(facts, arrays)
        self.words = Vectoriser(facts["terms"]["words"], arrays["words.idf"])

    def scores(self, text: str) -> np.ndarray:
        """The position on the axes, scaled to length 1."""
        vector_K = self.words.product(word_terms(text.lower()), self.arrays["axes"])
        return np.asarray(self.arrays["coefficients"] @ unit_length(vector_K))


class Folded(Member):
    """The vectors of words and of pairs of neighbours in all bases, added up."""

    def __init__(self, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(facts, arrays)
        # The rows of the table are tokens, then pairs: 2**32 times the first token, and the second.
        tokens, pairs = arrays["token_ids"].tolist(), arrays["pair_keys"].tolist()
        rows: list[int | tuple[int, int]] = [*tokens, *(divmod(key, 1 << 32) for key in pairs)]
        self.row_of = {row: place for place, row in enumerate(rows)}

    def scores(self, text: str) -> np.ndarray:
        """A long text is read in windows, and only its first ones."""
        before, behind = self.facts["before"], self.facts["behind"]
        room = self.facts["max_length"] - len(before) - len(behind)
        ids = self.token_ids(text)[: self.facts["most_windows"] * room]
        weights: dict[int, float] = {}
        for start in range(0, max(len(ids), 1), room):
            window = [*before, *ids[start : start + room], *behind]
            counts = Counter([*window, *itertools.pairwise(window)])
            for read, count in counts.items():
                if read in self.row_of:
                    row = self.row_of[read]
                    weights[row] = weights.get(row, 0.0) + 1 + math.log(count)
        rows = list(weights)
        scales = np.array(list(weights.values())) * self.arrays["scales"][rows]
        vector_K = scales @ self.arrays["table"][rows].astype(np.float64)
        return np.asarray(self.arrays["coefficients"] @ unit_length(vector_K))

    def token_ids(self, text: str) -> list[int]:
        """The numbers of its words."""
        vocabulary, unknown = self.facts["vocabulary"], self.facts["unknown"]
        # Half a surrogate pair is no character.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        text = "".join(character.lower() for character in unicodedata.normalize("NFC", text))
        text = text.replace("i\u0307", "i")  # a Turkish capital I has a dot
        words: list[str] = []
        for is_word, part in itertools.groupby(text, key=is_of_word):
            read = "".join(part)
            words += [read] if is_word else [sign for sign in read if sign in "!?"]
        return [vocabulary.get(word, unknown) for word in words]


class Vectoriser:
    """TF-IDF: 1 + log count, times the inverse frequency of the term, scaled to length 1."""

    def __init__(self, terms: Sequence[str], idf: np.ndarray) -> None:
        self.columns = {term: column for column, term in enumerate(terms)}
        self.idf = idf

    def product(self, terms: Iterable[str], matrix: np.ndarray) -> np.ndarray:
        """The values of these terms times the rows of a matrix."""
        counts = Counter(self.columns[term] for term in terms if term in self.columns)
        columns = list(counts)
        values = (1 + np.log(np.array(list(counts.values())))) * self.idf[columns]
        return np.asarray(unit_length(values) @ matrix[columns])


def word_terms(text: str) -> list[str]:
    """Words and pairs of neighbours of a lower-case text."""
    words = re.findall(r"\w+", text)
    return [*words, *map(" ".join, itertools.pairwise(words))]


def character_terms(text: str, fewest: int, most: int) -> list[str]:
    """Characters of each word between blanks, one blank on either side; a short word is one."""
    terms = []
    for word in text.split():
        framed = f" {word} "
        for size in range(min(fewest, len(framed)), min(most, len(framed)) + 1):
            terms += [framed[at : at + size] for at in range(len(framed) - size + 1)]
    return terms


def is_of_word(character: str) -> bool:
    """A letter, a mark, a number or an underscore."""
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def unit_length(vector: np.ndarray) -> np.ndarray:
    """The vector scaled to length 1, in double precision; zeros stay zeros."""
    doubles = vector.astype(np.float64)
    return np.asarray(doubles / (np.linalg.norm(doubles) or 1))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Scores as probabilities of sum 1, down the first axis."""
    powers = np.exp(scores - scores.max(axis=0))
    return np.asarray(powers / powers.sum(axis=0))


KINDS = {"linear": Linear, "nbsvm": NaiveBayes, "latent": Latent, "folded": Folded}
