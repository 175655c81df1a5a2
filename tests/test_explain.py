"""The arrays behind the pictures, and that every picture draws without a warning."""

import io

import numpy as np
import pytest

from regraft import explain


def drawn(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    return buffer.getvalue()


def causal_weights(num_layers: int, num_heads: int, length: int) -> np.ndarray:
    scores = np.random.default_rng(0).normal(size=(num_layers, num_heads, length, length))
    weights = np.tril(np.exp(scores))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_attention_of_a_run_is_that_of_its_tokens(shared_base):
    seen = explain.attention_of(str(shared_base), "the plot is dull")
    assert seen.weights.shape == (2, 3, len(seen.tokens), len(seen.tokens))
    np.testing.assert_allclose(seen.weights.sum(axis=-1), 1, atol=1e-6)
    assert "".join(seen.tokens[1:]).replace("▁", " ") == "the plot is dull"
    assert seen.num_cut == 0
    cut = explain.attention_of(shared_base, "the plot is dull " * 30)
    assert len(cut.tokens) == 24
    assert cut.num_cut > 0


def test_sinusoids_are_the_backbone_s():
    from regraft.model import sinusoidal_positions

    table = explain.sinusoids(7, width=6)
    np.testing.assert_array_equal(table, sinusoidal_positions(7, width=6).numpy())
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("length", [1, 16, 40])
def test_mask_picture_draws(length: int):
    assert drawn(explain.mask_picture(length)).startswith(b"\x89PNG")


def test_mask_picture_writes_every_cell_of_a_small_mask():
    texts = [text.get_text() for text in explain.mask_picture(5).axes[0].texts]
    assert texts.count("0") == 15
    assert texts.count("\N{MINUS SIGN}∞") == 10


@pytest.mark.parametrize(("width", "length"), [(200, 128), (2, 3), (12, 1)])
def test_positions_picture_draws(width: int, length: int):
    assert drawn(explain.positions_picture(width=width, length=length)).startswith(b"\x89PNG")


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


def test_pictures_leave_pyplot_alone():
    import matplotlib.pyplot as plt

    explain.mask_picture(4)
    assert plt.get_fignums() == []
