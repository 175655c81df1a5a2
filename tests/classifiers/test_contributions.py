"""That parts add up to the decision, and stand where scikit-learn and the bases read them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from tiny_blends import blend_dir, light_blend

from regraft.classifiers.attribution import log_odds
from regraft.classifiers.base import load_classifier
from regraft.classifiers.contributions import terms_of
from regraft.classifiers.vectoriser import fit_vectoriser
from regraft.data.words import word_spans

TEXTS = [
    "A superb camera, I love it. It's not bad at all!",
    "It broke after a day; the lid, the lid, the lid.",
    "\u0130stanbul \u03a3\u0391\u03a3 \u6211\u559c\u6b22 \U0001f44d",
    "zzz",
    "the camera broke " * 200,
]


@pytest.fixture(scope="module", params=[2, 3, "latent"])
def fitted(request, tmp_path_factory):
    if request.param == "latent":
        return light_blend(3)
    return load_classifier(blend_dir(tmp_path_factory, num_labels=request.param))


@pytest.mark.parametrize("text", TEXTS)
def test_words_add_up_to_the_log_odds(fitted, text):
    spans = word_spans(text)
    for classifier in (fitted, *fitted.members.values()):
        assert classifier.is_additive
        chances_NC = classifier.predict_proba([text])
        for target in range(len(fitted.labels)):
            found = classifier.attributions(text, spans, target=target, method="contributions")
            expected = log_odds(chances_NC, target=target)[0]
            assert found.baseline == pytest.approx(-np.log(len(fitted.labels) - 1))
            total = found.baseline + found.scores_W.sum() + found.elsewhere
            assert total == pytest.approx(expected, abs=1e-4)


def test_text_of_unknown_words_moves_nothing_by_terms(fitted):
    linear = fitted.members["linear"]
    terms = terms_of(linear.words, "zzz qqq")
    assert len(terms.columns_O) == 0


FITTED = [
    "A b, a b c! d-e",
    "\u0130x ss\u00df \u03a3\u03c3 \U0001f44d a",
    "don't  stop \u00c9t\u00e9",
]
WORDS, _ = fit_vectoriser(FITTED, analyzer="word", ngram_range=(1, 2))
CHARACTERS, _ = fit_vectoriser(FITTED, analyzer="char_wb", ngram_range=(2, 5))
PEERS = {
    "word": TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b"),
    "char_wb": TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5)),
}
LETTERS = st.text(alphabet="Aab cde,!-'\u0130\u00df\u03a3\u00c9\U0001f44d \n\u00a0", max_size=30)


@settings(max_examples=200)
@given(LETTERS)
def test_terms_are_counted_as_scikit_learn_counts_them(text):
    for fitted_on in (WORDS, CHARACTERS):
        terms = terms_of(fitted_on, text)
        counted = np.bincount(
            terms.columns_O, weights=terms.shares_O, minlength=len(fitted_on.terms)
        )
        peer = PEERS[fitted_on.analyzer]
        known = [fitted_on.columns.get(term) for term in peer.build_analyzer()(text)]
        expected = np.bincount(
            [column for column in known if column is not None], minlength=len(counted)
        )
        np.testing.assert_allclose(counted, expected, atol=1e-9)


def plain(text: str) -> str:
    """In small letters; a sigma is not another letter at the end of a word."""
    return text.lower().replace("\u03c2", "\u03c3")


@settings(max_examples=200)
@given(LETTERS)
def test_terms_stand_where_they_are_read(text):
    for fitted_on in (WORDS, CHARACTERS):
        names = fitted_on.terms
        terms = terms_of(fitted_on, text)
        places = zip(terms.columns_O, terms.starts_O, terms.stops_O, strict=True)
        for column, start, stop in places:
            assert 0 <= start < stop <= len(text)
            name, here = plain(names[column]), plain(text[start:stop])
            # A term of two words has a place for each.
            parts = name.split() if fitted_on is WORDS else [name.strip()]
            assert any(part in here for part in parts)
