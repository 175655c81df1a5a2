"""Which class holds which model; what none holds is refused with its reason and a way out."""

import pytest
from random_runs import tiny_tokenizer, write_run

from regraft.errors import ConfigError
from regraft.interop.translation import check_expressible, translations
from regraft.runfolder import load_run


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


REFUSED = {
    ("lab", "masked", None): (
        "is a lab model that looks both ways, which no class of transformers holds. OPT has the "
        "lab's block, but looks to the left only. Take --format onnx, or pre-train with "
        "--objective causal or --preset bert."
    ),
    ("lab", "hybrid", None): "is a lab model that looks both ways",
    ("lab", "masked", "last"): "is a lab model that looks both ways",
    ("lab", "causal", "mean"): (
        "is a lab classifier that pools mean, which no class of transformers does. "
        "OPTForSequenceClassification pools last. Fine-tune again with --set head.pooling=last, or "
        "take --format onnx."
    ),
    ("bert", "masked", "mean"): "BertForSequenceClassification pools first.",
    ("bert", "masked", "last"): "Fine-tune again with --set head.pooling=first",
    ("modern", "masked", "last"): "ModernBertForSequenceClassification pools mean or first.",
    ("modern", "causal", "mean"): "ModernBertDecoderForSequenceClassification pools last.",
    ("modern", "causal", "first"): "Fine-tune again with --set head.pooling=last",
    ("modern", "replaced", None): (
        "is a modern model pre-trained by the objective replaced, which no class of transformers "
        "holds. ELECTRA's block is BERT's: biases, learned positions. Export a classifier grafted "
        "onto it, take --format onnx, or pre-train with --preset bert."
    ),
    ("lab", "replaced", None): "is a lab model pre-trained by the objective replaced",
}


@pytest.mark.parametrize(("preset", "objective", "pooling"), REFUSED)
def test_what_no_class_holds_is_refused(preset, objective, pooling, tokenizer, tmp_path):
    run_dir = write_run(
        tmp_path / "run", preset=preset, objective=objective, pooling=pooling, tokenizer=tokenizer
    )
    with pytest.raises(ConfigError) as caught:
        translations(load_run(run_dir))
    assert str(caught.value).startswith(f"{run_dir} is a {preset}")
    assert REFUSED[preset, objective, pooling] in str(caught.value)


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
    assert str(caught.value) == (
        f"{run_dir} is of the bag family, which no class of transformers can express. None of them "
        "looks up vectors for pairs of neighbours. Export a classifier on it with --format onnx, "
        "or take a base of another --preset."
    )
