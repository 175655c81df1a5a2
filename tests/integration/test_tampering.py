"""Every JSON value of a run folder in turn is replaced by hostile ones: refused, or harmless.

Once as a careless hand does it, which the checksums find; once by someone who computes new
checksums, where only what the parts mean is left to check.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refusal, run
from tampering import accept_files, change_facts
from tiny_blends import blend_dir

from regraft.classifiers.base import load_classifier
from regraft.errors import RegraftError, RunFolderError
from regraft.runtime.manifest import with_checksum

HOSTILE: tuple[Any, ...] = (None, True, -1, 0, 10**9, 1e308, "", "../../etc", [], {}, [[[[]]]])
TEXTS = ["A fine book.", "No."]


@pytest.fixture(scope="module")
def blend(tmp_path_factory) -> Path:
    return blend_dir(tmp_path_factory, num_labels=2)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a JSON value; of a long list, to its first two parts."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        parts = list(enumerate(value))[:2]
    for key, part in parts:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def json_files(folder: Path) -> list[Path]:
    """Those that loading reads, without the long list of words."""
    listed = json.loads((folder / "run.json").read_text())["files"]
    names = ["run.json", *(name for name in listed if name.endswith(".json"))]
    return [folder / name for name in names if "vocabulary" not in name]


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def outcome(folder: Path, before: np.ndarray) -> str:
    """Refused, harmless (the same answers), or changed: other answers, but valid ones."""
    try:
        probabilities = load_classifier(folder).predict_proba(TEXTS)
    except RegraftError:
        return "refused"
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    is_same = probabilities.shape == before.shape and np.allclose(probabilities, before, atol=1e-9)
    return "harmless" if is_same else "changed"


def mutate(source: Path, folder: Path, *, with_new_checksums: bool, every: int) -> dict[str, int]:
    """Replace every value (or one in `every`) by each hostile one; the number of each outcome."""
    before = load_classifier(source).predict_proba(TEXTS)
    counts = {"refused": 0, "harmless": 0, "changed": 0}
    number = 0
    shutil.copytree(source, folder)
    for path in json_files(folder):
        text = path.read_text()
        listing = (folder / "run.json").read_text()
        value = json.loads(text)
        for place in places(value):
            for new in HOSTILE:
                number += 1
                changed = replaced(value, place, new)
                if number % every or same(changed, value):
                    continue
                if with_new_checksums and "checksum" in value:
                    changed = with_checksum(changed)
                path.write_text(json.dumps(changed))
                if with_new_checksums and path.name != "run.json":
                    accept_files(folder)
                counts[outcome(folder, before)] += 1
                (folder / "run.json").write_text(listing)
        path.write_text(text)
        (folder / "run.json").write_text(listing)
    return counts


@pytest.mark.slow
def test_every_careless_edit_is_refused(blend, tmp_path):
    counts = mutate(blend, tmp_path / "run", with_new_checksums=False, every=97)
    assert counts["refused"] > 5
    assert counts["harmless"] == counts["changed"] == 0


@pytest.mark.slow
def test_every_edit_with_new_checksums_is_refused_or_gives_valid_answers(blend, tmp_path):
    counts = mutate(blend, tmp_path / "run", with_new_checksums=True, every=397)
    assert sum(counts.values()) > 2


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"temperature": 0}, "holds no weights of a blend"),
        ({"temperature": -1.0}, "holds no weights of a blend"),
        ({"temperature": 1e999}, "is not JSON"),
        ({"weights": {"linear": 10.0}}, "holds no weights of a blend"),
        ({"weights": {"../../linear": 1.0}}, "holds no weights of a blend"),
        ({"weights": {"nowhere": 1.0}}, "nowhere is missing"),
    ],
)
def test_weights_and_temperature_that_cannot_be_are_refused(blend, tmp_path, result, problem):
    folder = shutil.copytree(blend, tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    change_facts(folder / "run.json", result={**facts["result"], **result})
    with pytest.raises(RunFolderError, match=problem):
        load_classifier(folder)


def test_labels_in_another_order_are_refused(blend, tmp_path):
    folder = shutil.copytree(blend, tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    change_facts(folder / "run.json", labels=facts["labels"][::-1])
    with pytest.raises(RunFolderError, match="has other labels than"):
        load_classifier(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "1" * 10_000 + "}", '{"a": NaN}'])
def test_json_that_breaks_readers_is_refused_in_every_file(text, blend, tmp_path):
    folder = shutil.copytree(blend, tmp_path / "run")
    for path in json_files(folder):
        before = path.read_text()
        path.write_text(text)
        with pytest.raises(RunFolderError, match=path.name):
            load_classifier(folder)
        path.write_text(before)


@pytest.mark.parametrize("changes", [{"width": 10**9}, {"num_layers": 10**6}])
def test_model_larger_than_its_weights_is_refused_before_it_is_built(
    changes, shared_classifier, tmp_path
):
    folder = shutil.copytree(shared_classifier, tmp_path / "run")
    settings = json.loads((folder / "config.json").read_text())
    settings["model"].update(changes)
    (folder / "config.json").write_text(json.dumps(settings))
    accept_files(folder)
    with pytest.raises(RunFolderError, match=r"config\.json"):
        load_classifier(folder)


def test_verify_names_every_damaged_file(shared_classifier, tmp_path):
    folder = shutil.copytree(shared_classifier, tmp_path / "run")
    result = run("verify", folder)
    assert result.exit_code == 0, result.output
    assert f"{folder} is whole: 4 files" in result.stdout
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text("{}")
    result = run("verify", folder)
    assert result.exit_code == 1
    assert f"{folder / 'tokenizer.json'} is missing" in result.stdout
    assert f"{folder / 'config.json'} is damaged" in result.stdout
    problems = json.loads(run("verify", folder, "--json").stdout)["problems"]
    assert set(problems) == {"tokenizer.json", "config.json"}


def test_signature_says_who_wrote_a_folder(shared_classifier, tmp_path):
    folder = shutil.copytree(shared_classifier, tmp_path / "run")
    keys = [tmp_path / "mine", tmp_path / "other"]
    for number, path in enumerate(keys):
        path.write_bytes(bytes([number]) * 32)
    assert refusal(run("verify", folder, "--key", keys[0])).startswith(f"{folder} is not signed.")
    assert run("verify", folder, "--key", keys[0], "--sign").exit_code == 0
    assert "the signature is right" in run("verify", folder, "--key", keys[0]).stdout
    assert "The signature" in refusal(run("verify", folder, "--key", keys[1]))
    change_facts(folder / "run.json", created="yesterday")  # new checksums, but no key
    assert run("verify", folder).exit_code == 0
    assert "The signature" in refusal(run("verify", folder, "--key", keys[0]))


def test_key_that_is_too_short_is_refused(shared_classifier, tmp_path):
    (tmp_path / "key").write_bytes(b"secret")
    message = refusal(run("verify", shared_classifier, "--key", tmp_path / "key"))
    assert "has 6 bytes" in message
    assert "needs a key" in refusal(run("verify", shared_classifier, "--sign"))
