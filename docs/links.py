"""mkdocs hook: show pages from outside docs/, and rewrite links that lead out of it.

In the repository links are relative to their file, so that they work on the host. On the site a
link to a file that the site does not contain, such as a source file, becomes plain text.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# Pages outside docs/ that the site shows, and where.
OUTSIDE = {
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks/README.md": "benchmarks.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for name, shown in OUTSIDE.items():
        files.append(File.generated(config, shown, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page for the site."""
    source = Path(page.file.abs_src_path)
    parts = CODE.split(markdown)
    # Odd parts are code, which contains no links.
    parts[::2] = [
        LINK.sub(lambda link: _rewritten(link, source=source, page=page, files=files), part)
        for part in parts[::2]
    ]
    return "".join(parts)


def site_path(path: Path) -> str:
    """The place of a repository file on the site, whether it is there or not."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    name = path.relative_to(ROOT).as_posix()
    return OUTSIDE.get(name, name)


def _rewritten(link: re.Match[str], *, source: Path, page: Any, files: Files) -> str:
    bang, text, target, anchor = link.groups()
    if not target or re.match(r"[a-z]+:", target):
        return link.group()
    path = Path(os.path.normpath(source.parent / target))
    if not path.is_relative_to(ROOT):
        return link.group()  # mkdocs will warn of it
    if path == ROOT / "README.md":
        path = ROOT / "docs" / "index.md"
    if files.get_file_from_path(site_path(path)) is None:
        return link.group() if not path.exists() else text
    here = Path(page.file.src_uri).parent
    return f"{bang}[{text}]({os.path.relpath(site_path(path), here)}{anchor or ''})"
