"""What README and docs show must work: commands run, links resolve, nothing is missing.

A block that no test runs says so, in a comment right before it: `<!-- long-running: DATE, COST -->`
(the last time it was run, and what that took), or `<!-- not run here: REASON -->`.
"""

import csv
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
import typer
from conftest import make_examples, write_examples
from servers import served
from typer.testing import CliRunner

import regraft
from regraft.apps.cli import app
from regraft.config.schema import read_setting_help

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", ".github/**/*.md")
    for page in ROOT.glob(pattern)
)
FENCE = re.compile(r"(?:^<!-- ([^\n]*?) -->\n+)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"long-running: 20\d\d-\d\d-\d\d, \S.*|not run here: \S.*")
SHELL, CODE = ("sh", "console"), ("python", "bash", "yaml", "toml")
# Pages about the past may name what no longer exists.
HISTORY = ("CHANGELOG.md", "log.md")
LANGUAGES = {*SHELL, *CODE, "text", "json", "csv", "html"}
# Set-up, which precedes every test run, and torchrun, which integration tests run.
TOOLS = ("pip ", "make", ". .venv", "git ", "torchrun ", "python -m zipfile", "export ", "cd ")
# For a server: a request, which a test below sends, and a symlink to a run.
TOOLS += ("curl ", "ln -s ")
# Commands that take long or wait for somebody, and the tests that run them.
ELSEWHERE = {
    "bench": "training/test_benchmark.py",
    "course": "apps/course/test_questions.py",
    "data clean": "apps/cli/test_cli.py",
    "data fetch": "data/test_corpora.py",
    "demo": "apps/test_demo.py",
    "distill": "classifiers/test_distillation.py",
    "export runs/blend": "apps/cli/test_export.py",
    "fit --from": "classifiers/test_fitting.py",
    "fit --update": "classifiers/test_updating.py",
    "import": "training/test_bases.py",
    "serve": "apps/serve/test_serve.py",
    "studio": "apps/studio/test_studio.py",
}
# Words of commands that need a model which has learned something.
SKILLED = {
    "--self-train": "classifiers/test_self_training.py",
    "minilm": "classifiers/test_fit_members.py",
}


@dataclass(frozen=True)
class Block:
    """A fenced block, with the comment before it if there is one."""

    page: Path
    mark: str
    language: str
    text: str

    @property
    def is_marked(self) -> bool:
        return bool(MARK.fullmatch(self.mark))


def blocks(page: Path) -> list[Block]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page, mark, language, text) for mark, language, text in found]


def shell_lines(block: Block) -> list[str]:
    """Commands without prompts and comments, joined over backslashes."""
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    lines = [re.sub(r"^(\$ )?([A-Z_]+=\S+ )?(\.venv/bin/)?", "", line.strip()) for line in lines]
    return [line for line in lines if line and not line.startswith("#")]


def piped(line: str) -> tuple[str | None, str]:
    """(what `echo` sends through a pipe, the command behind it)."""
    before, pipe, command = line.rpartition(" | ")
    if not pipe or not before.startswith("echo "):
        return None, line
    return shlex.split(before)[1], command


BLOCKS = [block for page in PAGES for block in blocks(page)]
ALL_SHOWN = [
    (line, block)
    for block in BLOCKS
    if block.language in SHELL
    for line in shell_lines(block)
    if line.startswith("regraft ") or " | regraft " in line
]
SHOWN = sorted({piped(line)[1] for line, _ in ALL_SHOWN})
RUN = sorted({line for line, block in ALL_SHOWN if not block.is_marked})


def test_pages_show_commands():
    assert len(SHOWN) > 50


