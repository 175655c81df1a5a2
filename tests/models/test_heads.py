"""Pooling reads real tokens only, heads score what they say, and a graft swaps the head alone."""

import numpy as np
import pytest
import torch
from tiny_models import lively, small_settings
from torch import nn
from torch.nn import functional as F

from regraft.config.schema import ModelSettings, ObjectiveSettings
from regraft.data.tokens.store import TokenStore
from regraft.models.bag import PAIRS_SEEN_AT_LEAST
from regraft.models.families import build_backbone
from regraft.models.heads import (
    ClassifierHead,
    LanguageModelHead,
    NoHead,
    PairHead,
    ReplacedHead,
    attended,
    build_classifier,
    build_language_model,
    graft,
    pool,
)
from regraft.models.layers import Pooler, Transform

FAMILIES = ["lab", "bert", "modern"]
POOLINGS = ["last", "mean", "first", "attention"]
VOCAB = 17

every_family = pytest.mark.parametrize("family", FAMILIES)
every_pooling = pytest.mark.parametrize("pooling", POOLINGS)


def base_of(family: str, *, kind: str = "masked") -> nn.Module:
    attention = "causal" if kind == "causal" else "bidirectional"
    model = build_language_model(
        small_settings(family, attention=attention),
        vocab_size=VOCAB,
        objective=ObjectiveSettings(kind=kind, generator_share=0.5),
    )
    return lively(model)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def padded(ids: torch.Tensor, *, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with three tokens of padding, and where their own tokens are."""
    real = torch.ones_like(ids, dtype=torch.bool)
    width = (0, 3) if side == "right" else (3, 0)
    return F.pad(ids, width, value=7), F.pad(real, width, value=False)


@every_pooling
@pytest.mark.parametrize("side", ["left", "right"])
def test_pool_ignores_padding_on_either_side(pooling, side):
    row = torch.randn(1, 5, 12)
    padding = torch.full((1, 3, 12), 99.0)
    real = torch.ones(1, 5, dtype=torch.bool)
    no = torch.zeros(1, 3, dtype=torch.bool)
    order = (1, -1) if side == "right" else (-1, 1)
    padded = torch.cat([row, padding][:: order[0]], dim=1)
    mask = torch.cat([real, no][:: order[0]], dim=1)
    expected = pool(row, real_BT=real, pooling=pooling)
    torch.testing.assert_close(pool(padded, real_BT=mask, pooling=pooling), expected)


def test_pool_takes_the_place_its_name_says():
    hidden = torch.arange(5.0).reshape(1, 5, 1)
    real = torch.tensor([[False, True, True, True, False]])
    assert pool(hidden, real_BT=real, pooling="first").item() == 1
    assert pool(hidden, real_BT=real, pooling="last").item() == 3
    assert pool(hidden, real_BT=real, pooling="mean").item() == 2


@every_family
@every_pooling
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_classifier_scores_do_not_depend_on_padding(family, pooling, attention, side):
    settings = small_settings(family, attention=attention)
    model = build_classifier(settings, vocab_size=VOCAB, num_classes=4, pooling=pooling)
    lively(model)
    ids = torch.randint(VOCAB, (2, 5))
    more, real = padded(ids, side=side)
    torch.testing.assert_close(model(more, real_BT=real), model(ids), atol=1e-5, rtol=0)


@every_family
@pytest.mark.parametrize("kind", ["causal", "masked", "bert", "replaced"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_language_model_scores_do_not_depend_on_padding(family, kind, side):
    model = base_of(family, kind=kind)
    ids = torch.randint(VOCAB, (2, 5))
    more, real = padded(ids, side=side)
    scores = model(more, real_BT=real)[real].unflatten(0, (2, 5))
    torch.testing.assert_close(scores, model(ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("family", "pooling", "between"),
    [
        *(("lab", pooling, type(None)) for pooling in POOLINGS),
        *(("modern", pooling, Transform) for pooling in POOLINGS),
        *(("bert", "first", Pooler), ("bert", "mean", type(None)), ("bert", "last", type(None))),
    ],
)
def test_classifier_reads_as_its_family_does(family, pooling, between):
    settings = small_settings(family)
    model = build_classifier(settings, vocab_size=VOCAB, num_classes=4, pooling=pooling)
    assert type(model.head.between) is between


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("causal", LanguageModelHead),
        ("masked", LanguageModelHead),
        ("hybrid", LanguageModelHead),
        ("bert", PairHead),
        ("sop", PairHead),
        ("replaced", ReplacedHead),
    ],
)
def test_objective_has_its_head(kind, head):
    assert type(base_of("bert", kind=kind).head) is head


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_language_model_scores_with_the_embeddings_themselves(family):
    model = base_of(family)
    ids = torch.randint(VOCAB, (2, 5))
    hidden = model.head.transform(model.backbone(ids))
    expected = hidden @ model.backbone.embedding.weight.T + model.head.bias
    torch.testing.assert_close(model(ids), expected)
    shapes = [tuple(parameter.shape) for parameter in model.head.parameters()]
    assert (VOCAB, 12) not in shapes
    assert (VOCAB,) in shapes


@pytest.mark.parametrize("pooling", ["first", "mean", "attention"])
@pytest.mark.parametrize("family", [*FAMILIES, "bag"])
def test_temperature_divides_all_scores(family, pooling):
    head = lively(
        ClassifierHead(
            build_backbone(small_settings(family), vocab_size=VOCAB), num_classes=5, pooling=pooling
        )
    )
    hidden_BTD = torch.randn(2, 3, 12)
    given = {"real_BT": torch.ones(2, 3, dtype=torch.bool), "embedding_VD": torch.zeros(7, 1)}
    before_BC = head(hidden_BTD, **given)
    head.divide_scores(2.5)
    torch.testing.assert_close(head(hidden_BTD, **given), before_BC / 2.5)
    assert all(parameter.requires_grad for parameter in head.parameters())


def test_lab_scores_with_a_matrix_of_its_own():
    model = base_of("lab", kind="causal")
    ids = torch.randint(VOCAB, (2, 5))
    torch.testing.assert_close(model(ids), model.head.linear(model.backbone(ids)))
    assert model.head.linear.weight.shape == (VOCAB, 12)


def test_pair_scores_read_the_first_real_token_only():
    head = base_of("bert", kind="bert").head
    hidden, real = torch.randn(2, 5, 12), torch.ones(2, 5, dtype=torch.bool)
    real[:, 0] = False
    scores = head.pair_scores(hidden, real_BT=real)
    assert scores.shape == (2, 2)
    changed = hidden.clone()
    changed[:, [0, 2, 3, 4]] += 1
    assert torch.equal(head.pair_scores(changed, real_BT=real), scores)
    changed[:, 1] += 1
    assert not torch.equal(head.pair_scores(changed, real_BT=real), scores)


@every_family
def test_replaced_head_has_one_score_a_token_and_a_smaller_generator(family):
    model = base_of(family, kind="replaced")
    ids = torch.randint(VOCAB, (2, 5))
    assert model(ids).shape == (2, 5)
    real = torch.ones_like(ids, dtype=torch.bool)
    sight = model.backbone.sight(real, is_causal=False, places_BT=None)
    generator = model.head.generator
    # Rotary positions turn columns of a head: the generator's heads are as wide as the model's.
    proposed = generator(model.backbone.embed(ids), sight=sight)
    assert proposed.shape == (2, 5, 12)
    assert num_parameters(generator.blocks) < num_parameters(model.backbone.blocks)
    assert len(generator.blocks) == len(model.backbone.blocks)


@every_family
@every_pooling
def test_graft_keeps_every_backbone_weight(family, pooling):
    base = base_of(family)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    model, _ = graft(base, num_classes=4, pooling=pooling)
    grafted = model.backbone.state_dict()
    assert grafted.keys() == base.backbone.state_dict().keys()
    for name, tensor in base.backbone.state_dict().items():
        assert torch.equal(grafted[name], tensor)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(base.state_dict()[name], tensor) for name, tensor in before.items())


HEAD = 4 * (12 + 1)
POOLER = 12 * 12 + 12
TRANSFORM = 12 * 12 + 12


@pytest.mark.parametrize(
    ("family", "kind", "pooling", "taken", "num_taken", "num_new"),
    [
        ("lab", "causal", "last", None, 0, HEAD),
        ("bert", "bert", "first", "pooler", POOLER, HEAD),
        ("bert", "sop", "first", "pooler", POOLER, HEAD),
        ("bert", "bert", "mean", None, 0, HEAD),
        ("bert", "masked", "first", None, 0, POOLER + HEAD),
        ("modern", "masked", "mean", "transform", TRANSFORM, HEAD),
        ("modern", "causal", "last", "transform", TRANSFORM, HEAD),
        ("modern", "replaced", "mean", None, 0, TRANSFORM + HEAD),
    ],
)
def test_graft_takes_what_fits_and_counts_it(family, kind, pooling, taken, num_taken, num_new):
    base = base_of(family, kind=kind)
    model, transplant = graft(base, num_classes=4, pooling=pooling)
    of_backbone = list(base.backbone.parameters())
    assert transplant.num_tensors == len(of_backbone) + (2 if taken else 0)
    assert transplant.num_parameters == num_parameters(base.backbone) + num_taken
    assert transplant.num_new_parameters == num_new
    assert num_parameters(model) == transplant.num_parameters + num_new
    if taken is not None:
        kept = getattr(base.head, taken)
        assert model.head.between is not kept
        for ours, theirs in zip(model.head.between.parameters(), kept.parameters(), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.data_ptr() != theirs.data_ptr()


def test_transplant_tells_its_numbers():
    base = base_of("lab", kind="causal")
    _, transplant = graft(base, num_classes=4, pooling="last")
    assert str(transplant) == (
        f"{transplant.num_tensors} tensors with {transplant.num_parameters:,} parameters came from "
        "the base; the new head has 52"
    )


@every_family
@every_pooling
def test_equal_seeds_give_equal_heads(family, pooling):
    base = base_of(family)
    heads = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model, _ = graft(base, num_classes=4, pooling=pooling)
        heads.append(model.head.state_dict())
    assert all(torch.equal(heads[0][name], tensor) for name, tensor in heads[1].items())
    assert not torch.equal(heads[0]["linear.weight"], heads[2]["linear.weight"])


def test_what_a_graft_takes_over_cannot_change_its_new_weights():
    """Arms that differ in the base alone start with the same classifier."""
    weights = []
    for kind in ("bert", "masked"):
        base = base_of("bert", kind=kind)
        torch.manual_seed(1)
        model, _ = graft(base, num_classes=4, pooling="first")
        weights.append(model.head.linear.weight)
    assert torch.equal(*weights)


def small_bag() -> ModelSettings:
    return ModelSettings(
        family="bag",
        attention="bidirectional",
        width=12,
        num_layers=0,
        num_heads=1,
        num_pairs=9,
        dropout=0.0,
        max_positions=64,
    )


def bag_store(num_repeats: int) -> TokenStore:
    """One document that says `3 4 5` so often, and `7 8` once."""
    ids = np.array([0, *[3, 4, 5] * num_repeats, 7, 8, 2], dtype=np.uint16)
    return TokenStore.from_arrays(ids, np.array([0, len(ids)]), num_bytes=1)


def test_bag_is_told_the_pairs_that_are_frequent_in_a_text():
    model = build_language_model(
        small_bag(), vocab_size=VOCAB, objective=ObjectiveSettings(kind="contrast")
    )
    assert isinstance(model.head, NoHead)
    lively(model)
    rows = torch.tensor([[3, 4], [4, 5], [5, 3], [7, 8], [5, 7]])

    def is_known() -> list[bool]:
        tokens = model.backbone.embedding(rows)
        return (model.backbone(rows) != tokens).flatten(1).any(dim=1).tolist()

    assert is_known() == [False] * 5
    model.backbone.prepare(bag_store(PAIRS_SEEN_AT_LEAST))
    assert is_known() == [True, True, False, False, False]
    # The third follows the second once less often than that.
    model.backbone.prepare(bag_store(PAIRS_SEEN_AT_LEAST + 1))
    assert is_known() == [True, True, True, False, False]
    others = base_of("modern", kind="contrast")
    before = others.backbone(rows)
    others.backbone.prepare(bag_store(9))
    assert torch.equal(others.backbone(rows), before)


def test_classifier_on_a_bag_reads_directions_only():
    model = build_classifier(small_bag(), vocab_size=VOCAB, num_classes=4, pooling="mean")
    lively(model)
    ids = torch.randint(VOCAB, (3, 7))
    before = model(ids)
    with torch.no_grad():
        model.backbone.embedding.weight.mul_(5)
        model.backbone.neighbours.weight.mul_(5)
    torch.testing.assert_close(model(ids), before)
    alone = model.eval()(ids[:1, :4])
    padded = torch.cat([ids[:1, :4], torch.full((1, 3), 16)], dim=1)
    real = torch.arange(7)[None] < 4
    torch.testing.assert_close(model(padded, real_BT=real), alone)


def test_graft_keeps_the_pairs_of_a_bag():
    base = build_language_model(
        small_bag(), vocab_size=VOCAB, objective=ObjectiveSettings(kind="contrast")
    )
    base.backbone.prepare(bag_store(9))
    model, transplant = graft(base, num_classes=4, pooling="mean")
    assert torch.equal(model.backbone.pair_keys, base.backbone.pair_keys)
    assert model.backbone.pair_keys is not base.backbone.pair_keys
    assert transplant.num_parameters == (VOCAB + 9) * 12
    assert transplant.num_new_parameters == HEAD


def test_attention_starts_as_the_mean_and_learns_whom_to_hear():
    model = build_classifier(
        small_settings("modern", attention="bidirectional"),
        vocab_size=VOCAB,
        num_classes=4,
        pooling="attention",
    )
    ids_BT = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 2, 2]])
    real_BT = ids_BT != 2
    hidden_BTD = model.backbone(ids_BT, real_BT=real_BT)
    mean_BD = pool(hidden_BTD, real_BT=real_BT, pooling="mean")
    torch.testing.assert_close(
        attended(hidden_BTD, real_BT=real_BT, query_D=model.head.query), mean_BD
    )
    model(ids_BT, real_BT=real_BT).square().sum().backward()
    assert model.head.query.grad.abs().max() > 0


def test_attention_hears_the_token_that_fits_its_query():
    torch.manual_seed(0)
    hidden_BTD = torch.randn(2, 5, 12)
    real_BT = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    for row, place in ((0, 4), (1, 2)):
        pooled_BD = attended(hidden_BTD, real_BT=real_BT, query_D=1000 * hidden_BTD[row, place])
        torch.testing.assert_close(pooled_BD[row], hidden_BTD[row, place])


@every_family
def test_graft_of_a_base_that_learned_its_pooled_vector_hardly_changes_it(family):
    base, pooling = base_of(family), "first" if family == "bert" else "mean"
    ids_BT, real_BT = torch.tensor([[5, 6, 7, 8]]), torch.ones(1, 4, dtype=torch.bool)
    model, transplant = graft(base, num_classes=4, pooling=pooling, reads_pooled=True)
    plain, whole = graft(base, num_classes=4, pooling=pooling)
    with torch.no_grad():
        hidden_BTD = 0.1 * model.eval().backbone(ids_BT, real_BT=real_BT)
        pooled_BD = pool(hidden_BTD, real_BT=real_BT, pooling=pooling)
        read_BD = model.head.vector(hidden_BTD, real_BT=real_BT)
        other_BD = plain.eval().head.vector(hidden_BTD, real_BT=real_BT)
    assert F.cosine_similarity(pooled_BD, read_BD).item() > 0.98
    if model.head.between is None:
        assert torch.equal(read_BD, other_BD)
        assert transplant.num_parameters == whole.num_parameters
    else:
        assert F.cosine_similarity(pooled_BD, other_BD).item() < 0.9
        # A masked base of bert has a transform, but no pooler to take over.
        assert (transplant.num_parameters < whole.num_parameters) == (family == "modern")


@every_family
def test_renewed_layers_are_new_and_all_else_is_the_base(family):
    base = lively(base_of(family))
    torch.manual_seed(5)
    model, transplant = graft(base, num_classes=4, pooling="mean", reinit_layers=1)
    torch.manual_seed(5)
    plain, whole = graft(base, num_classes=4, pooling="mean")
    old, found = base.backbone.state_dict(), model.backbone.state_dict()
    changed = {name for name in old if not torch.equal(old[name], found[name])}
    assert changed == {name for name in old if name.startswith("blocks.1.")}
    assert torch.equal(model.head.linear.weight, plain.head.linear.weight)
    num_renewed = num_parameters(base.backbone.blocks[1])
    assert transplant.num_parameters == whole.num_parameters - num_renewed
    assert transplant.num_new_parameters == whole.num_new_parameters + num_renewed
    assert str(transplant).endswith(
        f"; the new head and 1 new layer have {transplant.num_new_parameters:,}"
    )
