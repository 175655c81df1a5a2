"""The public surface: `__all__`, laziness, and what each room shows to the others."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import regraft

SOURCE = Path(regraft.__file__).parent
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())


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
    with pytest.raises(AttributeError, match="pretrian"):
        regraft.pretrian  # noqa: B018


def test_import_loads_nothing_heavy() -> None:
    code = "import regraft, sys; regraft.RegraftError; print('torch' in sys.modules)"
    assert run_python(code) == "False"


@pytest.mark.parametrize("room", ROOMS)
def test_room_exposes_its_surface_and_no_module_hides_a_name(room: str) -> None:
    package = importlib.import_module(f"regraft.{room}")
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    public_names = getattr(package, "__all__", [])  # apps, the top room, shows none
    assert not modules & set(public_names)
    for name in public_names:
        assert getattr(package, name) is not None


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_public_names_of_other_rooms(room: str) -> None:
    foreign = []
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            _, _, place = node.module.partition("regraft.")
            other = place.partition(".")[0]
            if other in ROOMS and other != room and place != other:
                foreign.append(f"{path.relative_to(SOURCE)}:{node.lineno} imports from {place}")
    assert not foreign


def test_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert regraft.__version__ == version("regraft")


def test_functions_fit_a_screen() -> None:
    too_long = {
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= 80
    }
    assert too_long == set()
