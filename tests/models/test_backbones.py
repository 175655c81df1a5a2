"""The backbone against torch's own encoder, and the properties that masks and positions promise.

Properties hold for every family and both attentions: `FAMILIES` and `ATTENTIONS` run through them.
"""

import dataclasses
import itertools
import math

import pytest
import torch
from tiny_models import lively, small_settings
from torch import nn

from regraft.config.schema import ModelSettings
from regraft.data.tokens.store import pair_key
from regraft.models.backbones import Backbone
from regraft.models.families import build_backbone
from regraft.models.heads import Model, build_language_model
from regraft.models.layers import (
    Attention,
    Dropout,
    KeyValueCache,
    Sight,
    mean_of_real,
    rotary_positions,
    sinusoidal_positions,
    turned,
)
from regraft.models.masks import attention_mask, is_right_padded, places_in_document, square_mask

VOCAB = 17
FAMILIES = ["lab", "bert", "modern"]
ATTENTIONS = ["causal", "bidirectional"]

every_family = pytest.mark.parametrize("family", FAMILIES)
both_attentions = pytest.mark.parametrize("attention", ATTENTIONS)


def small_backbone(family: str = "lab", *, attention: str = "causal") -> Backbone:
    backbone = build_backbone(small_settings(family, attention=attention), vocab_size=VOCAB)
    lively(backbone)
    return backbone


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(5))


