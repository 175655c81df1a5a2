"""What regraft stands on: packages with licences, a bill of materials, known vulnerabilities.

Never fails for want of a network: it says what it could not find out. Exit code 1 if a
vulnerability is known.
"""

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

OUT = Path("dist/bill-of-materials.json")
SECONDS = 60


def licence(name: str) -> str:
    """As the package gives it: an expression, classifiers, or the first line of a text."""
    facts = metadata(name)
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in facts.get_all("Classifier", [])
        if line.startswith("License ::")
    ]
    # Not facts[...]: the package importlib-metadata, once imported, raises for a missing field.
    text = (facts.get("License") or "").strip().splitlines()
    expression = facts.get("License-Expression")
    return expression or ", ".join(classifiers) or "".join(text[:1]) or "unknown"


def vulnerabilities() -> tuple[str, int]:
    """What pip-audit says of the installed packages, and how many vulnerabilities it knows."""
    if importlib.util.find_spec("pip_audit") is None:
        return "not looked for: `pip install pip-audit` first", 0
    command = [sys.executable, "-m", "pip_audit", "--local", "--format=json", "--timeout=10"]
    try:
        done = subprocess.run(
            [*command, "--progress-spinner=off"], capture_output=True, text=True, timeout=SECONDS
        )
        packages = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return "not looked for: their list cannot be reached", 0
    known = [package for package in packages if "skip_reason" not in package]
    found = [f"{p['name']} {v['id']}" for p in known for v in p["vulns"]]
    names = ", ".join(found) or "none"
    return f"{names}, in {len(known)} of {len(packages)} packages that the list has", len(found)


def main() -> int:
    inspected = subprocess.run(
        [sys.executable, "-m", "pip", "inspect", "--local", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(inspected)
    packages = [package["metadata"] for package in json.loads(inspected)["installed"]]
    for package in sorted(packages, key=lambda package: package["name"].lower()):
        print(f"{package['name']:32} {package['version']:16} {licence(package['name'])[:60]}")
    said, num_found = vulnerabilities()
    print(f"{len(packages)} packages; bill of materials: {OUT}; known vulnerabilities: {said}")
    return 1 if num_found else 0


if __name__ == "__main__":
    sys.exit(main())
