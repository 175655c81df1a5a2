"""Hugging Face folders: loaded by transformers alone, they score as regraft does."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, make_examples
from random_runs import LABELS, tiny_tokenizer, write_run

from regraft.classifiers.estimator import TextClassifier
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.errors import DiskError, RegraftError
from regraft.export.huggingface import export_huggingface
from regraft.export.parity import TOLERANCE, ExportResult
from regraft.models.masks import places_in_document
from regraft.training.generation import generate
from regraft.training.loaded_run import load_run

transformers = pytest.importorskip("transformers")

# preset, objective, pooling (None is a language model) -> the Auto class, the class.
CLASSIFIERS = {
    ("lab", "causal", "last"): "OPTForSequenceClassification",
    ("bert", "bert", "first"): "BertForSequenceClassification",
    ("bert", "causal", "first"): "BertForSequenceClassification",
    ("bert", "replaced", "first"): "BertForSequenceClassification",
    ("modern", "masked", "first"): "ModernBertForSequenceClassification",
    ("modern", "replaced", "mean"): "ModernBertForSequenceClassification",
    ("modern", "causal", "last"): "ModernBertDecoderForSequenceClassification",
}
LANGUAGE_MODELS = {
    ("lab", "causal"): ("AutoModelForCausalLM", "OPTForCausalLM"),
    ("bert", "bert"): ("AutoModelForPreTraining", "BertForPreTraining"),
    ("bert", "sop"): ("AutoModelForPreTraining", "BertForPreTraining"),
    ("bert", "masked"): ("AutoModelForMaskedLM", "BertForMaskedLM"),
    ("bert", "hybrid"): ("AutoModelForMaskedLM", "BertForMaskedLM"),
    ("bert", "causal"): ("AutoModelForCausalLM", "BertLMHeadModel"),
    ("bert", "replaced"): ("AutoModelForPreTraining", "ElectraForPreTraining"),
    ("modern", "masked"): ("AutoModelForMaskedLM", "ModernBertForMaskedLM"),
    ("modern", "hybrid"): ("AutoModelForMaskedLM", "ModernBertForMaskedLM"),
    ("modern", "causal"): ("AutoModelForCausalLM", "ModernBertDecoderForCausalLM"),
}
PADDINGS = ("none", "right", "left")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


Export = Callable[..., tuple[Path, Path, ExportResult]]


@pytest.fixture(scope="module")
def export(tokenizer, tmp_path_factory) -> Export:
    """`export(preset, objective, pooling)`: a run, its export, the result; made once each."""

    @functools.cache
    def made(preset: str, objective: str, pooling: str | None = None) -> Any:
        folder = tmp_path_factory.mktemp("export")
        run_dir = write_run(
            folder / "run", preset=preset, objective=objective, pooling=pooling, tokenizer=tokenizer
        )
        return run_dir, folder / "out", export_huggingface(run_dir, out=folder / "out")

    return made


def load(auto_class: str, folder: Path) -> Any:
    return getattr(transformers, auto_class).from_pretrained(folder, local_files_only=True).eval()


def random_batch(*, padding: str, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Five rows of several lengths, the longest as long as there are positions."""
    generator = torch.Generator().manual_seed(1)
    ids_BT = torch.randint(6, 300, (5, 40), generator=generator)
    lengths = [40, 1, 17, 2, 33] if padding != "none" else [40] * 5
    real_BT = torch.stack([torch.arange(40) < length for length in lengths])
    real_BT = real_BT.flip(1) if padding == "left" else real_BT
    return ids_BT.masked_fill(~real_BT, pad_id), real_BT


@pytest.mark.parametrize(("preset", "objective", "pooling"), CLASSIFIERS)
def test_classifier_scores_as_regraft_under_any_padding(preset, objective, pooling, export):
    run_dir, out, result = export(preset, objective, pooling)
    run = load_run(run_dir)
    model = load("AutoModelForSequenceClassification", out)
    assert type(model).__name__ == CLASSIFIERS[preset, objective, pooling]
    for padding in PADDINGS:
        # The class looks for the first token in the first column.
        if padding == "left" and pooling == "first":
            assert result.parity[0].differences["padding on the left"] is None
            continue
        ids_BT, real_BT = random_batch(padding=padding, pad_id=run.tokenizer.pad_id)
        with torch.no_grad():
            theirs_BC = model(input_ids=ids_BT, attention_mask=real_BT.long()).logits
            ours_BC = run.model(ids_BT, real_BT=real_BT)
        assert (theirs_BC - ours_BC).abs().max() < TOLERANCE, padding
        # Weights this random tell rows apart, or nothing would be shown.
        assert ours_BC.std(dim=0).min() > 100 * TOLERANCE


