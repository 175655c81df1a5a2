"""The backbone against torch's own encoder, and the properties that masks and positions promise."""

import math

import pytest
import torch
from torch import nn

from regraft.config import ModelSettings
from regraft.heads import Model, build_language_model
from regraft.model import (
    Backbone,
    KeyValueCache,
    causal_mask,
    is_right_padded,
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


def test_attention_weights_are_what_forward_uses():
    settings = small_settings(num_layers=1)
    backbone = Backbone(settings, vocab_size=VOCAB).eval()
    ids = torch.randint(VOCAB, (2, 5))
    weights = backbone.attention_weights(ids)
    assert weights.shape == (1, 2, 3, 5, 5)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 2, 3, 5))
    assert (weights[..., ~square_mask(5)] == 0).all()

    attention = backbone.blocks[0].attention
    x = backbone._embed(ids, real_BT=None, cache=None)
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
