"""Commands in this process, and what is common to those that are refused or interrupted."""

from typer.testing import CliRunner, Result

from regraft.apps.cli import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(result: Result) -> str:
    """The message of a refused command, after checking the manners all of them share."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    *before, message = result.stderr.splitlines()
    assert not any(line.startswith(("error", "Traceback")) for line in before)
    assert message.startswith("error: ")
    assert message.endswith((".", "?"))
    return message.removeprefix("error: ")


def assert_names(message: str, *facts: object) -> None:
    for fact in facts:
        assert str(fact) in message


class Stopping:
    """A progress that presses Ctrl-C at a step."""

    def __init__(self, step: int) -> None:
        self.left = step

    def start(self, name: str, *, total: int | None) -> None:
        self.is_training = name == "fine-tune"

    def advance(self, amount: int = 1, *, note: str = "") -> None:
        self.left -= self.is_training
        if not self.left:
            raise KeyboardInterrupt

    def finish(self) -> None:
        pass

    def say(self, message: str) -> None:
        pass