@pytest.mark.parametrize(("preset", "objective"), LANGUAGE_MODELS)
def test_language_model_scores_as_regraft_under_any_padding(preset, objective, export):
    run_dir, out, _ = export(preset, objective)
    run = load_run(run_dir)
    auto_class, name = LANGUAGE_MODELS[preset, objective]
    model = load(auto_class, out)
    assert type(model).__name__ == name
    for padding in PADDINGS:
        ids_BT, real_BT = random_batch(padding=padding, pad_id=run.tokenizer.pad_id)
        # BERT's positions are columns unless told otherwise.
        places = {"position_ids": places_in_document(real_BT)} if preset == "bert" else {}
        with torch.no_grad():
            output = model(input_ids=ids_BT, attention_mask=real_BT.long(), **places)
            ours = run.model(ids_BT, real_BT=real_BT)
        theirs = output.prediction_logits if name == "BertForPreTraining" else output.logits
        assert (theirs - ours)[real_BT].abs().max() < TOLERANCE, padding


@pytest.mark.parametrize("preset", ["bert", "modern"])
def test_hybrid_base_has_a_causal_twin(preset, export):
    run_dir, out, result = export(preset, "hybrid")
    assert [parity.name for parity in result.parity] == {
        "bert": ["BertForMaskedLM", "BertLMHeadModel"],
        "modern": ["ModernBertForMaskedLM", "ModernBertDecoderForCausalLM"],
    }[preset]
    run = load_run(run_dir)
    model = load("AutoModelForCausalLM", out / "causal")
    ids_BT, _ = random_batch(padding="none", pad_id=0)
    with torch.no_grad():
        hidden_BTD = run.model.backbone(ids_BT, is_causal=True)
        embedding_VD = run.model.backbone.embedding.weight
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        ours_BTV = run.model.head(hidden_BTD, real_BT=real_BT, embedding_VD=embedding_VD)
        assert (model(input_ids=ids_BT).logits - ours_BTV).abs().max() < TOLERANCE


def test_bert_scores_pairs_as_regraft(tokenizer, export):
    run_dir, out, _ = export("bert", "bert")
    run = load_run(run_dir)
    auto_tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    batch = auto_tokenizer("her style", "the plot is dull", return_tensors="pt")
    first, second = tokenizer.encode("her style"), tokenizer.encode("the plot is dull")
    start, separator = tokenizer.start_id, tokenizer.separator_id
    assert batch["input_ids"].tolist() == [[start, *first, separator, *second, separator]]
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert batch["token_type_ids"].tolist() == [types]
    with torch.no_grad():
        theirs = load("AutoModelForPreTraining", out)(**batch)
        hidden_BTD = run.model.backbone(batch["input_ids"], token_types_BT=torch.tensor([types]))
        real_BT = torch.ones(1, len(types), dtype=torch.bool)
        pairs_B2 = run.model.head.pair_scores(hidden_BTD, real_BT=real_BT)
    assert (theirs.seq_relationship_logits - pairs_B2).abs().max() < TOLERANCE


def test_electra_generator_scores_as_regraft(tokenizer, export):
    run_dir, out, _ = export("bert", "replaced")
    run = load_run(run_dir)
    backbone, generator = run.model.backbone, run.model.head.generator
    model = load("AutoModelForMaskedLM", out / "generator")
    assert type(model).__name__ == "ElectraForMaskedLM"
    ids_BT, real_BT = random_batch(padding="right", pad_id=tokenizer.pad_id)
    with torch.no_grad():
        sight = backbone.sight(real_BT, is_causal=False, places_BT=None)
        proposed_BTD = generator(backbone.embed(ids_BT), sight=sight)
        ours_BTV = proposed_BTD @ backbone.embedding.weight.T + generator.bias
        theirs_BTV = model(input_ids=ids_BT, attention_mask=real_BT.long()).logits
    assert (theirs_BTV - ours_BTV)[real_BT].abs().max() < TOLERANCE