def padded_rows(
    lengths: tuple[int, ...], *, side: str
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Rows of random ids, the same in one batch with padding, and where they are in it."""
    rows = list(random_ids(sum(lengths)).split(lengths))
    ids = torch.full((len(rows), max(lengths)), 16)
    real = torch.zeros(ids.shape, dtype=torch.bool)
    for number, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(-len(row), None)
        ids[number, place], real[number, place] = row, True
    return rows, ids, real


class PlainLab(nn.Module):
    """The founding exercise as its notebooks write it, on torch's own layers."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.encoder = nn.Embedding(VOCAB, settings.width)
        layer = nn.TransformerEncoderLayer(
            settings.width, settings.num_heads, settings.feedforward_width, 0.5, batch_first=True
        )
        self.transformer_encoder = nn.TransformerEncoder(
            layer, settings.num_layers, enable_nested_tensor=False
        )
        self.decoder = nn.Linear(settings.width, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length, width = ids.shape[1], self.encoder.embedding_dim
        x = self.encoder(ids) * math.sqrt(width) + sinusoidal_positions(length, width=width)
        mask = torch.zeros(length, length).masked_fill(~square_mask(length), -math.inf)
        return self.decoder(self.transformer_encoder(x, mask=mask))


def weights_of(plain: PlainLab) -> dict[str, torch.Tensor]:
    theirs = plain.state_dict()
    ours = {"backbone.embedding.weight": theirs["encoder.weight"]}
    for name, tensor in theirs.items():
        if name.startswith("transformer_encoder.layers."):
            _, _, number, rest = name.split(".", 3)
            rest = rest.replace("self_attn.in_proj_", "attention.in_proj.")
            rest = rest.replace("self_attn.out_proj", "attention.out_proj")
            ours[f"backbone.blocks.{number}.{rest}"] = tensor
        if name.startswith("decoder."):
            ours[name.replace("decoder", "head.linear")] = tensor
    return ours


@pytest.fixture
def pair() -> tuple[PlainLab, Model]:
    torch.manual_seed(3)
    settings = small_settings()
    plain, ours = PlainLab(settings).eval(), build_language_model(settings, vocab_size=VOCAB).eval()
    for parameter in plain.parameters():  # biases of zero and norms of one would hide mistakes
        nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(weights_of(plain))
    return plain, ours


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 5), (4, 31)])
def test_backbone_equals_torch_encoder_unpadded(pair, batch, length):
    plain, ours = pair
    ids = torch.randint(VOCAB, (batch, length))
    torch.testing.assert_close(ours(ids), plain(ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [(5, 9, 2), (1, 13, 7)])
def test_backbone_equals_torch_encoder_padded(pair, side, lengths):
    plain, ours = pair
    rows, ids, real = padded_rows(lengths, side=side)
    scores = ours(ids, real_BT=real)
    for number, row in enumerate(rows):
        torch.testing.assert_close(
            scores[number][real[number]], plain(row[None])[0], atol=1e-5, rtol=0
        )


def test_bert_blocks_equal_torch_encoder_layers():
    backbone = small_backbone("bert", attention="bidirectional")
    layer = nn.TransformerEncoderLayer(12, 3, 7, 0.0, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    names = {
        "attention.in_proj.": "self_attn.in_proj_",
        "attention.out_proj.": "self_attn.out_proj.",
    }
    weights = {}
    for name, tensor in backbone.blocks.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        weights[f"layers.{name}"] = tensor
    encoder.load_state_dict(weights)
    ids = random_ids(2, 5)
    # The mask keeps torch off its fused path, which rounds otherwise.
    nothing = torch.zeros(5, 5)
    expected = encoder(backbone.embed(ids), mask=nothing)
    torch.testing.assert_close(backbone(ids), expected, atol=1e-5, rtol=0)


@every_family
def test_future_tokens_cannot_change_past_scores(family):
    model = build_language_model(small_settings(family), vocab_size=VOCAB)
    lively(model)
    ids = random_ids(2, 9)
    before = model(ids)
    for place in range(1, 9):
        changed = ids.clone()
        changed[:, place:] = (changed[:, place:] + 1) % VOCAB
        after = model(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], atol=1e-6, rtol=0)
        assert ((after[:, place:] - before[:, place:]).abs().amax(dim=2) > 1e-4).all()


@every_family
def test_future_tokens_change_every_vector_if_bidirectional(family):
    backbone = small_backbone(family, attention="bidirectional")
    ids = random_ids(2, 5)
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB
    assert ((backbone(changed) - backbone(ids)).abs().amax(dim=2) > 1e-4).all()


@every_family
def test_attention_is_that_of_the_settings_unless_told_otherwise(family):
    causal, both = (small_backbone(family, attention=attention) for attention in ATTENTIONS)
    ids = random_ids(2, 5)
    assert torch.equal(both(ids, is_causal=True), causal(ids))
    assert torch.equal(causal(ids, is_causal=False), both(ids))
    assert not torch.allclose(causal(ids), both(ids), atol=1e-3)


@every_family
@both_attentions
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_cannot_change_any_vector(family, attention, side):
    backbone = small_backbone(family, attention=attention)
    rows, ids, real = padded_rows((5, 9, 2), side=side)
    vectors = backbone(ids, real_BT=real)
    assert vectors.isfinite().all()
    for number, row in enumerate(rows):
        alone = backbone(row[None])[0]
        torch.testing.assert_close(vectors[number][real[number]], alone, atol=1e-5, rtol=0)


@every_family
@both_attentions
def test_padding_content_cannot_change_real_vectors(family, attention):
    backbone = small_backbone(family, attention=attention)
    ids = random_ids(2, 6)
    real = torch.tensor([[False, False, True, True, True, False], [True] * 6])
    changed = ids.clone()
    changed[~real] = (changed[~real] + 5) % VOCAB
    assert torch.equal(backbone(ids, real_BT=real)[real], backbone(changed, real_BT=real)[real])


@every_family
@both_attentions
@pytest.mark.parametrize("padding", [0, 2])
def test_packed_documents_get_the_vectors_they_get_alone(family, attention, padding):
    backbone = small_backbone(family, attention=attention)
    lengths = [[3, 4, 2], [8, 1]]
    rows = [list(random_ids(sum(row)).split(row)) for row in lengths]
    ids = torch.stack([torch.cat([*row, torch.zeros(padding, dtype=torch.int64)]) for row in rows])
    real = torch.arange(9 + padding).expand(2, -1) < 9
    numbers = [
        torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths
    ]
    segments = torch.stack([nn.functional.pad(row, (0, padding), value=9) for row in numbers])
    packed = backbone(ids, real_BT=real, segments_BT=segments)
    for row, vectors in zip(rows, packed, strict=True):
        alone = [backbone(document[None])[0] for document in row]
        torch.testing.assert_close(vectors[:9], torch.cat(alone), atol=1e-5, rtol=0)


@every_family
def test_one_document_a_row_needs_no_mask(family):
    backbone = small_backbone(family)
    ids = random_ids(2, 5)
    segments = torch.tensor([[0] * 5, [3] * 5])
    assert torch.equal(backbone(ids, segments_BT=segments), backbone(ids))


@every_family
def test_same_tokens_in_another_order_get_other_vectors(family):
    """Without positions, attention to both sides sees a bag of tokens."""
    backbone = small_backbone(family, attention="bidirectional")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    assert not torch.allclose(backbone(ids)[:, 0], backbone(ids[:, [0, 2, 1, 4, 3]])[:, 0])


def test_places_restart_at_every_document_and_skip_padding():
    real = torch.tensor([[False, False, True, True, True, True, True]])
    assert places_in_document(real).tolist() == [[0, 0, 0, 1, 2, 3, 4]]
    segments = torch.tensor([[4, 4, 4, 4, 7, 7, 5]])
    assert places_in_document(real, segments_BT=segments).tolist() == [[0, 0, 0, 1, 0, 1, 0]]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(share):
    torch.manual_seed(0)
    x = torch.ones(300, 1000)
    y = Dropout(share)(x)
    kept = y != 0
    # Five standard errors of a share of 300,000.
    assert kept.double().mean().item() == pytest.approx(1 - share, abs=5 * 0.5 / 300_000**0.5)
    assert y.double().mean().item() == pytest.approx(1, abs=5 * share / (1 - share) / 300)
    assert y[kept].unique().numel() == 1
    # Neighbours share a random word: they must not share their fate.
    together = (kept[:, 0::2] & kept[:, 1::2]).double().mean().item()
    assert together == pytest.approx((1 - share) ** 2, abs=0.01)


def test_dropout_changes_nothing_in_evaluation_or_without_a_share():
    x = torch.randn(3, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros(3, 5))


def test_dropout_follows_the_seed():
    x = torch.ones(7, 11)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(Dropout(0.5)(x))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_dropout_gradient_is_the_scaled_mask():
    x = torch.randn(7, 11, requires_grad=True)
    y = Dropout(0.25)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y != 0) / 0.75)
    torch.testing.assert_close(y.detach(), x.detach() * x.grad)


