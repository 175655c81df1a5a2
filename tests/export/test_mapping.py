"""Which class holds which model; what none holds is refused with its reason and a way out."""

import pytest
from random_runs import tiny_tokenizer, write_run

from regraft.errors import ConfigError
from regraft.export.mapping import check_expressible, translations
from regraft.training.loaded_run import load_run


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


# What is refused, with facts that the error names.
REFUSED = {
    ("lab", "masked", None): ("both ways", "onnx", "bert"),
    ("lab", "hybrid", None): ("both ways",),
    ("lab", "masked", "last"): ("both ways",),
    ("lab", "causal", "mean"): ("pools mean", "OPTForSequenceClassification", "pooling=last"),
    ("bert", "masked", "mean"): ("BertForSequenceClassification pools first",),
    ("bert", "masked", "last"): ("head.pooling=first",),
    ("modern", "masked", "last"): ("ModernBertForSequenceClassification pools mean or first",),
    ("modern", "causal", "mean"): ("ModernBertDecoderForSequenceClassification pools last",),
    ("modern", "causal", "first"): ("head.pooling=last",),
    ("modern", "replaced", None): ("objective replaced", "ELECTRA", "onnx", "bert"),
    ("lab", "replaced", None): ("objective replaced",),
}


@pytest.mark.parametrize(("preset", "objective", "pooling"), REFUSED)
def test_what_no_class_holds_is_refused(preset, objective, pooling, tokenizer, tmp_path):
    run_dir = write_run(
        tmp_path / "run", preset=preset, objective=objective, pooling=pooling, tokenizer=tokenizer
    )
    with pytest.raises(ConfigError) as caught:
        translations(load_run(run_dir))
    assert str(caught.value).startswith(f"{run_dir} is a {preset}")
    for fact in REFUSED[preset, objective, pooling]:
        assert fact in str(caught.value)


def test_parts_lie_in_folders_of_their_own(tokenizer, tmp_path):
    hybrid = write_run(tmp_path / "a", preset="bert", objective="hybrid", tokenizer=tokenizer)
    assert [part.folder for part in translations(load_run(hybrid))] == ["", "causal"]
    replaced = write_run(tmp_path / "b", preset="bert", objective="replaced", tokenizer=tokenizer)
    parts = translations(load_run(replaced))
    assert [part.folder for part in parts] == ["", "generator"]
    assert [part.task for part in parts] == ["feature-extraction", "fill-mask"]
    assert parts[1].config["hidden_size"] == 6
    assert parts[1].config["embedding_size"] == 24


def test_norms_have_our_epsilon(tokenizer, tmp_path):
    run_dir = write_run(tmp_path / "run", preset="bert", objective="masked", tokenizer=tokenizer)
    run = load_run(run_dir)
    (part,) = translations(run)
    assert part.config["layer_norm_eps"] == run.model.backbone.embedding_norm.eps


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_bag_is_like_no_class(pooling, tokenizer, tmp_path):
    parts = {"preset": "bag", "objective": "contrast", "pooling": pooling}
    run_dir = write_run(tmp_path / "run", tokenizer=tokenizer, **parts)
    with pytest.raises(ConfigError) as caught:
        check_expressible(load_run(run_dir))
    assert str(caught.value).startswith(f"{run_dir} is of the bag family")
    assert "--format onnx" in caught.value.remedy
