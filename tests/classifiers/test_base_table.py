"""One table for all bases: the vectors it gives, what each word adds, and what is on disk."""

import itertools
import math
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import Recorder

from regraft.classifiers import chunks
from regraft.classifiers.base import load_classifier
from regraft.classifiers.base_table import MOST_WINDOWS, FoldedModel, FoldedSpace
from regraft.classifiers.base_table_making import fold_bases
from regraft.classifiers.embeddings import document_vectors
from regraft.classifiers.logistic import fit_in_space
from regraft.config.resolution import replace, resolve
from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.records import Example, labels_of
from regraft.data.tokens.store import open_store
from regraft.data.tokens.store_writer import write_store
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.errors import RunFolderError
from regraft.training.loaded_run import load_run
from regraft.training.pretraining import pretrain

SETTINGS = resolve(
    "pretrain",
    preset="bag",
    overrides={
        "model.width": 12,
        "model.num_pairs": 150,
        "tokenizer.size": 300,
        "data.max_length": 20,
        "train.batch_size": 2,
    },
)
REVIEWS = synthetic_reviews(num_documents=120, seed=1)
TEXTS = [
    "A superb camera, I love it. It broke!",
    "",
    "zzz qqq",
    REVIEWS[5].text,
    "the camera broke and the lid broke " * 9,
    "\u0130stanbul \u6211\u559c\u6b22 \U0001f44d \ud83d",
    "good " * 5_000,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store and two bases that learned from it."""
    folder = tmp_path_factory.mktemp("bases")
    texts = [" ".join(review.text.split()) for review in REVIEWS]
    (folder / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    # The vocabulary knows words that the store does not have.
    tokenizer = train_tokenizer([*texts, "istanbul " * 9], settings=SETTINGS.tokenizer)
    write_store(
        [folder / "text.txt"], data=SETTINGS.data, tokenizer=tokenizer, store_dir=folder / "store"
    )
    for seed in range(2):
        settings = replace(SETTINGS, "train", seed=seed)
        pretrain([folder / "store"], out=folder / str(seed), settings=settings)
    return folder


def fold(folder: Path, *, num_bases: int = 2, num_dimensions: int = 7) -> FoldedSpace:
    tokenizer = load_run(folder / "0").tokenizer
    return fold_bases(
        [folder / str(number) for number in range(num_bases)],
        store=open_store(folder / "store", tokenizer=tokenizer),
        tokenizer=tokenizer,
        max_length=SETTINGS.data.max_length,
        num_dimensions=num_dimensions,
    )


@pytest.fixture(scope="module")
def space(folder: Path) -> FoldedSpace:
    return fold(folder)


@pytest.fixture(scope="module", params=[2, 3])
def model(request, space: FoldedSpace) -> FoldedModel:
    names = ("bad", "good", "odd")[: request.param]
    train = [
        Example(review.text, names[row % len(names)], "made", row)
        for row, review in enumerate(REVIEWS[:40])
    ]
    return FoldedModel(fit_in_space(space, train, None, labels=labels_of(train)), space)


def slow_vector(space: FoldedSpace, text: str) -> np.ndarray:
    """The definition, word by word."""
    tokenizer, max_length = space.tokenizer, SETTINGS.data.max_length
    rows_RK = space.table_RK.astype(np.float64) * space.scales_R[:, None].astype(np.float64)
    keys = [(key >> 32, key & 0xFFFFFFFF) for key in space.index.pair_keys.tolist()]
    row_of = {term: row for row, term in enumerate([*space.index.token_ids.tolist(), *keys])}
    ids = tokenizer.encode(text)
    total_K = np.zeros(rows_RK.shape[1])
    room = max_length - 1
    for start in range(0, max(min(len(ids), MOST_WINDOWS * room), 1), room):
        window = tokenizer.framed(ids[start : start + room], max_length=max_length)
        counts = Counter([*window, *itertools.pairwise(window)])
        for term, count in counts.items():
            if term in row_of:
                total_K += (1 + math.log(count)) * rows_RK[row_of[term]]
    return total_K / (np.linalg.norm(total_K) or 1)


@pytest.mark.parametrize("batch_texts", [1, 3, 1_000])
def test_vectors_equal_their_definition_in_batches_of_any_size(space, monkeypatch, batch_texts):
    monkeypatch.setattr(chunks, "_BATCH_TEXTS", batch_texts)
    bar = Recorder()
    vectors_NK = space.vectors(TEXTS, progress=bar)
    for text, vector_K in zip(TEXTS, vectors_NK, strict=True):
        assert vector_K == pytest.approx(slow_vector(space, text), abs=1e-6)
    assert bar.tasks == [f"read {len(TEXTS)} texts"]
    assert space.vectors([]).shape == (0, 7)


def test_windows_of_a_long_text_are_counted_apart_and_the_rest_is_not_read(space):
    word = "camera " * (MOST_WINDOWS * (SETTINGS.data.max_length - 1))
    (row,) = np.flatnonzero(space.index.token_ids == space.tokenizer.encode("camera")[0])
    weights_NR = space.index.weights(space.tokens([word, word + "camera " * 99]))
    expected = MOST_WINDOWS * (1 + math.log(SETTINGS.data.max_length - 1))
    assert weights_NR.toarray()[:, row] == pytest.approx([expected] * 2, rel=1e-6)


def test_only_rows_that_a_text_can_read_and_a_base_has_learned_are_kept(space, folder):
    tokenizer = space.tokenizer
    kept = set(space.index.token_ids.tolist())
    assert {tokenizer.start_id, tokenizer.encode("camera")[0]} <= kept
    unseen = tokenizer.encode("istanbul")
    assert len(unseen) == 1
    assert not kept & {tokenizer.pad_id, tokenizer.end_id, tokenizer.mask_id, *unseen}
    bags = [load_run(folder / str(seed)).model.backbone for seed in range(2)]
    first, second = ({*bag.known_pair_keys.tolist()} for bag in bags)
    # Bases hold out other documents, and so may know other pairs.
    assert first != second
    ends = {key for key in first | second if key & 0xFFFFFFFF == tokenizer.end_id}
    assert ends
    assert {*space.index.pair_keys.tolist()} == (first | second) - ends


def test_all_dimensions_of_one_base_give_the_angles_between_its_vectors(folder):
    texts = [review.text for review in REVIEWS[:9]]
    one = fold(folder, num_bases=1, num_dimensions=99)
    assert one.table_RK.shape[1] == SETTINGS.model.width
    before, after = document_vectors([load_run(folder / "0")], texts), one.vectors(texts)
    assert after @ after.T == pytest.approx(before @ before.T, abs=0.01)


def test_several_bases_have_equal_weight(folder):
    texts = [review.text for review in REVIEWS[:9]]
    both = fold(folder, num_dimensions=24).vectors(texts)
    before = document_vectors([load_run(folder / str(seed)) for seed in range(2)], texts)
    assert both @ both.T == pytest.approx(before @ before.T, abs=0.05)


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_parts_add_up_to_the_scores(model, text):
    parts = model.score_parts(text)
    scores_C = sum(part.values_OC.sum(axis=0) for part in parts)
    chances_C = np.exp(scores_C - scores_C.max())
    assert chances_C / chances_C.sum() == pytest.approx(model.predict_proba([text])[0], abs=1e-6)
    (part,) = parts
    assert (part.starts_O <= part.stops_O).all()
    assert part.stops_O.max() <= len(text)


def test_saved_model_loads_with_equal_probabilities(model, tmp_path):
    for run_dir in (tmp_path / "alone", tmp_path / "blend" / "members" / "features"):
        if run_dir.parent.name == "members":  # the blend has written its tokenizer
            model.space.tokenizer.save(tmp_path / "blend" / "tokenizer.json")
        model.save(run_dir)
        loaded = load_classifier(run_dir)
        assert isinstance(loaded, FoldedModel)
        assert np.array_equal(loaded.predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert not (run_dir / "tokenizer.json").exists()


def test_damaged_table_and_foreign_tokenizer_are_refused(model, tmp_path):
    model.save(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "cut")
    path = tmp_path / "cut" / "member.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match=r"member\.safetensors is damaged"):
        load_classifier(tmp_path / "cut")
    train_tokenizer(["other words"], settings=SETTINGS.tokenizer).save(
        tmp_path / "run" / "tokenizer.json"
    )
    with pytest.raises(RunFolderError, match="is not the tokenizer"):
        load_classifier(tmp_path / "run")


def test_model_is_loaded_and_asked_without_torch(model, tmp_path):
    model.save(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path;"
        "from regraft.classifiers.base_table import FoldedModel;"
        f"model = FoldedModel.load(Path({str(tmp_path / 'run')!r}));"
        "model.predict_proba(['a good camera']); model.score_parts('a camera');"
        "print([name for name in ('torch', 'sklearn', 'joblib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
