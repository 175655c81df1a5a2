"""`make audit`: licences, a bill of materials, and vulnerabilities as pip-audit lists them."""

import importlib.util
import json
from email.message import Message
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    path = Path(__file__).parents[1] / ".ci" / "audit.py"
    spec = importlib.util.spec_from_file_location("audit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pip_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in the place of pip-audit that prints the file `said` beside it."""
    package = tmp_path / "packages" / "pip_audit"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "from pathlib import Path\nprint(Path(__file__).with_name('said').read_text())\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package / "said"


def test_licence_is_an_expression_a_classifier_or_a_text(audit: ModuleType) -> None:
    assert "BSD" in audit.licence("numpy")
    assert audit.licence("typer") not in ("", "unknown")


def test_fields_that_are_missing_need_not_read_as_none(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strict(Message):
        """As of the package importlib-metadata."""

        def __getitem__(self, name: str) -> str:
            if name not in self:
                raise KeyError(name)
            return str(super().__getitem__(name))

    facts = Strict()
    monkeypatch.setattr(audit, "metadata", lambda name: facts)
    assert audit.licence("any") == "unknown"
    facts["License"] = "MIT\nand more"
    assert audit.licence("any") == "MIT"


def test_vulnerabilities_are_counted(audit: ModuleType, pip_audit: Path) -> None:
    packages = [
        {"name": "one", "version": "1", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]},
        {"name": "two", "version": "1", "vulns": []},
        {"name": "ours", "skip_reason": "not on PyPI"},
    ]
    pip_audit.write_text(json.dumps({"dependencies": packages}))
    found = audit.vulnerabilities()
    assert found == ("one CVE-1, one CVE-2, in 2 of 3 packages that the list has", 2)


@pytest.mark.parametrize("said", ["", "no connection", '{"error": "timeout"}'])
def test_list_that_cannot_be_reached_is_no_failure(
    audit: ModuleType, pip_audit: Path, said: str
) -> None:
    pip_audit.write_text(said)
    assert audit.vulnerabilities() == ("not looked for: their list cannot be reached", 0)


@pytest.mark.slow
@pytest.mark.parametrize("vulnerabilities", [[], [{"id": "CVE-1"}]])
def test_exit_code_says_whether_a_vulnerability_is_known(
    audit: ModuleType,
    pip_audit: Path,
    vulnerabilities: list[dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [{"name": "one", "version": "1", "vulns": vulnerabilities}]
    pip_audit.write_text(json.dumps({"dependencies": found}))
    monkeypatch.chdir(tmp_path)
    assert audit.main() == len(vulnerabilities)
    bill = json.loads((tmp_path / "dist" / "bill-of-materials.json").read_text())
    names = {package["metadata"]["name"] for package in bill["installed"]}
    assert {"numpy", "typer"} <= names
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(bill["installed"]) + 1
    assert not [line for line in lines[:-1] if not line.split()[2:]]
