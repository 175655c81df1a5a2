"""The arrays behind the pictures, and that every picture draws without a warning."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY
from random_runs import write_run
from safetensors.torch import save_file
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.config.resolution import resolve, settings_to_dict
from regraft.data.tokens.tokenizer_training import numbered_tokenizer
from regraft.errors import ConfigError
from regraft.models import inspection
from regraft.models.heads import build_language_model
from regraft.models.layers import INITIAL_DEVIATION, rotary_positions, sinusoidal_positions
from regraft.models.masks import attention_mask, square_mask
from regraft.report import attention_figures as explain
from regraft.runtime.files import write_json
from regraft.runtime.manifest import checksums, with_checksum
from regraft.training import loaded_run


def drawn(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    return buffer.getvalue()


@pytest.fixture
def bert_run(tmp_path: Path) -> Path:
    """The folder of a bert run whose positions are 0, 1, 2, ... in their first column."""
    folder, tokenizer = tmp_path / "bert", numbered_tokenizer(300)
    folder.mkdir()
    settings = resolve("pretrain", preset="bert", overrides={**TINY, "train.steps": 1})
    model = build_language_model(settings.model, vocab_size=300, objective=settings.objective)
    with torch.no_grad():
        model.backbone.positions.weight[:, 0] = torch.arange(64)
    tokenizer.save(folder / "tokenizer.json")
    write_json(folder / "config.json", settings_to_dict(settings))
    info = {"kind": "language-model", "status": "complete", "format_version": 1}
    info |= {"environment": {}, "fingerprints": {}, "result": {}}
    save_file(model.state_dict(), folder / "model.safetensors")
    info["files"] = checksums(folder, folder.iterdir())
    write_json(folder / "run.json", with_checksum(info))
    return folder


def causal_weights(num_layers: int, num_heads: int, length: int) -> np.ndarray:
    scores = np.random.default_rng(0).normal(size=(num_layers, num_heads, length, length))
    weights = np.tril(np.exp(scores))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_attention_of_a_run_is_that_of_its_tokens(shared_base):
    seen = loaded_run.attention_of(str(shared_base), "the plot is dull")
    assert seen.weights.shape == (2, 3, len(seen.tokens), len(seen.tokens))
    np.testing.assert_allclose(seen.weights.sum(axis=-1), 1, atol=1e-6)
    assert "".join(seen.tokens[1:]).replace("▁", " ") == "the plot is dull"
    assert seen.num_cut == 0
    cut = loaded_run.attention_of(shared_base, "the plot is dull " * 30)
    assert len(cut.tokens) == 24
    assert cut.num_cut > 0


def test_attention_of_a_bidirectional_run_reaches_the_future(bert_run):
    seen = loaded_run.attention_of(bert_run, "a b c")
    assert (seen.weights[..., ~square_mask(len(seen.tokens)).numpy()] > 0).all()


def test_sinusoids_are_the_backbone_s():
    table = inspection.sinusoids(7, width=6)
    np.testing.assert_array_equal(table, sinusoidal_positions(7, width=6).numpy())
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]


def test_rotary_angles_are_the_backbone_s():
    angles = inspection.rotary_angles(40, width=8)
    cos, sin = rotary_positions(40, width=8).numpy()
    np.testing.assert_allclose(np.cos(angles), cos, atol=1e-6)
    np.testing.assert_allclose(np.sin(angles), sin, atol=1e-6)
    assert angles.min() >= 0
    # The first pair turns by one radian a position, and is round after six.
    np.testing.assert_allclose(angles[:8, 0], np.arange(8.0) % (2 * np.pi), atol=1e-5)


def test_rotary_products_are_cosines_of_the_angles():
    products = inspection.rotary_products(30, width=8, num_vectors=2000)
    np.testing.assert_allclose(products[:, 0], 1, atol=1e-6)
    # A random vector has equal shares in every pair of columns.
    expected = np.cos(inspection.rotary_angles(30, width=8)).mean(axis=1)
    np.testing.assert_allclose(products.mean(axis=0), expected, atol=0.05)


def test_learned_positions_are_those_that_were_trained(bert_run):
    table = loaded_run.learned_positions(bert_run)
    assert table.shape == (TINY["data.max_length"], 12)
    assert table[:, 0].tolist() == list(range(24))
    assert loaded_run.learned_positions(bert_run, length=64).shape == (64, 12)


def test_learned_positions_are_refused_where_there_are_none(bert_run, shared_base):
    with pytest.raises(ConfigError, match=r"modern family.* no positions"):
        loaded_run.learned_positions(shared_base)
    with pytest.raises(ConfigError, match="has 64 positions, not 65"):
        loaded_run.learned_positions(bert_run, length=65)


@pytest.mark.parametrize("is_causal", [True, False])
def test_mask_is_the_backbone_s(is_causal):
    mask = inspection.mask_of(9, is_causal=is_causal, num_padding=2, num_documents=3)
    assert mask.documents.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert mask.real.tolist() == [True] * 7 + [False] * 2
    assert mask.places[mask.real].tolist() == [0, 1, 2, 0, 1, 0, 1]
    real, segments = (torch.from_numpy(part)[None] for part in (mask.real, mask.documents))
    expected = attention_mask(real, is_causal=is_causal, segments_BT=segments)[0, 0]
    np.testing.assert_array_equal(mask.allowed, expected.numpy())


def test_mask_refuses_a_row_without_room():
    with pytest.raises(ConfigError, match="4 of 4 positions are padding: 0 are left for 1 doc"):
        inspection.mask_of(4, is_causal=True, num_padding=4)
    with pytest.raises(ConfigError, match="1 are left for 2 documents"):
        inspection.mask_of(4, is_causal=True, num_padding=3, num_documents=2)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("what", [{}, {"num_padding": 1}, {"num_documents": 2}])
@pytest.mark.parametrize("length", [2, 16, 40])
def test_mask_picture_draws(length, what, is_causal):
    mask = inspection.mask_of(length, is_causal=is_causal, **what)
    assert drawn(explain.mask_picture(mask)).startswith(b"\x89PNG")


@pytest.mark.parametrize("length", [1, 9])
def test_masks_picture_has_a_panel_for_every_mask(length):
    figure = explain.masks_picture(length)
    assert len(figure.axes) == 6
    assert drawn(figure).startswith(b"\x89PNG")


def written(**what: int | bool) -> list[str]:
    mask = inspection.mask_of(5, **what)
    return [text.get_text() for text in explain.mask_picture(mask).axes[0].texts]


def test_mask_picture_writes_every_cell_of_a_small_mask():
    hidden = "\N{MINUS SIGN}∞"
    assert written(is_causal=True).count("0") == 15
    assert written(is_causal=True).count(hidden) == 10
    assert written(is_causal=False) == ["0"] * 25
    packed = written(is_causal=False, num_documents=2)
    assert (packed.count("0"), packed.count(hidden)) == (9 + 4, 12)
    # Nothing is written where a row or a column is padding.
    assert len(written(is_causal=True, num_padding=2)) == 9


def test_mask_title_says_what_is_hidden():
    plain = explain.mask_title(inspection.mask_of(5, is_causal=True))
    assert plain == "The square mask: no position reads its future"
    busy = inspection.mask_of(5, is_causal=False, num_padding=1, num_documents=2)
    assert explain.mask_title(busy).splitlines() == [
        "Both sides: a position reads what is before and behind it",
        "documents do not read each other and nobody reads padding",
    ]


@pytest.mark.parametrize(("width", "length"), [(200, 128), (2, 3), (12, 1)])
def test_positions_pictures_draw(width: int, length: int):
    for draw in (explain.sinusoids_picture, explain.rotary_picture):
        assert drawn(draw(width=width, length=length)).startswith(b"\x89PNG")


def test_learned_picture_compares_positions():
    table = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    figure = explain.learned_picture(table, title="four")
    shown = figure.axes[1].images[0].get_array()
    np.testing.assert_allclose(shown[0], [1, 1, 0, 0], atol=1e-9)
    assert drawn(figure).startswith(b"\x89PNG")
    assert drawn(explain.learned_picture(np.zeros((2, 3)), title="none"))


def test_attention_picture_has_a_panel_for_every_layer_and_head():
    figure = explain.attention_picture(causal_weights(3, 2, 5), list("abcde"), title="five")
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == [f"layer {layer}, head {head}" for layer in (1, 2, 3) for head in (1, 2)]
    assert drawn(figure).startswith(b"\x89PNG")


def test_attention_picture_greys_out_the_future_of_a_causal_model():
    figure = explain.attention_picture(causal_weights(1, 1, 4), list("abcd"), title="causal")
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(shown.mask, np.triu(np.ones((4, 4), bool), k=1))


def test_attention_picture_shows_the_future_of_a_model_that_reads_it():
    weights = np.full((1, 1, 4, 4), 0.25)
    figure = explain.attention_picture(weights, list("abcd"), title="both sides")
    assert not figure.axes[0].images[0].get_array().mask.any()


def darkest(weights: np.ndarray) -> float:
    figure = explain.attention_picture(weights, ["t"] * weights.shape[-1], title="scale")
    return float(figure.axes[0].images[0].norm.vmax)


def test_attention_picture_of_a_long_text_is_not_pale():
    assert darkest(causal_weights(1, 1, 4)) == 1
    long = causal_weights(1, 1, 100)
    usual = np.median(long[:, :, 50:].max(axis=-1))
    assert darkest(long) == pytest.approx(usual, rel=0.6)
    # One token that takes everything must not fade the rest.
    spiked = long.copy()
    spiked[0, 0, 60] = np.eye(100)[0]
    assert darkest(spiked) == darkest(long)


def test_attention_picture_tells_that_the_darkest_means_more():
    figure = explain.attention_picture(causal_weights(1, 1, 150), ["t"] * 150, title="long")
    labels = [label.get_text() for label in figure.axes[-1].get_yticklabels()]
    assert labels[0] == "0"
    assert labels[-1].endswith(" and more")


def test_attention_picture_takes_tokens_as_they_are():
    tokens = ["$x$", "\n", "\N{CJK UNIFIED IDEOGRAPH-4E2D}", "an_endless_compound_word", "\\frac"]
    figure = explain.attention_picture(causal_weights(1, 1, 5), tokens, title="$\\bad$ {title")
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["$x$", "⏎", "▯", "an_endless_co…", "\\frac"]
    assert drawn(figure).startswith(b"\x89PNG")


def test_attention_picture_of_a_long_text_names_every_kth_token():
    tokens = [f"t{position}" for position in range(130)]
    figure = explain.attention_picture(causal_weights(1, 1, 130), tokens, title="long")
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names[:3] == ["t0", "t3", "t6"]


def test_attention_picture_refuses_tokens_that_do_not_fit():
    with pytest.raises(ValueError, match="3 tokens for weights of 4 positions"):
        explain.attention_picture(causal_weights(1, 1, 4), list("abc"), title="short")


def test_rollout_multiplies_layers_that_pass_on_half():
    weights = causal_weights(3, 2, 5)
    first, second, third = (layer.mean(axis=0) / 2 + np.eye(5) / 2 for layer in weights)
    rollout = inspection.attention_rollout(weights)
    np.testing.assert_allclose(rollout[0], first)
    np.testing.assert_allclose(rollout[2], third @ second @ first)
    np.testing.assert_allclose(rollout.sum(axis=-1), 1)
    assert not rollout[:, ~square_mask(5).numpy()].any(), "the future reaches nobody"


def test_rollout_of_heads_that_look_at_themselves_stays_there():
    weights = np.broadcast_to(np.eye(4), (2, 3, 4, 4))
    np.testing.assert_allclose(inspection.attention_rollout(weights), [np.eye(4)] * 2)


def test_rollout_picture_has_a_panel_a_layer():
    rollout = inspection.attention_rollout(causal_weights(3, 2, 5))
    figure = explain.rollout_picture(rollout, list("abcde"), title="roll")
    titles = [axes.get_title() for axes in figure.axes[:3]]
    assert titles == ["through layer 1", "through layer 2", "through layer 3, the last"]
    assert drawn(figure).startswith(b"\x89PNG")


def test_attention_draws_its_rollout(shared_base, tmp_path):
    out = tmp_path / "rollout.svg"
    result = CliRunner().invoke(
        app, ["attention", str(shared_base), "the plot is dull", "--rollout", "--out", str(out)]
    )
    assert result.exit_code == 0
    assert out.read_bytes().startswith(b"<?xml")


def test_pictures_leave_pyplot_alone():
    import matplotlib.pyplot as plt

    explain.mask_picture(inspection.mask_of(4, is_causal=True))
    assert plt.get_fignums() == []


def picture(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["picture", *map(str, words)])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("mask", "--preset", "bert", "--padding", "3", "--packed", "2"),
        ("mask", "--preset", "modern", "--objective", "causal"),
        ("masks", "--length", "5"),
        ("positions", "--preset", "modern", "--length", "9"),
    ],
)
def test_picture_of_any_preset_is_drawn(words, tmp_path):
    out = tmp_path / "picture.png"
    assert picture(*words, "--out", out) == (0, f"The picture is in {out}.\n")
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("suffix", "begin"), [(".png", b"\x89PNG"), (".SVG", b"<?xml"), (".pdf", b"%PDF")]
)
def test_picture_is_of_the_kind_its_suffix_says(suffix, begin, tmp_path):
    out = tmp_path / f"picture{suffix}"
    assert picture("mask", "--length", "4", "--out", out)[0] == 0
    assert out.read_bytes().startswith(begin)


def test_picture_of_a_run_shows_what_the_run_has(bert_run, shared_base, tmp_path):
    for run in (bert_run, shared_base):
        for subject in ("mask", "positions"):
            out = tmp_path / f"{run.name}-{subject}.png"
            assert picture(subject, "--run", run, "--out", out)[0] == 0
            assert out.exists()


@pytest.mark.parametrize("name", ["mask.txt", "mask", "mask.png.bak"])
def test_picture_refuses_a_suffix_that_is_no_picture(name, tmp_path):
    code, said = picture("mask", "--out", tmp_path / name)
    assert code == 2
    assert ".png, .svg or .pdf" in said
    assert not (tmp_path / name).exists()


def test_positions_of_a_preset_that_learns_them_are_those_before_training(tmp_path):
    out = tmp_path / "p.png"
    assert picture("positions", "--preset", "bert", "--out", out)[0] == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    table = inspection.unlearned_positions(200, width=48)
    assert table.shape == (200, 48)
    assert table.std() == pytest.approx(INITIAL_DEVIATION, rel=0.05)


def test_bag_has_neither_attention_nor_mask_nor_positions(tmp_path):
    run = write_run(tmp_path / "bag", preset="bag", objective="contrast")
    with pytest.raises(ConfigError) as caught:
        loaded_run.attention_of(run, "the plot is dull")
    assert "bag family has no attention" in caught.value.problem
    for subject in ("mask", "positions"):
        for which in (("--preset", "bag"), ("--run", run)):
            code, error = picture(subject, *which, "--out", tmp_path / "p.png")
            assert code == 2
            assert "bag" in error
            assert "lab, bert or modern" in error
    assert picture("masks", "--preset", "bag", "--out", tmp_path / "p.png")[0] == 0
