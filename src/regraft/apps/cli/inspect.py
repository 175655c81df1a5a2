"""`regraft attention`, `picture`, `params` and `settings`: look inside models and settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regraft.apps.cli import options, results, terminal
from regraft.apps.cli.options import argument, flag, option, setting, settings_from
from regraft.config import with_size
from regraft.errors import ConfigError
from regraft.runtime import matrix_speed, output_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regraft.config import Settings

_PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


@options.grouped
def attention(
    run: options.RunFolder,
    text: Annotated[str, argument("Text to read.")],
    out: options.PictureOut,
    rollout: Annotated[
        bool, flag("--rollout", "Multiply the layers: which tokens influence each position.")
    ] = False,
    *,
    output: options.Output,
) -> None:
    """Draw the attention weights of every layer and head.

    \b
    Example:
      regraft attention runs/base "Un livre vraiment charmant." --out attention.png
      regraft attention runs/base "Un livre vraiment charmant." --rollout --out rollout.png
    """
    from regraft.models import attention_rollout
    from regraft.report import attention_picture, rollout_picture
    from regraft.training import attention_of

    _check_picture(out, run=run)
    seen = attention_of(run, text)
    if seen.num_cut and not output.quiet:
        terminal.show_message(
            f"The text is too long for the model: its last {seen.num_cut:,} tokens were cut."
        )
    if rollout:
        figure = rollout_picture(attention_rollout(seen.weights), seen.tokens, title=text)
    else:
        figure = attention_picture(seen.weights, seen.tokens, title=text)
    _save(figure, out)
    facts = {"path": str(out), "tokens": seen.tokens, "num_cut": seen.num_cut}
    output.note(facts, f"The picture is in {out}.")


@options.grouped
def picture(
    subject: Annotated[
        Literal["mask", "masks", "positions"],
        argument(
            "The attention mask of a preset, all masks, or the position encoding of a preset."
        ),
    ],
    out: options.PictureOut,
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="lab: causal mask, sinusoids; bert: both directions, learned positions; "
            "modern: both directions, rotary positions.",
        ),
    ] = "lab",
    objective: options.Objective = None,
    run: Annotated[
        Path | None, option("--run", "Draw those of a run folder instead of a preset.", "RUN")
    ] = None,
    length: Annotated[int | None, option("--length", "Number of positions.", "N", min=1)] = None,
    padding: Annotated[
        int,
        typer.Option(
            "--padding", min=0, metavar="N", help="Mask: the last N positions are padding."
        ),
    ] = 0,
    packed: Annotated[
        int, typer.Option("--packed", min=1, metavar="N", help="Mask: N documents share one row.")
    ] = 1,
    *,
    output: options.Output,
) -> None:
    """Draw an attention mask or the position encoding.

    \b
    Example:
      regraft picture mask --out mask.png
      regraft picture mask --preset bert --padding 4 --out mask.svg
      regraft picture positions --preset modern --out positions.png
      regraft picture positions --run runs/base --out positions.png
    """
    _check_picture(out, run=run)
    if run is None:
        chosen = settings_from("pretrain", preset=preset, flags={"objective.kind": objective})
    else:
        from regraft.training import read_settings

        chosen = read_settings(run)
    figure: Figure
    if subject == "positions":
        figure = _positions(chosen, run=run, length=length)
    else:
        from regraft.models import mask_of
        from regraft.report import mask_picture, masks_picture

        if subject == "masks":
            figure = masks_picture() if length is None else masks_picture(length)
        elif not chosen.model.traits.has_layers:
            raise ConfigError(
                "A bag of tokens has no attention, and so no mask.",
                remedy="Use --preset lab, bert or modern.",
            )
        else:
            is_causal = chosen.model.attention == "causal"
            mask = mask_of(
                length or 16, is_causal=is_causal, num_padding=padding, num_documents=packed
            )
            figure = mask_picture(mask)
    _save(figure, out)
    output.note({"path": str(out), "subject": subject}, f"The picture is in {out}.")


def _positions(chosen: "Settings", *, run: Path | None, length: int | None) -> "Figure":
    from regraft.models import unlearned_positions
    from regraft.report import learned_picture, rotary_picture, sinusoids_picture
    from regraft.training import learned_positions

    model, positions = chosen.model, chosen.model.traits.positions
    if positions == "learned":
        if run is None:
            table_TD = unlearned_positions(length or 128, width=model.width)
            title = "Learned positions before training: random (--run shows trained ones)"
            return learned_picture(table_TD, title=title)
        table_TD = learned_positions(run, length=length)
        return learned_picture(table_TD, title=f"Learned positions of {run}")
    if positions == "rotary":
        width = model.width // model.num_heads
        return rotary_picture(width=width, length=length or 128)
    if positions == "none":
        raise ConfigError(
            "A bag of tokens has no position encoding.", remedy="Use --preset lab, bert or modern."
        )
    if positions == "unknown":
        raise ConfigError(
            f"{run} comes from Hugging Face; its position encoding is inside its own code.",
            remedy="Use a run that was pre-trained here; `regraft attention` draws any.",
        )
    return sinusoids_picture(width=model.width, length=length or 128)


@options.grouped
def params(
    size: options.Size = None,
    objective: options.Objective = None,
    classes: Annotated[
        int | None, option("--classes", "Count a classifier with C classes too.", "C", min=2)
    ] = None,
    layers: Annotated[int | None, setting("model.num_layers", "--layers", "L")] = None,
    width: Annotated[int | None, setting("model.width", "--width", "D")] = None,
    heads: Annotated[int | None, setting("model.num_heads", "--heads", "H")] = None,
    vocab: Annotated[int | None, setting("tokenizer.size", "--vocab", "V")] = None,
    explain: Annotated[
        bool, flag("--explain", "Show common wrong answers and their mistakes.")
    ] = False,
    *,
    choices: options.Choices,
    output: options.Output,
) -> None:
    """Count the parameters of a model, term by term.

    The formulas are checked against the model that is built.

    \b
    Example:
      regraft params --preset lab --classes 2 --explain
      regraft params --preset bert
      regraft params --preset modern --size small --objective replaced --json
    """
    chosen = settings_from(
        "pretrain",
        choices=choices,
        size=size,
        flags={
            "model.num_layers": layers,
            "model.width": width,
            "model.num_heads": heads,
            "tokenizer.size": vocab,
            "objective.kind": objective,
        },
    )
    from regraft.apps.course.mistakes import wrong_answers
    from regraft.models import check_ledger, ledger, size_for_budget

    if chosen.model.size == "auto":
        chosen = with_size(chosen, size_for_budget(chosen, flops_per_second=matrix_speed()))
    model, vocab_size = chosen.model, chosen.tokenizer.size
    wrong = wrong_answers(model, vocab_size=vocab_size, num_classes=classes) if explain else []
    count = ledger(
        model,
        vocab_size=vocab_size,
        num_classes=classes,
        max_length=chosen.data.max_length,
        batch_size=chosen.train.batch_size,
        objective=chosen.objective,
        pooling=chosen.head.pooling,
    )
    built = check_ledger(
        count,
        model,
        vocab_size=vocab_size,
        num_classes=classes,
        objective=chosen.objective,
        pooling=chosen.head.pooling,
    )
    explained = {"wrong_answers": [answer.to_dict() for answer in wrong]} if explain else {}
    output.show(
        {**count.to_dict(), **explained},
        lambda: results.show_parameters(count, num_built=built, wrong=wrong),
    )


@options.grouped
def settings(*, output: options.Output) -> None:
    """List every setting with its type, default and help.

    Presets change some defaults; config.json in a run folder has the values that were used.

    \b
    Example:
      regraft settings
      regraft pretrain reviews.txt --out runs/base --set train.lr=3e-4 --set model.dropout=0.2
    """
    from regraft.config import read_setting_help

    rows = list(read_setting_help())
    shown_rows = [
        (row.key, row.type.replace("\\|", "|"), shown(row.default), row.help) for row in rows
    ]
    output.show(
        [
            {"key": row.key, "type": row.type, "default": row.default, "help": row.help}
            for row in rows
        ],
        lambda: terminal.show_table(["setting", "type", "default", "help"], shown_rows),
    )


def shown(default: Any) -> str:
    """A default as it is written in a table."""
    if default is None:
        return "off"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _check_picture(path: Path, *, run: Path | None) -> None:
    """Refuse a format that is not supported or a place that may not be written, before any work."""
    output_path(path, inputs=[] if run is None else [run])
    if path.suffix.lower() not in _PICTURE_SUFFIXES:
        raise ConfigError(
            f"--out {path} has {f'the suffix {path.suffix}' if path.suffix else 'no suffix'}.",
            "Pictures are .png, .svg or .pdf.",
            remedy="Use for example --out picture.png.",
        )


def _save(figure: "Figure", path: Path) -> None:
    from regraft.runtime import write_whole

    kind = path.suffix.lower().removeprefix(".")
    write_whole(path, lambda file: figure.savefig(file, format=kind))
