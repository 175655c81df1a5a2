"""The list of published numbers: each stands on its page, and its command says where it lies."""

import ast
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reproduce() -> ModuleType:
    """The script, loaded as a module."""
    path = ROOT / "benchmarks" / "reproduce.py"
    spec = importlib.util.spec_from_file_location("reproduce", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reproduce"] = module
    spec.loader.exec_module(module)
    return module


def test_everything_published_stands_on_its_page(reproduce: ModuleType) -> None:
    catalogue = reproduce.read_catalogue()
    assert any(not number.is_long for number in catalogue.numbers)
    for number in catalogue.numbers:
        page = " ".join((ROOT / number.page).read_text(encoding="utf-8").split())
        assert number.printed in page, f"{number.name} is not in {number.page}"
        assert number.low <= number.high
    for entry in catalogue.tables:
        page = (ROOT / entry["page"]).read_text(encoding="utf-8")
        scores = reproduce.scores_in(json.loads((ROOT / entry["table"]).read_text("utf-8")))
        num_shown = sum(shown in page for shown in {score.printed() for score in scores.values()})
        assert num_shown == entry["shown"] > 0, f"{entry['page']} is older than {entry['table']}"
    for entry in catalogue.reports:
        assert (ROOT / entry["report"]).exists()


def test_tables_of_the_examples_are_those_of_their_reports() -> None:
    path = ROOT / "benchmarks" / "examples.py"
    spec = importlib.util.spec_from_file_location("examples", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "examples" / "index.md").read_text(encoding="utf-8")
    for line in module.tables(module.PUBLISHED).splitlines():
        assert not line.startswith("|") or line in page
    for name in module.SETS:
        report = json.loads((module.PUBLISHED / name / "report.json").read_text(encoding="utf-8"))
        assert report["verdict"] in page
        # No text of a set is ours to publish.
        assert report["mistakes"] == report["label_doubts"] == []


def test_published_gap_is_that_of_the_published_outcomes() -> None:
    page = (ROOT / "docs" / "how-to" / "compare.md").read_text(encoding="utf-8")
    (code,) = [part for part in page.split("```") if "outcomes.json" in part and "assert" in part]
    folder = ROOT / "docs" / "examples" / "news"
    names: dict[str, Any] = {}
    exec(code.removeprefix("python").replace("runs/comparison", str(folder)), names)
    assert names["gap"] < 0


def test_short_numbers_come_out_again(reproduce: ModuleType, tmp_path: Path) -> None:
    numbers = reproduce.read_catalogue().numbers
    short = [number for number in numbers if number.name.startswith("params: ")]
    checked = list(reproduce.check_numbers(short, work=tmp_path))
    assert len(checked) == len(short) > 0
    assert all(result.is_inside for result in checked)


def test_value_is_found_by_name(reproduce: ModuleType) -> None:
    values = {"arms": [{"name": "a", "score": {"mean": 1}}, {"name": "b", "score": {"mean": 2}}]}
    assert reproduce.dig(values, "arms.b.score.mean") == 2.0


def test_number_outside_its_interval_is_reported(reproduce: ModuleType) -> None:
    assert not reproduce.Checked("a", 0.5, 0.6, 0.7).is_inside
    assert reproduce.Checked("a", 0.65, 0.6, 0.7).is_inside


def test_table_is_held_against_its_own_intervals(
    reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(value: float) -> dict[str, object]:
        score = {"value": value, "low": 0.7, "high": 0.9}
        return {"seconds": 3, "rows": {"linear": {"100": score}, "plain": {"cost": 1.0}}}

    path = tmp_path / "table.json"
    path.write_text(json.dumps(table(0.8)))
    entry = {"name": "recipe", "table": str(path), "command": "python made.py", "minutes": 1}
    monkeypatch.setattr(reproduce, "output_of", lambda command, *, work: table(0.95))
    (checked,) = reproduce.check_table(entry, work=tmp_path)
    assert (checked.name, checked.is_inside) == ("recipe: rows.linear.100", False)
    monkeypatch.setattr(reproduce, "output_of", lambda command, *, work: {"rows": {}})
    with pytest.raises(SystemExit, match=r"recipe: its command gives no rows\.linear\.100"):
        list(reproduce.check_table(entry, work=tmp_path))


def test_report_is_held_against_its_own_intervals(
    reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(mean: float) -> dict[str, object]:
        score = {"mean": mean, "low": 0.7, "high": 0.9}
        return {"arms": [{"name": "linear", "test_accuracy": score}]}

    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(0.8)))
    asked = []

    def output_of(command: str, *, work: Path) -> dict[str, object]:
        asked.append(command)
        return report(0.95)

    monkeypatch.setattr(reproduce, "output_of", output_of)
    entry = {"name": "books", "report": str(path), "minutes": 1}
    (checked,) = reproduce.check_report(entry, work=tmp_path)
    assert (checked.name, checked.is_inside) == ("books: linear", False)
    assert asked == [f"regraft compare --from {path} --out {{work}}/books --json"]


def test_report_that_is_made_anew_is_held_against_its_curve(
    reproduce: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = {"mean": 0.8, "low": 0.7, "high": 0.9}
    curve = [{"arm": arm, "num_labels": 100, "accuracy": score} for arm in ("linear", "cnn")]
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"curve": curve}))
    rows = {"linear": {"100": {"value": 0.69}, "400": {"value": 0.9}}}
    monkeypatch.setattr(reproduce, "output_of", lambda command, *, work: {"rows": rows})
    entry = {"name": "books", "report": str(path), "minutes": 1, "command": "python made.py"}
    # What the command does not make, and what the report does not tell, is left alone.
    (checked,) = reproduce.check_report(entry, work=tmp_path)
    assert (checked.name, checked.is_inside) == ("books: linear, 100 labels", False)
    for nothing in ({}, {"renamed": {"100": {"value": 0.8}}}):
        monkeypatch.setattr(reproduce, "output_of", lambda *_, rows=nothing, **__: {"rows": rows})
        with pytest.raises(SystemExit, match="books: its command gives"):
            list(reproduce.check_report(entry, work=tmp_path))


def test_benchmarks_import_names_that_exist() -> None:
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regraft"):
                module = importlib.import_module(str(node.module))
                for name in (alias.name for alias in node.names):
                    module_path = (
                        ROOT / "src" / f"{node.module}.{name}".replace(".", "/")
                    ).with_suffix(".py")
                    assert module_path.exists() or hasattr(module, name), f"{path.name}: no {name}"
