"""Replaces the model while requests are served, when the run folder changes.

A folder that is missing, incomplete or damaged changes only `trouble`, which /readyz reports.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from regraft.apps.serve.batching import BatchQueue
from regraft.apps.serve.engine import Engine, Runtime, load_engine
from regraft.classifiers import run_fingerprint
from regraft.errors import RegraftError

WATCH_SECONDS = 1.0
# After a run that could not be loaded, the next attempts are further and further apart.
_LONGEST_PAUSE = 60.0


class Reloader:
    """Watches one path. `trouble` is the reason why the folder there is not served."""

    def __init__(
        self,
        run_dir: Path,
        *,
        queue: BatchQueue,
        runtime: Runtime,
        say: Callable[[str], None],
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        self.trouble: str | None = None
        self._run_dir = Path(os.path.abspath(run_dir))
        self._queue = queue
        self._runtime = runtime
        self._say = say
        self._watch_seconds = watch_seconds

    async def run(self) -> None:
        """Watch until cancelled."""
        pause = self._watch_seconds
        while True:
            await asyncio.sleep(pause)
            is_well = await self.look()
            pause = self._watch_seconds if is_well else min(2 * pause, _LONGEST_PAUSE)

    async def look(self) -> bool:
        """Load the run if it is new; False if it is there and could not be loaded."""
        # No error in the folder, expected or not, may stop the server.
        try:
            fingerprint = await asyncio.to_thread(run_fingerprint, self._run_dir)
        except Exception as error:
            self._report(error)
            return True
        if fingerprint == self._queue.engine.fingerprint:
            self.trouble = None
            return True
        try:
            load = partial(load_engine, self._run_dir, runtime=self._runtime)
            self._replace(await asyncio.to_thread(load))
        except Exception as error:
            self._report(error)
            return False
        return True

    def _report(self, error: Exception) -> None:
        problem = error.problem if isinstance(error, RegraftError) else f"{error!r:.200}"
        # Everyone may read /readyz, so the path of the folder is removed.
        for run_dir in (self._run_dir, os.path.realpath(self._run_dir)):
            problem = problem.replace(os.path.join(os.path.dirname(run_dir), ""), "")
        if problem != self.trouble:
            self._say(f"Still serving {self._queue.engine.model}: {problem}")
        self.trouble = problem

    def _replace(self, engine: Engine) -> None:
        old = self._queue.engine
        self._queue.engine = engine
        self.trouble = None
        note = f" {engine.note}" if engine.note else ""
        self._say(f"Serving {engine.model} with {engine.runtime}, after {old.model}.{note}")
        if engine.labels != old.labels:
            self._say(f"Its labels are {', '.join(engine.labels)}: others than before.")
