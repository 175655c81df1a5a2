"""Settings as they are written: what is read, what is refused before any setting is known."""

import pytest

from regraft.assignments import nested, parse_assignments, read_toml, with_none
from regraft.errors import ConfigError


def test_assignments_are_parsed_or_refused():
    assert parse_assignments(["train.lr = 3e-4"]) == {"train.lr": "3e-4"}
    with pytest.raises(ConfigError, match=r"'train\.lr' is not an assignment"):
        parse_assignments(["train.lr"])


def test_dotted_names_are_nested_and_others_are_problems():
    problems: list[str] = []
    given = {"train.lr": 1, "train.seed": None, "model.width": 8, "lr": 2}
    assert nested(given, problems) == {"train": {"lr": 1}, "model": {"width": 8}}
    assert problems == ["lr: a setting is written section.key, such as train.lr"]


def test_none_is_off_but_in_the_words_of_a_foreign_model():
    values = {"train": {"clip_norm": "None", "lr": 1}, "model": {"architecture": {"act": "none"}}}
    assert with_none(values) == {**values, "train": {"clip_norm": None, "lr": 1}}


def test_file_that_is_no_toml_is_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("train.lr = 3e-4\n")
    assert read_toml(path) == {"train": {"lr": 3e-4}}
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"run\.toml is not valid TOML: .* --set\."):
        read_toml(path)
    with pytest.raises(ConfigError, match=r"Cannot read the configuration .*: Is a directory\."):
        read_toml(tmp_path)
