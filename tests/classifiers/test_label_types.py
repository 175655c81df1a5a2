"""Labels that are numbers in Python, and strings in a run folder."""

from pathlib import Path
from typing import Any

import pytest

from regraft.classifiers.label_types import label_type, read_labels, typed_labels, write_label_type
from regraft.errors import RunFolderError


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([False, True], "bool"),
        ([-1, 2, 10], "int"),
        ([0.5, 1.0], "float"),
        (["a", "1"], None),
    ],
)
def test_labels_are_read_as_they_were(labels: list[Any], kind: str | None, tmp_path: Path) -> None:
    assert label_type(labels) == kind
    write_label_type(tmp_path, kind)
    assert any(tmp_path.iterdir()) == (kind is not None)
    assert read_labels(tmp_path, list(map(str, labels))).tolist() == labels


def test_names_that_are_no_numbers_have_no_type() -> None:
    assert typed_labels(["1", "x"], kind="int") is None
    assert typed_labels(["1", "2"], kind=None) is None
    assert typed_labels(["1", "2"], kind="list") is None


@pytest.mark.parametrize("content", ["{", '{"format_version": 1, "type": "int"}', "[]"])
def test_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    write_label_type(tmp_path, "int")
    if '"int"' not in content:
        (tmp_path / "label_type.json").write_text(content)
    with pytest.raises(RunFolderError, match="label_type"):
        read_labels(tmp_path, ["a", "b"])
