"""Bags folded into the embeddings: what is kept, that every bag counts, and the same for a seed."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from regraft.config.resolution import resolve
from regraft.data.tokens.store import TokenStore, open_store
from regraft.data.tokens.store_writer import write_store
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.training.word_stage import build_bag, fold, of_bag

WIDTH = 24


@pytest.fixture
def store(tmp_path: Path, documents: list[str], documents_path: Path) -> TokenStore:
    settings = resolve("pretrain", overrides={"tokenizer.size": 300})
    tokenizer = train_tokenizer(iter(documents), settings=settings.tokenizer)
    folder = tmp_path / "store"
    write_store([documents_path], data=settings.data, tokenizer=tokenizer, store_dir=folder)
    return open_store(folder, tokenizer=tokenizer)


def random_table(seed: int) -> torch.Tensor:
    return torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(seed))


def distances(table: torch.Tensor, store: TokenStore) -> torch.Tensor:
    """Between all documents, in units of their mean."""
    bounds = zip(store.offsets[:-1].tolist(), store.offsets[1:].tolist(), strict=True)
    documents = [torch.from_numpy(store.read(*bound).astype("int64")) for bound in bounds]
    means = torch.stack([F.embedding(ids, table).mean(dim=0) for ids in documents])
    found = torch.cdist(means, means)
    return found / found.mean()


def test_one_bag_keeps_all_distances(store: TokenStore) -> None:
    table = random_table(0)
    torch.testing.assert_close(
        distances(fold([table], width=WIDTH, store=store, seed=0), store),
        distances(table, store),
        atol=2e-3,
        rtol=1e-3,
    )


def test_bags_of_any_scale_count_alike_and_their_distances_are_joined(store: TokenStore) -> None:
    small, large = random_table(0), 1000 * random_table(1)
    folded = distances(fold([small, large], width=WIDTH, store=store, seed=0), store).flatten()
    for table in (small, large):
        alone = distances(table, store).flatten()
        assert torch.corrcoef(torch.stack([folded, alone]))[0, 1] > 0.6
    both = distances(torch.cat([small, large / 1000], dim=1), store).flatten()
    assert torch.corrcoef(torch.stack([folded, both]))[0, 1] > 0.97


def test_no_column_outweighs_the_others(store: TokenStore) -> None:
    lopsided = random_table(0)
    lopsided[:, 0] *= 50
    scales = fold([lopsided, lopsided], width=WIDTH, store=store, seed=0).std(dim=0)
    assert float(scales.max() / scales.median()) < 5


def test_same_seed_same_table(store: TokenStore) -> None:
    tables = [random_table(0), random_table(1)]
    first, again, other = (fold(tables, width=WIDTH, store=store, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_bags_differ_in_their_start() -> None:
    settings = resolve("pretrain", preset="lab")
    seeds = [of_bag(settings, number).train.seed for number in range(4)]
    assert seeds[0] == settings.train.seed
    assert len(set(seeds)) == 4
    tables = [
        build_bag(8, vocab_size=300, seed=seed).backbone.embedding.weight for seed in seeds[:2]
    ]
    assert not torch.equal(*tables)
