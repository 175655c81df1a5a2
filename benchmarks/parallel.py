"""Two processes under torchrun against one process, each with one thread: what a second one adds.

The same causal pre-training (V 8,192, d 256, 3 layers), the same rows a step for all processes
together (DDP over gloo). One and two processes are started in turn, and every start counts the
median of its steps. Cost: about three minutes on two cores.

    .venv/bin/python benchmarks/parallel.py [--rounds 3] [--json FILE] [--plot FILE.png]
"""

import argparse
import json
import os
import resource
import subprocess
import sys

import numpy as np
from _turns import Result, add_arguments, publish

from regraft.config import resolve
from regraft.models import ledger
from regraft.runtime import matrix_speed

VOCAB, NUM_STEPS = 8192, 14
SETTINGS = resolve(
    "pretrain",
    overrides={"objective.kind": "causal", "train.batch_size": 32, "train.steps": NUM_STEPS},
)


def work() -> None:
    """Train as one of the processes; the first prints tokens a second and its peak of memory."""
    import torch

    from regraft.models import build_language_model
    from regraft.runtime import joined
    from regraft.training import build_state, steps
    from regraft.training.benchmark import random_rows
    from regraft.training.objectives import causal

    torch.set_num_threads(1)
    with joined() as world:
        model = build_language_model(SETTINGS.model, vocab_size=VOCAB)
        rows = random_rows(VOCAB, settings=SETTINGS)
        state = build_state(model, settings=SETTINGS.train, num_rows=len(rows.lengths))
        records = list(steps(state, rows=rows, objective=causal, settings=SETTINGS.train))
        if world.is_first:
            # The first steps touch memory, and find out how to send it, for the first time.
            speed = float(np.median([record.tokens_per_second for record in records[4:]]))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps({"speed": speed, "memory": memory}), flush=True)


def start(num_processes: int) -> dict[str, float]:
    """One start of torchrun; what its first process printed."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={num_processes}", __file__, "--worker"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    printed: dict[str, float] = json.loads(done.stdout)
    return printed


def main() -> None:
    """Start one, start two, and so on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.worker:
        work()
        return
    names = {1: "one process, one thread", 2: "two processes, one thread each"}
    speeds: dict[str, list[float]] = {name: [] for name in names.values()}
    memory: dict[str, int] = {}
    for _ in range(arguments.rounds):
        for num_processes, name in names.items():
            printed = start(num_processes)
            speeds[name].append(printed["speed"])
            memory[name] = int(printed["memory"])
    counted = ledger(
        SETTINGS.model,
        vocab_size=VOCAB,
        max_length=SETTINGS.data.max_length,
        batch_size=SETTINGS.train.batch_size,
    )
    result = Result(
        title="Causal pre-training (V 8,192, d 256, 3 layers), 32 x 256 tokens a step, DDP",
        unit="tokens/s",
        speeds=speeds,
        memory_bytes=memory,
        matrix_flops=matrix_speed(),
        flops_per_unit=counted.flops_forward_backward,
    )
    publish(result, arguments=arguments)


if __name__ == "__main__":
    main()
