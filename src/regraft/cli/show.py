"""The commands that explain: `regraft attention`, `picture`, `params` and `settings`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regraft.cli import options, results, terminal
from regraft.cli.options import settings_from
from regraft.config import setting_help

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attention(
    run: options.RunFolder,
    text: Annotated[str, typer.Argument(help="Text to read.", show_default=False)],
    out: options.PictureOut,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw the attention weights of every layer and head over a text.

    \b
    Example:
      regraft attention runs/base "Un livre vraiment charmant." --out attention.png
    """
    from regraft.explain import attention_of, attention_picture

    seen = attention_of(run, text)
    if seen.num_cut and not quiet:
        terminal.show_message(
            f"The text is longer than the model reads: its last {seen.num_cut:,} tokens were cut."
        )
    _save(attention_picture(seen.weights, seen.tokens, title=text), out, quiet=quiet)
    if json:
        terminal.show_json({"path": str(out), "tokens": seen.tokens, "num_cut": seen.num_cut})


def picture(
    subject: Annotated[
        Literal["mask", "positions"],
        typer.Argument(help="The square mask, or the sinusoidal positions.", show_default=False),
    ],
    out: options.PictureOut,
    length: Annotated[
        int | None,
        typer.Option("--length", min=1, help="Number of positions.", show_default=False),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw what a model reads by: its mask or its positions.

    \b
    Example:
      regraft picture mask --out mask.png
      regraft picture positions --out positions.png
    """
    from regraft.explain import mask_picture, positions_picture

    length = length or {"mask": 16, "positions": 128}[subject]
    figure = mask_picture(length) if subject == "mask" else positions_picture(length=length)
    _save(figure, out, quiet=quiet)
    if json:
        terminal.show_json({"path": str(out), "subject": subject, "length": length})


def params(
    preset: options.Preset = None,
    size: options.Size = None,
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
      regraft params --size small --vocab 8192 --json
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
        },
    )
    from regraft.ledger import check_ledger, ledger, wrong_answers

    model, vocab_size = chosen.model, chosen.tokenizer.size
    counted = ledger(
        model,
        vocab_size=vocab_size,
        num_classes=classes,
        max_length=chosen.data.max_length,
        batch_size=chosen.train.batch_size,
    )
    built = check_ledger(counted, model, vocab_size, classes)
    wrong = wrong_answers(model, vocab_size=vocab_size, num_classes=classes) if explain else []
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


def _save(figure: "Figure", path: Path, *, quiet: bool) -> None:
    from regraft.runtime import write_whole

    write_whole(path, lambda file: figure.savefig(file, format="png"))
    if not quiet:
        terminal.show_message(f"The picture is in {path}.")
