"""The lab's checkpoints as bases: the same scores, whatever head they have, and no code is run."""

import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_examples
from labs import write_lab
from tampering import accept_files
from torch import nn
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.classifiers.finetuning import finetune
from regraft.classifiers.scoring import evaluate
from regraft.config.presets import PRESETS
from regraft.config.resolution import resolve
from regraft.data.tokens.tokenizer import load_tokenizer
from regraft.errors import ConfigError, RegraftError, RunFolderError
from regraft.models.layers import sinusoidal_positions
from regraft.models.masks import square_mask
from regraft.training import bases
from regraft.training.bases import import_lab_file, load_base, load_lab_file, read_base_settings
from regraft.training.generation import generate
from regraft.training.loaded_run import load_run

WIDTH, NUM_LAYERS, NUM_HEADS, LENGTH = 12, 3, 2, 40


class LabBase(nn.Module):
    """Embedding, positions, layers: with the names that the exercise gives them."""

    def __init__(self, vocab_size: int, *, num_heads: int = NUM_HEADS) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocab_size, WIDTH)
        self.pos_encoder = nn.Module()
        table = sinusoidal_positions(LENGTH, width=WIDTH).unsqueeze(1)
        self.pos_encoder.register_buffer("pe", table)
        layer = nn.TransformerEncoderLayer(WIDTH, num_heads, WIDTH, dropout=0.5)
        self.transformer_encoder = nn.TransformerEncoder(
            layer, NUM_LAYERS, enable_nested_tensor=False
        )

    def forward(self, ids_TB: torch.Tensor) -> torch.Tensor:
        x = self.encoder(ids_TB) * math.sqrt(WIDTH) + self.pos_encoder.pe[: len(ids_TB)]
        mask = torch.zeros(len(ids_TB), len(ids_TB)).masked_fill(
            ~square_mask(len(ids_TB)), -math.inf
        )
        return self.transformer_encoder(x, mask=mask)


class LabModel(nn.Module):
    def __init__(self, vocab_size: int, *, num_classes: int, num_heads: int = NUM_HEADS) -> None:
        super().__init__()
        self.base = LabBase(vocab_size, num_heads=num_heads)
        self.classifier = nn.Module()
        self.classifier.decoder = nn.Linear(WIDTH, num_classes)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, ids_TB: torch.Tensor) -> torch.Tensor:
        return self.classifier.decoder(self.base(ids_TB))


@pytest.fixture(scope="module")
def lab_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dict.txt and its SentencePiece model."""
    folder = tmp_path_factory.mktemp("lab")
    write_lab(folder)
    return folder


def save_lab(
    folder: Path, *, classes: int | None = None, num_heads: int = NUM_HEADS, **extra: Any
) -> tuple[Path, LabModel]:
    """A checkpoint beside the lab's vocabulary; by default a language model."""
    vocab_size = load_tokenizer(folder).vocab_size
    torch.manual_seed(4)
    plain = LabModel(vocab_size, num_classes=classes or vocab_size, num_heads=num_heads).eval()
    path = folder / f"model-{classes}-{num_heads}.pt"
    torch.save({"model_state_dict": plain.state_dict(), **extra}, path)
    return path, plain


IDS = torch.tensor([[0, 7, 8, 9, 20, 5], [0, 30, 31, 32, 33, 34]])


def test_language_model_gives_the_labs_scores(lab_dir):
    optimizer_state = {"state": {}, "param_groups": [{"lr": 1e-4}]}
    path, plain = save_lab(lab_dir, optimizer_state_dict=optimizer_state, epoch=3)
    base = load_base(path)
    assert base.info.kind == "language-model"
    model = base.settings.model
    assert (model.family, model.attention, base.settings.preset) == ("lab", "causal", "lab")
    shape = (model.width, model.num_layers, model.num_heads, model.feedforward_width)
    assert shape == (WIDTH, NUM_LAYERS, NUM_HEADS, WIDTH)
    assert model.max_positions == LENGTH
    with torch.no_grad():
        expected = plain(IDS.T).transpose(0, 1)
        assert (base.model(IDS) - expected).abs().max() < 1e-5
    assert base.tokenizer.vocab_size == len(plain.base.encoder.weight)


def test_two_class_head_becomes_a_classifier(lab_dir, tmp_path):
    path, plain = save_lab(lab_dir, classes=2)
    run = import_lab_file(path, out=tmp_path / "run")
    assert (run.info.kind, run.info.labels) == ("classifier", ("0", "1"))
    with torch.no_grad():
        expected = plain(IDS.T)[-1]  # the vector of the last token
        assert (run.model(IDS) - expected).abs().max() < 1e-5
    rows = "".join(f"{text},{int(label == 'positive')}\n" for text, label in make_examples(6))
    (tmp_path / "test.csv").write_text(f"text,label\n{rows}")
    assert evaluate(tmp_path / "run", tmp_path / "test.csv").num_examples == 6