@pytest.mark.parametrize("command", SHOWN)
def test_shown_command_parses(command, tmp_path, monkeypatch):
    words = shlex.split(command, comments=True)[1:]
    monkeypatch.chdir(tmp_path)
    for option, value in pairwise(words):
        if option == "--text":  # parsing checks that the file exists
            (tmp_path / value).touch()
    group = typer.main.get_command(app)
    context = group.make_context("regraft", list(words))
    while hasattr(group, "resolve_command"):
        name, group, words = group.resolve_command(context, words)
        context = group.make_context(name, list(words), parent=context)
        words = [*context._protected_args, *context.args] if hasattr(group, "commands") else []
    assert not words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_run_or_says_why_not(page):
    for block in blocks(page):
        first = block.text.partition("\n")[0]
        assert block.language in LANGUAGES, f"{page.name}: name the language of the block {first!r}"
        if block.mark.startswith(("long-running", "not run")):
            assert block.is_marked, f"{page.name}: {block.mark!r} lacks its date, cost or reason"
        if block.language in SHELL and not block.is_marked:
            commands = [piped(line)[1] for line in shell_lines(block)]
            strange = [line for line in commands if not line.startswith(("regraft ", *TOOLS))]
            assert not strange, f"{page.name}: no test runs {strange}; mark the block"
        if block.language in ("bash", "yaml") and block.mark:
            assert block.is_marked, f"{page.name}: mark the block {first!r}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "bash"])
def test_scripts_are_valid_shell(block):
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


def prose(page: Path) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


SPANS = [
    (page, words)
    for page in PAGES
    if page.name not in HISTORY
    for words in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))
]


def test_marks_and_prose_name_files_that_exist():
    spans = [*SPANS, *((block.page, block.mark) for block in BLOCKS)]
    for page, words in spans:
        for name in re.findall(r"(?<!\S)(?:tests|docs|benchmarks|src)/[\w/.-]+\.\w+\b", words):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_commands_in_prose_exist_with_their_options():
    """Within a sentence a command is rarely complete, so only its words are looked at."""
    commands = [
        (page, words.removeprefix(".venv/bin/"))
        for page, words in SPANS
        if words.removeprefix(".venv/bin/").startswith("regraft ") and "{" not in words
    ]
    assert len(commands) > 100
    for page, shown in commands:
        words, command = shlex.split(shown)[1:], typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words.pop(0)]
        is_whole = not hasattr(command, "commands") or words[:1] in ([], ["COMMAND"])
        assert is_whole or words[0].startswith("-"), f"{page.name}: no command {shown!r}"
        flags = {flag for option in command.params for flag in option.opts} | {"--help"}
        strange = {word for word in words if word.startswith("--")} - flags
        assert not strange, f"{page.name}: {shown!r} has no {strange}"


def test_settings_extras_and_targets_in_prose_exist():
    keys = {row.key for row in read_setting_help()}
    sections = "|".join({key.partition(".")[0] for key in keys})
    files = ("json", "safetensors", "onnx", "csv", "py")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(re.findall(r"^(\w+) = \[", project.split("optional-dependencies]")[1], re.M))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page, words in SPANS:
        found = re.fullmatch(rf"(?:--set )?((?:{sections})\.([a-z_]+))(?:=\S+)?", words)
        if found and found[2] not in files:
            assert found[1] in keys, f"{page.name}: no setting {words!r}"
        if words.startswith("make "):
            assert words.split()[1] in targets, f"{page.name}: no target {words!r}"
    for page in PAGES:
        for names in re.findall(r"regraft\[([\w,]+)\]", page.read_text(encoding="utf-8")):
            assert set(names.split(",")) <= extras, f"{page.name}: no extra {names!r}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"])
def test_shown_json_is_json(block):
    json.loads(block.text)


