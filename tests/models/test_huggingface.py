"""Bases from elsewhere: AutoModel's vectors, rows framed as it expects, runs that stand alone."""

import dataclasses
import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Recorder, make_examples
from foreign_models import SHAPE, TEXTS, TYPES, make_folder
from tampering import accept_files
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.classifiers.estimator import TextClassifier
from regraft.classifiers.finetuning import finetune
from regraft.classifiers.starts import start_from_base
from regraft.comparison.procedure import compare
from regraft.config.resolution import resolve
from regraft.config.schema import DataSettings, Settings
from regraft.data.rows import ExampleRows
from regraft.data.tokens.tokenizer import load_tokenizer
from regraft.errors import ConfigError, DataError, RegraftError, RunFolderError
from regraft.models.heads import ClassifierHead, Model
from regraft.models.huggingface import ForeignBackbone, load_foreign
from regraft.training import bases
from regraft.training.bases import load_base, read_base_settings
from regraft.training.inference import class_probabilities
from regraft.training.loaded_run import load_run

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder of every type: for reading only."""
    root = tmp_path_factory.mktemp("foreign")
    return {name: make_folder(root / name, name) for name in TYPES}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a base must be read without a network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("side", ["none", "right", "left", "both"])
def test_vectors_equal_those_of_automodel(folders, name, side):
    theirs = transformers.AutoModel.from_pretrained(folders[name]).eval()
    base = load_base(folders[name])
    assert isinstance(base.model.backbone, ForeignBackbone)
    texts = torch.randint(5, 60, (2, 7), generator=torch.Generator().manual_seed(1))
    left, right = {"none": (0, 0), "right": (0, 3), "left": (3, 0), "both": (2, 1)}[side]
    # The second text is one token shorter, so that the two are padded differently.
    rows = [texts[0], texts[1] if side == "none" else texts[1, :-1]]
    length = left + 7 + right
    ids = torch.full((2, length), base.tokenizer.pad_id)
    real = torch.zeros(2, length, dtype=torch.bool)
    for number, row in enumerate(rows):
        start = length - len(row) if side == "left" else left
        ids[number, start : start + len(row)] = row
        real[number, start : start + len(row)] = True
    with torch.no_grad():
        found = base.model.backbone(ids, real_BT=real)
        for number, row in enumerate(rows):
            expected = theirs(input_ids=row.unsqueeze(0)).last_hidden_state[0]
            assert (found[number][real[number]] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name", TYPES)
def test_rows_of_unequal_length_do_not_disturb_each_other(folders, name):
    base = load_base(folders[name])
    texts = ["a delight", " ".join(TEXTS[:2])]
    model = Model(
        base.model.backbone,
        ClassifierHead(base.model.backbone, num_classes=2, pooling=base.settings.head.pooling),
    )
    data = DataSettings(max_length=48)
    together = ExampleRows(texts, targets=[0, 0], tokenizer=base.tokenizer, data=data)
    apart = [
        ExampleRows([text], targets=[0], tokenizer=base.tokenizer, data=data) for text in texts
    ]
    found = class_probabilities(model, together)
    for row, alone in zip(found, apart, strict=True):
        assert row == pytest.approx(class_probabilities(model, alone)[0], abs=1e-5)


@pytest.mark.parametrize("name", TYPES)
def test_settings_tell_the_shape(folders, name):
    settings = read_base_settings(folders[name])
    model, looks_both_ways = settings.model, TYPES[name][2]
    assert model.family == "foreign"
    assert model.width == (8 if name == "opt" else 12)  # OPT projects out of its layers
    assert (model.num_layers, model.num_heads) == (2, 3)
    assert model.feedforward_width == (48 if name == "gpt2" else 20)
    assert model.attention == ("bidirectional" if looks_both_ways else "causal")
    assert settings.head.pooling == ("mean" if looks_both_ways else "last")
    # RoBERTa counts positions from 2.
    assert model.max_positions == (62 if name in ("roberta", "camembert") else 64)
    longest = torch.zeros(1, model.max_positions, dtype=torch.int64) + 7
    vectors = load_base(folders[name]).model.backbone(longest)
    assert vectors.shape == (1, model.max_positions, model.width)


@pytest.mark.parametrize("name", TYPES)
def test_rows_are_framed_as_the_base_expects(folders, name):
    theirs = transformers.AutoTokenizer.from_pretrained(folders[name])
    tokenizer = load_base(folders[name]).tokenizer
    theirs.backend_tokenizer.no_padding()
    data = DataSettings(max_length=12)
    rows = ExampleRows(TEXTS, targets=[0] * len(TEXTS), tokenizer=tokenizer, data=data)
    expected = theirs(TEXTS, truncation=True, max_length=12)["input_ids"]
    assert [row.tolist() for row in rows._ids] == expected
    full = theirs(TEXTS, truncation=False)["input_ids"]
    assert rows.num_cut == sum(len(ids) > 12 for ids in full) > 0


@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta"])
def test_pairs_are_framed_as_the_base_expects(folders, name):
    theirs = transformers.AutoTokenizer.from_pretrained(folders[name])
    theirs.backend_tokenizer.no_padding()
    tokenizer = load_base(folders[name]).tokenizer
    pairs = [*zip(TEXTS, reversed(TEXTS), strict=True), (TEXTS[0] * 3, "a"), ("a", TEXTS[0] * 3)]
    rows = ExampleRows(pairs, targets=[0] * len(pairs), tokenizer=tokenizer, data=DataSettings())
    first, second = (
        theirs(list(part), add_special_tokens=False) for part in zip(*pairs, strict=True)
    )
    before, between, behind = tokenizer.pair_frame
    assert between
    assert [row.tolist() for row in rows._ids] == [
        [*before, *a, *between, *b, *behind]
        for a, b in zip(first["input_ids"], second["input_ids"], strict=True)
    ]
    if name != "bert":  # the files of the others say nothing about pairs
        assert (before, behind) == (tokenizer.prefix_ids, tokenizer.suffix_ids)
        return
    data = DataSettings(max_length=12)
    rows = ExampleRows(pairs, targets=[0] * len(pairs), tokenizer=tokenizer, data=data)
    columns = map(list, zip(*pairs, strict=True))
    expected = theirs(*columns, truncation=True, max_length=12, return_token_type_ids=True)
    assert [row.tolist() for row in rows._ids] == expected["input_ids"]
    assert [row.tolist() for row in rows._types] == expected["token_type_ids"]


def test_token_types_reach_a_base_that_has_them(folders):
    for name in ("bert", "modernbert"):
        backbone = load_base(folders[name]).model.backbone.eval()
        ids_BT, types_BT = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[0, 0, 1, 1, 1]])
        real_BT = torch.tensor([[False, True, True, True, True]])
        with torch.no_grad():
            plain, typed, left = (
                backbone(ids_BT, real_BT=real_BT, **types)
                for types in ({}, {"token_types_BT": types_BT}, {"token_types_BT": types_BT})
            )
            alone = backbone(ids_BT[:, 1:], token_types_BT=types_BT[:, 1:])
        assert torch.equal(plain, typed) == (name == "modernbert")
        torch.testing.assert_close(left[:, 1:], alone, rtol=1e-4, atol=1e-5)


def test_empty_text_is_no_empty_row(folders):
    tokenizer = load_base(folders["gpt2"]).tokenizer
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((), ())
    rows = ExampleRows(["", "x"], targets=[0, 0], tokenizer=tokenizer, data=DataSettings())
    assert rows.lengths.tolist() == [1, 1]


@pytest.mark.parametrize("name", TYPES)
def test_tokenizer_keeps_its_roles_on_disk(folders, name, tmp_path):
    tokenizer = load_base(folders[name]).tokenizer
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    for role in ("pad_id", "unknown_id", "start_id", "end_id", "mask_id", "separator_id"):
        assert getattr(again, role) == getattr(tokenizer, role), role
    assert (again.prefix_ids, again.suffix_ids) == (tokenizer.prefix_ids, tokenizer.suffix_ids)
    assert again.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    # The run folder's tokenizer is AutoTokenizer's, too.
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    framed = tokenizer.framed(tokenizer.encode(TEXTS[0]), max_length=500)
    assert theirs(TEXTS[0])["input_ids"] == framed


def test_special_tokens_may_be_written_as_tables(folders, tmp_path):
    expected = load_base(folders["bert"]).tokenizer
    shutil.copy(folders["bert"] / "tokenizer.json", tmp_path)
    values = json.loads((folders["bert"] / "tokenizer_config.json").read_text())
    tables = {
        key: {"content": value, "lstrip": False} if key.endswith("_token") else value
        for key, value in values.items()
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tables))
    assert load_tokenizer(tmp_path).fingerprint == expected.fingerprint
    for damaged in ("[1]", "{", '{"pad_token": {"name": "[PAD]"}}'):
        (tmp_path / "tokenizer_config.json").write_text(damaged)
        with pytest.raises(DataError, match=r"tokenizer_config\.json cannot be read"):
            load_tokenizer(tmp_path)


def test_missing_padding_falls_back_to_the_end_of_text(folders):
    for name, token in (("gpt2", "<|endoftext|>"), ("llama", "</s>")):
        tokenizer = load_base(folders[name]).tokenizer
        assert tokenizer.tokens([tokenizer.pad_id]) == [token]
        assert tokenizer.pad_id == tokenizer.end_id


def test_special_names_in_a_text_are_text(folders):
    tokenizer = load_base(folders["bert"]).tokenizer
    assert not tokenizer.special_ids & set(tokenizer.encode("[SEP]")) - {tokenizer.unknown_id}


def test_attention_weights_are_those_of_automodel(folders):
    ids = torch.arange(5, 12).unsqueeze(0)
    for name in ("bert", "modernbert", "llama"):
        theirs = transformers.AutoModel.from_pretrained(folders[name], attn_implementation="eager")
        backbone = load_base(folders[name]).model.backbone
        with torch.no_grad():
            expected = theirs.eval()(input_ids=ids, output_attentions=True).attentions
            before = backbone(ids)
        found = backbone.attention_weights(ids)
        assert found.shape == (2, 1, 3, 7, 7)
        assert torch.allclose(found, torch.stack(expected), atol=1e-6)
        with torch.no_grad():
            assert torch.equal(backbone(ids), before)


def foreign_settings(folder: Path, **overrides: Any) -> Settings:
    tiny = {"train.epochs": 2, "train.batch_size": 4, "data.max_length": 24, "train.lr": 1e-3}
    return resolve("finetune", base=read_base_settings(folder), overrides={**tiny, **overrides})


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "gpt2"])
def test_finetuned_run_stands_alone(folders, name, splits, tmp_path):
    base = shutil.copytree(folders[name], tmp_path / "base")
    files = {"train": splits["train"], "valid": splits["valid"]}
    progress = Recorder()
    result = finetune(
        base=base,
        out=tmp_path / "run",
        settings=foreign_settings(base),
        progress=progress,
        **files,
    )
    backbone = load_base(base).model.backbone
    num_parameters = sum(parameter.numel() for parameter in backbone.parameters())
    num_tensors = len(list(backbone.parameters()))
    assert result.transplant.startswith(
        f"{num_tensors} tensors with {num_parameters:,} parameters came from the base"
    )
    assert f"Graft: {result.transplant}." in progress.messages
    shutil.rmtree(base)

    run = load_run(tmp_path / "run", kind="classifier")
    texts = TEXTS[:9]
    loaded = TextClassifier.load(tmp_path / "run")
    found = loaded.predict_proba(texts)
    rows = ExampleRows(texts, targets=[0] * 9, tokenizer=run.tokenizer, data=run.settings.data)
    assert found == pytest.approx(class_probabilities(run.model, rows), abs=1e-7)
    moved = shutil.copytree(tmp_path / "run", tmp_path / "moved")
    assert TextClassifier.load(moved).predict_proba(texts) == pytest.approx(found, abs=1e-7)
    assert str(tmp_path) not in (tmp_path / "run" / "config.json").read_text()


def test_frozen_base_stays_as_it_was(folders, splits, tmp_path):
    settings = foreign_settings(folders["bert"], **{"train.freeze_base": True})
    finetune(base=folders["bert"], train=splits["train"], out=tmp_path / "run", settings=settings)
    before = load_base(folders["bert"]).model.backbone.state_dict()
    after = load_run(tmp_path / "run").model.backbone.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", ["distilbert", "llama"])
def test_resumed_run_equals_a_straight_one(folders, name, splits, tmp_path):
    inputs: dict[str, Any] = {
        "base": folders[name],
        "train": splits["train"],
        "valid": splits["valid"],
        "settings": foreign_settings(folders[name]),
    }
    finetune(out=tmp_path / "straight", **inputs)
    with pytest.raises(KeyboardInterrupt):
        finetune(out=tmp_path / "stopped", progress=Recorder(interrupt_at=3), **inputs)
    finetune(out=tmp_path / "stopped", resume=True, **inputs)
    straight = load_run(tmp_path / "straight").model.state_dict()
    stopped = load_run(tmp_path / "stopped").model.state_dict()
    assert all(torch.equal(straight[key], stopped[key]) for key in straight)


@pytest.mark.parametrize("name", ["modernbert", "opt"])
def test_comparison_takes_every_arm(folders, name, splits):
    progress = Recorder()
    comparison = compare(
        base=folders[name],
        **splits,
        seeds=1,
        settings=foreign_settings(folders[name], **{"train.epochs": 1}),
        arms=("pretrained", "scratch", "frozen", "linear"),
        grid="none",
        progress=progress,
    )
    assert [arm.name for arm in comparison.arms] == ["pretrained", "scratch", "frozen", "linear"]


def test_scratch_has_the_shape_and_nothing_else_of_the_base(folders):
    base = folders["bert"]
    start = start_from_base(base, settings=foreign_settings(base))
    scratch, transplant = dataclasses.replace(start, base=None).build_model(num_classes=2, seed=0)
    again, _ = dataclasses.replace(start, base=None).build_model(num_classes=2, seed=0)
    grafted, _ = start.build_model(num_classes=2, seed=0)
    assert transplant is None
    theirs, ours = grafted.state_dict(), scratch.state_dict()
    assert {key: part.shape for key, part in theirs.items()} == {
        key: part.shape for key, part in ours.items()
    }
    assert not torch.equal(scratch.backbone.embedding.weight, grafted.backbone.embedding.weight)
    assert all(torch.equal(part, ours[key]) for key, part in again.state_dict().items())


def test_dropout_is_the_bases_unless_changed(folders):
    assert foreign_settings(folders["bert"]).model.dropout == 0.1
    settings = foreign_settings(
        folders["bert"], **{"model.dropout": 0.3, "model.attention_dropout": 0.0}
    )
    start = start_from_base(folders["bert"], settings=settings)
    model, _ = start.build_model(num_classes=2, seed=0)
    assert isinstance(model.backbone, ForeignBackbone)
    config = model.backbone.inner.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.3, 0.0)
    assert model.backbone.inner.embeddings.dropout.p == 0.3
    before = load_base(folders["bert"]).model.backbone.state_dict()
    assert all(torch.equal(before[key], part) for key, part in model.backbone.state_dict().items())


def test_dropout_that_a_model_does_not_have_is_refused(folders):
    settings = foreign_settings(folders["llama"], **{"model.dropout": 0.3})
    with pytest.raises(ConfigError, match="but a llama model has no such dropout"):
        start_from_base(folders["llama"], settings=settings)


def test_blocks_are_the_layers(folders):
    for name in TYPES:
        blocks = load_base(folders[name]).model.backbone.blocks
        assert len(blocks) == (1 if name == "albert" else 2)  # ALBERT's layers share their weights


def test_muon_moves_the_matrices_of_the_layers(folders, splits, tmp_path):
    settings = foreign_settings(
        folders["bert"], **{"train.optimizer": "muon", "train.epochs": None, "train.steps": 2}
    )
    finetune(base=folders["bert"], train=splits["train"], out=tmp_path / "run", settings=settings)
    before = load_base(folders["bert"]).model.backbone.blocks.state_dict()
    after = load_run(tmp_path / "run").model.backbone.blocks.state_dict()
    assert not any(torch.equal(before[key], after[key]) for key in before)


def test_sharded_weights_are_read(folders, tmp_path):
    folder = shutil.copytree(folders["bert"], tmp_path / "base")
    model = transformers.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    assert not (folder / "model.safetensors").exists()
    expected = load_base(folders["bert"]).model.state_dict()
    found = load_base(folder).model.state_dict()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_half_precision_is_made_full(folders, tmp_path):
    folder = shutil.copytree(folders["llama"], tmp_path / "base")
    transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert {part.dtype for part in load_base(folder).model.state_dict().values()} == {torch.float32}


def test_classifier_takes_a_foreign_base(folders, tmp_path):
    texts, labels = zip(*make_examples(16, seed=9), strict=True)
    settings = {"data.max_length": 24}
    classifier = TextClassifier(folders["electra"], epochs=1, settings=settings)
    expected = classifier.fit(texts, labels).predict_proba(texts)
    classifier.save(tmp_path / "run")
    assert TextClassifier.load(tmp_path / "run").predict_proba(texts) == pytest.approx(expected)
    assert classifier.classifier_.network.settings.preset == "foreign"
    assert classifier.classifier_.network.settings.train.lr == 5e-5


@pytest.mark.parametrize("command", ["finetune", "compare"])
def test_command_loads_its_base_once(folders, splits, tmp_path, monkeypatch, command):
    loads = []
    monkeypatch.setattr(
        bases, "load_foreign", lambda path: loads.append(path) or load_foreign(path)
    )
    files = [f"--{name}={path}" for name, path in splits.items()]
    if command == "finetune":
        files = [file for file in files if not file.startswith("--test")]
    else:
        files += ["--arms=pretrained,linear", "--seeds=1", "--jobs=1"]
    few = ["--steps=1", "--set=data.max_length=24", "--quiet"]
    arguments = [command, "--base", folders["bert"], "--out", tmp_path / "out", *files, *few]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert loads == [folders["bert"]]


@pytest.mark.parametrize(
    ("command", "task"), [("generate", "text-generation"), ("fill", "fill-mask")]
)
def test_foreign_folder_is_not_asked_for_text(folders, command, task):
    folder = folders["gpt2"]
    result = CliRunner().invoke(app, [command, str(folder), "a <mask> story"])
    assert result.exit_code == 2
    assert f"{folder} is a Hugging Face folder" in result.stderr
    assert f'transformers.pipeline("{task}", model="{folder}")' in result.stderr


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_foreign_folder_is_not_asked_for_labels(folders, command, examples_path):
    folder = folders["bert"]
    result = CliRunner().invoke(app, [command, str(folder), str(examples_path)])
    assert result.exit_code == 2
    for fact in (f"{folder} is a Hugging Face folder", "no labels", f"finetune --base {folder}"):
        assert fact in result.stderr


@pytest.mark.slow
def test_two_processes_of_a_comparison_share_a_foreign_base(folders, splits):
    settings = foreign_settings(folders["bert"], **{"train.epochs": 1})
    inputs: dict[str, Any] = {"base": folders["bert"], **splits, "settings": settings, "seeds": 1}
    arms = ("pretrained", "scratch")
    alone = compare(arms=arms, jobs=1, **inputs)
    shared = compare(arms=arms, jobs=2, **inputs)
    assert [arm.valid_curves for arm in alone.arms] == [arm.valid_curves for arm in shared.arms]


def refusal_of(folder: Path) -> RegraftError:
    with pytest.raises(RunFolderError) as caught:
        load_base(folder)
    error = caught.value
    assert str(folder) in error.problem
    assert error.expected
    assert error.remedy
    return error


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A BERT folder to be spoilt."""
    return shutil.copytree(folders["bert"], tmp_path / "base")


