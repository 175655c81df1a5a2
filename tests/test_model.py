"""The backbone against torch's own encoder, and the properties that masks and positions promise."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from regraft.config import ModelSettings
from regraft.heads import Model, build_language_model
from regraft.model import (
    Attention,
    Backbone,
    Dropout,
    KeyValueCache,
    causal_mask,
    is_right_padded,
    places_in_document,
    sinusoidal_positions,
    square_mask,
)

VOCAB = 17


def small_settings(**changes: int) -> ModelSettings:
    values = {"width": 12, "num_layers": 2, "num_heads": 3, "feedforward_width": 7, **changes}
    return ModelSettings(**values, dropout=0.0, attention_dropout=0.0, max_positions=64)


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
    rows = [torch.randint(VOCAB, (length,)) for length in lengths]
    ids = torch.full((len(rows), max(lengths)), 16)
    real = torch.zeros(ids.shape, dtype=torch.bool)
    for number, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(-len(row), None)
        ids[number, place], real[number, place] = row, True
    scores = ours(ids, real_BT=real)
    for number, row in enumerate(rows):
        torch.testing.assert_close(
            scores[number][real[number]], plain(row[None])[0], atol=1e-5, rtol=0
        )


def test_future_tokens_cannot_change_past_vectors():
    backbone = Backbone(small_settings(), vocab_size=VOCAB).eval()
    ids = torch.randint(VOCAB, (2, 9))
    before = backbone(ids)
    for place in range(1, 9):
        changed = ids.clone()
        changed[:, place:] = (changed[:, place:] + 1) % VOCAB
        torch.testing.assert_close(backbone(changed)[:, :place], before[:, :place], atol=0, rtol=0)
        assert not torch.equal(backbone(changed)[:, place:], before[:, place:])


def test_padding_content_cannot_change_real_vectors():
    backbone = Backbone(small_settings(), vocab_size=VOCAB).eval()
    ids = torch.randint(VOCAB, (2, 6))
    real = torch.tensor([[False, False, True, True, True, True], [True] * 6])
    changed = ids.clone()
    changed[~real] = (changed[~real] + 5) % VOCAB
    assert torch.equal(backbone(ids, real_BT=real)[real], backbone(changed, real_BT=real)[real])


@pytest.mark.parametrize("padding", [0, 2])
def test_packed_documents_get_the_vectors_they_get_alone(padding):
    backbone = Backbone(small_settings(), vocab_size=VOCAB).eval()
    lengths = [[3, 4, 2], [8, 1]]
    rows = [[torch.randint(VOCAB, (length,)) for length in row] for row in lengths]
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


def test_one_document_a_row_needs_no_mask():
    backbone = Backbone(small_settings(), vocab_size=VOCAB).eval()
    ids = torch.randint(VOCAB, (2, 5))
    segments = torch.tensor([[0] * 5, [3] * 5])
    assert torch.equal(backbone(ids, segments_BT=segments), backbone(ids))


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
    dropped = attention.train()(x, mask=None)
    plain = attention.eval()(x[:1], mask=None)
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.mean(dim=0), plain[0], atol=0.05, rtol=0)


def test_attention_weights_are_what_forward_uses():
    settings = small_settings(num_layers=1)
    backbone = Backbone(settings, vocab_size=VOCAB).eval()
    ids = torch.randint(VOCAB, (2, 5))
    weights = backbone.attention_weights(ids)
    assert weights.shape == (1, 2, 3, 5, 5)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 2, 3, 5))
    assert (weights[..., ~square_mask(5)] == 0).all()

    attention = backbone.blocks[0].attention
    x = backbone._embed(ids, places_BT=None)
    _, _, values = attention._project(x)
    mixed = (weights[0] @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.out_proj(mixed), attention(x, mask=None))


def test_cache_gives_the_same_vectors_as_reading_at_once():
    backbone = Backbone(small_settings(), vocab_size=VOCAB).eval()
    ids = torch.randint(VOCAB, (1, 8))
    cache = KeyValueCache(2)
    parts = [backbone(ids[:, :3], cache=cache)]
    parts += [backbone(ids[:, i : i + 1], cache=cache) for i in range(3, 8)]
    assert len(cache) == 8
    torch.testing.assert_close(torch.cat(parts, dim=1), backbone(ids), atol=1e-6, rtol=1e-5)


def test_positions_follow_the_formula():
    table = sinusoidal_positions(50, width=12)
    assert table[0].tolist() == [0.0, 1.0] * 6
    assert table[7, 4].item() == pytest.approx(math.sin(7 / 10000 ** (4 / 12)), abs=1e-6)
    assert table[7, 5].item() == pytest.approx(math.cos(7 / 10000 ** (4 / 12)), abs=1e-6)


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


def test_causal_mask_lets_padding_see_itself_only():
    mask = causal_mask(torch.tensor([[False, True, True]]))[0, 0]
    assert mask.tolist() == [[True, False, False], [False, True, False], [False, True, True]]
