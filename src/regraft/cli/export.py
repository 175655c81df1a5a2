"""The command that hands a model over to other programs: `regraft export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regraft.cli import options, terminal
from regraft.cli.options import data_flags, data_of
from regraft.errors import ConfigError

if TYPE_CHECKING:
    from regraft.interop.delivery import ExportResult


def export(
    run: options.RunFolder,
    format: Annotated[
        Literal["hf", "onnx"],
        typer.Option(
            "--format",
            help="A folder for Hugging Face transformers, or a graph for ONNX runtimes.",
            show_default=False,
        ),
    ],
    out: options.FolderOut,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="onnx: also in eight bits, and measure what that costs."),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="int8: examples to measure accuracy on.",
            show_default=False,
        ),
    ] = None,
    text: options.TextColumn = None,
    label: options.LabelColumn = None,
    encoding: options.Encoding = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a model for others to use, and prove that it scores the same.

    hf loads with transformers alone, in its Auto classes and pipelines; onnx with any ONNX runtime.
    What is written is loaded again and compared: one that differs is refused.

    \b
    Example:
      regraft export runs/reviews --format hf --out exports/reviews
      regraft export runs/reviews --format onnx --int8 --data valid.csv --out exports/onnx
    """
    if format == "hf" and int8:
        raise ConfigError(
            "--int8 belongs to --format onnx.",
            "A Hugging Face folder is exact.",
            remedy="Leave --int8 away, or take --format onnx.",
        )
    if data is not None and not int8:
        raise ConfigError(
            f"--data {data} would not be read.",
            "It measures what --int8 costs.",
            remedy="Add --format onnx --int8, or leave --data away.",
        )
    with terminal.progress_on_stderr(quiet=quiet) as progress:
        if format == "hf":
            from regraft.interop.huggingface import export_huggingface

            result = export_huggingface(run, out=out, progress=progress)
        else:
            from regraft.interop.onnx import export_onnx

            result = export_onnx(
                run,
                out=out,
                int8=int8,
                data_path=data,
                data=data_of(run, data_flags(text=text, label=label, encoding=encoding)),
                progress=progress,
            )
    if json:
        terminal.show_json(result.to_dict())
    else:
        _show(result)


def _show(result: "ExportResult") -> None:
    """How exact the export is, what eight bits cost, and where it lies."""
    from regraft.interop.card import int8_rows, parity_rows

    columns = ["model", "padding", "largest difference"]
    terminal.show_table(columns, parity_rows(result.parity), right=columns[-1:])
    if result.int8 is not None:
        terminal.show_table(["int8 against fp32", ""], int8_rows(result.int8))
    if result.note:
        terminal.show_line(result.note)
    terminal.show_line(
        f"{result.out} scores as regraft does: the largest difference is "
        f"{result.largest_difference:.1e}."
    )
