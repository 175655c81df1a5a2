"""Settings: layers in order, every problem at once, each with the nearest valid name."""

import dataclasses

import pytest

from regraft.config import (
    PRESET_HELP,
    PRESETS,
    SIZES,
    Settings,
    parse_assignments,
    read_setting_help,
    replace,
    resolve,
    setting_help,
    settings_from_dict,
    settings_to_dict,
)
from regraft.errors import ConfigError


def error_of(**arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve("pretrain", **arguments)
    return str(caught.value)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("recipe", ["pretrain", "finetune"])
def test_every_preset_resolves_and_round_trips(preset, recipe):
    settings = resolve(recipe, preset=preset)
    assert settings.preset == preset
    assert settings_from_dict(settings_to_dict(settings)) == settings
    lengths = (settings.train.steps, settings.train.epochs, settings.train.minutes)
    assert sum(length is not None for length in lengths) == 1
    assert preset in PRESET_HELP


def test_lab_preset_is_the_lab():
    settings = resolve("finetune", preset="lab")
    model, train = settings.model, settings.train
    shape = (model.width, model.num_layers, model.num_heads, model.feedforward_width)
    assert shape == (200, 4, 2, 200)
    assert (model.dropout, model.max_positions) == (0.5, 5000)
    assert settings.tokenizer.size == 50_001
    assert (train.optimizer, train.lr, train.batch_size, train.schedule) == (
        "adam",
        1e-4,
        8,
        "constant",
    )
    assert settings.data.max_length == 512
    assert settings.head.pooling == "last"


def test_layers_apply_in_order(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('preset = "lab"\n[train]\nlr = 0.5\nseed = 4\n[model]\nwidth = 32\n')
    settings = resolve("pretrain", size="tiny", config_path=path, overrides={"train.seed": "9"})
    assert settings.preset == "lab"
    assert settings.model.num_layers == SIZES["tiny"][1]
    assert settings.model.width == 32
    assert (settings.train.lr, settings.train.seed) == (0.5, 9)
    assert resolve("pretrain", preset="laptop", config_path=path).preset == "laptop"


def test_a_later_length_replaces_an_earlier_one():
    assert resolve("pretrain").train.minutes is not None
    train = resolve("pretrain", overrides={"train.steps": 7}).train
    assert (train.steps, train.minutes, train.epochs) == (7, None, None)


def test_none_switches_off_and_absent_flags_are_skipped():
    overrides = {"train.clip_norm": "none", "train.lr": None, "train.class_weight": "none"}
    train = resolve("pretrain", overrides=overrides).train
    assert train.clip_norm is None
    assert train.lr == resolve("pretrain").train.lr
    assert train.class_weight == "none"


def test_derived_values_are_what_is_saved():
    assert resolve("pretrain", size="tiny").model.feedforward_width == 64


def test_all_problems_are_reported_at_once():
    message = error_of(
        overrides={"train.lr": "fast", "model.dropout": "1.5", "train.stepz": "3", "lr": "1"}
    )
    assert message.startswith("4 settings are wrong: ")
    assert "train.lr: input should be a valid number" in message
    assert "not 'fast'" in message
    assert "model.dropout: input should be less than 1" in message
    assert "train.stepz: there is no such setting. Did you mean 'train.steps'?" in message
    assert "lr: a setting is written section.key" in message


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"model.num_heads": 3}, "model.num_heads: 3 does not divide model.width 256"),
        ({"model.width": 255, "model.num_heads": 5}, "model.width: 255 is odd"),
        ({"model.max_positions": 100}, "data.max_length: 256 exceeds model.max_positions 100"),
        ({"train.steps": 3, "train.epochs": 2}, "train: epochs and steps are both set; give one"),
        ({"train.micro_batch_size": 5}, "5 does not divide train.batch_size 16"),
    ],
)
def test_contradictions_are_refused(overrides, expected):
    assert expected in error_of(overrides=overrides)


def test_unknown_preset_and_size_are_named():
    assert (
        error_of(preset="labb")
        == "There is no preset 'labb'. Presets are lab, laptop. Did you mean 'lab'?"
    )
    assert "size: 'huge' is not one of tiny, mini, small, base" in error_of(size="huge")


def test_bad_config_files_are_named(tmp_path):
    assert "Cannot read the configuration" in error_of(config_path=tmp_path / "none.toml")
    path = tmp_path / "bad.toml"
    path.write_text("[train\n")
    assert "is not valid TOML" in error_of(config_path=path)
    path.write_text("[trainn]\nlr = 1\n")
    assert "trainn: there is no such setting. Did you mean 'train'" in error_of(config_path=path)


def test_assignments_are_parsed_or_refused():
    assert parse_assignments(["train.lr = 3e-4"]) == {"train.lr": "3e-4"}
    with pytest.raises(ConfigError, match=r"'train\.lr' is not an assignment"):
        parse_assignments(["train.lr"])


def test_every_setting_has_help_of_its_own():
    rows = list(read_setting_help())
    count = sum(len(dataclasses.fields(type(getattr(Settings(), s)))) for s in SECTIONS)
    assert len(rows) == count
    assert len({row.help for row in rows}) == count
    assert setting_help("train.lr") == "Peak learning rate."


SECTIONS = ("model", "head", "tokenizer", "data", "train")


def test_replace_changes_one_section_only():
    settings = resolve("finetune")
    changed = replace(settings, "train", seed=5)
    assert changed.train.seed == 5
    assert changed.model == settings.model
