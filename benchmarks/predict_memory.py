"""Peak memory of `regraft predict` by the number of rows: python benchmarks/predict_memory.py RUN.

Writes a csv of short texts for each size, predicts it in a process of its own, and prints the peak
of that process. The last line is the largest peak divided by the smallest.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = [
    "the",
    "story",
    "plot",
    "book",
    "style",
    "ending",
    "is",
    "charming",
    "dull",
    "vivid",
    "flat",
    "moving",
    "tedious",
    "again",
]
PROGRAM = """
import resource, sys
from regraft.apps.cli import app
app(sys.argv[1:], standalone_mode=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def write_rows(path: Path, num_rows: int) -> None:
    """A table of `num_rows` texts of eight words, with an id."""
    source = random.Random(0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        for row in range(num_rows):
            writer.writerow([row, " ".join(source.choices(WORDS, k=8))])


def peak_megabytes(run_dir: Path, path: Path, out: Path) -> float:
    """The peak of a process that predicts a table."""
    words = ["predict", str(run_dir), str(path), "--out", str(out), "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], check=True, stderr=subprocess.PIPE, text=True
    )
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return int(done.stderr.split()[-1]) / unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run folder of a classifier")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--format", default="csv", help="ending of the output")
    given = parser.parse_args()
    peaks = []
    for num_rows in given.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.csv"
            write_rows(path, num_rows)
            start = time.perf_counter()
            peak = peak_megabytes(given.run, path, path.with_name(f"out.{given.format}"))
            seconds = time.perf_counter() - start
            size = path.stat().st_size / 1e6
        peaks.append(peak)
        found = {"rows": num_rows, "input_mb": size, "peak_mb": peak, "seconds": seconds}
        print(json.dumps(found), flush=True)
    print(json.dumps({"largest_by_smallest": max(peaks) / min(peaks)}))


if __name__ == "__main__":
    main()
