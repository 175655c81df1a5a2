"""Reference pages read from the code itself: Python names, file formats, error messages."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import regraft
from regraft import errors

SOURCES = sorted(Path(regraft.__file__).parent.rglob("*.py"))
NOTE = "<!-- Written by `make docs`; edit the code instead. -->"
WIDEST = 88
# JSON files, and the module and dataclass that each holds.
JSON_FILES = {
    "run.json": ("regraft.training.run_folder", "RunInfo"),
    "report.json": ("regraft.comparison.results", "Comparison"),
    "store.json": ("regraft.data.tokens.store", "StoreInfo"),
}
READ = """\
| file | read as |
|---|---|
| `.csv`, `.tsv` | a table: columns `data.text_column`, `data.label_column`, `data.pair_column` |
| `.jsonl` | one object per line, with these keys; several labels may be a list |
| `.parquet`, `.xlsx` | the same columns; needs the extra `parquet` or `xlsx` |
| `.txt` | one document per line, or separated by blank lines (`data.documents`) |
| `.txt` with `__label__x` before each line | fastText examples |
| `.review.spm` | the lab's pieces, with a `.label` file next to it |
| a folder | each `.txt` file in it is one document; of CLASS/NAME.txt, CLASS is the label |
| any of these with `.gz` | the same, compressed |
| `-` | standard input, as plain text |
"""
LIMITS = """\
## Limits of what is read

No file makes a command take memory without bound: what is larger is refused first. The environment
variable `REGRAFT_LIMITS`, for example `record_bytes=64000000 columns=20000`, changes limits for all
commands and in Python.

Text for `pretrain`, `fit --text` and `tokenize`, and tables for `predict`, are streamed. Labelled
files of `fit`, `finetune`, `compare` and `evaluate`, and all files of `data check`, are held in
memory: these commands say first how much that takes, if it is more than 100 MB.
"""
WRITTEN = """\
| file | content |
|---|---|
| `run.json` | what the run is, whether it has ended, its result: see below |
| `config.json` | the resolved [settings](settings.md), all of them |
| `tokenizer.json` | the tokenizer, in the format of the package tokenizers |
| `tokenizer_config.json` | the special tokens of a Hugging Face tokenizer |
| `model.safetensors` | the weights, once training has ended |
| `metrics.jsonl` | one record per logged step or epoch: `step`, `loss`, `valid_loss` and others |
| `checkpoints/NNNNNNNN/` | during training: weights, optimiser state, position, checksums |
| `tokens/` | during training, unless one was given: the token store |
| `run.lock` | held by the process that writes here |

