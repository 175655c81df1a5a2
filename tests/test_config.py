"""Settings: layers in order, every problem at once, each with the nearest valid name."""

import dataclasses

import pytest

from regraft.config import (
    PRESET_HELP,
    PRESETS,
    SIZES,
    Settings,
    flat,
    parse_assignments,
    read_setting_help,
    replace,
    resolve,
    setting_help,
    settings_from_dict,
    settings_to_dict,
    with_size,
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
    # A flag goes before the file: what is typed last is meant.
    settings = resolve("pretrain", size="tiny", config_path=path, overrides={"train.seed": "9"})
    assert settings.preset == "lab"
    assert (settings.model.width, settings.model.num_layers) == SIZES["tiny"][:2]
    assert (settings.train.lr, settings.train.seed) == (0.5, 9)
    assert resolve("pretrain", config_path=path).model.width == 32
    assert resolve("pretrain", preset="modern", config_path=path).preset == "modern"


def test_a_later_length_replaces_an_earlier_one():
    assert resolve("pretrain").train.minutes is not None
    train = resolve("pretrain", overrides={"train.steps": 7}).train
    assert (train.steps, train.minutes, train.epochs) == (7, None, None)


def test_none_switches_off_and_absent_flags_are_skipped(tmp_path):
    overrides = {"train.clip_norm": "none", "train.lr": None, "train.class_weight": "None"}
    train = resolve("pretrain", overrides=overrides).train
    assert (train.clip_norm, train.class_weight) == (None, None)
    assert train.lr == resolve("pretrain").train.lr
    path = tmp_path / "run.toml"
    path.write_text('[train]\nclip_norm = "none"\n')
    assert resolve("pretrain", config_path=path).train.clip_norm is None


def test_base_lends_its_preset_shape_and_tokenizer():
    base = resolve("pretrain", preset="lab", size="tiny", overrides={"tokenizer.size": 900})
    settings = resolve("finetune", base=base, overrides={"model.dropout": 0.2, "model.width": 64})
    assert settings.preset == "lab"
    assert (settings.model.width, settings.model.num_layers) == (64, 2)
    assert (settings.model.dropout, settings.tokenizer.size) == (0.2, 900)
    modern = resolve("finetune", base=base, preset="modern")
    assert (modern.preset, modern.head.pooling, modern.model.width) == ("modern", "mean", 64)


def test_base_refuses_to_be_changed():
    base = resolve("pretrain", size="tiny")
    with pytest.raises(ConfigError) as caught:
        resolve("finetune", base=base, overrides={"model.width": 32, "tokenizer.size": 300})
    assert caught.value.problem == (
        "2 settings are wrong: model.width: the base has 64, which 32 cannot change; "
        "tokenizer.size: the base has 8192, which 300 cannot change."
    )


def test_derived_values_are_what_is_saved():
    for preset, width in (("lab", 64), ("bert", 256), ("modern", 128)):
        model = resolve("pretrain", preset=preset, size="tiny").model
        assert (model.family, model.feedforward_width) == (preset, width)
    overrides = {"model.feedforward_width": "auto"}
    assert resolve("pretrain", size="tiny", overrides=overrides).model.feedforward_width == 128


@pytest.mark.parametrize(
    ("preset", "kind", "attention"),
    [
        ("lab", "causal", "causal"),
        ("lab", "masked", "bidirectional"),
        ("bert", "sop", "bidirectional"),
        ("modern", "hybrid", "bidirectional"),
        ("modern", "causal", "causal"),
    ],
)
def test_objective_decides_where_a_token_looks(preset, kind, attention):
    settings = resolve("pretrain", preset=preset, overrides={"objective.kind": kind})
    assert settings.model.attention == attention
    other = "causal" if attention == "bidirectional" else "bidirectional"
    overrides = {"objective.kind": kind, "model.attention": other}
    with pytest.raises(ConfigError, match=r"model\.attention"):
        resolve("pretrain", preset=preset, overrides=overrides)


def test_size_keeps_the_family_s_feedforward_width():
    settings = resolve("pretrain", size="auto")
    assert with_size(settings, "small").model.feedforward_width == 512


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
        (
            {"model.width": 255, "model.num_heads": 5, "model.family": "lab"},
            "model.width: 255 is odd",
        ),
        (
            {"model.width": 255, "model.num_heads": 5},
            "model.num_heads: 5 heads of width 51; rotary positions turn pairs of columns",
        ),
        ({"objective.mask_rate": 0}, "objective.mask_rate: input should be greater than 0"),
        ({"objective.mask_rate": 1}, "objective.mask_rate: input should be less than 1"),
        ({"objective.kind": "bert"}, "objective.kind: bert reads two sentences, told apart by"),
        (
            {"objective.kind": "causal", "model.attention": "bidirectional"},
            "bidirectional would show a causal objective the token that it has to predict",
        ),
        ({"model.max_positions": 100}, "data.max_length: 256 exceeds model.max_positions 100"),
        ({"train.steps": 3, "train.epochs": 2}, "train: epochs and steps are both set; give one"),
        ({"train.threads": 0}, "train.threads: 0 is not at least 1"),
        ({"train.optimizer": "muon", "train.parallel": "fsdp"}, "muon needs whole matrices"),
    ],
)
def test_contradictions_are_refused(overrides, expected):
    assert expected in error_of(overrides=overrides)