def test_unknown_model_type_is_refused(folder):
    change_config(folder, model_type="berta")
    error = refusal_of(folder)
    assert "of the type 'berta', which transformers does not know" in error.problem


def test_code_in_the_folder_is_not_run(folder):
    (folder / "code.py").write_text("raise SystemExit")
    auto_map = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    change_config(folder, model_type="berta", auto_map=auto_map)
    assert "Code" in refusal_of(folder).expected


def test_quantised_weights_are_refused(folder):
    change_config(folder, quantization_config={"quant_method": "bitsandbytes"})
    assert refusal_of(folder).problem == f"The base {folder} is quantised."


@pytest.mark.parametrize("other", ["pytorch_model.bin", None])
def test_weights_other_than_safetensors_are_refused(folder, other):
    (folder / "model.safetensors").unlink()
    if other:
        (folder / other).write_bytes(b"")
    error = refusal_of(folder)
    assert error.problem == f"The base {folder} holds {f'only {other}' if other else 'no weights'}."
    assert "save_pretrained" in error.remedy


def test_tokenizer_larger_than_the_weights_is_refused(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = len(tokenizer)
    tokenizer.add_tokens([f"new{number}" for number in range(4)])
    tokenizer.save_pretrained(folder)
    assert refusal_of(folder).problem == (
        f"The tokenizer of {folder} has {size + 4:,} tokens, but the weights are made for "
        f"{size + 3:,}."
    )


def test_folder_without_a_tokenizer_is_refused(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert refusal_of(folder).problem == f"The base {folder} holds no tokenizer."


def test_encoder_with_decoder_is_refused(folder):
    shape = {"d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 1, "num_heads": 3}
    config = transformers.T5Config(vocab_size=400, decoder_start_token_id=0, **shape)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    assert refusal_of(folder).problem == f"The base {folder} is an encoder with a decoder (t5)."


def test_model_of_pictures_is_refused(folder):
    config = transformers.ViTConfig(**SHAPE, intermediate_size=20, image_size=4, patch_size=2)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    error = refusal_of(folder)
    assert "(vit) gives no vector for each token" in error.problem


def test_code_for_attention_and_adapters_are_refused(folder):
    change_config(folder, attn_implementation="someone/kernel")
    assert refusal_of(folder).problem.endswith(
        "names code for its attention that would be downloaded."
    )
    change_config(folder, attn_implementation="eager")
    (folder / "adapter_config.json").write_text("{}")
    assert refusal_of(folder).problem == (
        f"The base {folder} is an adapter, which names another model to load."
    )


def test_model_that_reads_padding_is_refused(folder):
    config = transformers.FNetConfig(**SHAPE, intermediate_size=20, vocab_size=400)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    error = refusal_of(folder)
    assert error.problem == f"The base {folder} (fnet) reads padding as if it were text."


def test_weights_of_another_model_are_refused(folder):
    change_config(folder, num_hidden_layers=3)
    error = refusal_of(folder)
    assert f"The weights of {folder} lack 16 tensors of a bert model, such as enc" in error.problem


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_damaged_file_is_refused(folder, name):
    (folder / name).write_bytes(b"{")
    with pytest.raises(RegraftError, match="cannot be read by transformers"):
        load_base(folder)


def test_missing_extra_is_named(folder, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        load_base(folder)
    assert "needs transformers, which is not installed" in caught.value.problem
    assert "pip install '.[hf]'" in caught.value.remedy


def test_longer_rows_than_the_base_reads_are_refused(folders):
    with pytest.raises(ConfigError, match=r"max_length: 63 exceeds model\.max_positions 62"):
        foreign_settings(folders["roberta"], **{"data.max_length": 63})
    settings = foreign_settings(folders["roberta"])
    longer = dataclasses.replace(settings, data=DataSettings(max_length=63))
    with pytest.raises(ConfigError, match="has positions for 62 tokens"):
        start_from_base(folders["roberta"], settings=longer)


def test_shape_of_the_base_holds(folders):
    with pytest.raises(ConfigError, match=r"width: the base has 12.* 24"):
        foreign_settings(folders["bert"], **{"model.width": 24})


def test_family_cannot_be_made_from_settings():
    for recipe in ("pretrain", "finetune"):
        with pytest.raises(ConfigError, match="cannot be built from settings"):
            resolve(recipe, overrides={"model.family": "foreign"})
        with pytest.raises(ConfigError, match="There is no preset 'foreign'"):
            resolve(recipe, preset="foreign")


def test_swapped_tokenizer_of_a_run_is_refused(folders, splits, tmp_path):
    settings = foreign_settings(folders["gpt2"], **{"train.epochs": 1})
    finetune(base=folders["gpt2"], train=splits["train"], out=tmp_path / "run", settings=settings)
    config = tmp_path / "run" / "config.json"
    values = json.loads(config.read_text())
    values["model"]["architecture"]["vocab_size"] = 200
    config.write_text(json.dumps(values))
    accept_files(tmp_path / "run")
    with pytest.raises(RunFolderError, match="but the weights have 200"):
        load_run(tmp_path / "run")