A blend (`regraft fit`) has a folder for each member with non-zero weight in `members/` instead of
`model.safetensors` (`member.json`, `vocabulary.json` and `member.safetensors`; that of `features`
at any weight, for `--update`), and `plan.json`: the steps of each base. While it runs, `bases/`
holds a run folder for each base, `clock.json` the time it has taken, and `baselines/` the members
of weight 0, which only `--test` reads; all three are removed at the end, once the bases are folded
into the table of the member `features`. A comparison writes `report.html`, `report.md`,
`report.json` and its figures.
"""

BESIDES = """\
| written by | content |
|---|---|
| `regraft predict` | all columns, `predicted_label`, `predicted_probability`, `p(LABEL)` |
| `regraft predict`, unfinished | `.x.unfinished/`: probabilities so far, for `--resume` |
| `regraft studio --text` | a csv with `text`, `label`, `use`, `query`, `row`, for `fit` |
| `regraft compare`, `evaluate`, `fit` | `openings.json`: who opened which test file when |
| `regraft compare` | `outcomes.json`: which test examples each run predicted correctly |
| `regraft tokenize` | a folder with `store.json`, see below, and shards of ids and offsets |
"""

REFUSALS = """\
An error that you can fix has three parts: what is wrong, with its value and place; what would be
right; what to do. On the command line it is one message on stderr, and the exit code is 2; Ctrl-C
exits with 130. In Python it is one of these classes, with the parts as `problem`, `expected` and
`remedy`. Any other exception is a bug: please report it with its traceback."""


def python_page() -> str:
    """Every public name: its module, signature, docstring and result."""
    names = sorted((name for name in regraft.__all__ if name != "__version__"), key=_place)
    lines = ["# Python", "", NOTE, ""]
    lines += [
        "Names of the package `regraft`. What is not listed here is not public and may change.",
        "",
    ]
    lines += ["`regraft.__version__` is the version, a string.", ""]
    lines += [f"- [`{name}`](#{name.lower()})" for name in names]
    results: dict[str, type] = {}
    for name in names:
        value = getattr(regraft, name)
        lines += ["", f"## {name}", "", *_described(value, name=name)]
        if inspect.isfunction(value):
            results |= _results(value)
    lines += ["", "## Results", ""]
    for name, kind in sorted(results.items()):
        lines += [f"### {name}", "", *_paragraphs(kind), "", *_fields(kind), ""]
    return "\n".join(lines).rstrip() + "\n"


def _place(name: str) -> tuple[int, str]:
    """Sort key: functions, then classes, then errors."""
    value = getattr(regraft, name)
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    return inspect.isclass(value) + is_error, name


def files_page() -> str:
    """Input files, the run folder, and the JSON files field by field."""
    lines = ["# File formats", "", NOTE, "", "## Input files", "", READ]
    limits = importlib.import_module("regraft.runtime.limits")
    rows = [
        f"| `{part.name}` | {part.default:,} | {part.metadata['help']} |"
        for part in dataclasses.fields(limits.ReadLimits)
    ]
    lines += [LIMITS, "| name | default | what |", "|---|---|---|", *rows, ""]
    lines += [
        "## The run folder",
        "",
        "Every file is written whole or not at all.",
        "",
        WRITTEN,
        "## Other files",
        "",
        BESIDES,
    ]
    for file_name, (module, name) in JSON_FILES.items():
        kind = getattr(importlib.import_module(module), name)
        lines += [f"## {file_name}", "", *_paragraphs(kind), "", *_fields(kind), ""]
    lines += [
        "## answers.toml",
        "",
        "Answers to the [course](../course/index.md): a line `name = number` for each question.",
        "",
    ]
    return "\n".join(lines).rstrip() + "\n"


def errors_page() -> str:
    """The classes of errors, then every message with what to do."""
    kinds = error_classes()
    lines = ["# Errors", "", NOTE, ""]
    lines += [
        REFUSALS,
        "",
        "| class | is a | meaning |",
        "|---|---|---|",
    ]
    for kind in kinds:
        name, parent = kind.__name__, kind.__bases__[0].__name__
        meaning = " ".join((kind.__doc__ or "").split())
        lines.append(f"| [`{name}`](#{name.lower()}) | `{parent}` | {meaning} |")
    messages = list(read_raises({kind.__name__ for kind in kinds}))
    lines += ["", "Every message in the code; words in braces stand for values."]
    for kind in kinds:
        rows = [row for row in messages if row[0] == kind.__name__]
        lines += ["", f"## {kind.__name__}", ""]
        if not rows:
            lines.append("Raised by its subclasses only, or passed on from a worker.")
            continue
        lines += ["| where | what is wrong | what to do |", "|---|---|---|"]
        lines += [f"| {where} | {problem} | {remedy} |" for _, where, problem, remedy in rows]
    return "\n".join(lines).rstrip() + "\n"


def error_classes() -> list[type[errors.RegraftError]]:
    """All subclasses of RegraftError, in the order of errors.py."""
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.RegraftError)
    ]


def read_raises(names: set[str]) -> Iterator[tuple[str, str, str, str]]:
    """(class, module, problem, remedy) of every error that the code raises."""
    for path in SOURCES:
        where = path.relative_to(Path(regraft.__file__).parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in names
            ):
                remedies = [word.value for word in node.keywords if word.arg == "remedy"]
                if node.args and remedies:
                    yield node.func.id, f"`{where}`", _message(node.args[0]), _message(remedies[0])


def _message(node: ast.expr) -> str:
    """A message with its values in braces, escaped for a table cell."""
    if isinstance(node, ast.Constant):
        text = str(node.value)
    elif isinstance(node, ast.JoinedStr):
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{_short(part)}}}"
            for part in node.values
        )
    elif isinstance(node, ast.BinOp):
        return _message(node.left) + _message(node.right)
    else:
        text = f"{{{_short(node)}}}"
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<![`\\])([*_\[\]])", r"\\\1", text)


def _short(node: ast.AST) -> str:
    """The most informative name in an expression."""
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(inner, ast.Name):
        return inner.id
    if isinstance(inner, ast.Attribute):
        return inner.attr
    names = [part.id for part in ast.walk(inner) if isinstance(part, ast.Name)]
    return names[-1] if names else "..."


def _described(value: Any, *, name: str) -> Iterator[str]:
    home = value.__module__
    yield f"From `{home}`."
    yield ""
    if inspect.isclass(value):
        if not issubclass(value, Exception):
            yield from _signature(value, name=name)
        yield from _paragraphs(value)
        if dataclasses.is_dataclass(value):
            yield ""
            yield from _fields(value)
        for method_name, method in _public_methods(value):
            yield ""
            yield f"**`{method_name}`**"
            yield ""
            yield from _signature(method, name=method_name)
            yield from _paragraphs(method)
        return
    yield from _signature(value, name=name)
    yield from _paragraphs(value)


def _public_methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if not name.startswith("_") and (
            inspect.isfunction(value) or isinstance(value, classmethod)
        ):
            yield name, getattr(kind, name)


def _signature(value: Any, *, name: str) -> Iterator[str]:
    parts = []
    signature = inspect.signature(value)
    for parameter in signature.parameters.values():
        if parameter.name != "self":
            parts.append(
                _plain(str(parameter.replace(annotation=_annotation(parameter.annotation))))
            )
    keyword = [p.kind is p.KEYWORD_ONLY for p in signature.parameters.values() if p.name != "self"]
    if any(keyword):
        parts.insert(keyword.index(True), "*")
    result = signature.return_annotation
    arrow = (
        "" if result is signature.empty or inspect.isclass(value) else f" -> {_annotation(result)}"
    )
    one_line = f"{name}({', '.join(parts)}){arrow}"
    yield "```text"
    if len(one_line) <= WIDEST:
        yield one_line
    else:
        yield f"{name}("
        yield from (f"    {part}," for part in parts)
        yield f"){arrow}"
    yield "```"
    yield ""


class _Written(str):
    """An annotation that prints without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _annotation(hint: Any) -> Any:
    if hint is inspect.Parameter.empty:
        return hint
    written = hint if isinstance(hint, str) else getattr(hint, "__name__", None)
    if written is None or getattr(hint, "__args__", None):
        written = str(hint)
    return _Written(_plain(written))


