"""Do the published numbers still come out?

Every number in benchmarks/numbers.json names the page that states it, its interval, and the command
it comes from. The command is run again, and a number outside its interval is a failure. A command
that serves several numbers is run once. Commands that take more than a few minutes wait for --all.

    .venv/bin/python benchmarks/reproduce.py [--all] [--only NAME] [--work DIR]

An entry of `tables` is what a script of this folder wrote into docs/benchmarks: run again, every
score in it must lie within the interval that was published for it. An entry of `reports` is a
comparison. One with a `command` is run again, from its text on, and each
arm and number of labels in the table that the command writes must lie within the interval that the
report gave it. One without is repeated by `regraft compare --from`, which needs its very files.
Cost: minutes, or hours with --all.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NUMBERS = Path(__file__).with_name("numbers.json")
LONG_MINUTES = 5
# Where the commands of this environment lie, wherever the script was called from.
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Published:
    """One number as it is printed on a page, with its interval and where it comes from."""

    name: str
    page: str
    printed: str
    low: float
    high: float
    command: str
    value: str
    minutes: float

    @property
    def is_long(self) -> bool:
        return self.minutes > LONG_MINUTES


@dataclass(frozen=True)
class Checked:
    """What became of a number."""

    name: str
    found: float
    low: float
    high: float

    @property
    def is_inside(self) -> bool:
        return self.low <= self.found <= self.high


@dataclass(frozen=True)
class Catalogue:
    """All that is published: single numbers, tables of scripts, reports of comparisons."""

    numbers: list[Published]
    tables: list[dict[str, Any]]
    reports: list[dict[str, Any]]


def read_catalogue(path: Path = NUMBERS) -> Catalogue:
    """What benchmarks/numbers.json lists."""
    values = json.loads(path.read_text(encoding="utf-8"))
    numbers = [Published(**entry) for entry in values["numbers"]]
    return Catalogue(numbers, values["tables"], values["reports"])


@dataclass(frozen=True)
class Score:
    """A number with its interval, as scripts write it."""

    value: float
    low: float
    high: float

    def printed(self) -> str:
        """As pages print it, in percent."""
        return f"{100 * self.value:.1f} ({100 * self.low:.1f} to {100 * self.high:.1f})"


def scores_in(values: Any, place: str = "") -> dict[str, Score]:
    """Every score below, by where it lies: `rows.linear.200`."""
    if not isinstance(values, dict):
        return {}
    value = values.get("value", values.get("mean"))
    if isinstance(value, int | float) and {"low", "high"} <= values.keys():
        return {place: Score(value, values["low"], values["high"])}
    found: dict[str, Score] = {}
    for key, part in values.items():
        found |= scores_in(part, f"{place}.{key}" if place else key)
    return found


def dig(values: Any, path: str) -> float:
    """`comparison.arms.linear.test_accuracy.mean`: in a list, the part of that name."""
    for key in path.split("."):
        if isinstance(values, list):
            values = next(part for part in values if part["name"] == key)
        else:
            values = values[key]
    return float(values)


def output_of(command: str, *, work: Path) -> Any:
    """The JSON that a command writes: into the file it names in {work}, or onto stdout."""
    filled = command.replace("{work}", str(work))
    program, *words = shlex.split(filled)
    known = {"regraft": BIN / "regraft", "python": Path(sys.executable)}
    print(f"$ {filled}", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        [str(known.get(program, program)), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"`{filled}` ended with {done.returncode}.")
    print(f"  {time.monotonic() - start:.0f} s", flush=True)
    if "--json {work}" in command:
        return json.loads(Path(words[words.index("--json") + 1]).read_text(encoding="utf-8"))
    return json.loads(done.stdout)


def check_numbers(numbers: list[Published], *, work: Path) -> Iterator[Checked]:
    """Run every command once, and look for its numbers."""
    for command in dict.fromkeys(number.command for number in numbers):
        values = output_of(command, work=work)
        for number in numbers:
            if number.command == command:
                yield Checked(number.name, dig(values, number.value), number.low, number.high)


def check_table(entry: dict[str, Any], *, work: Path) -> Iterator[Checked]:
    """Run a script again, and hold every score against the interval published for it."""
    published = scores_in(json.loads((ROOT / entry["table"]).read_text(encoding="utf-8")))
    again = scores_in(output_of(entry["command"], work=work))
    missing = published.keys() - again.keys()
    if missing:
        sys.exit(f"{entry['name']}: its command gives no {', '.join(sorted(missing))}.")
    for place, score in published.items():
        name = f"{entry['name']}: {place}"
        yield Checked(name, again[place].value, score.low, score.high)


def check_report(entry: dict[str, Any], *, work: Path) -> Iterator[Checked]:
    """Repeat a comparison, and hold every arm against its own interval."""
    published = json.loads((ROOT / entry["report"]).read_text(encoding="utf-8"))
    if "command" in entry:
        yield from _check_curve(entry, published["curve"], work=work)
        return
    out = f"{{work}}/{entry['name']}"
    again = output_of(f"regraft compare --from {entry['report']} --out {out} --json", work=work)
    for arm in published["arms"]:
        score = arm["test_accuracy"]
        found = dig(again, f"arms.{arm['name']}.test_accuracy.mean")
        yield Checked(f"{entry['name']}: {arm['name']}", found, score["low"], score["high"])


def _check_curve(
    entry: dict[str, Any], curve: list[dict[str, Any]], *, work: Path
) -> Iterator[Checked]:
    rows = output_of(entry["command"], work=work)["rows"]
    asked = {(arm, size) for arm, sizes in rows.items() for size in sizes}
    known = {(point["arm"], str(point["num_labels"])) for point in curve}
    # An arm of another name, or none at all, would check nothing and look well.
    if not asked & known or {arm for arm, _ in asked} - {arm for arm, _ in known}:
        sys.exit(f"{entry['name']}: its command gives {sorted(asked)}, the report {sorted(known)}.")
    for point in curve:
        found = rows.get(point["arm"], {}).get(str(point["num_labels"]))
        if found is not None:
            name = f"{entry['name']}: {point['arm']}, {point['num_labels']:,} labels"
            score = point["accuracy"]
            yield Checked(name, found["value"], score["low"], score["high"])


def main() -> None:
    """Check what was asked for; the exit code says whether every number was inside."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="run the long ones, too")
    parser.add_argument("--only", metavar="NAME", default="", help="numbers whose name begins so")
    parser.add_argument("--work", type=Path, help="folder for what the commands write")
    options = parser.parse_args()
    catalogue = read_catalogue()
    wanted = [n for n in catalogue.numbers if n.name.startswith(options.only)]
    chosen = [n for n in wanted if options.all or not n.is_long]

    def runnable(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        named = [entry for entry in entries if entry["name"].startswith(options.only)]
        return [e for e in named if options.all or e["minutes"] <= LONG_MINUTES]

    tables, reports = runnable(catalogue.tables), runnable(catalogue.reports)
    with tempfile.TemporaryDirectory(prefix="regraft-reproduce-") as temporary:
        work = options.work or Path(temporary)
        checked = list(check_numbers(chosen, work=work))
        checked += [result for entry in tables for result in check_table(entry, work=work)]
        checked += [result for entry in reports for result in check_report(entry, work=work)]
    for result in checked:
        sign = "ok  " if result.is_inside else "LIES"
        print(f"{sign} {result.name}: {result.found:g} in [{result.low:g}, {result.high:g}]")
    if not options.all:
        print("Slow ones were skipped; --all runs them.")
    if not checked or not all(result.is_inside for result in checked):
        raise SystemExit("Not every published number came out again.")


if __name__ == "__main__":
    main()