def test_file_without_head_is_a_base(lab_dir, tmp_path, splits):
    _, plain = save_lab(lab_dir)
    path = lab_dir / "no-head.pt"
    torch.save({"model_state_dict": plain.base.state_dict()}, path)
    run = import_lab_file(path, out=tmp_path / "base")
    assert run.info.kind == "base"
    assert read_base_settings(tmp_path / "base") == run.settings
    with torch.no_grad():
        expected = plain.base(IDS.T).transpose(0, 1)
        for base in (load_base(path), load_base(tmp_path / "base")):
            assert (base.model(IDS) - expected).abs().max() < 1e-5
    with pytest.raises(RunFolderError, match="holds a base, not a language-model"):
        generate(tmp_path / "base", "the")

    results = [
        finetune(
            base=base,
            train=splits["train"],
            valid=splits["valid"],
            out=tmp_path / name,
            settings=resolve(
                "finetune",
                base=read_base_settings(base),
                overrides={"train.epochs": 1, "data.max_length": 24},
            ),
        )
        for name, base in (("from-file", path), ("from-run", tmp_path / "base"))
    ]
    assert results[0].valid_accuracy == results[1].valid_accuracy
    num_tensors = 1 + 12 * NUM_LAYERS
    assert results[0].transplant.startswith(f"{num_tensors} tensors with ")