@pytest.mark.parametrize("name", ["steps", "epochs", "minutes"])
def test_training_without_an_end_is_refused(name):
    assert "train: give steps, epochs or minutes" in error_of(overrides={f"train.{name}": "none"})


@pytest.mark.parametrize("minutes", ["inf", "nan", "1e9", "0", "-1"])
def test_minutes_must_end(minutes):
    assert "1 setting is wrong: train.minutes: input should be " in error_of(
        overrides={"train.minutes": minutes}
    )


def test_settings_need_a_length():
    with pytest.raises(TypeError, match="train"):
        Settings()


def test_unknown_preset_and_size_are_named():
    assert (
        error_of(preset="labb")
        == "There is no preset 'labb'. Presets are lab, bert, modern. Did you mean 'lab'?"
    )
    assert "size: 'huge' is not one of auto, tiny, mini, small, base" in error_of(size="huge")


def test_bad_config_files_are_named(tmp_path):
    assert "Cannot read the configuration" in error_of(config_path=tmp_path / "none.toml")
    path = tmp_path / "bad.toml"
    path.write_text("[train\n")
    assert "is not valid TOML" in error_of(config_path=path)
    path.write_text("[trainn]\nlr = 1\n")
    assert "trainn: there is no such setting. Did you mean 'train'" in error_of(config_path=path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("preset = 5", "There is no preset 5. Presets are lab, bert, modern."),
        ('preset = ["lab"]', "There is no preset ['lab']. Presets are lab, bert, modern."),
        (
            "train = 5",
            "1 setting is wrong: train: a section holds settings, such as train.lr = 3e-4, not 5.",
        ),
    ],
)
def test_values_of_the_wrong_kind_in_a_file_are_named(tmp_path, content, expected):
    path = tmp_path / "bad.toml"
    path.write_text(content)
    assert error_of(config_path=path, overrides={"train.seed": 3}).startswith(expected)


def test_assignments_are_parsed_or_refused():
    assert parse_assignments(["train.lr = 3e-4"]) == {"train.lr": "3e-4"}
    with pytest.raises(ConfigError, match=r"'train\.lr' is not an assignment"):
        parse_assignments(["train.lr"])


def test_every_setting_has_help_of_its_own():
    rows = list(read_setting_help())
    settings = resolve("pretrain")
    count = sum(len(dataclasses.fields(getattr(settings, section))) for section in SECTIONS)
    assert len(rows) == count
    assert len({row.help for row in rows}) == count
    assert setting_help("train.lr") == "Peak learning rate."


SECTIONS = ("model", "objective", "head", "tokenizer", "data", "train")


def test_flat_names_every_value_by_its_path():
    nested = {"preset": "lab", "train": {"lr": 1, "deep": {"er": None}}}
    assert flat(nested) == {"preset": "lab", "train.lr": 1, "train.deep.er": None}


def test_replace_changes_one_section_only():
    settings = resolve("finetune")
    changed = replace(settings, "train", seed=5)
    assert changed.train.seed == 5
    assert changed.model == settings.model
