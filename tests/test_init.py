"""The public surface: `__all__`, laziness, and names that are both a function and a module."""

import importlib
import subprocess
import sys
from collections.abc import Callable

import pytest

import regraft


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_all_matches_golden(golden: Callable[[str, str], None]) -> None:
    golden("all.txt", "\n".join(regraft.__all__) + "\n")


@pytest.mark.parametrize("name", regraft.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(regraft, name) is not None
    assert name in dir(regraft)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'regraft' has no attribute 'pretrian'"):
        regraft.pretrian  # noqa: B018


def test_import_loads_nothing_heavy() -> None:
    code = "import regraft, sys; regraft.RegraftError; print('torch' in sys.modules)"
    assert run_python(code) == "False"


@pytest.mark.parametrize("name", ["pretrain", "finetune", "compare", "generate", "ledger"])
def test_function_wins_over_its_module(name: str) -> None:
    module = importlib.import_module(f"regraft.{name}")
    function = getattr(regraft, name)
    assert function is getattr(module, name)
    assert callable(function)


def test_function_wins_when_module_was_imported_first() -> None:
    code = (
        "import regraft.pretrain, regraft; print(regraft.pretrain.__name__, type(regraft.pretrain))"
    )
    assert run_python(code) == "pretrain <class 'function'>"


def test_function_wins_when_used_before_its_module() -> None:
    code = (
        "import regraft; first = regraft.pretrain\n"
        "from regraft.pretrain import pretrain\n"
        "print(first is pretrain is regraft.pretrain)"
    )
    assert run_python(code) == "True"


def test_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert regraft.__version__ == version("regraft")
