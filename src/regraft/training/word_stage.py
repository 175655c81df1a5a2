"""What the stage words leaves: bags of the model's tokens, folded into one table it starts from.

Several bags know more than one, and the larger part of it fits into the width of a single bag.
Letters: N documents, V vocabulary, K bags, D width.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from regraft.config import Settings, replace, resolve
from regraft.data import TokenStore
from regraft.models import Model, NoHead, Pooling, build_backbone
from regraft.runtime import seed_generator, seeded

# Documents that decide which directions are kept.
_NUM_DOCUMENTS = 8_192

# Where one vector stands for the whole text, the bags fill this share of it. The rest is left to
# the token itself: of 200 columns, 150 know as much of a review as all of them (2026-11-18).
_TEXT_SHARE = 0.75

# The vectors of tokens as they occur, in units of the family's own start: larger than positions.
_SCALE = 2.6


def of_bag(settings: Settings, number: int) -> Settings:
    """The settings with a seed of the bag's own; the first has the seed of the run."""
    if number == 0:
        return settings
    seed = seed_generator(settings.train.seed, stream=f"words {number}").initial_seed() % 2**31
    return replace(settings, "train", seed=seed)


def build_bag(width: int, *, vocab_size: int, seed: int) -> Model:
    """A bag of the model's tokens, as wide as the model; without pairs of neighbours."""
    bag = resolve("pretrain", preset="bag").model
    shape = dataclasses.replace(bag, width=width, num_pairs=1)
    with seeded(seed, stream="words"):
        return Model(build_backbone(shape, vocab_size=vocab_size), NoHead())


def start_as_bags(
    model: Model,
    paths: Sequence[Path],
    *,
    store: TokenStore,
    max_length: int,
    pooling: Pooling,
    seed: int,
) -> None:
    """Until its layers are trained, let the model read a text as these bags do.

    Their vectors, folded, become its embeddings. Layers pass them on.
    """
    tables = [load_file(path)["backbone.embedding.weight"] for path in paths]
    own_VD = model.backbone.embedding.weight
    width = own_VD.shape[1]
    num_kept = None if pooling == "mean" else width - round(_TEXT_SHARE * width)
    counts_V = torch.from_numpy(store.counts(vocab_size=len(own_VD))).double()
    folded_VD = fold(tables, width=width - (num_kept or 0), store=store, seed=seed)
    size = (counts_V @ folded_VD.square().mean(dim=1).double() / counts_V.sum()).sqrt()
    with torch.no_grad():
        scale = _SCALE * own_VD.std() / size.float()
        own_VD[:, : folded_VD.shape[1]] = (folded_VD * scale).to(own_VD.device)
    model.backbone.pass_on_embeddings(
        num_kept=num_kept,
        position_shares_T=_position_shares(store, max_length=max_length).to(own_VD.device),
    )


def _position_shares(store: TokenStore, *, max_length: int) -> Float[Tensor, " T"]:
    """How often a token of the text stands at each position."""
    lengths_N = torch.from_numpy(store.offsets[1:] - store.offsets[:-1]).clamp(max=max_length)
    num_ending_T = torch.bincount(lengths_N)
    num_there_T = num_ending_T.flip(0).cumsum(0).flip(0)[1:].float()
    shares_T: Tensor = num_there_T / num_there_T.sum()
    return shares_T


@torch.no_grad()
def fold(
    tables: Sequence[Float[Tensor, "V D"]], *, width: int, store: TokenStore, seed: int
) -> Float[Tensor, "V d"]:
    """One table of this width that keeps most of the distances between documents.

    The vectors of a token in all tables are concatenated, centred at the mean document, projected
    on the directions in which documents differ most, then turned at random: without that, a few
    columns would outweigh the others, and layers with norms treat all columns alike.
    """
    ids, starts_N = _documents(store)
    columns = torch.cat([table / _length(table, ids, starts_N) for table in tables], dim=1)
    documents_NK = F.embedding_bag(ids, columns, starts_N, mode="mean")
    centre_K = documents_NK.mean(dim=0)
    documents_NK -= centre_K
    axes_KD = torch.linalg.eigh(documents_NK.T @ documents_NK).eigenvectors[:, -width:]
    turn_DD = torch.linalg.qr(
        torch.randn(width, width, generator=seed_generator(seed, stream="turn"))
    ).Q
    folded_VD: Tensor = (columns - centre_K) @ (axes_KD @ turn_DD)
    return folded_VD


def _documents(store: TokenStore) -> tuple[Tensor, Tensor]:
    """(the tokens of documents spread evenly over the store, where each begins)."""
    stride = -(-store.num_documents // _NUM_DOCUMENTS)
    bounds = zip(store.offsets[:-1:stride].tolist(), store.offsets[1::stride].tolist(), strict=True)
    documents = [torch.from_numpy(store.read(*bound).astype("int64")) for bound in bounds]
    lengths_N = torch.tensor([len(document) for document in documents])
    return torch.cat(documents), lengths_N.cumsum(dim=0) - lengths_N


def _length(table: Tensor, ids: Tensor, starts_N: Tensor) -> Tensor:
    """The root mean square length of a document: tables are to count alike."""
    return F.embedding_bag(ids, table, starts_N, mode="mean").square().sum(dim=1).mean().sqrt()
