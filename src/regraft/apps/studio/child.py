"""A command of regraft as a child process of the studio: it ends with its parent, and reports
every second, not every ten."""

from regraft.apps import cli
from regraft.runtime import end_with_parent, progress

if __name__ == "__main__":
    end_with_parent()
    progress.SECONDS_BETWEEN_LINES = 1.0
    cli.main()
