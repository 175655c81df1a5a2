"""What README and docs show must exist: commands parse, links resolve, Python blocks run."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from regraft.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text()) if name in languages]


def commands(page: Path) -> list[str]:
    """Lines that begin with regraft, with or without a prompt, joined over backslashes."""
    found = []
    for text in blocks(page, "sh", "console"):
        for line in text.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\$ ", "", line.strip())
            line = re.sub(r"^\.venv/bin/", "", line)
            if line.startswith("regraft "):
                found.append(line)
    return found


SHOWN = sorted({command for page in PAGES for command in commands(page)})


def test_pages_show_commands():
    assert len(SHOWN) > 10


@pytest.mark.parametrize("command", SHOWN)
def test_shown_command_parses(command):
    words = shlex.split(command, comments=True)[1:]
    group = typer.main.get_command(app)
    context = group.make_context("regraft", list(words))
    while hasattr(group, "resolve_command"):
        name, group, words = group.resolve_command(context, words)
        context = group.make_context(name, list(words), parent=context)
        words = [*context._protected_args, *context.args] if hasattr(group, "commands") else []
    assert not words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "code"),
    [
        pytest.param(page, code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, code in enumerate(blocks(page, "python"))
    ],
)
def test_python_block_runs(page, code, tmp_path, monkeypatch, documents):
    monkeypatch.chdir(tmp_path)
    Path("reviews.txt").write_text("\n".join(documents) + "\n")
    exec(compile(code, page.name, "exec"), {})
    assert Path("runs/base/model.safetensors").exists()
