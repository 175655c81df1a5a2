"""Settings: layers in order, every problem at once, each with the nearest valid name."""

import dataclasses

import pytest

from regraft.config.presets import PRESET_HELP, PRESETS, SIZES
from regraft.config.resolution import (
    flat,
    parse_assignments,
    replace,
    resolve,
    settings_from_dict,
    settings_to_dict,
    with_size,
)
from regraft.config.schema import (
    ModelSettings,
    Settings,
    generator_settings,
    read_setting_help,
    setting_help,
)
from regraft.errors import ConfigError


def error_of(**arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve("pretrain", **arguments)
    return str(caught.value)


def test_assignments_are_parsed_or_refused():
    assert parse_assignments(["train.lr = 3e-4"]) == {"train.lr": "3e-4"}
    with pytest.raises(ConfigError, match=r"train\.lr"):
        parse_assignments(["train.lr"])


def test_none_is_off_except_inside_the_architecture_of_a_foreign_model():
    values = settings_to_dict(resolve("finetune"))
    values["train"]["clip_norm"] = "None"
    values["model"] |= {"family": "foreign", "architecture": {"act": "none"}}
    settings = settings_from_dict(values)
    assert settings.train.clip_norm is None
    assert settings.model.architecture == {"act": "none"}


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
    for fact in ("2 settings", "model.width: the base has 64", "tokenizer.size: the base has 8192"):
        assert fact in caught.value.problem


def test_derived_values_are_what_is_saved():
    for preset, width in (("lab", 64), ("bert", 256), ("modern", 128), ("bag", 64)):
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
        ("modern", "contrast", "bidirectional"),
        ("bag", "contrast", "bidirectional"),
    ],
)
def test_objective_decides_where_a_token_looks(preset, kind, attention):
    settings = resolve("pretrain", preset=preset, overrides={"objective.kind": kind})
    assert settings.model.attention == attention
    other = "causal" if attention == "bidirectional" else "bidirectional"
    overrides = {"objective.kind": kind, "model.attention": other}
    with pytest.raises(ConfigError, match=r"model\.attention"):
        resolve("pretrain", preset=preset, overrides=overrides)


@pytest.mark.parametrize(
    ("share", "num_heads", "feedforward_width"),
    [(0.01, 1, 1), (0.34, 1, 2), (0.6, 2, 4), (1, 3, 7)],
)
def test_generator_has_fewer_heads_of_the_same_width(share, num_heads, feedforward_width):
    model = ModelSettings(width=12, num_heads=3, feedforward_width=7)
    narrow = generator_settings(model, share=share)
    assert (narrow.num_heads, narrow.feedforward_width) == (num_heads, feedforward_width)
    assert narrow.width // narrow.num_heads == model.width // model.num_heads == 4


def test_generator_takes_its_share_of_a_width_left_to_the_family():
    model = ModelSettings(family="bert", width=12, num_heads=3)
    assert generator_settings(model, share=0.5).feedforward_width == 24


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
            "model.num_heads: 5 heads of width 51",
        ),
        ({"objective.mask_rate": 0}, "objective.mask_rate: input should be greater than 0"),
        ({"objective.mask_rate": 1}, "objective.mask_rate: input should be less than 1"),
        ({"objective.kind": "bert"}, "objective.kind: bert "),
        (
            {"objective.kind": "causal", "model.attention": "bidirectional"},
            "model.attention: bidirectional",
        ),
        ({"model.max_positions": 100}, "data.max_length: 256 exceeds model.max_positions 100"),
        ({"train.steps": 3, "train.epochs": 2}, "train: epochs and steps"),
        ({"train.threads": 0}, "train.threads: 0"),
        ({"train.optimizer": "muon", "train.parallel": "fsdp"}, "muon needs whole matrices"),
        ({"train.optimizer": "rowwise", "train.parallel": "fsdp"}, "rowwise needs whole tables"),
        ({"train.optimizer": "rowwise", "train.layer_decay": 0.9}, "layer_decay"),
        (
            {"model.num_layers": 0},
            "model.num_layers: 0",
        ),
        ({"objective.group_size": 1}, "objective.group_size: input should be greater than or"),
        ({"model.num_pairs": 0}, "model.num_pairs: input should be greater than or"),
    ],
)
def test_contradictions_are_refused(overrides, expected):
    assert expected in error_of(overrides=overrides)


