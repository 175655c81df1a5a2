"""Terms, counts and values equal those of scikit-learn's vectorisers, for any Unicode."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from regraft.classifiers import chunks
from regraft.classifiers.vectoriser import Vectoriser, fit_vectoriser

WORDS: dict[str, Any] = {"analyzer": "word", "ngram_range": (1, 2)}
CHARACTERS: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (2, 5)}
# Blanks of several kinds, capitals that grow or depend on their place, signs, other scripts.
SIGNS = "aabbe eé \t\n\x1c\u00a0\u2003'.,-_1\u0663\u0391\u03a3\u03c3\u03c2\u0130"
SIGNS += "ßǅ長い本\U0001f600\u0301\u200b\ud800"
TEXTS = st.lists(st.one_of(st.text(SIGNS, max_size=30), st.text(max_size=15)), max_size=8)
FITTED = [
    "The the THE old man and the sea.",
    "A man, a plan, a canal: Panama!",
    "Σίσυφος ΣΊΣΥΦΟΣ aaaaaa a",
    "",
    "  \n ",
    "長い本 長い x",
]


def peer(**cut: Any) -> TfidfVectorizer:
    pattern = {"token_pattern": r"(?u)\b\w+\b"} if cut["analyzer"] == "word" else {}
    return TfidfVectorizer(**cut, **pattern, sublinear_tf=True)


@pytest.mark.parametrize("cut", [WORDS, CHARACTERS], ids=["words", "characters"])
@pytest.mark.parametrize("limits", [{}, {"min_df": 2}, {"min_df": 2, "max_df": 0.5}], ids=str)
@given(texts=TEXTS)
@settings(max_examples=60, deadline=None)
def test_values_are_those_of_scikit_learn(cut, limits, texts):
    theirs = peer(**cut, **limits)
    fitted = [*FITTED, *texts]
    their_rows = theirs.fit_transform(fitted)
    ours, rows = fit_vectoriser(fitted, **cut, **limits)
    assert list(ours.terms) == theirs.get_feature_names_out().tolist()
    assert ours.idf_V == pytest.approx(theirs.idf_)
    assert abs(rows - their_rows).max() < 1e-12
    assert abs(ours.transform(fitted) - their_rows).max() < 1e-12


@pytest.mark.parametrize("cut", [WORDS, CHARACTERS], ids=["words", "characters"])
@given(texts=TEXTS)
@settings(max_examples=100, deadline=None)
def test_new_texts_have_the_values_of_scikit_learn(cut, texts):
    theirs = peer(**cut).fit(FITTED)
    ours, _ = fit_vectoriser(FITTED, **cut)
    expected = theirs.transform(texts) if texts else np.zeros((0, len(ours.terms)))
    for _ in range(2):  # with chunks that are new, then with all of them known
        rows = ours.transform(texts)
        assert rows.shape == expected.shape
        assert abs(rows - expected).sum() < 1e-12


def test_presence_is_that_of_scikit_learn():
    theirs = CountVectorizer(binary=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b")
    ours, rows = fit_vectoriser(FITTED, **WORDS, is_binary=True)
    assert abs(rows - theirs.fit_transform(FITTED)).max() == 0
    assert abs(ours.transform(FITTED[::-1]) - theirs.transform(FITTED[::-1])).max() == 0


def test_single_precision_is_that_of_scikit_learn():
    theirs = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b", dtype=np.float32
    )
    their_rows = theirs.fit_transform(FITTED)
    ours, rows = fit_vectoriser(FITTED, **WORDS, dtype=np.float32)
    assert rows.dtype == their_rows.dtype == ours.transform(FITTED).dtype
    assert abs(rows - their_rows).max() < 1e-6


def test_most_frequent_terms_are_kept():
    ours, rows = fit_vectoriser(["b b b a a c", "b d"], **WORDS, max_terms=2)
    assert list(ours.terms) == ["a", "b"]
    assert rows.shape == (2, 2)


def test_counts_beyond_the_table_of_logarithms():
    theirs = peer(**WORDS)
    texts = ["spam " * 10_000, "spam egg"]
    expected = theirs.fit_transform(texts)
    assert abs(fit_vectoriser(texts, **WORDS)[1] - expected).max() < 1e-12


def test_table_of_chunks_starts_again_and_values_stay(monkeypatch):
    ours, rows = fit_vectoriser(FITTED, **CHARACTERS)
    monkeypatch.setattr(chunks, "_MOST_CHUNKS", 3)
    for _ in range(3):
        assert abs(ours.transform(FITTED) - rows).max() < 1e-12


@pytest.mark.parametrize("texts", [[], ["", " \n"], ["! ?"]])
def test_texts_without_words_are_refused(texts):
    with pytest.raises(ValueError, match="no terms"):
        fit_vectoriser(texts, **WORDS)


@pytest.mark.parametrize(
    "fields",
    [
        {**WORDS, "ngram_range": (1, 3)},
        {**CHARACTERS, "ngram_range": (3, 2)},
        {**CHARACTERS, "ngram_range": (2, 10**9)},
        {**WORDS, "idf_V": np.ones(3)},
    ],
)
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ValueError, match="term"):
        Vectoriser(**{"terms": ["a"], **fields})


@pytest.mark.parametrize("analyzer", ["word", "char_wb"])
def test_used_vectoriser_travels_to_another_process(analyzer):
    texts = ["a dull plot", "a fine plot"]
    vectoriser, rows = fit_vectoriser(texts, analyzer=analyzer, ngram_range=(1, 2))
    vectoriser.transform(texts)
    copied = pickle.loads(pickle.dumps(vectoriser))
    np.testing.assert_array_equal(copied.transform(texts).toarray(), rows.toarray())