def test_generator_as_wide_as_the_model_is_left_out_and_said(tokenizer, tmp_path):
    run_dir = write_run(
        tmp_path / "run",
        preset="bert",
        objective="replaced",
        tokenizer=tokenizer,
        overrides={"objective.generator_share": 1.0},
    )
    result = export_huggingface(run_dir, out=tmp_path / "out")
    assert not (tmp_path / "out" / "generator").exists()
    assert result.note.startswith("The generator is as wide as the model itself")
    assert result.note in (tmp_path / "out" / "README.md").read_text()


PIPELINE = """
import json, sys
sys.modules["regraft"] = None
from transformers import pipeline
texts, folders = json.load(open("texts.json"))
found = {}
for folder in folders:
    classify = pipeline("text-classification", model=folder, truncation=True)
    found[folder] = [classify(texts), classify(texts, batch_size=7)]
json.dump(found, open("found.json", "w"))
"""


def fifty_texts() -> list[str]:
    """Short, empty and strange ones, and many that are longer than the model reads."""
    texts = [text for text, _ in make_examples(44, seed=5)]
    strange = ["", " ", "</s><mask>", "été ñ 長い \U0001f600", "a" * 200, "\n\nline\ttab"]
    return [*texts, *strange]


@pytest.mark.slow
def test_pipeline_without_regraft_predicts_the_same(tokenizer, export, tmp_path):
    texts = fifty_texts()
    assert len(texts) == 50
    assert sum(len(tokenizer.encode(text)) > 31 for text in texts) > 10
    run_dirs = {str(export(*kind)[1]): export(*kind)[0] for kind in CLASSIFIERS}
    (tmp_path / "texts.json").write_text(json.dumps([texts, list(run_dirs)]))
    subprocess.run(
        [sys.executable, "-c", PIPELINE],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=True,
        capture_output=True,
    )
    found = json.loads((tmp_path / "found.json").read_text())
    for folder, run_dir in run_dirs.items():
        probabilities_NC = TextClassifier.load(run_dir).predict_proba(texts)
        for answers in found[folder]:
            for answer, row_C in zip(answers, probabilities_NC, strict=True):
                assert answer["label"] == LABELS[row_C.argmax()]
                assert abs(answer["score"] - row_C.max()) < TOLERANCE


def test_temperature_leaves_with_the_weights(tmp_path):
    learning = {**TINY, "train.lr": 0.01}
    texts, names = zip(*make_examples(240, seed=5), strict=True)
    # Nothing tells these labels apart: who learns them by heart is too sure.
    blind = [names[(7 * row * row) % 239] for row in range(240)]
    classifier = TextClassifier("scratch", epochs=12, settings=learning).fit(texts, blind)
    assert classifier.temperature_ is not None
    assert abs(classifier.temperature_ - 1) > 0.02
    export_huggingface(classifier.save(tmp_path / "run"), out=tmp_path / "out")
    classify = transformers.pipeline(
        "text-classification", model=str(tmp_path / "out"), truncation=True, top_k=None
    )
    expected = classifier.predict_proba(texts[:20])
    for answers, row_C in zip(classify(list(texts[:20])), expected, strict=True):
        found = {answer["label"]: answer["score"] for answer in answers}
        assert [found[name] for name in classifier.classes_] == pytest.approx(row_C, abs=1e-5)


@pytest.mark.parametrize("preset", ["lab", "bert", "modern"])
def test_pipeline_generates_the_same_text(preset, export):
    run_dir, out, _ = export(preset, "causal")
    write = transformers.pipeline("text-generation", model=str(out))
    prompts = ["this book", "the second chapter is dull again", "a"]
    expected = [generate(run_dir, prompt, max_tokens=6) for prompt in prompts]
    wanted = {"max_new_tokens": 6, "do_sample": False}
    for batch_size in (1, 3):
        answers = write(prompts, batch_size=batch_size, **wanted)
        assert [answer["generated_text"] for (answer,) in answers] == expected