def test_bag_has_no_layers_and_predicts_no_tokens():
    given = {"model.num_layers": 2, "objective.kind": "masked"}
    problem = error_of(preset="bag", overrides=given)
    assert "2 settings" in problem
    assert "model.num_layers: 2" in problem
    for kind in ("causal", "masked", "replaced", "hybrid"):
        assert f"objective.kind: {kind} predicts tokens" in error_of(
            preset="bag", overrides={"objective.kind": kind}
        )
    assert "reads two sentences" in error_of(preset="bag", overrides={"objective.kind": "bert"})


@pytest.mark.parametrize("size", SIZES)
def test_size_of_a_bag_is_its_width(size):
    model = resolve("pretrain", preset="bag", size=size).model
    assert (model.width, model.num_layers, model.num_heads) == (SIZES[size][0], 0, 1)
    minutes = {"train.minutes": 1.0}
    settings = resolve("pretrain", preset="bag", size="auto", overrides=minutes)
    assert with_size(settings, size).model == model


HIDING = "masked, bert, sop, replaced, hybrid"
PACKING = "causal, masked, replaced, hybrid"


@pytest.mark.parametrize(
    ("kind", "key", "value", "readers"),
    [
        ("causal", "objective.mask_rate", 0.3, HIDING),
        ("causal", "objective.mask_rate_end", 0.3, HIDING),
        ("causal", "objective.masking", "word", HIDING),
        ("causal", "objective.causal_share", 0.5, "hybrid"),
        ("masked", "objective.causal_share", 0.5, "hybrid"),
        ("masked", "objective.generator_share", 0.5, "replaced"),
        ("hybrid", "objective.generator_share", 0.5, "replaced"),
        ("bert", "data.packing", "isolated", PACKING),
        ("sop", "data.packing", "document", PACKING),
        ("contrast", "objective.mask_rate", 0.3, HIDING),
        ("contrast", "data.packing", "isolated", PACKING),
    ],
)
def test_setting_that_the_objective_does_not_read_is_refused(tmp_path, kind, key, value, readers):
    expected = f"1 setting is wrong: {key}: {value} has no effect on the objective {kind}, "
    given = {"objective.kind": kind, key: str(value)}
    assert error_of(preset="bert", overrides=given).startswith(expected)
    path = tmp_path / "run.toml"
    section, name = key.split(".")
    path.write_text(f"{section}.{name} = {value!r}\n")
    assert error_of(preset="bert", config_path=path, overrides={"objective.kind": kind}).startswith(
        expected
    )
    for reader in readers.split(", "):
        settings = resolve("pretrain", preset="bert", overrides={**given, "objective.kind": reader})
        assert getattr(getattr(settings, section), name) == value


# The preset student has a stage, which objectives of one stage refuse.
@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "student"])
@pytest.mark.parametrize(
    "kind", ["causal", "masked", "bert", "sop", "replaced", "hybrid", "contrast"]
)
def test_what_a_preset_or_a_default_says_may_have_no_effect(preset, kind):
    carried = resolve("pretrain", preset=preset)
    defaults = Settings(train=carried.train)
    family = {"model.family": "bert", "model.num_layers": 2, "objective.kind": kind}
    for said in (carried, defaults):
        given = {
            "objective.mask_rate": said.objective.mask_rate,
            "objective.masking": said.objective.masking,
            "objective.mask_rate_end": "none",
            "objective.causal_share": str(said.objective.causal_share),
            "objective.generator_share": said.objective.generator_share,
            "objective.group_size": said.objective.group_size,
            "data.packing": said.data.packing,
        }
        settings = resolve("pretrain", preset=preset, overrides={**given, **family})
        assert settings.data.packing == said.data.packing


