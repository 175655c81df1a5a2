"""What a classifier is asked to do: one text or a pair of them, one label or several.

Whoever cannot do every task calls `check_task`, which raises the one error for all of them.
"""

from collections.abc import Collection
from dataclasses import dataclass

from regraft.config.schema import DataSettings
from regraft.errors import ConfigError


@dataclass(frozen=True)
class Task:
    """Whether an example is one text or a pair of texts, with one label or any number of them."""

    has_pairs: bool = False
    has_label_sets: bool = False

    @classmethod
    def of(cls, data: DataSettings) -> "Task":
        """The task of the files that are read with these settings."""
        return cls(
            has_pairs=data.pair_column is not None, has_label_sets=data.label_separator is not None
        )

    def __str__(self) -> str:
        contents = "pairs of texts" if self.has_pairs else "single texts"
        return f"{contents} with {'several labels' if self.has_label_sets else 'one label'} each"


# Between the labels of examples that did not come from a file: the first that occurs in no label.
LABEL_SEPARATORS = ("|", ";", ",", "\t")
SINGLE_LABEL = Task()
SINGLE_TEXTS = (Task(), Task(has_label_sets=True))


def check_task(
    data: DataSettings, *, supported: Collection[Task] = (SINGLE_LABEL,), by: str
) -> None:
    """Raise ConfigError unless the task of `data` is among those that `by` supports."""
    task = Task.of(data)
    if task in supported:
        return
    raise ConfigError(
        f"{by} supports {' or '.join(map(str, supported))}, not {task}: data.pair_column is "
        f"{data.pair_column!r}, data.label_separator is {data.label_separator!r}.",
        remedy="Change these two settings to fit, or choose a command, run or base for this task; "
        "`regraft finetune`, `evaluate`, `predict` and `export` support all of them.",
    )