def test_imported_language_model_generates(lab_dir, tmp_path):
    path, plain = save_lab(lab_dir)
    result = CliRunner().invoke(
        app, ["import", str(path), "--out", str(tmp_path / "run"), "--json"]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["num_parameters"] == sum(p.numel() for p in plain.parameters())
    assert told["kind"] == "language-model"
    text = generate(tmp_path / "run", "the story", max_tokens=5)
    assert isinstance(text, str)


def test_heads_and_tokenizer_can_be_told(lab_dir, tmp_path):
    path, plain = save_lab(lab_dir, num_heads=3)
    moved = path.rename(tmp_path / "model.pt")
    arguments = ["import", moved, "--tokenizer", lab_dir, "--heads", 3, "--out", tmp_path / "run"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 'run'}: a language-model with" in result.stderr
    run = load_run(tmp_path / "run")
    assert run.settings.model.num_heads == 3
    with torch.no_grad():
        assert (run.model(IDS) - plain(IDS.T).transpose(0, 1)).abs().max() < 1e-5
    with pytest.raises(ConfigError, match=r"5 does not divide model\.width 12"):
        load_lab_file(moved, tokenizer_path=lab_dir, num_heads=5)


def test_number_of_heads_that_is_assumed_is_told_once(lab_dir, tmp_path, splits):
    path, _ = save_lab(lab_dir)
    told = (
        f"{path} does not contain its number of heads; the lab's 2 are assumed. If that is wrong, "
        f"convert it with `regraft import {path} --heads H --out RUN`."
    )
    files = ["--train", splits["train"], "--valid", splits["valid"]]
    few = ["--steps", 1, "--set", "data.max_length=24"]
    commands = {
        "finetune": ["finetune", "--base", path, *files, *few],
        "compare": [
            *("compare", "--base", path, *files, "--test", splits["test"], *few),
            *("--seeds", 1, "--arms", "pretrained,linear", "--jobs", 1),
        ],
        "import": ["import", path],
    }
    for name, command in commands.items():
        arguments = [str(argument) for argument in [*command, "--out", tmp_path / name]]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert result.stderr.count(told) == 1, name
        assert told not in result.stdout
    # A run folder tells its heads, and so did the user.
    base = ["finetune", "--base", tmp_path / "import", *files, *few, "--out", tmp_path / "again"]
    heads = ["import", path, "--heads", 3, "--out", tmp_path / "heads"]
    for command in (base, heads):
        result = CliRunner().invoke(app, [str(argument) for argument in command])
        assert result.exit_code == 0, result.output
        assert "number of heads" not in result.stderr


def test_base_that_tells_its_settings_is_loaded_once(lab_dir, monkeypatch):
    path, plain = save_lab(lab_dir)
    loads = []
    monkeypatch.setattr(
        bases, "load_lab_file", lambda path: loads.append(path) or load_lab_file(path)
    )
    settings = read_base_settings(path)
    assert read_base_settings(path) == settings
    first, second = load_base(path), load_base(path)
    assert loads == [path, path]
    # Each is its owner's alone.
    assert first.model is not second.model
    # A file that has changed is read again.
    read_base_settings(path)
    torch.save({"model_state_dict": plain.base.state_dict()}, path)
    assert load_base(path).info.kind == "base"


@pytest.mark.parametrize("name", ["laptop", None])
def test_preset_of_a_base_that_is_unknown_is_refused(lab_dir, tmp_path, splits, name):
    import_lab_file(save_lab(lab_dir)[0], out=tmp_path / "base")
    config = tmp_path / "base" / "config.json"
    values = json.loads(config.read_text()) | {"preset": name}
    config.write_text(json.dumps({key: value for key, value in values.items() if value}))
    accept_files(tmp_path / "base")
    files = ["--train", splits["train"], "--valid", splits["valid"], "--test", splits["test"]]
    names = f"the preset {name!r}" if name else "no preset"
    few = ["--steps", 1, "--set", "data.max_length=24"]
    for command in (["finetune", *files[:4]], ["compare", *files]):
        arguments = [*command, "--base", tmp_path / "base", "--out", tmp_path / "run", *few]
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 2
        assert result.stderr == (
            f"error: {config} names {names}, and a base is fine-tuned with its own. Presets are "
            f"{', '.join(PRESETS)}. Choose one with --preset: shape and weights of the base stay "
            "as they are.\n"
        )
        assert not (tmp_path / "run").exists()
    arguments = ["finetune", *files[:4], "--base", tmp_path / "base", "--out", tmp_path / "run"]
    chosen = [*arguments, *few, "--preset", "lab"]
    result = CliRunner().invoke(app, [str(argument) for argument in chosen])
    assert result.exit_code == 0, result.output


def test_checkpoint_that_is_no_run_folder_yet_is_refused(lab_dir):
    path, _ = save_lab(lab_dir)
    for command in (["generate", path, "the story"], ["predict", path, "texts.csv"]):
        result = CliRunner().invoke(app, [str(argument) for argument in command])
        assert result.exit_code == 2
        assert result.stderr == (
            f"error: {path} is a file, not a run folder. Runs are folders that regraft has "
            "written. If it is a checkpoint of the lab, run "
            f"`regraft import {path} --out RUN`.\n"
        )


def test_missing_vocabulary_is_refused(lab_dir, tmp_path):
    path, _ = save_lab(lab_dir)
    moved = path.rename(tmp_path / "model.pt")
    with pytest.raises(RunFolderError) as caught:
        load_base(moved)
    assert "dict.txt" in caught.value.problem
    assert str(moved) in caught.value.problem
    assert f"regraft import {moved} --tokenizer PATH --out RUN" in caught.value.remedy


def test_other_vocabulary_is_refused(lab_dir, tmp_path):
    path, plain = save_lab(lab_dir)
    size = len(plain.base.encoder.weight)
    dict_path = lab_dir / "dict.txt"
    before = dict_path.read_text(encoding="utf-8")
    dict_path.write_text(before + "another 1\n", encoding="utf-8")
    try:
        with pytest.raises(RunFolderError) as caught:
            load_base(path)
    finally:
        dict_path.write_text(before, encoding="utf-8")
    assert caught.value.problem == (
        f"{path} is made for {size:,} tokens, but its tokenizer has {size + 1:,}."
    )


class Intruder:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code from a file was run",)


def test_pickled_code_is_not_run(lab_dir, capsys):
    path, plain = save_lab(lab_dir, note=Intruder())
    with pytest.raises(RunFolderError) as caught:
        load_base(path)
    assert str(path) in caught.value.problem
    assert "pickled objects" in caught.value.problem
    torch.save(plain, path)
    with pytest.raises(RunFolderError, match="pickled objects"):
        load_base(path)
    assert capsys.readouterr().out == ""


def spoilt(state: "OrderedDict[str, torch.Tensor]", how: str) -> Any:
    layer = "base.transformer_encoder.layers.1."
    if how == "missing":
        del state[layer + "norm1.bias"]
    elif how == "unknown":
        state["base.lstm.weight"] = torch.zeros(2)
    elif how == "positions":
        state["base.pos_encoder.pe"] = state["base.pos_encoder.pe"] + 1
    elif how == "shape":
        state[layer + "linear2.weight"] = torch.zeros(3, 3)
    elif how == "other":
        return {"weights": state}
    elif how == "values":
        return {"model_state_dict": {"base.encoder.weight": 1}}
    elif how == "list":
        return [state]
    return {"model_state_dict": state}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "lacks transformer_encoder.layers.1.norm1.bias"),
        ("unknown", "has lstm.weight, which the lab's model has not"),
        ("positions", "has positions in pos_encoder.pe that are not the lab's sinusoids"),
        ("shape", "does not fit together: size mismatch for blocks.1.linear2.weight"),
        ("other", "has no model_state_dict"),
        ("list", "has no model_state_dict"),
        ("values", "holds something else than tensors in its model_state_dict"),
    ],
)
def test_file_of_another_model_is_refused(lab_dir, how, message):
    path, plain = save_lab(lab_dir)
    torch.save(spoilt(plain.state_dict(), how), path)
    with pytest.raises(RunFolderError) as caught:
        load_base(path)
    assert caught.value.problem.startswith(f"{path} {message}")
    assert caught.value.expected
    assert caught.value.remedy


def test_positions_may_be_absent_from_the_file(lab_dir):
    path, plain = save_lab(lab_dir)
    state = plain.state_dict()
    del state["base.pos_encoder.pe"]
    torch.save({"model_state_dict": state}, path)
    assert load_base(path).settings.model.max_positions == 5000


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 cut off"])
def test_other_file_is_refused(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(RegraftError) as caught:
        load_base(path)
    assert str(path) in caught.value.problem


def test_base_that_is_not_there_is_refused(tmp_path):
    for name in ("missing", "missing.pt"):
        with pytest.raises(RunFolderError, match="There is no run folder"):
            read_base_settings(tmp_path / name)
        with pytest.raises(RunFolderError, match="There is no run folder"):
            load_base(tmp_path / name)