def slugs(page: Path) -> set[str]:
    """The anchors of a page, as both a repository host and the site make them from headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text)
    links += [(target, "") for target in re.findall(r'(?:src|href)="([^"#]+)"', text)]
    for target, anchor in links:
        if re.match(r"[a-z]+:", target):
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in slugs(path), f"{page.name} links to {target}#{anchor}"


def written_lines(page: Path) -> list[str]:
    """The prose of a page, line by line, without tables, comments, HTML and link targets."""
    lines = [re.sub(r"\]\([^)\s]*\)", "]", line) for line in prose(page).splitlines()]
    return [line for line in lines if not re.match(r"\s*(\||<|>|!\[)", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_wrap_at_100_characters(page):
    if page.name == "report.md":
        pytest.skip("written by `regraft compare`")
    for line in written_lines(page):
        # A code span cannot be wrapped, so one that fills a line may be longer.
        assert len(line) <= 100 or re.fullmatch(r"\s*(?:- )?`[^`]+`\S*", line), (
            f"{page.name}: {len(line)} characters: {line}"
        )


def test_every_page_is_on_the_site():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    shown = set(re.findall(r"[\w/-]+\.md", config[config.index("\nnav:") :]))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert pages <= shown, f"not in the nav of mkdocs.yml: {sorted(pages - shown)}"


def commands_of(command, name):
    """Every command with its full name."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part in command.list_commands(None):
        yield from commands_of(command.commands[part], f"{name} {part}")


def test_every_setting_command_error_and_public_name_is_documented():
    def reference(name: str) -> str:
        return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")

    for row in read_setting_help():
        assert f"| `{row.key}` |" in reference("settings.md")
    for name, command in commands_of(typer.main.get_command(app), "regraft"):
        section = reference("cli.md").split(f"\n## {name}\n")[1].partition("\n## ")[0]
        for option in command.params:
            if getattr(option, "hidden", False):
                continue
            flag = option.opts[0] if option.param_type_name == "option" else option.metavar
            assert f"`{flag or option.name.upper()}" in section, f"{name} {flag}"
    for name in regraft.__all__:
        assert f"\n## {name}\n" in reference("python.md") or name == "__version__"
    for kind in vars(regraft.errors).values():
        if isinstance(kind, type) and issubclass(kind, regraft.RegraftError):
            assert f"\n## {kind.__name__}\n" in reference("errors.md")


@pytest.fixture(scope="session")
def desk(tmp_path_factory, shared_base, shared_classifier):
    """A folder with every file and run that the pages use."""
    folder = tmp_path_factory.mktemp("desk")
    documents = "".join(f"{text}\n" for text, _ in make_examples(60, seed=1))
    for name in ("reviews", "review", "reports", "texte", "text", "books"):
        (folder / f"{name}.txt").write_text(documents, encoding="utf-8")
    (folder / "corpus").mkdir()
    for name in ("corpus.txt.gz", "corpus/a.txt.gz"):
        with gzip.open(folder / name, "wt", encoding="utf-8") as file:
            file.write(documents)
    names = ("train", "labels", "etiquettes", "valid", "test", "reviews-labels")
    for seed, name in enumerate(names, start=3):
        write_examples(folder / f"{name}.csv", 40, seed=seed)
    with (folder / "new.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [[text] for text, _ in make_examples(10, seed=9)]
        csv.writer(file).writerows([["text"], *rows])
    for name in ("runs/base", "base"):
        shutil.copytree(shared_base, folder / name)
    (folder / "my.key").write_bytes(bytes(range(32)))
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(folder / "new.csv"), folder / "big.parquet")
    names = ("reviews", "grafted", "best", "tickets", "student", "more", "demo/classifier")
    for name in names:
        shutil.copytree(shared_classifier, folder / "runs" / name)
    for seed, name in enumerate(("pairs", "pairs-test"), start=20):
        rows = [(text, label, label) for text, label in make_examples(40, seed=seed)]
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("question", "answer", "label"), *rows])
    columns = ["--text-column", "question", "--pair-column", "answer"]
    _learn(folder, "pairs.csv", *columns, out="runs/answers")
    for seed, name in enumerate(("tags", "tags-test"), start=24):
        names = ("food|travel", "food", "", "travel")
        rows = [
            (text, names[row % 4]) for row, (text, _) in enumerate(make_examples(40, seed=seed))
        ]
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    _learn(folder, "tags.csv", "--label-separator", "|", out="runs/tags")
    for name in ("tokenizer.json", "runs/tokenizer.json"):
        shutil.copy(shared_base / "tokenizer.json", folder / name)
    command = ["tokenize", "reviews.txt", "--tokenizer", "tokenizer.json", "--out", "tokens"]
    _invoke(command, folder=folder)
    _invoke(["verify", "runs/reviews", "--key", "my.key", "--sign"], folder=folder)
    return folder


