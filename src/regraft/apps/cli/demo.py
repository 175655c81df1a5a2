"""`regraft demo`: the whole story in one command."""

import itertools
from pathlib import Path
from typing import Annotated

from regraft.apps.cli import options, results
from regraft.apps.cli.options import flag, option


@options.grouped
def demo(
    offline: Annotated[
        bool, flag("--offline", "Use a small synthetic corpus: no network, two minutes.")
    ] = False,
    lab: Annotated[
        bool,
        flag("--lab", "The lab exercise on French book reviews, with the lab's model: 15 minutes."),
    ] = False,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Folder to write (default: the first free one of runs/demo, runs/demo-2, ...).",
            "DIR",
        ),
    ] = None,
    resume: Annotated[
        bool, flag("--resume", "Continue an interrupted demo in --out; the same --lab.")
    ] = False,
    *,
    output: options.Output,
) -> None:
    """Show the whole story on real reviews, in ten minutes.

    Fetch, pre-train, fine-tune, compare, predict. Without a network it uses a synthetic corpus.

    \b
    Example:
      regraft demo
      regraft demo --offline --out runs/demo
      regraft demo --lab --out runs/lab
      regraft demo --lab --out runs/lab --resume
    """
    from regraft.apps.demo import demo as run

    with output.progress() as progress:
        result = run(
            out=out or free_folder(), offline=offline, lab=lab, resume=resume, progress=progress
        )
    output.show(results.demo_to_dict(result), lambda: results.show_demo(result), is_saved=True)


def free_folder() -> Path:
    """The first folder that does not exist, so that the demo can run twice."""
    names = itertools.chain(["demo"], (f"demo-{number}" for number in itertools.count(2)))
    folders = (Path("runs") / name for name in names)
    return next(folder for folder in folders if not folder.exists())
