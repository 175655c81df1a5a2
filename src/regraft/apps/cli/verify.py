"""`regraft verify`: is a run folder whole, and who wrote it?"""

from pathlib import Path
from typing import Annotated

import typer

from regraft.apps.cli import options, terminal
from regraft.apps.cli.options import flag, option
from regraft.errors import ConfigError

EXIT_DAMAGED = 1


@options.grouped
def verify(
    run: options.RunFolder,
    key: Annotated[
        Path | None, option("--key", "File of 32 random bytes: check the signature.", "FILE")
    ] = None,
    sign: Annotated[bool, flag("--sign", "Sign the folder with --key instead.")] = False,
    *,
    output: options.Output,
) -> None:
    """Check the files of a run folder against their checksums.

    With --key it also checks who wrote the folder: only a holder of the key can sign it. The exit
    code is 0 if all is well, 1 if a file is missing or damaged.

    \b
    Example:
      regraft verify runs/reviews
      regraft verify runs/reviews --key my.key --sign
      regraft verify runs/reviews --key my.key
    """
    from regraft.runtime import check_signature, damage, load_key
    from regraft.runtime import sign as write_signature
    from regraft.training import read_info

    if sign and key is None:
        raise ConfigError("--sign needs a key.", remedy="Add --key FILE.")
    secret = None if key is None else load_key(key)
    info = read_info(run)
    problems = damage(run, info.files)
    if not problems and info.status == "complete":
        if info.is_classifier:
            from regraft.classifiers import load_classifier

            load_classifier(run)
        else:
            from regraft.training import load_run

            load_run(run)
        if secret is not None:
            action = write_signature if sign else check_signature
            action(run, facts_path=run / "run.json", key=secret)
    if output.json:
        facts = {"run": str(run), "kind": info.kind, "status": info.status}
        terminal.show_json({**facts, "num_files": len(info.files) + 1, "problems": problems})
    else:
        for name, problem in problems.items():
            terminal.show_line(f"{run / name} {problem}")
        if not problems:
            terminal.show_line(_summary(run, info.status, len(info.files) + 1, secret, sign=sign))
    if problems:
        raise typer.Exit(EXIT_DAMAGED)


def _summary(run: Path, status: str, num_files: int, secret: bytes | None, *, sign: bool) -> str:
    if status != "complete":
        return f"{run} is not finished: its checksums are written at the end."
    signature = "" if secret is None else ", now signed" if sign else ", the signature is right"
    return f"{run} is whole: {num_files} files are as they were written{signature}."
