"""`regraft export`: a model for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from regraft.apps.cli import options, terminal
from regraft.apps.cli.options import data_of, existing_texts, flag, option
from regraft.config import resolve
from regraft.errors import ConfigError
from regraft.runtime import check_training

if TYPE_CHECKING:
    from regraft.export import ExportResult
    from regraft.runtime import Progress


@options.grouped
def export(
    run: options.RunFolder,
    format: Annotated[
        Literal["hf", "onnx", "numpy"],
        option(
            "--format",
            "hf: Hugging Face transformers; onnx: a graph for ONNX runtimes; numpy: a classifier "
            "of `regraft fit` with the code that reads it.",
        ),
    ],
    out: options.FolderOut,
    int8: Annotated[
        bool, flag("--int8", "onnx: also quantize to int8, and measure the loss.")
    ] = False,
    data: Annotated[
        Path | None,
        option("--data", "--int8, --text: labelled examples to measure accuracy on.", "FILE"),
    ] = None,
    text: Annotated[
        list[Path] | None,
        option(
            "--text",
            "For a classifier that is not one network, such as a blend: text to train its student "
            "on, which is exported in its place; repeatable.",
            "FILE",
            callback=existing_texts,
        ),
    ] = None,
    minutes: Annotated[
        float | None, option("--minutes", "--text: time budget for the student (default 10).", "M")
    ] = None,
    *,
    reading: options.LabelReading,
    output: options.Output,
) -> None:
    """Export a model and check that it gives the same scores.

    hf loads with transformers alone, in its Auto classes and pipelines; onnx with any ONNX runtime.
    The export is loaded again and compared with the original; one that differs is refused. Of a
    classifier that is not one network, the student of `regraft distill` is exported, or with
    numpy the classifier of `regraft fit` itself, in a folder that needs numpy alone.

    \b
    Example:
      regraft export runs/reviews --format hf --out exports/reviews
      regraft export runs/blend --format hf --text reviews.txt --out exports/blend
      regraft export runs/blend --format numpy --out exports/blend-numpy
      regraft export runs/reviews --format onnx --int8 --data valid.csv --out exports/onnx
    """
    if format != "numpy":
        check_training("`regraft export`")
    _check_options(format, int8=int8, data=data, text=text, minutes=minutes)
    with output.progress() as progress:
        if text:
            run = _student(run, text, out=out, minutes=minutes, valid=data, progress=progress)
        if format == "numpy":
            from regraft.export import export_numpy

            result = export_numpy(run, out=out, progress=progress)
        elif format == "hf":
            from regraft.export import export_huggingface

            result = export_huggingface(run, out=out, progress=progress)
        else:
            from regraft.export import export_onnx
            from regraft.training import read_settings

            result = export_onnx(
                run,
                out=out,
                int8=int8,
                data_path=data if int8 else None,
                data=data_of(read_settings(run).data, reading) if data and int8 else None,
                progress=progress,
            )
    output.show(result, lambda: _show(result), is_saved=True)


def _check_options(
    format: str, *, int8: bool, data: Path | None, text: list[Path] | None, minutes: float | None
) -> None:
    """Refuse options that the others leave without effect."""
    if format != "onnx" and int8:
        raise ConfigError(
            "--int8 belongs to --format onnx.",
            "Other formats are exact.",
            remedy="Omit --int8, or use --format onnx.",
        )
    if data is not None and not (int8 or text):
        raise ConfigError(
            f"--data {data} would not be used.",
            "It measures the accuracy of --int8, or of the student of --text.",
            remedy="Add --format onnx --int8 or --text, or omit --data.",
        )
    if text and format == "numpy":
        raise ConfigError(
            f"--text {text[0]} would not be used.",
            "--format numpy exports the classifier itself, without a student.",
            remedy="Omit --text, or use --format hf or onnx.",
        )
    if minutes is not None and not text:
        raise ConfigError(
            f"--minutes {minutes:g} would not be used.",
            "It is the time budget of a student.",
            remedy="Add --text FILE, or omit --minutes.",
        )


def _student(
    run: Path,
    text: list[Path],
    *,
    out: Path,
    minutes: float | None,
    valid: Path | None,
    progress: "Progress",
) -> Path:
    """The folder of the student of a classifier, trained now unless it was before."""
    from regraft.classifiers import STUDENT_PRESET, distill
    from regraft.export import is_network

    if is_network(run):
        raise ConfigError(
            f"--text {text[0]} would not be used.",
            f"{run} holds a network, which can be exported without a student.",
            remedy="Omit --text.",
        )
    student = Path(f"{out}-student")
    length = {"train.minutes": minutes}
    settings = resolve("finetune", preset=STUDENT_PRESET, overrides=length)
    distill(run, text, out=student, valid=valid, settings=settings, resume=True, progress=progress)
    progress.say(f"Exporting the student in {student}.")
    return student


def _show(result: "ExportResult") -> None:
    """The largest differences, the loss of int8, and where the export is."""
    from regraft.export import parity_rows

    columns = ["model", "padding", "largest difference"]
    terminal.show_table(columns, parity_rows(result.parity), right=columns[-1:])
    if result.int8 is not None:
        from regraft.export import int8_rows

        terminal.show_table(["int8 against fp32", ""], int8_rows(result.int8))
    if result.note:
        terminal.show_line(result.note)
    terminal.show_line(
        f"{result.out} gives the same scores as regraft: the largest difference is "
        f"{result.largest_difference:.1e}."
    )
