"""Pictures of masks, positions and attention weights.

Drawn from numpy arrays alone, which come from the functions that the backbone itself uses, or from
models/inspection. Touches no global state of matplotlib.
"""

from collections.abc import Sequence
from functools import lru_cache
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from regraft.models import Mask, mask_of, rotary_angles, rotary_products, sinusoids

if TYPE_CHECKING:
    import matplotlib.figure

# From light to dark, and readable for the colour-blind.
_COLOURS = "YlGnBu"
_HIDDEN = "#e9e9ec"
_FAINT_INK = "#8a8d94"
_INK = "#22252b"
_PADDING: dict[str, Any] = {
    "facecolor": "white",
    "edgecolor": _FAINT_INK,
    "hatch": "////",
    "linewidth": 0,
}
_CURVES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MAX_TOKEN_LENGTH = 14
# Of a longer text every k-th token is named, so that the names stay readable.
_MAX_TOKEN_LABELS = 64
# A mask of more positions has no room for what is written in its cells.
_MAX_WRITTEN = 24
# Weights above this quantile are shown alike: a few that are near 1 would make all others pale.
_DARKEST_QUANTILE = 0.995


def mask_picture(mask: Mask) -> "matplotlib.figure.Figure":
    """Which positions (columns) a position (row) may read, and why it may not read the others."""
    length = len(mask.real)
    side = float(np.clip(0.36 * length, 4.0, 9.0))
    figure = _figure((side, side + 0.5))
    axes = figure.add_subplot()
    _draw_mask(axes, mask, written=length <= _MAX_WRITTEN)
    axes.set_xlabel("position that is read")
    axes.set_ylabel("position that reads")
    _add_mask_legend(figure, has_padding=not mask.real.all())
    figure.suptitle(mask_title(mask), fontsize=12, color=_INK)
    return figure


def masks_picture(length: int = 12) -> "matplotlib.figure.Figure":
    """Causal and bidirectional, each for one text, a padded one, and documents packed in a row."""
    num_documents = min(3, length)
    kinds: dict[str, dict[str, int]] = {
        "one text": {},
        "a text and its padding": {"num_padding": length // 4},
        f"{num_documents} documents in a row": {"num_documents": num_documents},
    }
    figure = _figure((11.0, 8.6))
    grid = figure.subplots(2, 3, squeeze=False)
    for row, is_causal in enumerate((True, False)):
        for column, (name, what) in enumerate(kinds.items()):
            axes = grid[row, column]
            _draw_mask(axes, mask_of(length, is_causal=is_causal, **what), written=False)
            side = "causal" if is_causal else "bidirectional"
            axes.set_title(f"{side}: {name}", fontsize=10, color=_INK)
            if row == 1:
                axes.set_xlabel("position that is read", fontsize=9)
            if column == 0:
                axes.set_ylabel("position that reads", fontsize=9)
    _add_mask_legend(figure, has_padding=True)
    figure.suptitle("Who reads whom", fontsize=12, color=_INK)
    return figure


def mask_title(mask: Mask) -> str:
    """What a mask does, in words."""
    first = "The square mask: no position reads its future"
    if not mask.is_causal:
        first = "Both sides: a position reads what is before and behind it"
    more = []
    if mask.documents.any():
        more.append("documents do not read each other")
    if not mask.real.all():
        more.append("nobody reads padding")
    return first + ("\n" + " and ".join(more) if more else "")


def sinusoids_picture(*, width: int = 200, length: int = 128) -> "matplotlib.figure.Figure":
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
    _plain_axes(bottom, length=length)
    bottom.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=9)
    figure.suptitle(
        f"Sinusoidal positions: {length} positions, width {width}", fontsize=12, color=_INK
    )
    return figure


