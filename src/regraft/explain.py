"""What a model looks at: masks, positions and attention weights, as arrays and as pictures.

Comes in: a run folder and a text, or lengths. Goes out: numpy arrays and matplotlib Figures, kept
apart: a picture is drawn from arrays alone and touches no global state of matplotlib.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    import matplotlib.figure

# From light to dark, and readable for the colour-blind.
_COLOURS = "YlGnBu"
_FUTURE = "#e9e9ec"
_INK = "#22252b"
_CURVES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MAX_TOKEN_LENGTH = 14
# Of a longer text every k-th token is named, so that the names stay readable.
_MAX_TOKEN_LABELS = 64


@dataclass(frozen=True)
class Attention:
    """Where every position of a text looks, for each layer and head, and the tokens themselves."""

    weights: Float[np.ndarray, "L H T T"]
    tokens: list[str]
    num_cut: int


def sinusoids(length: int, *, width: int) -> Float[np.ndarray, "T D"]:
    """The positions the backbone adds to the embedding, as it computes them."""
    from regraft.model import sinusoidal_positions

    return sinusoidal_positions(length, width=width).numpy()


def attention_of(run_dir: str | Path, text: str) -> Attention:
    """The attention of a run's model over a text; tokens beyond the model's length are cut."""
    import torch

    from regraft.runfolder import load_run

    run = load_run(Path(run_dir))
    ids = [run.tokenizer.start_id, *run.tokenizer.encode(text)]
    kept = ids[: run.settings.data.max_length]
    weights_LBHTT = run.model.backbone.attention_weights(torch.tensor([kept]))
    return Attention(
        weights_LBHTT[:, 0].numpy(), run.tokenizer.tokens(kept), num_cut=len(ids) - len(kept)
    )


def mask_picture(length: int = 16) -> "matplotlib.figure.Figure":
    """The square mask: which positions (columns) a position (row) may read."""
    from matplotlib.colors import ListedColormap

    from regraft.model import square_mask

    hidden_TT = ~square_mask(length).numpy()
    side = float(np.clip(0.36 * length, 4.0, 9.0))
    figure = _figure((side, side + 0.1))
    axes = figure.add_subplot()
    axes.imshow(hidden_TT, cmap=ListedColormap([_CURVES[0], _FUTURE]), vmin=0, vmax=1)
    if length <= 24:
        for row in range(length):
            for column in range(length):
                text, colour = (
                    ("\N{MINUS SIGN}∞", "#8a8d94") if hidden_TT[row, column] else ("0", "white")
                )
                axes.text(column, row, text, color=colour, ha="center", va="center", fontsize=7.5)
    _draw_cell_lines(axes, length)
    axes.set_xlabel("position that is read")
    axes.set_ylabel("position that reads")
    figure.suptitle("The square mask: no position reads its future", fontsize=12, color=_INK)
    return figure


def positions_picture(*, width: int = 200, length: int = 128) -> "matplotlib.figure.Figure":
    """The sinusoidal positions as a heat map, and a few of their dimensions as curves."""
    table_TD = sinusoids(length, width=width)
    figure = _figure((7.6, 7.2))
    top, bottom = figure.subplots(2, 1, height_ratios=[3, 2])
    image = top.imshow(
        table_TD, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
    )
    top.set_xlabel("dimension")
    top.set_ylabel("position")
    figure.colorbar(image, ax=top, fraction=0.035, pad=0.02)
    # Sine dimensions at four speeds; the fastest turns once in 2 pi positions, the last hardly.
    chosen = sorted({int(share * (width // 2)) * 2 for share in (0.02, 0.1, 0.2, 0.35)})
    for dimension, colour in zip(chosen, _CURVES, strict=False):
        bottom.plot(
            table_TD[:, dimension], color=colour, linewidth=1.8, label=f"dimension {dimension}"
        )
    bottom.set_xlabel("position")
    bottom.set_ylabel("value")
    bottom.set_ylim(-1.1, 1.1)
    bottom.set_xlim(0, max(1, length - 1))
    bottom.grid(color="#e3e4e8", linewidth=0.7)
    bottom.spines[["top", "right"]].set_visible(False)
    bottom.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=9)
    figure.suptitle(
        f"Sinusoidal positions: {length} positions, width {width}", fontsize=12, color=_INK
    )
    return figure


def attention_picture(
    weights: Float[np.ndarray, "L H T T"], tokens: Sequence[str], *, title: str
) -> "matplotlib.figure.Figure":
    """Every layer (row of panels) and head (column): which token (row) reads which (column).

    Where no panel gives the future any weight, it is greyed out instead of shown as zero.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm

    num_layers, num_heads, length, _ = weights.shape
    if len(tokens) != length:
        raise ValueError(f"{len(tokens)} tokens for weights of {length} positions")
    future_TT = np.triu(np.ones((length, length), dtype=bool), k=1)
    is_causal = not weights[:, :, future_TT].any()
    panel = float(np.clip(0.19 * length, 1.7, 6.0))
    figure = _figure((num_heads * (panel + 0.25) + 2.2, num_layers * (panel + 0.35) + 1.9))
    grid = figure.subplots(num_layers, num_heads, squeeze=False, sharex=True, sharey=True)
    # The square root keeps weak weights visible beside the first row, which is always 1.
    norm = PowerNorm(0.5, vmin=0.0, vmax=1.0)
    ticks = range(0, length, -(-length // _MAX_TOKEN_LABELS))
    names = [_shortened(drawable(tokens[tick])) for tick in ticks]
    for layer in range(num_layers):
        for head in range(num_heads):
            axes = grid[layer, head]
            axes.set_facecolor(_FUTURE)
            shown_TT = np.ma.array(weights[layer, head], mask=future_TT & is_causal)
            axes.imshow(shown_TT, cmap=_COLOURS, norm=norm, interpolation="nearest")
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9, color=_INK)
            _label_tokens(axes, ticks, names)
            axes.tick_params(labelleft=head == 0, labelbottom=layer == num_layers - 1)
    bar = figure.colorbar(
        ScalarMappable(norm, _COLOURS),
        ax=grid,
        fraction=0.03,
        pad=0.015,
        shrink=min(1.0, 3 / num_layers),
    )
    bar.set_label("attention weight", fontsize=9)
    bar.set_ticks([0, 0.05, 0.25, 0.5, 1.0], labels=["0", "0.05", "0.25", "0.5", "1"])
    bar.outline.set_visible(False)
    figure.supxlabel("token that is read", fontsize=10)
    figure.supylabel("token that reads", fontsize=10)
    figure.suptitle(
        drawable(shorten(title, 80, placeholder=" ...")), fontsize=12, color=_INK, parse_math=False
    )
    return figure


def drawable(text: str) -> str:
    """The text with every character the figure's font lacks shown as a box, without a warning."""
    from matplotlib.font_manager import findfont, get_font

    glyphs = get_font(findfont("DejaVu Sans")).get_charmap()
    visible = text.replace("\n", "⏎").replace("\t", "⇥")
    return "".join(letter if ord(letter) in glyphs else "▯" for letter in visible)


def _figure(size: tuple[float, float]) -> "matplotlib.figure.Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=160, layout="constrained")
    figure.patch.set_facecolor("white")
    return figure


def _draw_cell_lines(axes: Any, length: int) -> None:
    axes.set_xticks(np.arange(-0.5, length), minor=True)
    axes.set_yticks(np.arange(-0.5, length), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _label_tokens(axes: Any, ticks: Sequence[int], names: Sequence[str]) -> None:
    size = 8 if len(names) <= 40 else 6
    axes.set_xticks(ticks, labels=names, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(ticks, labels=names, fontsize=size, parse_math=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _shortened(token: str) -> str:
    return token if len(token) <= _MAX_TOKEN_LENGTH else token[: _MAX_TOKEN_LENGTH - 1] + "…"
