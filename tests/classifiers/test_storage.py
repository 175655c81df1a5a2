"""Members on disk: what was written comes back, and what is wrong with a folder is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from tampering import change_facts

from regraft.classifiers.storage import Stored, load_member, rebuilding, save_member
from regraft.errors import RunFolderError


def stored() -> Stored:
    return Stored(
        facts={"labels": ["no", "oui"], "width": 3},
        arrays={
            "halves": np.arange(6, dtype=np.float32).reshape(2, 3) / 2,
            "turned": np.arange(6.0).reshape(2, 3).T,
        },
        terms={"words": ["été", "\N{SNOWMAN}", "\ud800 half", ""]},
    )


def saved(folder: Path) -> Path:
    save_member(folder, stored(), kind="linear")
    return folder


def error_of(folder: Path, *, kind: str = "linear") -> RunFolderError:
    with pytest.raises(RunFolderError) as caught:
        load_member(folder, kind=kind)
    assert caught.value.problem
    assert caught.value.expected
    assert caught.value.remedy
    return caught.value


def test_member_comes_back_as_it_was(tmp_path):
    again = load_member(saved(tmp_path / "deep" / "linear"), kind="linear")
    assert again.terms == stored().terms
    assert again.facts["labels"] == ["no", "oui"]
    for name, array in stored().arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
        assert again.arrays[name].dtype == array.dtype


def test_member_is_json_and_safetensors_only(tmp_path):
    names = {path.name for path in saved(tmp_path).iterdir()}
    assert names == {"member.json", "vocabulary.json", "member.safetensors"}


def test_member_can_be_written_twice(tmp_path):
    once = load_member(saved(tmp_path), kind="linear")
    again = load_member(saved(tmp_path), kind="linear")
    assert again.facts == once.facts
    assert again.arrays.keys() == once.arrays.keys()


def test_missing_member_is_named(tmp_path):
    assert error_of(tmp_path / "nowhere").problem == (
        f"There is no member in {tmp_path / 'nowhere'}: member.json is missing."
    )
    (saved(tmp_path) / "vocabulary.json").unlink()
    assert error_of(tmp_path).problem == (
        f"There is no member in {tmp_path}: vocabulary.json is missing."
    )


@pytest.mark.parametrize("name", ["member.safetensors", "vocabulary.json"])
def test_changed_file_is_called_damaged(tmp_path, name):
    path = saved(tmp_path) / name
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    error = error_of(tmp_path)
    assert error.problem == f"{path} is damaged: it changed since it was written."
    assert error.remedy == "Restore the folder from a copy, or fit again."


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]"])
def test_unreadable_facts_are_refused(tmp_path, content):
    path = saved(tmp_path) / "member.json"
    path.write_bytes(content)
    assert error_of(tmp_path).problem.startswith(f"{path} cannot be read: ")


def test_foreign_json_is_refused(tmp_path):
    (saved(tmp_path) / "member.json").write_text('{"name": "left-pad"}', encoding="utf-8")
    assert "format_version None" in error_of(tmp_path).problem


def test_facts_without_checksums_are_refused(tmp_path):
    change_facts(saved(tmp_path) / "member.json", sha256={})
    assert error_of(tmp_path).problem == (
        f"{tmp_path / 'member.json'} describes no linear member: member.safetensors is missing."
    )


def test_arrays_that_are_no_safetensors_are_refused(tmp_path):
    import hashlib

    data = b"not safe"
    (saved(tmp_path) / "member.safetensors").write_bytes(data)
    sums = json.loads((tmp_path / "member.json").read_text(encoding="utf-8"))["sha256"]
    sums["member.safetensors"] = hashlib.sha256(data).hexdigest()
    change_facts(tmp_path / "member.json", sha256=sums)
    assert error_of(tmp_path).problem.startswith(
        f"{tmp_path / 'member.safetensors'} cannot be read: "
    )


def test_another_format_is_refused(tmp_path):
    change_facts(saved(tmp_path) / "member.json", format_version=2)
    error = error_of(tmp_path)
    assert str(tmp_path) in error.problem
    assert "format_version 2" in error.problem


def test_other_kind_is_refused(tmp_path):
    error = error_of(saved(tmp_path), kind="latent")
    assert all(word in str(error) for word in (str(tmp_path), "linear", "latent"))


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        (KeyError("labels"), "labels is missing"),
        (ValueError("coefficients are (1, 2), not (1, 3)"), "coefficients are (1, 2), not (1, 3)"),
    ],
)
def test_parts_that_do_not_fit_are_the_folders_fault(tmp_path, mistake, reason):
    with pytest.raises(RunFolderError) as caught, rebuilding(tmp_path, kind="latent"):
        raise mistake
    assert caught.value.problem == (
        f"{tmp_path / 'member.json'} describes no latent member: {reason}."
    )
