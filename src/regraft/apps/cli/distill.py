"""`regraft distill`: one small network that answers as a classifier does."""

from pathlib import Path
from typing import Annotated

from regraft.apps.cli import options, results
from regraft.apps.cli.options import BASES, check_base_fixes, option, settings_from
from regraft.errors import ConfigError


@options.grouped
def distill(
    run: options.RunFolder,
    out: options.RunOut,
    text: options.Text = None,
    base: Annotated[
        Path | None,
        option("--base", f"{BASES} (default: one made of --text, in DIR-base).", "BASE"),
    ] = None,
    valid: Annotated[
        Path | None, option("--valid", "Labelled examples to score student and teacher on.", "FILE")
    ] = None,
    size: options.Size = None,
    resume: options.Resume = False,
    *,
    training: options.Training,
    reading: options.TextReading,
    overrides: options.Overrides,
    output: options.Output,
) -> None:
    """Train a small network to answer as a classifier does.

    The classifier, whatever its kind, gives every text its probabilities, and the student learns
    from all of them; no labels are read. The student is an ordinary run folder, which `export`
    can turn into a Hugging Face folder or an ONNX graph. --minutes is for all of it (default 10).

    \b
    Example:
      regraft distill runs/reviews --text reviews.txt --out runs/student
      regraft export runs/student --format onnx --out exports/student
    """
    if not text:
        raise ConfigError("No text was given.", remedy="Add a file: --text FILE.")
    options.check_documents(reading.documents, text)
    check_base_fixes(base, size=size, tokenizer=None, remedy="omit --base")
    from regraft.classifiers import STUDENT_PRESET
    from regraft.classifiers import distill as distilled

    settings = settings_from(
        "finetune",
        reading,
        training,
        choices=overrides,
        preset=STUDENT_PRESET,
        size=size,
        base=base,
    )
    with output.progress(out) as progress:
        result = distilled(
            run,
            text,
            out=out,
            base=base,
            valid=valid,
            settings=settings,
            resume=resume,
            progress=progress,
        )
    output.show(result, lambda: results.show_distilled(result), is_saved=True)
