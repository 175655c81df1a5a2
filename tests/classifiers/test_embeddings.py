"""Vectors of texts: windows of long ones, order, scale, several bases side by side."""

import numpy as np
import pytest

from regraft.classifiers.embeddings import MOST_WINDOWS, document_vectors, text_windows
from regraft.config.resolution import resolve
from regraft.training.loaded_run import LoadedRun, load_run
from regraft.training.pretraining import pretrain

SMALL = {
    "model.width": 12,
    "model.num_pairs": 40,
    "tokenizer.size": 300,
    "data.max_length": 16,
    "train.batch_size": 1,
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[LoadedRun]:
    folder = tmp_path_factory.mktemp("bases")
    text = folder / "text.txt"
    told = ("good", "bad")
    lines = [f"the film {n} was {told[n % 2]} and very long {n}, " * 3 for n in range(40)]
    text.write_text("\n".join(lines), encoding="utf-8")
    found = []
    for seed in range(2):
        settings = resolve("pretrain", preset="bag", overrides={**SMALL, "train.seed": seed})
        pretrain([text], out=folder / str(seed), settings=settings)
        found.append(load_run(folder / str(seed)))
    return found


def test_windows_cover_a_long_text_in_order(bases):
    tokenizer = bases[0].tokenizer
    text = "the film was good and very long " * 4
    rows = text_windows(["", text], tokenizer=tokenizer, max_length=16)
    (ids,) = tokenizer.encode_batch([text])
    room = 16 - tokenizer.num_framing
    # An empty text has one window, too: every text gets a vector.
    assert rows.text_numbers.tolist() == [0] + [1] * -(-len(ids) // room)
    kept = [
        token
        for number in range(1, len(rows.lengths))
        for token in rows.batch(np.array([number])).ids_BT[0].tolist()
        if token not in tokenizer.special_ids
    ]
    assert kept == ids


def test_of_an_endless_text_the_first_windows_are_read(bases):
    rows = text_windows(["good film " * 5_000], tokenizer=bases[0].tokenizer, max_length=16)
    assert len(rows.lengths) == MOST_WINDOWS


def test_vectors_have_length_one_and_keep_the_order_of_the_texts(bases):
    texts = ["a good film", "bad", "a very very long and bad film " * 6, ""]
    vectors = document_vectors(bases, texts)
    assert vectors.shape == (4, 24)
    assert np.linalg.norm(vectors[:3], axis=1) == pytest.approx(1, abs=1e-5)
    for place, text in enumerate(texts):
        assert vectors[place] == pytest.approx(document_vectors(bases, [text])[0], abs=1e-5)


def test_each_base_has_the_same_say(bases):
    vectors = document_vectors(bases, ["a good film"])
    for number, base in enumerate(bases):
        alone = document_vectors([base], ["a good film"])
        part = vectors[:, 12 * number : 12 * number + 12]
        assert part == pytest.approx(alone / np.sqrt(2), abs=1e-6)
