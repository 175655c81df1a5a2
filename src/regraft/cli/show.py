"""The commands that explain: `regraft attention`, `picture`, `params` and `settings`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regraft.cli import options, results, terminal
from regraft.cli.options import settings_from
from regraft.config import setting_help, with_size
from regraft.errors import ConfigError
from regraft.runtime import matrix_speed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regraft.config import Settings

_PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def attention(
    run: options.RunFolder,
    text: Annotated[str, typer.Argument(help="Text to read.", show_default=False)],
    out: options.PictureOut,
    rollout: Annotated[
        bool,
        typer.Option(
            "--rollout", help="Layers multiplied: which tokens reach a position in the end."
        ),
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw the attention weights of every layer and head over a text, or what they add up to.

    \b
    Example:
      regraft attention runs/base "Un livre vraiment charmant." --out attention.png
      regraft attention runs/base "Un livre vraiment charmant." --rollout --out rollout.png
    """
    from regraft.explain import attention_of, attention_picture, attention_rollout, rollout_picture

    _check_suffix(out)
    seen = attention_of(run, text)
    if seen.num_cut and not quiet:
        terminal.show_message(
            f"The text is longer than the model reads: its last {seen.num_cut:,} tokens were cut."
        )
    if rollout:
        figure = rollout_picture(attention_rollout(seen.weights), seen.tokens, title=text)
    else:
        figure = attention_picture(seen.weights, seen.tokens, title=text)
    _save(figure, out, quiet=quiet)
    if json:
        terminal.show_json({"path": str(out), "tokens": seen.tokens, "num_cut": seen.num_cut})


