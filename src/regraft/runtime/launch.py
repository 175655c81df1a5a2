"""What torchrun sets in the environment of this process; needs no torch."""

import os


def num_processes() -> int:
    """How many processes were launched together; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Does this process print and write for all of them?"""
    return os.environ.get("RANK", "0") == "0"


def num_restarts() -> int:
    """How often torchrun has restarted this process after another one died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launch_id() -> str | None:
    """torchrun's name for this launch, the same after a restart; None without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID")