def test_dropout_of_attention_weights_keeps_the_mean():
    torch.manual_seed(0)
    settings = dataclasses.replace(small_settings(), attention_dropout=0.5)
    attention = Attention(settings, layer=0)
    x = torch.randn(1, 5, 12).expand(4000, 5, 12)
    sight = Sight(is_causal=True, mask=None, turns=None)
    dropped = attention.train()(x, sight=sight)
    plain = attention.eval()(x[:1], sight=sight)
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.mean(dim=0), plain[0], atol=0.05, rtol=0)


@every_family
@both_attentions
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_attention_weights_are_what_forward_uses(family, attention, side):
    backbone = small_backbone(family, attention=attention)
    ids, real = random_ids(2, 5), torch.ones(2, 5, dtype=torch.bool)
    if side:
        _, ids, real = padded_rows((5, 3), side=side)
    weights = backbone.attention_weights(ids, real_BT=real)
    assert weights.shape == (2, 2, 3, 5, 5)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 3, 5))
    # What padding itself reads does not matter.
    hidden = ~attention_mask(real, is_causal=attention == "causal") & real[:, None, :, None]
    assert (weights[hidden.expand(2, 2, 3, 5, 5)] == 0).all()

    x = backbone.embed(ids, places_BT=backbone.places(real))
    sight = backbone.sight(real, is_causal=attention == "causal", places_BT=backbone.places(real))
    for block, block_weights in zip(backbone.blocks, weights, strict=True):
        inside = block.norm1(x) if family == "modern" else x
        _, _, values = block.attention._project(inside, turns=sight.turns)
        mixed = block.attention.out_proj((block_weights @ values).transpose(1, 2).flatten(2))
        fast = block.attention(inside, sight=sight)
        torch.testing.assert_close(mixed[real], fast[real], atol=1e-5, rtol=1e-5)
        x = block(x, sight=sight)