def test_masked_model_reads_masks_and_classifier_reads_text(tokenizer, export):
    ids = {}
    for name, pooling in (("base", None), ("classifier", "first")):
        _, out, _ = export("modern", "masked", pooling)
        reader = transformers.AutoTokenizer.from_pretrained(out)
        ids[name] = reader("a <mask>.")["input_ids"]
    start = tokenizer.start_id
    assert ids["base"] == [
        start,
        *tokenizer.encode("a "),
        tokenizer.mask_id,
        *tokenizer.encode("."),
    ]
    assert ids["classifier"] == [start, *tokenizer.encode("a <mask>.")]


@pytest.fixture(scope="module")
def exported(export) -> Path:
    """A classifier's export, for reading only."""
    _, out, _ = export("modern", "masked", "first")
    return out


def test_folder_holds_the_layout_of_the_hub(exported):
    assert sorted(path.name for path in exported.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    # Readable by whoever the user's umask lets read.
    modes = {path.stat().st_mode & 0o777 for path in exported.iterdir()}
    assert modes == {(exported.stat().st_mode & 0o666)}


def test_configuration_names_labels_and_special_tokens(exported, tokenizer):
    config = json.loads((exported / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good", "2": "so so"}
    assert config["label2id"] == {"bad": 0, "good": 1, "so so": 2}
    assert config["problem_type"] == "single_label_classification"
    assert config["pad_token_id"] == tokenizer.pad_id
    assert set(config["layer_types"]) == {"full_attention"}


def test_tokenizer_cuts_and_pads_as_regraft(exported, tokenizer):
    reader = transformers.AutoTokenizer.from_pretrained(exported)
    assert (reader.model_max_length, reader.padding_side) == (32, "right")
    assert (reader.cls_token, reader.pad_token, reader.mask_token) == ("<s>", "<pad>", "<mask>")
    batch = reader(["dull", "dull " * 40], truncation=True, padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    long = [tokenizer.start_id, *tokenizer.encode("dull " * 40)][:32]
    assert batch["input_ids"][1] == long
    assert batch["input_ids"][0][-1] == tokenizer.pad_id


def test_export_writes_no_path_of_the_machine(exported):
    for path in exported.iterdir():
        assert str(exported.parent).encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "kind",
    [("modern", "masked", "first"), ("modern", "masked"), ("lab", "causal"), ("bert", "replaced")],
    ids=" ".join,
)
def test_code_of_the_card_runs(kind, export, monkeypatch, capsys):
    _, out, _ = export(*kind)
    (code,) = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(out)
    monkeypatch.setitem(sys.modules, "regraft", None)
    exec(compile(code, "card", "exec"), {})
    assert capsys.readouterr().out.startswith(("[{'", "[[{'", "tensor("))


def test_folder_in_use_is_refused(exported, tmp_path):
    run_dir = exported.parent / "run"
    before = sorted(exported.iterdir())
    with pytest.raises(DiskError, match="exists and is not an empty folder") as caught:
        export_huggingface(run_dir, out=exported)
    assert caught.value.remedy == "Choose another --out."
    assert sorted(exported.iterdir()) == before


def test_empty_folder_is_taken(exported, tmp_path):
    (tmp_path / "out").mkdir()
    export_huggingface(exported.parent / "run", out=tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_scores_that_differ_leave_nothing_behind(exported, tmp_path, monkeypatch):
    # transformers as it might become: another norm.
    module = transformers.models.modernbert.modeling_modernbert.ModernBertPredictionHead
    was = module.forward
    monkeypatch.setattr(module, "forward", lambda self, hidden: was(self, hidden) + 0.01)
    with pytest.raises(RegraftError, match=r"differs from regraft by 0\.0\d+ in a score") as caught:
        export_huggingface(exported.parent / "run", out=tmp_path / "out")
    assert "At most 0.0001 is exact enough; nothing was written." in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_library_talks_as_before(exported, tmp_path):
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    export_huggingface(exported.parent / "run", out=tmp_path / "out")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