def rotary_picture(*, width: int = 64, length: int = 128) -> "matplotlib.figure.Figure":
    """The angles of rotary positions, and how a query's product with a like key falls."""
    angles = rotary_angles(length, width=width)
    products = rotary_products(length, width=width)
    figure = _figure((7.6, 7.2))
    top, bottom = figure.subplots(2, 1, height_ratios=[3, 2])
    # A circle of colours: a full turn looks like none, as it does to the model.
    image = top.imshow(
        angles, cmap="twilight", vmin=0, vmax=2 * np.pi, aspect="auto", interpolation="nearest"
    )
    top.set_xlabel("pair of columns")
    top.set_ylabel("position")
    bar = figure.colorbar(image, ax=top, fraction=0.035, pad=0.02)
    bar.set_ticks([0, np.pi, 2 * np.pi], labels=["0", "half a turn", "a turn"])
    mean, deviation = products.mean(axis=0), products.std(axis=0)
    bottom.fill_between(
        np.arange(length),
        mean - 2 * deviation,
        mean + 2 * deviation,
        color=_CURVES[0],
        alpha=0.18,
        linewidth=0,
        label="19 of 20 vectors",
    )
    bottom.plot(mean, color=_CURVES[0], linewidth=1.8, label="mean of random vectors")
    bottom.set_xlabel("distance between query and key")
    bottom.set_ylabel("product, query = key")
    bottom.set_ylim(min(0.0, float((mean - 2 * deviation).min())) - 0.05, 1.05)
    _plain_axes(bottom, length=length)
    bottom.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=9)
    figure.suptitle(
        f"Rotary positions: {length} positions, heads of width {width}", fontsize=12, color=_INK
    )
    return figure