@every_family
def test_cache_gives_the_same_vectors_as_reading_at_once(family):
    backbone = small_backbone(family)
    ids = random_ids(1, 8)
    cache = KeyValueCache(2)
    parts = [backbone(ids[:, :3], cache=cache)]
    parts += [backbone(ids[:, i : i + 1], cache=cache) for i in range(3, 8)]
    assert len(cache) == 8
    torch.testing.assert_close(torch.cat(parts, dim=1), backbone(ids), atol=1e-5, rtol=1e-5)


def test_cache_reads_only_what_is_causal():
    with pytest.raises(AssertionError, match="only a causal text"):
        small_backbone(attention="bidirectional")(random_ids(1, 3), cache=KeyValueCache(2))


def rotary_scores(*, query_at: int, key_at: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, 3, 1, 4, generator=generator)
    turns = rotary_positions(64, width=4)
    here, there = (turns[:, None, None, place : place + 1] for place in (query_at, key_at))
    return (turned(query, here) * turned(key, there)).sum(dim=-1)


@pytest.mark.parametrize("distance", [0, 1, 9])
def test_rotary_scores_depend_on_the_distance_only(distance):
    expected = rotary_scores(query_at=distance, key_at=0)
    for start in (1, 7, 50):
        shifted = rotary_scores(query_at=start + distance, key_at=start)
        torch.testing.assert_close(shifted, expected, atol=1e-5, rtol=0)
    assert not torch.allclose(rotary_scores(query_at=distance + 1, key_at=0), expected, atol=1e-3)


def test_rotary_positions_turn_pairs_and_keep_lengths():
    cos, sin = rotary_positions(50, width=4)
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones(50, 2))
    assert (cos[0].tolist(), sin[0].tolist()) == ([1, 1], [0, 0])
    assert sin[7, 0].item() == pytest.approx(math.sin(7), abs=1e-6)
    assert sin[7, 1].item() == pytest.approx(math.sin(7 / math.sqrt(160_000)), abs=1e-6)
    x = torch.randn(2, 3, 50, 4)
    turns = torch.stack([cos, sin])[:, None, None]
    torch.testing.assert_close(turned(x, turns).norm(dim=-1), x.norm(dim=-1))
    right_angle = torch.stack([torch.zeros(1, 2), torch.ones(1, 2)])[:, None, None]
    assert turned(torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), right_angle).flatten().tolist() == [
        *(-3.0, -4.0),
        *(1.0, 2.0),
    ]


@both_attentions
def test_modern_vectors_do_not_change_when_all_positions_shift(attention):
    backbone = small_backbone("modern", attention=attention)
    ids, real = random_ids(2, 5), torch.ones(2, 5, dtype=torch.bool)
    sights = [
        backbone.sight(real, is_causal=backbone.is_causal, places_BT=None, start=start)
        for start in (0, 30)
    ]
    x = backbone.embed(ids)
    ours, shifted = (backbone.blocks[1](x, sight=sight) for sight in sights)
    assert not torch.equal(sights[0].turns, sights[1].turns)
    torch.testing.assert_close(shifted, ours, atol=1e-4, rtol=0)


def test_modern_normalises_everywhere_but_before_the_first_attention():
    backbone = small_backbone("modern")
    first, second = backbone.blocks
    assert isinstance(first.norm1, nn.Identity)
    assert isinstance(second.norm1, nn.LayerNorm)
    assert isinstance(first.norm2, nn.LayerNorm)
    gains = {name for name, _ in backbone.named_parameters() if "norm" in name}
    assert gains == {
        *("embedding_norm.weight", "final_norm.weight"),
        *("blocks.0.norm2.weight", "blocks.1.norm1.weight", "blocks.1.norm2.weight"),
    }
    assert not [name for name, _ in backbone.named_parameters() if name.endswith("bias")]


