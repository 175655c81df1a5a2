"""`python -m regraft` is the command `regraft`."""

from regraft.apps.cli import main

if __name__ == "__main__":
    main()
