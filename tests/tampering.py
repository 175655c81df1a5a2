"""Changes of run folders by someone who computes new checksums, as a careful attacker would."""

import json
from pathlib import Path
from typing import Any

from regraft.runtime.files import write_json
from regraft.runtime.manifest import checksums, with_checksum


def change_facts(path: Path, **changes: Any) -> None:
    """Change values in run.json or member.json; `...` removes one."""
    values = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    write_json(path, with_checksum({k: v for k, v in values.items() if v is not ...}))


def accept_files(run_dir: Path) -> None:
    """Make the files of a run folder, as they are now, those that run.json lists."""
    files = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["files"]
    change_facts(run_dir / "run.json", files=checksums(run_dir, [run_dir / n for n in files]))
