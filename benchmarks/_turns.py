"""Contenders take turns, so that whatever else the machine does falls on all of them.

Each lives in a process of its own: no allocator setting, thread pool or peak of memory of one can
touch another, and while one works the others sleep. The `Result` is printed, written as JSON and
drawn.
"""

import argparse
import importlib
import json
import multiprocessing
import resource
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from regraft.runtime import environment

# One turn: does its work and returns (units of work done, seconds it took).
Turn = Callable[[], tuple[float, float]]


@dataclass(frozen=True)
class Contender:
    """`build` runs in the contender's own process and returns its turn.

    `imports` are loaded before memory is read for the first time: they are not what a step needs.
    """

    name: str
    build: Callable[[], Turn]
    imports: tuple[str, ...] = ("torch",)


@dataclass(frozen=True)
class Result:
    """What every contender did, turn by turn.

    `flops_per_unit` is the arithmetic one unit takes, None where contenders differ in it.
    """

    title: str
    unit: str
    speeds: dict[str, list[float]]
    memory_bytes: dict[str, int]
    matrix_flops: float
    flops_per_unit: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "title": self.title,
            "command": shlex.join(["python", sys.argv[0], *map(_without_folder, sys.argv[1:])]),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "environment": environment(),
            "unit": self.unit,
            "matrix_gflops": self.matrix_flops / 1e9,
            "contenders": {name: self._row(name) for name in self.speeds},
        }

    def _row(self, name: str) -> dict[str, Any]:
        ours = list(self.speeds)[-1]
        ratios = np.array(self.speeds[ours]) / np.array(self.speeds[name])
        row = {
            "speed": _spread(self.speeds[name]),
            "our_speed_ratio": _spread(ratios),
            "peak_memory_mb": self.memory_bytes[name] / 1e6,
            "our_memory_ratio": self.memory_bytes[ours] / self.memory_bytes[name],
        }
        if self.flops_per_unit is not None:
            limit = self.matrix_flops / self.flops_per_unit
            row["share_of_limit"] = row["speed"]["median"] / limit
        return row


def _without_folder(argument: str) -> str:
    """What others can repeat: their files lie elsewhere."""
    return Path(argument).name if "/" in argument else argument


def _spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "low": float(np.min(values)),
        "high": float(np.max(values)),
    }


def take_turns(
    contenders: Sequence[Contender],
    *,
    title: str,
    unit: str,
    rounds: int,
    flops_per_unit: float | None = None,
) -> Result:
    """Every contender once a round, ours last; the first round warms up and does not count."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for contender in [MATRIX, *contenders]:
        pipes[contender.name], theirs = context.Pipe()
        process = context.Process(target=_serve, args=(contender, theirs), daemon=True)
        process.start()
        processes.append(process)
        pipes[contender.name].recv()
    speeds: dict[str, list[float]] = {name: [] for name in pipes}
    memory_bytes = {}
    for number in range(rounds + 1):
        for name, pipe in pipes.items():
            pipe.send("your turn")
            units, seconds, memory_bytes[name] = pipe.recv()
            if number:
                speeds[name].append(units / seconds)
        print(f"round {number} of {rounds} is done", file=sys.stderr)
    for process in processes:
        process.terminate()
        process.join()
    matrix_flops = float(np.median(speeds.pop(MATRIX.name)))
    return Result(title, unit, speeds, memory_bytes, matrix_flops, flops_per_unit)


def _serve(contender: Contender, pipe: Connection) -> None:
    for name in contender.imports:
        importlib.import_module(name)
    idle = _peak_memory()
    turn = contender.build()
    pipe.send("ready")
    while True:
        pipe.recv()
        units, seconds = turn()
        pipe.send((units, seconds, _peak_memory() - idle))


def _peak_memory() -> int:
    """Largest resident memory so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # here ru_maxrss would begin with what the parent held when it started us
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _matrix_product() -> Turn:
    """fp32 operations in comfortable products: the limit of this machine, as torch reaches it."""
    import torch

    left, right = torch.randn(2048, 2048), torch.randn(2048, 2048)

    def turn() -> tuple[float, float]:
        start = time.perf_counter()
        for _ in range(20):
            left @ right
        return 20 * 2 * 2048**3, time.perf_counter() - start

    return turn


MATRIX = Contender("fp32 matrix product", _matrix_product)


def has_transformers() -> bool:
    """Is the `bench` extra here? If not, say what to install; the other contenders still run."""
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"):
        return True
    print("Without transformers. To see this peer: pip install '.[bench]'", file=sys.stderr)
    return False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every benchmark takes."""
    parser.add_argument("--rounds", type=int, default=5, help="turns that count (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them into FILE.png")


def publish(result: Result, *, arguments: argparse.Namespace) -> None:
    """Print a table; write JSON and a picture where asked to."""
    values = result.to_dict()
    print(f"{result.title}\nfp32 matrix product: {values['matrix_gflops']:.0f} GFLOP/s")
    print(f"{'':46}{result.unit:>12}   low - high     ours is   low - high   memory   of limit")
    for name, row in values["contenders"].items():
        speed, ratio = row["speed"], row["our_speed_ratio"]
        share = f"{row['share_of_limit']:9.0%}" if "share_of_limit" in row else ""
        print(
            f"{name:46}{speed['median']:12,.1f} {speed['low']:6,.0f} - {speed['high']:<6,.0f}"
            f" {ratio['median']:8.2f}x {ratio['low']:6.2f} - {ratio['high']:.2f}"
            f" {row['peak_memory_mb']:6,.0f} MB {share}"
        )
    for name, row in values["contenders"].items():
        print(f"our peak memory is {row['our_memory_ratio']:.2f} of {name}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    if arguments.plot:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        _draw(values, path=arguments.plot)


def _draw(values: dict[str, Any], *, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = list(values["contenders"])
    rows = list(values["contenders"].values())
    medians = np.array([row["speed"]["median"] for row in rows])
    errors = [
        medians - [row["speed"]["low"] for row in rows],
        [row["speed"]["high"] for row in rows] - medians,
    ]
    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.5 * len(names)), layout="constrained")
    colors = ["#b8c4ce"] * (len(names) - 1) + ["#2f6f4f"]
    axes.barh(names, medians, xerr=errors, color=colors, height=0.6, ecolor="#555555")
    for number, row in enumerate(rows[:-1]):
        ratio = f"  ours {row['our_speed_ratio']['median']:.2f}x"
        axes.text(row["speed"]["high"], number, ratio, va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, max(row["speed"]["high"] for row in rows) * 1.15)
    axes.set_xlabel(f"{values['unit']} (median; the line is low to high)")
    axes.set_title(values["title"], loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