def _plain(text: str) -> str:
    """Drop module prefixes."""
    text = re.sub(r"<regraft[^>]*>", "SILENT", text)
    text = re.sub(r"Annotated\[([^,]+), Doc\(.*?\)\](?= = |$)", r"\1", text)
    text = re.sub(r"numpy\.ndarray\[.*numpy\.dtype\[numpy\.(\w+)\]\]", r"NDArray[\1]", text)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text).replace("'", "").replace('"', "")


def _paragraphs(value: Any) -> Iterator[str]:
    text = inspect.cleandoc(value.__doc__ or "")
    yield from textwrap.dedent(text).split("\n")


def _fields(kind: type) -> Iterable[str]:
    yield "| field | type |"
    yield "|---|---|"
    for field in dataclasses.fields(kind):
        hint = str(_annotation(field.type)).replace("|", "\\|")
        yield f"| `{field.name}` | {hint.replace('[', chr(92) + '[')} |"


def _results(function: Any) -> dict[str, type]:
    """The dataclass that a function returns, if it is one of ours."""
    hint = inspect.signature(function).return_annotation
    is_ours = inspect.isclass(hint) and hint.__module__.startswith("regraft.")
    return {hint.__name__: hint} if is_ours and dataclasses.is_dataclass(hint) else {}
