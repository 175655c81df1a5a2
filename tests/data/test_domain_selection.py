"""Documents like the labelled ones are found among others; a text of one kind is taken whole."""

from itertools import pairwise

import numpy as np
import pytest

from regraft.config.schema import TokenizerSettings
from regraft.data import domain_selection as selection
from regraft.data.domain_selection import Likeness, find_domain
from regraft.data.tokens.store import TokenStore, offsets_of, open_store
from regraft.data.tokens.store_writer import write_view
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer

KINDS = {
    "reviews": ["lovely", "dull", "film", "plot", "actor", "scene", "boring", "moving", "ending"],
    "recipes": ["salt", "pepper", "oven", "butter", "minutes", "stir", "onion", "flour", "slice"],
}
COMMON = ["the", "a", "of", "and", "it", "is", "was", "with", "for", "to"]


def text(kind: str, generator: np.random.Generator) -> str:
    return " ".join(generator.choice([*KINDS[kind], *COMMON], size=20))


def texts(kind: str, *, num: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [text(kind, generator) for _ in range(num)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    everything = [t for kind in KINDS for t in texts(kind, num=200, seed=0)]
    return train_tokenizer(everything, settings=TokenizerSettings(kind="words", size=300))


def framed(document: str, tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.start_id, *tokenizer.encode(document), tokenizer.end_id]


def store_of(documents: list[str], tokenizer: Tokenizer) -> TokenStore:
    rows = [framed(document, tokenizer) for document in documents]
    offsets = offsets_of(np.array([len(row) for row in rows]))
    return TokenStore.from_arrays(
        np.concatenate(rows).astype(np.uint16), offsets, num_bytes=len("".join(documents))
    )


@pytest.fixture
def mixed(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], TokenStore]:
    monkeypatch.setattr(selection, "LEAST_TOKENS", 100)
    reviews, recipes = texts("reviews", num=30, seed=1), texts("recipes", num=120, seed=2)
    documents = [*recipes[:60], *reviews, *recipes[60:]]
    return documents, store_of(documents, tokenizer)


def test_documents_like_the_labelled_ones_are_found(tokenizer, mixed):
    documents, store = mixed
    found = find_domain(store, texts("reviews", num=40, seed=3), tokenizer=tokenizer, seed=0)
    assert found is not None
    domain, alike = found
    offsets = alike.offsets.tolist()
    kept = [alike.read(start, stop) for start, stop in pairwise(offsets)]
    reviews = [
        [tokenizer.start_id, *tokenizer.encode(t), tokenizer.end_id] for t in documents[60:90]
    ]
    # A labelled text in twenty is called unlike, and so may be a review of the text.
    assert 25 <= alike.num_documents <= 30
    assert all(ids.tolist() in reviews for ids in kept)
    # Texts are judged as documents of the store are.
    assert len(list(domain.texts(documents, tokenizer=tokenizer))) == alike.num_documents
    short = " ".join(documents[60].split()[:2])
    assert list(domain.texts([short], tokenizer=tokenizer)) == []


def test_too_few_are_joined_by_the_next_best(tokenizer, mixed, monkeypatch):
    _, store = mixed
    monkeypatch.setattr(selection, "LEAST_TOKENS", 40 * 22)
    found = find_domain(store, texts("reviews", num=40, seed=3), tokenizer=tokenizer, seed=0)
    assert found is not None
    assert found[1].num_tokens >= 40 * 22


def test_text_of_one_kind_is_taken_whole(tokenizer, monkeypatch):
    monkeypatch.setattr(selection, "LEAST_TOKENS", 100)
    store = store_of(texts("reviews", num=80, seed=1), tokenizer)
    labelled = texts("reviews", num=40, seed=3)
    assert find_domain(store, labelled, tokenizer=tokenizer, seed=0) is None


def test_likeness_is_the_mean_over_the_tokens_of_each_document(tokenizer, mixed, monkeypatch):
    documents, store = mixed
    ratios = np.random.default_rng(0).normal(size=tokenizer.vocab_size)
    ratios[list(tokenizer.special_ids)] = 0
    likeness = Likeness(ratios)
    rows = [tokenizer.encode(t) for t in documents]
    expected = [ratios[row].mean() for row in rows]
    assert likeness.of_ids(rows) == pytest.approx(expected)
    monkeypatch.setattr(selection, "_BLOCK_TOKENS", 50)
    assert likeness.of_store(store) == pytest.approx(expected)
    assert likeness.of_ids([[]]).tolist() == [0]


def test_view_is_written_as_a_store_of_its_own(tokenizer, mixed, tmp_path, monkeypatch):
    _, store = mixed
    view = store.view(np.arange(store.num_documents) % 3 == 0)
    monkeypatch.setattr("regraft.data.tokens.store_writer.SHARD_BYTES", 500)
    write_view(view, tokenizer=tokenizer, store_dir=tmp_path / "view")
    there = open_store(tmp_path / "view", tokenizer=tokenizer)
    assert there.offsets.tolist() == view.offsets.tolist()
    assert np.array_equal(there.read(0, there.num_tokens), view.read(0, view.num_tokens))
    assert len(list((tmp_path / "view").glob("shard-*"))) > 1
    # Written again it is the same.
    write_view(view, tokenizer=tokenizer, store_dir=tmp_path / "view")
    assert open_store(tmp_path / "view", tokenizer=tokenizer).fingerprint == there.fingerprint
