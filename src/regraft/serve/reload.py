"""A new run takes the place of the old one while requests go on.

Comes in: the path that the server was started with, looked at now and then. Goes out: the queue's
engine, replaced once the new one is loaded and tried. A folder that is missing, incomplete or
damaged changes nothing but `trouble`, which /readyz tells.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from regraft.errors import RegraftError
from regraft.serve.engine import Engine, Runtime, load_engine, run_fingerprint
from regraft.serve.queue import BatchQueue

WATCH_SECONDS = 1.0
# After a run that could not be loaded, the next attempts are further and further apart.
_LONGEST_PAUSE = 60.0


class Reloader:
    """Watches one path. `trouble` says why what lies there now is not what is served."""

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
        """Look until cancelled."""
        pause = self._watch_seconds
        while True:
            await asyncio.sleep(pause)
            is_well = await self.look()
            pause = self._watch_seconds if is_well else min(2 * pause, _LONGEST_PAUSE)

    async def look(self) -> bool:
        """Load what lies there if it is new; False if it is there and could not be loaded."""
        # Whatever lies there, what no error of ours foresaw as well, must not stop the answers.
        try:
            found = await asyncio.to_thread(run_fingerprint, self._run_dir)
        except Exception as error:
            self._tell(error)
            return True
        if found == self._queue.engine.fingerprint:
            self.trouble = None
            return True
        try:
            load = partial(load_engine, self._run_dir, runtime=self._runtime)
            self._replace(await asyncio.to_thread(load))
        except Exception as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: Exception) -> None:
        told = error.problem if isinstance(error, RegraftError) else f"{error!r:.200}"
        # Anyone may ask /readyz: where the folder lies is not their business.
        for run_dir in (self._run_dir, os.path.realpath(self._run_dir)):
            told = told.replace(os.path.join(os.path.dirname(run_dir), ""), "")
        if told != self.trouble:
            self._say(f"Still serving {self._queue.engine.model}: {told}")
        self.trouble = told

    def _replace(self, engine: Engine) -> None:
        old = self._queue.engine
        self._queue.engine = engine
        self.trouble = None
        note = f" {engine.note}" if engine.note else ""
        self._say(f"Serving {engine.model} with {engine.runtime}, after {old.model}.{note}")
        if engine.labels != old.labels:
            self._say(f"Its labels are {', '.join(engine.labels)}: others than before.")
