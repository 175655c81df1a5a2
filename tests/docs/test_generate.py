"""The docs generators: the architecture picture, the reference, links out of docs/."""

import ast
import importlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS_DIR = ROOT / "docs"


@pytest.fixture
def script(monkeypatch):
    """`script("picture")` imports docs/picture.py, which is no package."""
    monkeypatch.syspath_prepend(str(DOCS_DIR))
    return importlib.import_module


def test_picture_names_every_room_and_module(script):
    root = ElementTree.fromstring(script("picture").architecture_svg())
    texts = [" ".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    package = ROOT / "src" / "regraft"
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert {room for layer in script("picture").layers() for room in layer} == {*rooms, "errors"}
    drawn = set(re.findall(r"\w+", " ".join(texts)))
    modules = {path.stem for path in package.rglob("*.py") if not path.stem.startswith("_")}
    assert rooms | modules <= drawn


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("'no such file.'", "no such file."),
        ("f'{path} row {item.row} is bad.'", "{path} row {row} is bad."),
        ("f'{len(texts):,} texts'", "{texts} texts"),
        ("'a | b' + f' <{x}>'", "a \\| b&lt;{x}>"),
    ],
)
def test_message_has_its_values_in_braces(script, code, message):
    described = script("describe")._message(ast.parse(code, mode="eval").body)
    assert described.replace(" ", "") == message.replace(" ", "")


def test_errors_page_holds_every_message(script):
    describe = script("describe")
    names = {kind.__name__ for kind in describe.error_classes()}
    name = "apps/course/questions.py"
    source = (ROOT / "src" / "regraft" / name).read_text(encoding="utf-8")
    found = [row for row in describe.read_raises(names) if row[1] == f"`{name}`"]
    assert len(found) == len(re.findall(r"raise DataError\(", source)) > 0
    assert all(remedy for *_, remedy in found)


def test_python_page_shows_signatures_and_results(script):
    page = script("describe").python_page()
    assert "## pretrain" in page
    assert "-> PretrainResult" in page
    assert "### PretrainResult" in page
    assert "object at 0x" not in page


@pytest.mark.parametrize(
    ("source", "link", "turned"),
    [
        ("docs/index.md", "[x](course/index.md)", "[x](course/index.md)"),
        ("docs/how-to/export.md", "[x](../lab.md#run-it)", "[x](../lab.md#run-it)"),
        ("docs/architecture.md", "[x](../CONTRIBUTING.md)", "[x](CONTRIBUTING.md)"),
        ("docs/architecture.md", "[the contract](../pyproject.toml)", "the contract"),
        ("CONTRIBUTING.md", "[x](docs/glossary.md)", "[x](glossary.md)"),
        ("CONTRIBUTING.md", "[x](README.md)", "[x](index.md)"),
        ("benchmarks/README.md", "[x](../docs/log.md)", "[x](log.md)"),
        ("docs/lab.md", "![x](images/lab-accuracy.png)", "![x](images/lab-accuracy.png)"),
        ("docs/lab.md", "[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
        ("docs/lab.md", "`[x](../pyproject.toml)`", "`[x](../pyproject.toml)`"),
    ],
)
def test_link_leads_to_the_same_page_on_the_site(script, source, link, turned):
    links = script("links")
    inside = {path.relative_to(DOCS_DIR).as_posix() for path in DOCS_DIR.rglob("*.*")}
    inside |= set(links.OUTSIDE.values())
    files = SimpleNamespace(get_file_from_path=lambda name: name if name in inside else None)
    file = SimpleNamespace(
        abs_src_path=str(ROOT / source), src_uri=links.site_path((ROOT / source).resolve())
    )
    found = links.on_page_markdown(link, page=SimpleNamespace(file=file), config=None, files=files)
    assert found == turned


def test_site_asks_no_network_for_anything():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in config
    assert "iframe-worker.js" in config
    assert "://" not in re.sub(r"#.*", "", config).replace("file://", "")


def test_citation_and_templates_are_valid():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{citation["version"]}"' in project
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"):
        head = path.read_text(encoding="utf-8").split("---\n")[1]
        assert {"name", "about"} <= yaml.safe_load(head).keys()


def test_cluster_examples_are_valid_yaml():
    text = (DOCS_DIR / "scaling.md").read_text(encoding="utf-8")
    found = [
        list(yaml.safe_load_all(block)) for block in re.findall(r"```yaml\n(.*?)```", text, re.S)
    ]
    assert [part["kind"] for part in found[0]] == ["Service", "Job"]