def test_modern_blocks_add_to_a_way_through_that_stays():
    backbone = small_backbone("modern")
    for block in backbone.blocks:
        nn.init.zeros_(block.attention.out_proj.weight)
        nn.init.zeros_(block.linear2.weight)
    ids = random_ids(2, 5)
    assert torch.equal(backbone(ids), backbone.final_norm(backbone.embed(ids)))


def test_bert_reads_token_types():
    backbone = small_backbone("bert", attention="bidirectional")
    ids, first = random_ids(2, 5), torch.zeros(2, 5, dtype=torch.int64)
    second = first.clone()
    second[:, 3:] = 1
    plain = backbone(ids)
    assert torch.equal(backbone(ids, token_types_BT=first), plain)
    changed = backbone(ids, token_types_BT=second)
    assert ((changed - plain).abs().amax(dim=2) > 1e-4).all()


def test_bert_learns_its_positions():
    backbone = small_backbone("bert").train()
    assert backbone.positions.weight.shape == (64, 12)
    backbone(random_ids(2, 5))[:, -1].square().sum().backward()
    rows = backbone.positions.weight.grad.abs().sum(dim=1)
    assert (rows[:5] > 0).all()
    assert (rows[5:] == 0).all()
    for family in ("lab", "modern"):
        assert not [name for name in small_backbone(family).state_dict() if "position" in name]


def test_positions_follow_the_formula():
    table = sinusoidal_positions(50, width=12)
    assert table[0].tolist() == [0.0, 1.0] * 6
    assert table[7, 4].item() == pytest.approx(math.sin(7 / 10000 ** (4 / 12)), abs=1e-6)
    assert table[7, 5].item() == pytest.approx(math.cos(7 / 10000 ** (4 / 12)), abs=1e-6)


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_initial_weights_are_small_and_normal(family):
    torch.manual_seed(0)
    model = build_language_model(small_settings(family), vocab_size=997)
    deviation = model.backbone.embedding.weight.std().item()
    assert deviation == pytest.approx(0.02, rel=0.05)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert 0.01 < parameter.std() < 0.03, name
    assert model.backbone.blocks[1].norm2.eps == 1e-5


def test_initial_weights_are_the_labs():
    torch.manual_seed(0)
    model = build_language_model(small_settings(), vocab_size=997)
    embedding, head = model.backbone.embedding.weight, model.head.linear
    for weight in (embedding, head.weight):
        assert -0.1 <= weight.min() < -0.099
        assert 0.099 < weight.max() <= 0.1
    assert head.bias.abs().max() == 0
    block = model.backbone.blocks[0]
    assert block.norm1.eps == 1e-5
    assert block.attention.in_proj.bias.abs().max() == 0


@pytest.mark.parametrize(
    ("real", "expected"),
    [
        ([[1, 1, 0], [1, 0, 0]], True),
        ([[1, 1, 1]], True),
        ([[0, 1, 1]], False),
        ([[1, 0, 1]], False),
    ],
)
def test_right_padding_is_recognised(real, expected):
    assert is_right_padded(torch.tensor(real, dtype=torch.bool)) is expected


def test_attention_mask_lets_padding_be_read_by_itself_only():
    real = torch.tensor([[False, True, True]])
    causal, both = (attention_mask(real, is_causal=is_causal)[0, 0] for is_causal in (True, False))
    assert causal.tolist() == [[True, False, False], [False, True, False], [False, True, True]]
    assert both.tolist() == [[True, True, True], [False, True, True], [False, True, True]]


def test_attention_mask_hides_other_documents():
    real = torch.ones(1, 4, dtype=torch.bool)
    segments = torch.tensor([[0, 0, 1, 1]])
    for is_causal in (True, False):
        mask = attention_mask(real, is_causal=is_causal, segments_BT=segments)[0, 0]
        assert not mask[:2, 2:].any()
        assert not mask[2:, :2].any()
        assert mask[1, 0]
        assert mask[2, 3] == (not is_causal)


