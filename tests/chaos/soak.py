"""`make soak`: kills, requests and changed run folders, in numbers; prints what came of them.

PYTHONPATH=tests python -m chaos.soak --kills 1000 --requests 100000 --out soak.json
"""

import argparse
import gc
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos.kills import MOST_KILLS, KillLoop, Tally, shares
from chaos.labels import LabelLoop
from chaos.mutation import Outcomes, mutate, mutation_table
from chaos.scenarios import make_inputs, scenarios
from chaos.traffic import run_traffic, traffic_table


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def kill_all(
    inputs: Path, folder: Path, *, num_kills: int, minutes: float, only: Sequence[str], seed: int
) -> list[Tally]:
    """Every scenario in turn, one folder each; those that find something stop, the others go on.

    The minutes begin when all have run without a kill.
    """
    import torch

    # The first optimiser of a process imports a compiler: seconds, paid here for all children.
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    gc.freeze()  # what children do not touch stays shared with them
    source = random.Random(seed)
    loops: list[KillLoop | LabelLoop] = []
    for scenario in scenarios(inputs):
        if not only or scenario.name in only:
            place = folder / scenario.name.replace(" ", "-")
            loops.append(KillLoop(scenario, place, source=source))
    if not only or "studio labels" in only:
        loops.append(LabelLoop(inputs / "text.txt", folder / "studio", source=source))
    goals = shares([loop.tally for loop in loops], num_kills)
    say(f"{sum(goals)} kills, at most {minutes:g} minutes")
    until = time.monotonic() + 60 * minutes
    waiting = list(zip(loops, goals, strict=True))
    while waiting and time.monotonic() < until:
        for loop, goal in waiting:
            loop.run(min(loop.tally.kills + MOST_KILLS, goal), until=until)
            for problem in loop.tally.problems:
                say(f"{loop.tally.name}: {problem}")
        waiting = [
            (loop, goal)
            for loop, goal in waiting
            if loop.tally.kills < goal and not loop.tally.problems
        ]
        say(f"{sum(loop.tally.kills for loop in loops)} kills")
    return [loop.tally for loop in loops]


def kill_table(tallies: Sequence[Tally]) -> str:
    lines = [
        "| command | seconds without a kill | kills | repeated to the end | problems |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {t.name} | {t.seconds:.1f} | {t.kills} | {t.endings} | {len(t.problems)} |"
        for t in tallies
    ]
    total = sum(t.kills for t in tallies), sum(t.endings for t in tallies)
    num_problems = sum(len(t.problems) for t in tallies)
    return "\n".join([*lines, f"| all | | {total[0]} | {total[1]} | {num_problems} |"])


def mutate_all(folder: Path, *, every: int) -> list[Outcomes]:
    """A blend and a network, without and with new checksums."""
    found = []
    for name in ("blend", "network"):
        for is_new in (False, True):
            place = folder / f"mutated-{name}-{is_new}"
            source = folder / "inputs" / name
            found.append(mutate(source, place, with_new_checksums=is_new, every=every))
            say(f"{name}: {found[-1].tried} changes")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="of killing, at most")
    parser.add_argument("--only", default="", help="commands to kill, separated by commas")
    parser.add_argument("--requests", type=int, default=0, help="to each of two classifiers")
    parser.add_argument("--mutate", type=int, metavar="N", help="change one JSON value in N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON of all results")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    results: dict[str, Any] = {}
    tables = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        make_inputs(folder / "inputs")
        if given.kills:
            only = [name for name in given.only.split(",") if name]
            tallies = kill_all(
                folder / "inputs",
                folder / "kills",
                num_kills=given.kills,
                minutes=given.minutes,
                only=only,
                seed=given.seed,
            )
            results["kills"] = [asdict(tally) for tally in tallies]
            problems += [problem for tally in tallies for problem in tally.problems]
            tables.append(kill_table(tallies))
        if given.requests:
            runs = [folder / "inputs" / name for name in ("blend", "network")]
            found = [run_traffic(r, total=given.requests, seed=given.seed, say=say) for r in runs]
            results["requests"] = [vars(traffic) for traffic in found]
            problems += [problem for traffic in found for problem in traffic.problems]
            tables.append(traffic_table(found))
        if given.mutate:
            outcomes = mutate_all(folder, every=given.mutate)
            results["mutation"] = [asdict(one) for one in outcomes]
            problems += [
                f"{one.name}: {one.tried - one.refused} careless edits were not refused"
                for one in outcomes
                if not one.has_new_checksums and one.tried != one.refused
            ]
            problems += [f"{one.name}: {crash}" for one in outcomes for crash in one.crashes]
            tables.append(mutation_table(outcomes))
    print("\n\n".join(tables))
    for problem in problems:
        print(problem)
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