def _learn(folder, train, *more, out):
    """A classifier on the base of the desk."""
    small = ["--epochs", "1", "--set", "data.max_length=24"]
    words = ["finetune", "--base", "runs/base", "--train", train, *more, *small, "--out", out]
    assert _invoke(words, folder=folder).exit_code == 0


def _invoke(words, *, folder, sent=None):
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(app, words, input=sent)
    finally:
        os.chdir(before)


def _expanded(word, *, folder):
    """Expand globs as a shell does."""
    if "*" not in word:
        return [word]
    return [str(path.relative_to(folder)) for path in folder.glob(word)]


def _small(words):
    """The same command, with its length cut to seconds."""
    lengths = {
        "--minutes": "0.01",
        "--bases": "1",
        "--steps": "2",
        "--epochs": "1",
        "--seeds": "2",
        "--labels": "10,all",
        "--adapt": "0.01",
    }
    small = list(words)
    for place, word in enumerate(words[:-1]):
        if word in lengths:
            small[place + 1] = lengths[word]
        elif word == "--set" and words[place + 1].startswith("data.max_length"):
            small[place + 1] = "train.seed=0"
    has_length = any(flag in words for flag in ("--minutes", "--bases", "--steps", "--epochs"))
    if not has_length and words[0] in ("pretrain", "fit"):
        small += ["--minutes", "0.01"]
    if not has_length and words[0] in ("finetune", "compare"):
        small += ["--epochs", "1"]
    has_base = words[0] in ("finetune", "compare") or (words[0] == "pretrain" and "--base" in words)
    if has_base and "scratch" not in words:
        small += ["--set", "data.max_length=24"]  # the base on the desk reads no more
    if words[0] == "compare" and not {"--grid", "--from"} & set(words):
        small += ["--grid", "none"]
    if words[0] == "compare" and "--seeds" not in words:
        small += ["--seeds", "2"]
    return small


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN)
def test_shown_command_runs(command, desk, tmp_path):
    sent, command = piped(command)
    words = shlex.split(command, comments=True)[1:]
    for name, where in (ELSEWHERE | SKILLED).items():
        if words[: len(name.split())] == name.split() or (name in SKILLED and name in words):
            assert (ROOT / "tests" / where).exists(), f"{where} is to run `regraft {name}`"
            return
    folder = tmp_path / "desk"
    shutil.copytree(desk, folder)
    if "--out" in words:
        out = folder / words[words.index("--out") + 1]
        shutil.rmtree(out, ignore_errors=True)
        if out.is_file():
            out.unlink()
    words = [name for word in words for name in _expanded(word, folder=folder)]
    result = _invoke(_small(words), folder=folder, sent=sent)
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_shown_requests_are_answered(desk):
    shown = {
        line
        for block in BLOCKS
        if block.language in SHELL
        for line in shell_lines(block)
        if line.startswith("curl ")
    }
    assert shown
    with served(desk / "runs" / "reviews", "--runtime", "torch") as server:
        for line in shown:
            words = shlex.split(line.replace(":8000", f":{server.port}"), comments=True)
            done = subprocess.run([*words, "-s"], capture_output=True, text=True, check=True)
            assert json.loads(done.stdout)["predictions"], line


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.language == "python" for block in blocks(page))],
    ids=lambda page: page.name,
)
def test_python_blocks_run(page, desk, tmp_path, monkeypatch):
    if page.parent.name == "course":
        pytest.skip("tests/apps/course runs the chapters")
    shutil.copytree(desk, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    shutil.rmtree("runs")
    Path("docs").symlink_to(ROOT / "docs")  # pages read what benchmarks wrote
    names = {}
    for block in blocks(page):
        if block.language == "python" and not block.is_marked:
            exec(compile(block.text, page.name, "exec"), names)


def test_image_copies_what_is_there_and_installs_no_training_stack():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored
    assert any("'.[serve]'" in line for line in lines)
