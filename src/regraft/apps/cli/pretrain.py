"""`regraft pretrain`, `bench` and `import`: where a base comes from, and what it costs."""

from pathlib import Path
from typing import Annotated

from regraft.apps.cli import options, results
from regraft.apps.cli.options import (
    argument,
    check_base_fixes,
    check_preset_of,
    option,
    settings_from,
)


@options.grouped
def pretrain(
    out: options.RunOut,
    base: Annotated[
        Path | None,
        option("--base", "Pre-trained run folder whose training to continue on this text.", "RUN"),
    ] = None,
    tokenizer: options.TokenizerPath = None,
    objective: options.Objective = None,
    stages: options.Stages = None,
    size: options.Size = None,
    resume: options.Resume = False,
    *,
    texts: options.TextFiles,
    training: options.Training,
    reading: options.TextReading,
    choices: options.Choices,
    output: options.Output,
) -> None:
    """Pre-train a language model on unlabelled text.

    \b
    Example:
      regraft pretrain reviews.txt --out runs/base --minutes 10
      regraft pretrain reviews.txt --out runs/base --minutes 10 --resume
      regraft pretrain reviews.txt --out runs/words --stages words
      regraft pretrain books.txt --base runs/base --out runs/books --minutes 5
    """
    options.check_documents(reading.documents, texts.paths())
    check_base_fixes(base, size=size, tokenizer=tokenizer, remedy="pre-train without a base")
    check_preset_of(base, choices)
    settings = settings_from(
        "pretrain",
        reading,
        training,
        choices=choices,
        size=size,
        base=base,
        flags={"objective.kind": objective, "objective.stages": stages},
    )
    from regraft.training import pretrain as run

    with output.progress(out) as progress:
        result = run(
            texts.paths(),
            out=out,
            base=base,
            settings=settings,
            tokenizer_path=tokenizer,
            resume=resume,
            progress=progress,
        )
    output.show(result, lambda: results.show_pretrained(result), is_saved=True)


@options.grouped
def bench(
    objective: options.Objective = None,
    *,
    texts: options.TextFiles,
    reading: options.TextReading,
    choices: options.Choices,
    output: options.Output,
) -> None:
    """Measure how fast this machine trains.

    Runs real training steps at several model sizes for a few seconds each, and compares them with
    the speed of a plain matrix product. Text is optional.

    \b
    Example:
      regraft bench
      regraft bench reviews.txt --preset lab
    """
    settings = settings_from(
        "pretrain", reading, choices=choices, flags={"objective.kind": objective}
    )
    from regraft.training import bench as run

    with output.progress() as progress:
        result = run(texts.paths(optional=True), settings=settings, progress=progress)
    output.show(result, lambda: results.show_bench(result))


@options.grouped
def import_(
    file: Annotated[Path, argument("Checkpoint of the lab.", "FILE.pt")],
    out: options.RunOut,
    tokenizer: options.TokenizerPath = None,
    heads: Annotated[
        int | None,
        option(
            "--heads",
            "Number of attention heads, which the file does not record (default: the lab's).",
            "H",
            min=1,
        ),
    ] = None,
    *,
    output: options.Output,
) -> None:
    """Make a run folder from a checkpoint of the lab.

    The shape comes from the tensors, the vocabulary from --tokenizer or the dict.txt next to the
    file. A model with a head over the vocabulary can generate; one with classes can predict.

    \b
    Example:
      regraft import pretrained_model_4layers.pt --tokenizer cls-books --out runs/lab
    """
    from regraft.training import assumed_heads, import_lab_file

    run = import_lab_file(file, out=out, tokenizer_path=tokenizer, num_heads=heads)
    kind = run.info.kind
    num_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    message = f"{out}: a {kind} with {num_parameters:,} parameters from {file}."
    if heads is None and (note := assumed_heads(file, settings=run.settings)):
        message += f"\n{note}"
    values = {"run_dir": str(out), "kind": kind, "num_parameters": num_parameters}
    output.note(values, message)