def picture(
    subject: Annotated[
        Literal["mask", "masks", "positions"],
        typer.Argument(
            help="The mask of a preset, all masks side by side, or the positions of a preset.",
            show_default=False,
        ),
    ],
    out: options.PictureOut,
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="lab: square mask, sinusoids; bert: both sides, learned positions (of a --run, "
            "else before training); "
            "modern: both sides, rotary positions.",
        ),
    ] = "lab",
    objective: options.Objective = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Draw what this run has, instead of a preset.",
            show_default=False,
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option("--length", min=1, help="Number of positions.", show_default=False),
    ] = None,
    padding: Annotated[
        int,
        typer.Option("--padding", min=0, metavar="N", help="Mask: the last N are padding."),
    ] = 0,
    packed: Annotated[
        int,
        typer.Option("--packed", min=1, metavar="N", help="Mask: N documents share the row."),
    ] = 1,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw what a model reads by: its mask or its positions.

    \b
    Example:
      regraft picture mask --out mask.png
      regraft picture mask --preset bert --padding 4 --out mask.svg
      regraft picture positions --preset modern --out positions.png
      regraft picture positions --run runs/base --out positions.png
    """
    _check_suffix(out)
    if run is None:
        chosen = settings_from("pretrain", preset=preset, flags={"objective.kind": objective})
    else:
        from regraft.runfolder import read_settings

        chosen = read_settings(run)
    figure: Figure
    if subject == "positions":
        figure = _positions(chosen, run=run, length=length)
    else:
        from regraft.explain import mask_of, mask_picture, masks_picture

        if subject == "masks":
            figure = masks_picture() if length is None else masks_picture(length)
        elif chosen.model.family == "bag":
            raise ConfigError(
                "A bag has no mask: it has no attention, and no token looks at others.",
                remedy="Take --preset lab, bert or modern.",
            )
        else:
            is_causal = chosen.model.attention == "causal"
            mask = mask_of(
                length or 16, is_causal=is_causal, num_padding=padding, num_documents=packed
            )
            figure = mask_picture(mask)
    _save(figure, out, quiet=quiet)
    if json:
        terminal.show_json({"path": str(out), "subject": subject})


def _positions(chosen: "Settings", *, run: Path | None, length: int | None) -> "Figure":
    from regraft import explain

    model = chosen.model
    if model.family == "bert":
        if run is None:
            table_TD = explain.unlearned_positions(length or 128, width=model.width)
            title = "Learned positions before training: random numbers (--run shows what became)"
            return explain.learned_picture(table_TD, title=title)
        table_TD = explain.learned_positions(run, length=length)
        return explain.learned_picture(table_TD, title=f"Learned positions of {run}")
    if model.family == "modern":
        width = model.width // model.num_heads
        return explain.rotary_picture(width=width, length=length or 128)
    if model.family == "bag":
        raise ConfigError(
            "A bag has no positions: it knows which tokens are neighbours, and not where.",
            remedy="Take --preset lab, bert or modern.",
        )
    if model.family == "foreign":
        raise ConfigError(
            f"{run} came from Hugging Face; its positions are those of its own code.",
            remedy="Take a run that was pre-trained here; `regraft attention` draws any.",
        )
    return explain.sinusoids_picture(width=model.width, length=length or 128)


def params(
    preset: options.Preset = None,
    size: options.Size = None,
    objective: options.Objective = None,
    classes: Annotated[
        int | None,
        typer.Option(
            "--classes", min=2, metavar="C", help="Count a classifier too.", show_default=False
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            "--layers", metavar="L", help=setting_help("model.num_layers"), show_default=False
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", metavar="D", help=setting_help("model.width"), show_default=False),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(
            "--heads", metavar="H", help=setting_help("model.num_heads"), show_default=False
        ),
    ] = None,
    vocab: Annotated[
        int | None,
        typer.Option(
            "--vocab", metavar="V", help=setting_help("tokenizer.size"), show_default=False
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="The common wrong answers and what each forgets.")
    ] = False,
    config: options.Config = None,
    assignments: options.Assignments = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Count the parameters, term by term.

    The closed form is checked against the built model.

    \b
    Example:
      regraft params --preset lab --classes 2 --explain
      regraft params --preset bert
      regraft params --preset modern --size small --objective replaced --json
    """
    chosen = settings_from(
        "pretrain",
        preset=preset,
        size=size,
        config=config,
        assignments=assignments,
        flags={
            "model.num_layers": layers,
            "model.width": width,
            "model.num_heads": heads,
            "tokenizer.size": vocab,
            "objective.kind": objective,
        },
    )
    from regraft.ledger import check_ledger, ledger, size_for_budget
    from regraft.mistakes import wrong_answers

    if chosen.model.size == "auto":
        chosen = with_size(chosen, size_for_budget(chosen, flops_per_second=matrix_speed()))
    model, vocab_size = chosen.model, chosen.tokenizer.size
    wrong = wrong_answers(model, vocab_size=vocab_size, num_classes=classes) if explain else []
    counted = ledger(
        model,
        vocab_size=vocab_size,
        num_classes=classes,
        max_length=chosen.data.max_length,
        batch_size=chosen.train.batch_size,
        objective=chosen.objective,
        pooling=chosen.head.pooling,
    )
    built = check_ledger(
        counted,
        model,
        vocab_size=vocab_size,
        num_classes=classes,
        objective=chosen.objective,
        pooling=chosen.head.pooling,
    )
    if json:
        explained = {"wrong_answers": [answer.to_dict() for answer in wrong]} if explain else {}
        terminal.show_json({**counted.to_dict(), **explained})
    else:
        results.show_ledger(counted, num_built=built, wrong=wrong)


def settings(json: options.Json = False) -> None:
    """List every setting with its type, default and help.

    Presets change some defaults; what a run used is in its config.json.

    \b
    Example:
      regraft settings
      regraft pretrain reviews.txt --out runs/base --set train.lr=3e-4 --set model.dropout=0.2
    """
    from regraft.config import read_setting_help

    rows = list(read_setting_help())
    if json:
        terminal.show_json(
            [
                {"key": row.key, "type": row.type, "default": row.default, "help": row.help}
                for row in rows
            ]
        )
    else:
        terminal.show_table(
            ["setting", "type", "default", "help"],
            [(row.key, row.type.replace("\\|", "|"), shown(row.default), row.help) for row in rows],
        )


def shown(default: Any) -> str:
    """A default as a person writes it."""
    if default is None:
        return "off"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _check_suffix(path: Path) -> None:
    """Refuse before any work what matplotlib could not write, or a reader not recognise."""
    if path.suffix.lower() not in _PICTURE_SUFFIXES:
        raise ConfigError(
            f"--out {path} has {f'the suffix {path.suffix}' if path.suffix else 'no suffix'}.",
            "A picture ends in .png, .svg or .pdf.",
            remedy="Write for example --out picture.png.",
        )


def _save(figure: "Figure", path: Path, *, quiet: bool) -> None:
    from regraft.runtime import write_whole

    kind = path.suffix.lower().removeprefix(".")
    write_whole(path, lambda file: figure.savefig(file, format=kind))
    if not quiet:
        terminal.show_message(f"The picture is in {path}.")