@both_attentions
def test_sight_needs_a_mask_only_where_something_must_be_hidden(attention):
    backbone = small_backbone("modern", attention=attention)
    is_causal = attention == "causal"

    def mask_of(real: list[int], segments: list[int] | None = None) -> torch.Tensor | None:
        real_BT = torch.tensor([real], dtype=torch.bool)
        segments_BT = None if segments is None else torch.tensor([segments])
        places_BT = backbone.places(real_BT, segments_BT=segments_BT)
        return backbone.sight(
            real_BT, is_causal=is_causal, places_BT=places_BT, segments_BT=segments_BT
        ).mask

    assert mask_of([1, 1, 1]) is None
    assert (mask_of([1, 1, 0]) is None) == is_causal
    assert mask_of([0, 1, 1]) is not None
    assert mask_of([1, 1, 1], [0, 1, 1]) is not None


# The bag: no blocks, no positions.

# Two pairs of three are known.
KNOWN = [(a, b) for a in range(VOCAB) for b in range(VOCAB) if (a + b) % 3]


def small_bag(pairs: list[tuple[int, int]] = KNOWN) -> Backbone:
    settings = ModelSettings(
        family="bag",
        attention="bidirectional",
        width=12,
        num_layers=0,
        num_heads=1,
        num_pairs=len(KNOWN) + 5,
        dropout=0.0,
        max_positions=64,
    )
    backbone = build_backbone(settings, vocab_size=VOCAB)
    lively(backbone)
    pairs_N2 = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    # In any order: the backbone sorts them.
    backbone.know_pairs(pair_key(pairs_N2[:, 0], pairs_N2[:, 1]).flip(0))
    return backbone


def plain_bag(
    backbone: Backbone, row: list[int], pairs: list[tuple[int, int]] = KNOWN
) -> torch.Tensor:
    """The same by loops: n equal tokens, or known pairs, count 1 + log n together."""
    tokens, order = backbone.embedding.weight, sorted(pairs)
    neighbours = list(itertools.pairwise(row))

    def weight(thing: object, things: list) -> float:
        return (1 + math.log(things.count(thing))) / things.count(thing)

    vectors = [tokens[token] * weight(token, row) for token in row]
    for place, pair in enumerate(neighbours, start=1):
        if pair in order:
            vector = backbone.neighbours.weight[order.index(pair)]
            vectors[place] = vectors[place] + vector * weight(pair, neighbours)
    return torch.stack(vectors)


