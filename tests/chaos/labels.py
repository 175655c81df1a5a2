"""The studio is killed in the middle of a label: what it has answered is in the file."""

import http.client
import json
import random
import re
import time
from pathlib import Path
from typing import Any

from chaos.kills import Child, Tally, start

from regraft.apps.studio.labelfile import LabelFile

CLASSES = ("negative", "positive")
# Of one file, before the next one is begun.
_MOST_LABELS = 150


class LabelLoop:
    """Gives labels over HTTP, and takes some back."""

    def __init__(self, text: Path, folder: Path, *, source: random.Random) -> None:
        self._text, self._folder, self._source = text, folder, source
        self._given: list[tuple[str, str]] = []
        self._num_files = 0
        self.tally = Tally("studio labels")
        folder.mkdir(parents=True)

    @property
    def _path(self) -> Path:
        return self._folder / f"labels-{self._num_files}.csv"

    def run(self, num_kills: int, *, until: float) -> None:
        """Kill until it has been killed that often, time is over, or something is wrong."""
        while self.tally.kills < num_kills and not self.tally.problems and time.monotonic() < until:
            if len(self._given) > _MOST_LABELS:
                self._given, self._num_files = [], self._num_files + 1
            began = time.monotonic()
            self._kill_once()
            self.tally.seconds = time.monotonic() - began

    def _kill_once(self) -> None:
        words = ["studio", self._folder, "--text", self._text, "--out", self._path]
        words += ["--labels", ",".join(CLASSES), "--no-open", "--port", 0]
        child = start(words, log=self._folder / "log.txt", temporary=self._folder / "tmp")
        connection = http.client.HTTPConnection("127.0.0.1", port_of(child), timeout=60)
        for _ in range(self._source.randrange(6)):
            self._change(connection, *self._choice(connection))
        action, body, change = self._choice(connection)
        send(connection, action, body)
        time.sleep(self._source.uniform(0, 0.02))
        child.kill(group=True)
        self.tally.kills += 1
        try:
            is_answered = connection.getresponse().status == 200
        except (http.client.HTTPException, ConnectionError):
            is_answered = False
        connection.close()
        self._check(change, is_answered=is_answered)

    def _choice(self, connection: http.client.HTTPConnection) -> tuple[str, Any, Any]:
        """What to ask for, and the labels that are there when it is done."""
        if self._given and self._source.random() < 0.2:
            return "undo", {}, self._given[:-1]
        connection.request("GET", "/api/label/next")
        shown = json.loads(connection.getresponse().read())
        label = self._source.choice(CLASSES)
        given = [*self._given, (shown["text"], label)]
        return "give", {"number": shown["number"], "label": label}, given

    def _change(self, connection: http.client.HTTPConnection, action: str, body: Any, to: Any):
        send(connection, action, body)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise AssertionError(f"the studio answers {answer.status} to {action}")
        self._given = to

    def _check(self, change: list[tuple[str, str]], *, is_answered: bool) -> None:
        file = LabelFile(self._path)
        found = [(record.text, record.label) for record in file.records]
        file.close()
        allowed = [change] if is_answered else [change, self._given]
        if found not in allowed:
            self.tally.problems.append(f"{len(found)} labels, not {len(self._given)} or one more")
        self._given = found
        self.tally.endings += 1


def send(connection: http.client.HTTPConnection, action: str, body: Any) -> None:
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/api/label/{action}", json.dumps(body), headers)


def port_of(child: Child) -> int:
    """Wait until the studio says where it is."""
    for _ in range(3_000):
        found = re.search(r"http://127\.0\.0\.1:(\d+)\n", child.log.read_text())
        if found:
            return int(found[1])
        time.sleep(0.02)
    raise AssertionError(child.log.read_text())
