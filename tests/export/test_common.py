"""What exports share: the tokenizer and the proof of parity."""

import dataclasses
import math
import sys

import pytest
from random_runs import write_run

from regraft.errors import ConfigError, RegraftError
from regraft.export.common import (
    check_family,
    check_ids,
    exported_tokenizer,
    needed,
    read_row,
    sample_texts,
    special_names,
)
from regraft.export.parity import (
    ExportResult,
    Parity,
    check_parity,
)
from regraft.models.heads import Model, NoHead
from regraft.training.loaded_run import LoadedRun, load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> LoadedRun:
    folder = tmp_path_factory.mktemp("delivery") / "run"
    return load_run(write_run(folder, preset="bert", objective="bert", pooling="first"))


def parity(**differences: float | None) -> Parity:
    return Parity("Model", differences, num_texts=2, text="Yes.", vector=(0.5,))


def test_missing_extra_says_what_to_install(monkeypatch):
    for name in ("onnxruntime", "onnxruntime.quantization"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        needed("onnxruntime.quantization", extra="onnx")
    assert str(caught.value) == (
        "This export needs onnxruntime, which is not installed. The extra `onnx` brings it. In "
        "your clone of regraft, run `pip install '.[onnx]'`."
    )


def test_tokenizer_adds_what_regraft_adds(run):
    inner = exported_tokenizer(run)
    inner.encode_special_tokens = True
    for text in sample_texts(run, has_special_names=True)[:-1]:
        assert inner.encode(text).ids[:32] == read_row(run, text)[0]


def test_samples_are_of_many_lengths_and_one_is_cut(run):
    lengths = [len(read_row(run, text)[0]) for text in sample_texts(run, has_special_names=True)]
    assert min(lengths) == 1
    assert lengths[-1] == run.settings.data.max_length
    assert len(run.tokenizer.encode(sample_texts(run, has_special_names=False)[-1])) > lengths[-1]


def test_special_tokens_have_the_names_of_their_roles(run):
    assert special_names(run) == {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "cls_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "<sep>",
        "mask_token": "<mask>",
    }


def test_other_tokens_are_refused(run):
    check_ids(run, "dull", read_row(run, "dull")[0], made_by="x")
    with pytest.raises(RegraftError, match=r"x reads 'dull' as \[1, 2\] ..., regraft as \[2, "):
        check_ids(run, "dull", [1, 2], made_by="x")


def test_difference_up_to_the_tolerance_is_exact_enough():
    check_parity(parity(right=1e-4, left=None), made_by="x")


@pytest.mark.parametrize("difference", [1.1e-4, math.nan, math.inf])
def test_difference_beyond_the_tolerance_is_refused(difference):
    with pytest.raises(RegraftError, match=r"differs from regraft by .* in a score \(left\)"):
        check_parity(parity(right=0.0, left=difference), made_by="x")


def test_result_knows_its_largest_difference():
    result = ExportResult("out", "hf", (parity(a=1e-6, b=None), parity(a=3e-6)))
    assert result.to_dict()["largest_difference"] == 3e-6


def test_run_on_a_foreign_base_is_refused(run):
    check_family(run)
    model = dataclasses.replace(run.settings.model, family="foreign")
    foreign = dataclasses.replace(run, settings=dataclasses.replace(run.settings, model=model))
    with pytest.raises(ConfigError, match="Hugging Face model") as caught:
        check_family(foreign)
    assert "Models of regraft's own families can be exported" in str(caught.value)


def test_base_without_a_head_is_refused(run):
    bare = dataclasses.replace(run, model=Model(run.model.backbone, NoHead()))
    with pytest.raises(ConfigError) as caught:
        check_family(bare)
    assert str(caught.value) == (
        f"{run.run_dir} holds a base without a head, which scores nothing. Language models and "
        "classifiers can be exported. Fine-tune it first: `regraft finetune --base ...`."
    )