@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_bag_equals_a_plain_loop(length):
    backbone = small_bag()
    ids = random_ids(3, length)
    expected = [plain_bag(backbone, row) for row in ids.tolist()]
    torch.testing.assert_close(backbone(ids), torch.stack(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_bag_is_not_changed_by_padding(side):
    backbone = small_bag()
    # 16, with which rows are padded, occurs in them, too.
    rows, ids, real = padded_rows((5, 29, 1, 2), side=side)
    assert (torch.cat(rows) == 16).any()
    vectors = backbone(ids, real_BT=real)
    for number, row in enumerate(rows):
        alone = backbone(row[None])[0]
        torch.testing.assert_close(vectors[number][real[number]], alone, atol=1e-5, rtol=0)
    changed = ids.where(real, (ids + 5) % VOCAB)
    assert torch.equal(backbone(changed, real_BT=real)[real], vectors[real])


@pytest.mark.parametrize("padding", [0, 2])
def test_bag_keeps_packed_documents_apart(padding):
    backbone = small_bag()
    lengths = [[13, 14, 2], [28, 1]]
    rows = [list(random_ids(sum(row)).split(row)) for row in lengths]
    ids = torch.stack([torch.cat([*row, torch.zeros(padding, dtype=torch.int64)]) for row in rows])
    real = torch.arange(29 + padding).expand(2, -1) < 29
    numbers = [
        torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths
    ]
    segments = torch.stack([nn.functional.pad(row, (0, padding), value=9) for row in numbers])
    packed = backbone(ids, real_BT=real, segments_BT=segments)
    for row, vectors in zip(rows, packed, strict=True):
        alone = [backbone(document[None])[0] for document in row]
        torch.testing.assert_close(vectors[:29], torch.cat(alone), atol=1e-5, rtol=0)
    assert not torch.allclose(backbone(ids, real_BT=real)[real], packed[real])


def test_bag_adds_nothing_for_a_pair_never_seen():
    ids = random_ids(2, 9)
    pairs = [(3, 4), (3, 6), (5, 5)]
    backbone = small_bag(pairs)
    # Unknown pairs lie between known ones, and beyond the last: neither vector nor count.
    row = [3, 5, 3, 4, 3, 1, 3, 4, 16, 16]
    found = backbone(torch.tensor([row]))[0]
    torch.testing.assert_close(found, plain_bag(backbone, row, pairs), atol=1e-5, rtol=0)
    ignorant = small_bag([])
    expected = torch.stack([plain_bag(ignorant, row, []) for row in ids.tolist()])
    torch.testing.assert_close(ignorant(ids), expected, atol=1e-5, rtol=0)
    new = build_backbone(ignorant.settings, vocab_size=VOCAB)
    assert not new.neighbours.weight.any()


def test_bag_hears_order_through_known_pairs_only():
    backbone = small_bag([(1, 2), (2, 3)])

    def mean(*row: int) -> torch.Tensor:
        return backbone(torch.tensor([row]))[0].mean(dim=0)

    torch.testing.assert_close(mean(1, 5, 2, 7, 9), mean(9, 2, 5, 7, 1))
    assert not torch.allclose(mean(5, 1, 2, 7), mean(5, 2, 1, 7), atol=1e-3)
    assert not torch.allclose(mean(5, 1, 2, 7), mean(1, 5, 2, 7), atol=1e-3)


@pytest.mark.parametrize("num_repeats", [1, 2, 5])
def test_bag_counts_repeats_by_their_logarithm(num_repeats):
    backbone = small_bag([(4, 4)])
    found = backbone(torch.tensor([[7, *[4] * num_repeats, 8]]))[0].sum(dim=0)
    tokens, (pair, *_) = backbone.embedding.weight, backbone.neighbours.weight
    expected = tokens[7] + tokens[8] + tokens[4] * (1 + math.log(num_repeats))
    if num_repeats > 1:
        expected = expected + pair * (1 + math.log(num_repeats - 1))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_bag_mean_vectors_equal_the_mean_over_positions(side):
    backbone = small_bag()
    rows, ids, real = padded_rows((5, 29, 1, 2), side=side)
    expected = torch.stack([plain_bag(backbone, row.tolist()).mean(dim=0) for row in rows])
    found = backbone.mean_vectors(ids, real_BT=real)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    ignorant = small_bag([])
    expected = mean_of_real(ignorant(ids, real_BT=real), real_BT=real)
    torch.testing.assert_close(ignorant.mean_vectors(ids, real_BT=real), expected)


def test_bag_sparse_gradients_equal_dense_ones():
    dense, sparse = small_bag(), small_bag()
    sparse.load_state_dict(dense.state_dict())
    sparse.embedding.sparse = sparse.neighbours.sparse = True
    ids, real = random_ids(3, 9), torch.ones(3, 9, dtype=torch.bool)
    for backbone in (dense, sparse):
        backbone.mean_vectors(ids, real_BT=real).square().sum().backward()
    for name, parameter in sparse.named_parameters():
        expected = dense.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad.to_dense(), expected)


def test_bag_carries_its_pairs_in_its_state():
    backbone, empty = small_bag(), small_bag([])
    ids = random_ids(2, 9)
    assert not torch.allclose(backbone(ids), empty(ids))
    empty.load_state_dict(backbone.state_dict())
    assert torch.equal(backbone(ids), empty(ids))
