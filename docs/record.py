"""Record a real session of the terminal as docs/images/terminal.svg: `python docs/record.py`.

Fetches a corpus, labels 200 of its texts, and runs the commands of README on them: a minute or
two. Progress is not recorded; everything else is what the commands print at 92 columns.
"""

import csv
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

OUT = Path(__file__).parent / "images" / "terminal.svg"
WIDTH = 92
CORPUS = "bbc-news"
NUM_LABELS = 200
NEW = (
    "The striker scored twice in the second half and was cheered off the pitch.",
    "Shares of the bank fell after its profit warning.",
    "The minister told parliament that the bill will be changed.",
)
COMMANDS = (
    "regraft data check train.csv",
    "regraft fit --text articles.txt --train train.csv --out runs/news --bases 2",
    "regraft predict runs/news new.csv --top-k 1",
)


def main() -> None:
    """Run the commands in an empty folder, and write the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            console.print(Text.from_ansi(output(command, folder).rstrip()))
            console.print()
    picture = console.export_svg(title="regraft")
    # The fonts of rich are on another host.
    OUT.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.S), encoding="utf-8")
    print(f"{OUT}: look at it before you commit it.")


def make_files(folder: Path) -> None:
    """train.csv with labels, articles.txt without, and new.csv."""
    regraft("data", "fetch", CORPUS, "--out", str(folder), "-q", folder=folder)
    lines = (folder / "all.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    random.Random(3).shuffle(rows)
    labelled, others = rows[:NUM_LABELS], rows[NUM_LABELS:]
    write(folder / "train.csv", [("text", "label")], [(r["text"], r["label"]) for r in labelled])
    write(folder / "new.csv", [("text",)], [(text,) for text in NEW])
    texts = "".join(" ".join(row["text"].split()) + "\n" for row in others)
    (folder / "articles.txt").write_text(texts, encoding="utf-8")


def write(path: Path, head: list[tuple[str, ...]], rows: list[tuple[str, ...]]) -> None:
    """A csv file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([*head, *rows])


def output(command: str, folder: Path) -> str:
    """What a command prints on a terminal as wide as the picture."""
    return regraft(*command.split()[1:], folder=folder)


def regraft(*words: str, folder: Path) -> str:
    """What a command of regraft prints."""
    environment = {**os.environ, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "regraft", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    main()
