"""The limits of a server, and the error of a request that is refused.

Light: the command line reads the defaults from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from regraft.errors import RegraftError


@dataclass(frozen=True)
class Limits:
    """How large and slow a request may be, and how many there may be; `regraft serve` shows it."""

    max_body_bytes: int = field(default=1 << 20, metadata={"help": "Bytes per request."})
    max_texts: int = field(default=256, metadata={"help": "Texts per request."})
    max_characters: int = field(default=100_000, metadata={"help": "Characters per text."})
    max_explained: int = field(default=5_000, metadata={"help": "Characters of a text to explain."})
    max_waiting: int = field(
        default=1024, metadata={"help": "Texts in the queue; requests beyond get status 429."}
    )
    max_batch: int = field(default=64, metadata={"help": "Texts per batch."})
    seconds: float = field(default=30.0, metadata={"help": "Time limit of a request in seconds."})
    head_seconds: float = field(
        default=10.0, metadata={"help": "Seconds within which the head of a request must arrive."}
    )
    max_connections: int = field(
        default=800, metadata={"help": "Open connections; further ones get status 503."}
    )
    max_client_connections: int = field(
        default=200, metadata={"help": "Open connections from one address; others get status 429."}
    )


class RefusedError(RegraftError):
    """A request that is refused, with its HTTP status."""

    def __init__(
        self,
        status: int,
        problem: str,
        expected: str = "",
        *,
        remedy: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(problem, expected, remedy=remedy)
        self.status = status
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, str]:
        """Plain values, ready for JSON."""
        return {"problem": self.problem, "expected": self.expected, "remedy": self.remedy}


def failure() -> RefusedError:
    """An internal error: the details are in the log, not in the response."""
    return RefusedError(
        500,
        "Internal server error.",
        remedy="Please report this with the message in the server's log.",
    )
