"""When a classifier does not answer: below a confidence, given or chosen for a target accuracy."""

from dataclasses import dataclass

from regraft.config import DataSettings
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Progress, in_percent
from regraft.stats import CoveragePoint, point_for_accuracy


def check_share(name: str, value: float | None) -> None:
    """Raise ConfigError unless a value is None or between 0 and 1."""
    if value is not None and not 0 <= value <= 1:
        raise ConfigError(
            f"{name} is {value:g}.",
            "It is a probability, between 0 and 1.",
            remedy="Pass for example 0.9, not 90.",
        )


@dataclass(frozen=True)
class Abstention:
    """The confidence below which there is no answer, or the accuracy that answers should have."""

    below: float | None = None
    target_accuracy: float | None = None

    def check(self, data: DataSettings) -> None:
        """Raise ConfigError if both are given, one is no probability, or the task forbids it."""
        check_share("--abstain-below", self.below)
        check_share("--target-accuracy", self.target_accuracy)
        if self.below is not None and self.target_accuracy is not None:
            raise ConfigError(
                "--abstain-below and --target-accuracy both choose the threshold.",
                remedy="Pass one of them.",
            )
        if self.target_accuracy is not None and data.label_separator is not None:
            raise ConfigError(
                "--target-accuracy needs one label per text, and data.label_separator allows "
                "several.",
                "With several labels, each has its own threshold, which is chosen for you.",
                remedy="Omit --target-accuracy.",
            )

    def threshold(
        self, curve: tuple[CoveragePoint, ...], *, num_examples: int, progress: Progress = SILENT
    ) -> float | None:
        """The confidence from which there is an answer; None if there always is one."""
        if self.target_accuracy is None:
            return self.below
        point, is_reached = point_for_accuracy(
            curve, self.target_accuracy, num_examples=num_examples
        )
        coverage = in_percent(point.coverage, digits=0)
        share = f"on held-out examples, {coverage} of them, {in_percent(point.accuracy)} right"
        if is_reached:
            progress.say(
                f"It answers when its confidence is at least {point.threshold:.3f}: {share}."
            )
        else:
            progress.say(
                "note: no threshold reaches an accuracy of "
                f"{100 * self.target_accuracy:g} % for certain. The best is a confidence of at "
                f"least {point.threshold:.3f}: {share}."
            )
        return point.threshold


ALWAYS_ANSWER = Abstention()