def learned_picture(
    table_TD: Float[np.ndarray, "T D"], *, title: str
) -> "matplotlib.figure.Figure":
    """Learned positions as a heat map, and how like each other they are."""
    similarity_TT = _cosines(table_TD)
    figure = _figure((11.0, 5.2))
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    top = float(np.quantile(np.abs(table_TD), 0.995)) or 1.0
    image = left.imshow(
        table_TD, cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto", interpolation="nearest"
    )
    left.set_xlabel("dimension")
    left.set_ylabel("position")
    left.set_title("the vectors", fontsize=10, color=_INK)
    figure.colorbar(image, ax=left, fraction=0.045, pad=0.02)
    image = right.imshow(similarity_TT, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    right.set_xlabel("position")
    right.set_ylabel("position")
    right.set_title("how like each other two positions are (cosine)", fontsize=10, color=_INK)
    figure.colorbar(image, ax=right, fraction=0.045, pad=0.02)
    figure.suptitle(
        drawable(shorten(title, 80, placeholder=" ...")), fontsize=12, color=_INK, parse_math=False
    )
    return figure


def _cosines(table_TD: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T T"]:
    lengths_T1 = np.linalg.norm(table_TD, axis=1, keepdims=True)
    units_TD = table_TD / np.maximum(lengths_T1, np.finfo(table_TD.dtype).tiny)
    cosines: Float[np.ndarray, "T T"] = units_TD @ units_TD.T
    return cosines


def attention_picture(
    weights: Float[np.ndarray, "L H T T"], tokens: Sequence[str], *, title: str
) -> "matplotlib.figure.Figure":
    """Every layer (row of panels) and head (column): which token (row) reads which (column).

    Where no panel gives the future any weight, it is greyed out instead of shown as zero. In a long
    text weights are small: the darkest colour stands for the largest that are usual in it.
    """
    num_layers, num_heads = weights.shape[:2]
    names = [[f"layer {i + 1}, head {j + 1}" for j in range(num_heads)] for i in range(num_layers)]
    return _panels(weights, tokens, names=names, title=title, unit="attention weight")


def rollout_picture(
    rollout: Float[np.ndarray, "L T T"], tokens: Sequence[str], *, title: str
) -> "matplotlib.figure.Figure":
    """The paths of `attention_rollout`, a panel for each layer, side by side."""
    last = len(rollout)
    names = [
        [f"through layer {i + 1}" + (", the last" if i + 1 == last else "") for i in range(last)]
    ]
    return _panels(rollout[None], tokens, names=names, title=title, unit="share of the input")


def _panels(
    weights: Float[np.ndarray, "L H T T"],
    tokens: Sequence[str],
    *,
    names: Sequence[Sequence[str]],
    title: str,
    unit: str,
) -> "matplotlib.figure.Figure":
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm

    num_rows, num_columns, length, _ = weights.shape
    if len(tokens) != length:
        raise ValueError(f"{len(tokens)} tokens for weights of {length} positions")
    future_TT = np.triu(np.ones((length, length), dtype=bool), k=1)
    is_causal = not weights[:, :, future_TT].any()
    panel = float(np.clip(0.19 * length, 1.7, 6.0))
    figure = _figure((num_columns * (panel + 0.25) + 2.2, num_rows * (panel + 0.35) + 1.9))
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    darkest = darkest_weight(weights)
    # The square root keeps weak weights visible next to strong ones.
    norm = PowerNorm(0.5, vmin=0.0, vmax=darkest, clip=True)
    ticks = range(0, length, -(-length // _MAX_TOKEN_LABELS))
    token_names = [_shortened(drawable(tokens[tick])) for tick in ticks]
    for row in range(num_rows):
        for column in range(num_columns):
            axes = grid[row, column]
            axes.set_facecolor(_HIDDEN)
            shown_TT = np.ma.array(weights[row, column], mask=future_TT & is_causal)
            axes.imshow(shown_TT, cmap=_COLOURS, norm=norm, interpolation="nearest")
            axes.set_title(names[row][column], fontsize=9, color=_INK)
            _label_tokens(axes, ticks, token_names)
            axes.tick_params(labelleft=column == 0, labelbottom=row == num_rows - 1)
    bar = figure.colorbar(
        ScalarMappable(norm, _COLOURS),
        ax=grid,
        fraction=0.03,
        pad=0.015,
        shrink=min(1.0, 3 / num_rows),
    )
    bar.set_label(unit, fontsize=9)
    ticks_shown = [share * darkest for share in (0, 0.05, 0.25, 0.5, 1)]
    labels = [f"{tick:.2g}" for tick in ticks_shown]
    if darkest < 1:
        labels[-1] += " and more"
    bar.set_ticks(ticks_shown, labels=labels)
    bar.outline.set_visible(False)
    figure.supxlabel("token that is read", fontsize=10)
    figure.supylabel("token that reads", fontsize=10)
    figure.suptitle(
        drawable(shorten(title, 80, placeholder=" ...")), fontsize=12, color=_INK, parse_math=False
    )
    return figure


def darkest_weight(weights: Float[np.ndarray, "L H T T"]) -> float:
    """The weight that gets the darkest colour: 1 in a short text, less in a long one."""
    # A causal token has few to choose from at the beginning: its weights there are always large.
    later = weights[:, :, weights.shape[2] // 4 :]
    top = float(np.quantile(later[later > 0], _DARKEST_QUANTILE))
    return 1.0 if top > 0.5 else float(f"{top:.1g}")


def drawable(text: str) -> str:
    """The text with every character the figure's font lacks shown as a box, without a warning."""
    glyphs = _glyphs()
    visible = text.replace("\n", "⏎").replace("\t", "⇥")
    return "".join(letter if ord(letter) in glyphs else "▯" for letter in visible)


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def _figure(size: tuple[float, float]) -> "matplotlib.figure.Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=160, layout="constrained")
    figure.patch.set_facecolor("white")
    return figure


def _draw_mask(axes: Any, mask: Mask, *, written: bool) -> None:
    """A cell has the colour of the document that is read; hidden ones are grey, padding hatched."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    length, num_real = len(mask.real), int(mask.real.sum())
    colours = np.array([to_rgb(_CURVES[number % len(_CURVES)]) for number in mask.documents])
    cells = np.where(mask.allowed[:, :, None], colours[None], to_rgb(_HIDDEN))
    axes.imshow(cells, interpolation="nearest")
    if written:
        for row in range(num_real):
            for column in range(num_real):
                is_read = mask.allowed[row, column]
                text, colour = ("0", "white") if is_read else ("\N{MINUS SIGN}∞", _FAINT_INK)
                axes.text(column, row, text, color=colour, ha="center", va="center", fontsize=7.5)
    _draw_cell_lines(axes, length)
    if num_real < length:
        # Whatever padding reads, its vectors are thrown away.
        start, rest = num_real - 0.5, length - num_real
        axes.add_patch(Rectangle((start, -0.5), rest, length, **_PADDING))
        axes.add_patch(Rectangle((-0.5, start), num_real, rest, **_PADDING))
    step = -(-length // _MAX_WRITTEN)
    shown = [place for place in range(num_real) if mask.places[place] % step == 0]
    names = [str(mask.places[place]) for place in shown]
    axes.set_xticks(shown, labels=names, fontsize=8)
    axes.set_yticks(shown, labels=names, fontsize=8)


def _add_mask_legend(figure: "matplotlib.figure.Figure", *, has_padding: bool) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=_CURVES[0], label="may be read: 0 is added to the score"),
        Patch(facecolor=_HIDDEN, label="hidden: \N{MINUS SIGN}∞ is added"),
    ]
    if has_padding:
        handles.append(Patch(label="padding", **_PADDING))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)


def _plain_axes(axes: Any, *, length: int) -> None:
    axes.set_xlim(0, max(1, length - 1))
    axes.grid(color="#e3e4e8", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


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