def test_a_file_for_both_recipes_may_say_what_only_pretraining_reads(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text('[data]\npacking = "document"\n')
    base = resolve("pretrain", preset="bert")
    assert resolve("finetune", base=base, config_path=path).data.packing == "document"


@pytest.mark.parametrize("name", ["steps", "epochs", "minutes"])
def test_training_without_an_end_is_refused(name):
    assert "train: set steps, epochs or minutes" in error_of(overrides={f"train.{name}": "none"})


@pytest.mark.parametrize("minutes", ["inf", "nan", "1e9", "0", "-1"])
def test_minutes_must_end(minutes):
    assert "1 setting is wrong: train.minutes: input should be " in error_of(
        overrides={"train.minutes": minutes}
    )


def test_settings_need_a_length():
    with pytest.raises(TypeError, match="train"):
        Settings()


def test_unknown_preset_and_size_are_named():
    assert error_of(preset="labb") == (
        "There is no preset 'labb'. Presets are lab, bert, modern, bag, student. Did you mean "
        "'lab'?"
    )
    assert "size: 'huge' is not one of auto, tiny, mini, small, base" in error_of(size="huge")


def test_bad_config_files_are_named(tmp_path):
    assert "Cannot read the configuration" in error_of(config_path=tmp_path / "none.toml")
    path = tmp_path / "bad.toml"
    path.write_text("[train\n")
    assert "is not valid TOML" in error_of(config_path=path)
    path.write_bytes(b"\xff\xfe")
    assert "bad.toml is not valid TOML" in error_of(config_path=path)
    path.write_text("[trainn]\nlr = 1\n")
    assert "trainn: there is no such setting. Did you mean 'train'" in error_of(config_path=path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("preset = 5", "There is no preset 5. Presets are lab, bert, modern, bag, student."),
        (
            'preset = ["lab"]',
            "There is no preset ['lab']. Presets are lab, bert, modern, bag, student.",
        ),
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


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"train.reinit_layers": 4}, "train.reinit_layers: 4"),
        (
            {"train.rdrop": 1, "model.dropout": 0},
            "train.rdrop: ",
        ),
        (
            {"train.auxiliary_weight": 0.5, "objective.kind": "replaced"},
            "train.auxiliary_weight: the objective replaced",
        ),
        (
            {"train.lora_rank": 4},
            "train.lora_rank: for foreign bases only",
        ),
        (
            {"train.least_steps": 100, "train.steps": 50},
            "train.least_steps: ",
        ),
        (
            {"train.layer_decay": 0.9, "train.freeze_base": True},
            "train.layer_decay: has no effect",
        ),
    ],
)
def test_methods_of_finetuning_that_cannot_work_are_refused(overrides, expected):
    with pytest.raises(ConfigError) as caught:
        resolve("finetune", overrides=overrides)
    assert caught.value.problem.startswith(f"1 setting is wrong: {expected}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base_rate", 0.1),
        ("unfreeze_every", 1),
        ("reinit_layers", 1),
        ("label_smoothing", 0.1),
        ("rdrop", 1.0),
        ("auxiliary_weight", 0.5),
        ("average", "ema"),
        ("patience", 2),
        ("freeze_base", True),
        ("class_weight", "balanced"),
    ],
)
def test_methods_of_finetuning_are_refused_by_pretraining(key, value):
    expected = f"train.{key}: {value} has no effect on pre-training"
    assert expected in error_of(overrides={f"train.{key}": value})


def test_least_steps_are_refused_by_pretraining():
    overrides = {"train.epochs": 1, "train.least_steps": 100}
    assert "train.least_steps: 100 has no effect on pre-training" in error_of(overrides=overrides)


def test_windows_are_refused_by_pretraining():
    assert "data.windows: pre-training reads all text anyway" in error_of(
        overrides={"data.windows": 3}
    )


def test_pooling_that_needs_labels_is_refused_by_pretraining():
    assert "head.pooling: attention" in error_of(overrides={"head.pooling": "attention"})
