"""Fine-tuning: what a graft keeps of its base, what is told, and that stopping changes nothing."""

import csv
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY, Recorder, make_examples, write_examples
from safetensors.torch import load_file

from regraft.classifiers import finetuning
from regraft.classifiers.base import load_classifier
from regraft.classifiers.epochs import EpochRecord, best_epoch
from regraft.classifiers.finetuning import (
    FinetuneResult,
    _class_weights,
    finetune,
    train_classifier,
    unseen,
)
from regraft.classifiers.held_out import find_label_issues
from regraft.classifiers.neural import calibrate
from regraft.classifiers.starts import Start, start_from_base, without_base
from regraft.config.resolution import replace, resolve
from regraft.config.schema import Settings
from regraft.data.rows import ExampleRows
from regraft.data.text.label_issues import read_label_issues
from regraft.data.text.readers import load_examples
from regraft.data.text.records import Example, Labels
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.models.heads import Model
from regraft.stats.calibration import fit_temperature, tempered
from regraft.stats.metrics import accuracy, cross_entropy
from regraft.training.inference import class_probabilities
from regraft.training.loaded_run import load_run
from regraft.training.run_folder import RunFolder, read_metrics

FILES = ["config.json", "label_issues.csv", "metrics.jsonl", "model.safetensors"]
FILES += ["run.json", "tokenizer.json"]


def weights_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "model.safetensors")


def unequal(first_dir: Path, second_dir: Path, *, prefix: str = "") -> list[str]:
    """Names of the weights, among those with the prefix, that differ between two runs."""
    first, second = weights_of(first_dir), weights_of(second_dir)
    names = [name for name in first if name.startswith(prefix)]
    assert names
    return [name for name in names if not torch.equal(first[name], second[name])]


def write_csv(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def test_graft_leads_to_a_classifier(
    shared_base: Path, splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    out, progress = tmp_path / "run", Recorder()
    result = finetune(
        base=shared_base,
        train=splits["train"],
        valid=splits["valid"],
        out=out,
        settings=tiny_finetune,
        progress=progress,
    )
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert result.labels == ("negative", "positive")
    assert (result.num_train, result.num_valid) == (32, 16)
    assert len(result.valid_accuracy) == 3  # before the first epoch, then after each
    assert result.base == str(shared_base)
    base = load_run(shared_base).model
    # A staged base brings no transform: it would turn the vectors that contrast taught.
    kept = list(base.backbone.parameters())
    num_new = sum(parameter.numel() for parameter in base.head.transform.parameters()) + 26
    num_kept = sum(parameter.numel() for parameter in kept)
    assert result.transplant == (
        f"{len(kept)} tensors with {num_kept:,} parameters came from the base; "
        f"the new head has {num_new}"
    )
    assert f"Graft: {result.transplant}." in progress.messages
    assert any(
        re.match(r"\d+\.\d % of the training texts are longer", m) for m in progress.messages
    )

    run = load_run(out, kind="classifier")
    assert run.info.labels == ("negative", "positive")
    assert run.info.base == {"run_dir": str(shared_base)}
    assert run.tokenizer.fingerprint == load_run(shared_base).tokenizer.fingerprint


def test_scratch_takes_nothing_from_a_base(
    splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    progress = Recorder()
    result = finetune(
        base=None,
        train=splits["train"],
        out=tmp_path / "run",
        settings=tiny_finetune,
        progress=progress,
    )
    assert result.base == "scratch"
    assert "Graft: all weights are new (scratch)." in progress.messages
    assert load_run(tmp_path / "run").info.base is None


def test_every_epoch_is_logged(
    splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = finetune(
        base=None, train=splits["train"], valid=splits["valid"], out=out, settings=tiny_finetune
    )
    records = list(read_metrics(out))
    assert [(record["epoch"], record["step"]) for record in records] == [(0, 0), (1, 8), (2, 16)]
    assert [record["valid_accuracy"] for record in records] == list(result.valid_accuracy)
    assert records[0]["loss"] is None
    assert all(record["loss"] > 0 for record in records[1:])
    # NaN is no JSON; other programs read this file.
    assert "NaN" not in (out / "metrics.jsonl").read_text()


def test_length_in_steps_may_end_within_an_epoch(
    splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    settings = replace(tiny_finetune, "train", epochs=None, steps=11)
    finetune(base=None, train=splits["train"], valid=splits["valid"], out=out, settings=settings)
    records = list(read_metrics(out))
    assert [(record["epoch"], record["step"]) for record in records] == [(0, 0), (1, 8), (2, 11)]


def test_classifier_learns(splits: dict[str, Path], tmp_path: Path) -> None:
    learning = {"train.epochs": 10, "train.lr": 0.01, "model.dropout": 0, "data.max_length": 64}
    settings = resolve("finetune", overrides={**TINY, **learning})
    result = finetune(
        base=None,
        train=splits["train"],
        valid=splits["train"],
        out=tmp_path / "run",
        settings=settings,
    )
    assert result.valid_accuracy[-1] > 0.9
    assert result.cut_share < 1


def test_valid_is_held_out_when_missing(tiny_finetune: Settings, tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", make_examples(40))
    progress = Recorder()
    result = finetune(
        base=None, train=train, out=tmp_path / "run", settings=tiny_finetune, progress=progress
    )
    assert (result.num_train, result.num_valid) == (34, 6)
    assert progress.messages[0] == "No valid file: 6 of the training examples were held out."


def test_too_few_examples_to_hold_out_are_refused(tiny_finetune: Settings, tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", make_examples(2))
    with pytest.raises(DataError) as caught:
        finetune(base=None, train=train, out=tmp_path / "run", settings=tiny_finetune)
    assert caught.value.problem == f"{train} holds 2 examples, too few to hold some out."
    assert "--valid" in caught.value.remedy
    assert not (tmp_path / "run").exists()


def test_frozen_base_stays_as_it_was(
    shared_base: Path, splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    for name, is_frozen in (("frozen", True), ("free", False)):
        finetune(
            base=shared_base,
            train=splits["train"],
            out=tmp_path / name,
            settings=replace(tiny_finetune, "train", freeze_base=is_frozen),
        )
    assert unequal(shared_base, tmp_path / "frozen", prefix="backbone.") == []
    assert unequal(shared_base, tmp_path / "free", prefix="backbone.blocks.0.") != []
    assert unequal(tmp_path / "free", tmp_path / "frozen", prefix="head.") != []


def test_graft_starts_from_the_weights_of_the_base(
    shared_base: Path, tiny_finetune: Settings
) -> None:
    start = start_from_base(shared_base, settings=tiny_finetune)
    model, transplant = start.build_model(num_classes=3, seed=0)
    assert isinstance(model, Model)
    base = load_run(shared_base).model.backbone.state_dict()
    grafted = model.backbone.state_dict()
    assert base.keys() == grafted.keys()
    assert all(torch.equal(base[name], grafted[name]) for name in base)
    assert transplant is not None
    again, _ = start.build_model(num_classes=3, seed=0)
    other, _ = start.build_model(num_classes=3, seed=1)
    head = model.head.linear.weight
    assert torch.equal(head, again.head.linear.weight)
    assert not torch.equal(head, other.head.linear.weight)


def test_graft_takes_the_dropout_of_the_fine_tuning(
    shared_base: Path, tiny_finetune: Settings
) -> None:
    settings = replace(tiny_finetune, "model", dropout=0.3, attention_dropout=0.2, width=99)
    start = start_from_base(shared_base, settings=settings)
    model, _ = start.build_model(num_classes=2, seed=0)
    dropouts = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
    assert dropouts == {0.3}
    assert {block.attention.dropout for block in model.backbone.blocks} == {0.2}
    assert start.settings.model.width == TINY["model.width"]


def test_longer_rows_than_the_base_reads_are_refused(
    shared_base: Path, tiny_finetune: Settings
) -> None:
    settings = replace(tiny_finetune, "data", max_length=65)
    with pytest.raises(ConfigError) as caught:
        start_from_base(shared_base, settings=settings)
    assert caught.value.problem == (
        f"data.max_length is 65, but the base {shared_base} has positions for 64 tokens."
    )


METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "base_rate": {"train.base_rate": 0.1},
    "layer_decay": {"train.layer_decay": 0.8},
    "unfreeze_every": {"train.unfreeze_every": 1},
    "layers_after": {"train.layers_after": 0.5},
    "reinit_layers": {"train.reinit_layers": 1},
    "attention": {"head.pooling": "attention"},
    "auxiliary_weight": {"train.auxiliary_weight": 0.5},
    "rdrop": {"train.rdrop": 1.0},
    "ema, patience": {"train.average": "ema", "train.patience": 1, "train.epochs": 3},
    "swa": {"train.average": "swa"},
    "head start": {"head.start": "regression", "train.epochs": 3},
}


@pytest.mark.parametrize("method", [*METHODS, "scratch"])
def test_resumed_run_equals_a_straight_one(
    shared_base: Path, splits: dict[str, Path], tmp_path: Path, method: str
) -> None:
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 2, **METHODS.get(method, {})})
    valid = write_examples(tmp_path / "more.csv", 40, seed=9)
    files = {"train": splits["train"], "valid": valid, "settings": settings}
    inputs: dict[str, Any] = {**files, "base": None if method == "scratch" else shared_base}
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    expected = finetune(out=straight, **inputs)
    # Within an epoch, at its end, and after the last step.
    for step in (3, 8, 16):
        with pytest.raises(KeyboardInterrupt):
            finetune(out=stopped, resume=True, progress=Recorder(interrupt_at=step), **inputs)
    result = finetune(out=stopped, resume=True, **inputs)
    assert unequal(straight, stopped) == []
    assert list(read_metrics(straight)) == list(read_metrics(stopped))
    assert result.valid_accuracy == expected.valid_accuracy
    assert result.best_epoch == expected.best_epoch
    assert result.temperature == expected.temperature != 1
    assert sorted(path.name for path in stopped.iterdir()) == FILES


def test_run_killed_after_its_last_validation_logs_it_once(
    shared_base: Path, splits: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ends within an epoch.
    overrides = {**TINY, "train.steps": 11, "train.checkpoint_every": 11}
    inputs: dict[str, Any] = {
        **{"train": splits["train"], "valid": splits["valid"], "base": shared_base},
        "settings": resolve("finetune", overrides=overrides),
    }
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    finetune(out=straight, **inputs)

    def end(*arguments: object, **options: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", end)
        with pytest.raises(SystemExit):
            finetune(out=killed, **inputs)
    finetune(out=killed, resume=True, **inputs)
    assert list(read_metrics(straight)) == list(read_metrics(killed))


@pytest.mark.parametrize("method", [name for name in METHODS if name != "plain"])
def test_every_method_changes_what_is_learned(
    shared_base: Path, splits: dict[str, Path], tmp_path: Path, method: str
) -> None:
    for name in ("plain", method):
        overrides = {**TINY, **METHODS[name], "train.epochs": 1}
        settings = resolve("finetune", overrides=overrides)
        finetune(base=shared_base, train=splits["train"], out=tmp_path / name, settings=settings)
    assert unequal(tmp_path / "plain", tmp_path / method, prefix="head.linear.") != []


def test_layers_are_thawed_one_after_the_other(
    shared_base: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    methods = {"train.unfreeze_every": 1, "train.weight_decay": 0}
    for epochs, frozen in ((1, "blocks.1."), (2, "blocks.0."), (3, "embedding.")):
        overrides = {**TINY, **methods, "train.epochs": epochs}
        settings = resolve("finetune", overrides=overrides)
        out = tmp_path / str(epochs)
        finetune(base=shared_base, train=splits["train"], out=out, settings=settings)
        assert unequal(shared_base, out, prefix=f"backbone.{frozen}") == []
    assert unequal(shared_base, tmp_path / "3", prefix="backbone.blocks.0.") != []


def rows_of(examples: int, *, start: Start, seed: int) -> ExampleRows:
    texts, names = zip(*make_examples(examples, seed=seed), strict=True)
    targets = [int(name == "positive") for name in names]
    return ExampleRows(texts, targets=targets, tokenizer=start.tokenizer, data=start.settings.data)


def test_patience_stops_and_keeps_the_best_epoch(shared_base: Path) -> None:
    overrides = {**TINY, "train.epochs": 30, "train.lr": 0.03, "train.patience": 2}
    start = start_from_base(shared_base, settings=resolve("finetune", overrides=overrides))
    model, _ = start.build_model(num_classes=2, seed=0)
    rows, valid_rows = rows_of(32, start=start, seed=3), rows_of(16, start=start, seed=4)
    weights: dict[int, torch.Tensor] = {}
    records = []
    for record in train_classifier(
        model, rows=rows, valid_rows=valid_rows, settings=start.settings
    ):
        records.append(record)
        weights[record.epoch] = model.head.linear.weight.detach().clone()
    best = best_epoch(records)
    assert best is not None
    assert len(records) - 1 == best + 2 < 30
    assert records[best].valid_accuracy == max(record.valid_accuracy for record in records[1:])
    assert torch.equal(model.head.linear.weight, weights[best])
    assert not torch.equal(model.head.linear.weight, weights[len(records) - 1])


def test_best_epoch_is_the_first_of_equals_and_a_trained_one() -> None:
    accuracies = (0.9, 0.5, 0.7, 0.7)
    records = [EpochRecord(n, n, None, value, 0.0) for n, value in enumerate(accuracies)]
    assert best_epoch(records) == 2
    assert best_epoch(records[:1]) is None


def test_averaged_weights_are_watched_and_kept(shared_base: Path) -> None:
    overrides = {**TINY, "train.epochs": 3, "train.average": "ema"}
    start = start_from_base(shared_base, settings=resolve("finetune", overrides=overrides))
    model, _ = start.build_model(num_classes=2, seed=0)
    rows = rows_of(32, start=start, seed=3)
    passed = [
        (record.valid_accuracy, model.head.linear.weight.detach().clone())
        for record in train_classifier(model, rows=rows, valid_rows=rows, settings=start.settings)
    ]
    watched, last = passed[-1]
    assert not torch.equal(model.head.linear.weight, last)
    found = accuracy(class_probabilities(model, rows).argmax(axis=1), rows.targets)
    assert found == watched


@pytest.mark.parametrize(
    "method", ["base_rate", "unfreeze_every", "reinit_layers", "auxiliary_weight"]
)
def test_methods_for_a_base_are_refused_without_one(
    splits: dict[str, Path], tmp_path: Path, method: str
) -> None:
    settings = resolve("finetune", overrides={**TINY, **METHODS[method]})
    with pytest.raises(ConfigError, match=rf"train\.{method} is .*, and there is no base"):
        finetune(base=None, train=splits["train"], out=tmp_path / "run", settings=settings)
    assert getattr(without_base(settings).train, method) is None


def test_settings_that_contradict_the_base_are_refused(shared_base: Path) -> None:
    overrides = {**TINY, "model.num_layers": 5, "train.reinit_layers": 4}
    with pytest.raises(ConfigError, match=r"train\.reinit_layers: 4 .*2 layers"):
        start_from_base(shared_base, settings=resolve("finetune", overrides=overrides))


def test_resume_of_a_complete_run_returns_its_result(
    splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    inputs: dict[str, Any] = {"base": None, "train": splits["train"], "settings": tiny_finetune}
    first = finetune(out=tmp_path / "run", **inputs)
    progress = Recorder()
    second = finetune(out=tmp_path / "run", resume=True, progress=progress, **inputs)
    assert second == first
    assert progress.messages[-1] == f"{tmp_path / 'run'} is complete already."


def test_resume_with_another_base_or_file_is_refused(
    shared_base: Path, splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    inputs: dict[str, Any] = {"base": shared_base, "out": out, "settings": tiny_finetune}
    finetune(train=splits["train"], valid=splits["valid"], **inputs)
    with pytest.raises(
        RunFolderError, match="was started with other settings or data: valid has changed"
    ):
        finetune(train=splits["train"], valid=splits["test"], resume=True, **inputs)
    with pytest.raises(RunFolderError, match="base has changed"):
        finetune(
            train=splits["train"], valid=splits["valid"], resume=True, **{**inputs, "base": None}
        )


def test_label_only_in_valid_is_refused(
    splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    valid = write_csv(tmp_path / "v.csv", [("fine", "positive"), ("so so", "neutal")])
    with pytest.raises(DataError) as caught:
        finetune(
            base=None,
            train=splits["train"],
            valid=valid,
            out=tmp_path / "run",
            settings=tiny_finetune,
        )
    assert caught.value.problem == (
        f"Labels differ between splits: 'neutal' occurs only in {valid} (row 3)."
    )
    assert not (tmp_path / "run").exists()


def test_labels_stay_names_in_their_order(tiny_finetune: Settings, tmp_path: Path) -> None:
    names = ("10", "2", "1")
    rows = [(text, names[row % 3]) for row, (text, _) in enumerate(make_examples(24))]
    train = write_csv(tmp_path / "train.csv", rows)
    result = finetune(base=None, train=train, out=tmp_path / "run", settings=tiny_finetune)
    assert result.labels == load_run(tmp_path / "run").info.labels == ("1", "2", "10")


def test_class_weights_balance_the_classes(
    shared_base: Path, splits: dict[str, Path], tiny_finetune: Settings
) -> None:
    tokenizer = load_run(shared_base).tokenizer
    labels = Labels(("a", "b", "c"))
    rows = ExampleRows(
        ["x"] * 12,
        targets=[labels.target(name) for name in "aaaaaaaabbbc"],
        tokenizer=tokenizer,
        data=tiny_finetune.data,
    )
    assert _class_weights(rows, settings=tiny_finetune) is None
    balanced = replace(tiny_finetune, "train", class_weight="balanced")
    weights = _class_weights(rows, settings=balanced)
    assert weights is not None
    # Every class weighs the same in sum, and an example weighs 1 in the mean.
    assert (weights * torch.tensor([8, 3, 1])).tolist() == pytest.approx([4, 4, 4])


def test_balanced_classes_help_the_rare_one(tmp_path: Path) -> None:
    # Nothing tells the texts apart, so a model learns only how frequent the classes are.
    rows = [("the same words", "rare" if row % 8 == 0 else "frequent") for row in range(32)]
    train = write_csv(tmp_path / "train.csv", rows)
    learning = {"train.epochs": 40, "train.batch_size": 32, "train.lr": 0.01, "model.dropout": 0}
    shares = {}
    for weight in ("none", "balanced"):
        settings = resolve("finetune", overrides={**TINY, **learning, "train.class_weight": weight})
        finetune(base=None, train=train, valid=train, out=tmp_path / weight, settings=settings)
        run = load_run(tmp_path / weight)
        ids = torch.tensor([[run.tokenizer.start_id, *run.tokenizer.encode("the same words")]])
        with torch.no_grad():
            scores = run.model(ids, real_BT=torch.ones_like(ids, dtype=torch.bool))
        shares[weight] = float(scores.softmax(dim=1)[0, 1])
    assert shares == pytest.approx({"none": 1 / 8, "balanced": 1 / 2}, abs=0.1)


def test_run_killed_before_its_first_checkpoint_starts_again(
    splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    class Crash(Recorder):
        """A fault, not a signal: nothing is saved."""

        def advance(self, amount: float = 1, *, note: str = "") -> None:
            super().advance(amount, note=note)
            if self.tasks[-1] == "fine-tune" and self._done == 3:
                raise MemoryError

    inputs: dict[str, Any] = {"base": None, "train": splits["train"], "settings": tiny_finetune}
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    finetune(out=straight, **inputs)
    with pytest.raises(MemoryError):
        finetune(out=stopped, progress=Crash(), **inputs)
    finetune(out=stopped, resume=True, **inputs)
    assert unequal(straight, stopped) == []
    assert list(read_metrics(straight)) == list(read_metrics(stopped))


@pytest.fixture
def bold(shared_base: Path, tiny_finetune: Settings) -> tuple[Model, ExampleRows]:
    """A classifier that says everything far too loudly, and rows to find that out by."""
    start = start_from_base(shared_base, settings=tiny_finetune)
    model, _ = start.build_model(num_classes=2, seed=0)
    list(
        train_classifier(
            model,
            rows=rows_of(32, start=start, seed=3),
            valid_rows=rows_of(16, start=start, seed=4),
            settings=start.settings,
        )
    )
    model.head.divide_scores(1 / 50)
    return model, rows_of(60, start=start, seed=5)


def test_temperature_is_put_into_the_head(
    bold: tuple[Model, ExampleRows], tiny_finetune: Settings
) -> None:
    model, rows = bold
    before, weights = class_probabilities(model, rows), dict(model.state_dict())
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    is_new_N = np.ones(60, dtype=bool)
    found = calibrate(model, rows, is_new_N=is_new_N, settings=tiny_finetune)
    assert found == fit_temperature(before, rows.targets) > 1.5
    after = class_probabilities(model, rows)
    assert after == pytest.approx(tempered(before, found), abs=1e-6)
    # The order of the classes stays, and with it every score but those of sureness.
    assert np.array_equal(before.argsort(axis=1), after.argsort(axis=1))
    assert cross_entropy(after, rows.targets) < cross_entropy(before, rows.targets)
    changed = [n for n, tensor in model.state_dict().items() if not torch.equal(tensor, weights[n])]
    assert changed == ["head.linear.weight", "head.linear.bias"]


def test_nothing_is_calibrated_by_texts_that_were_trained_on(
    bold: tuple[Model, ExampleRows], tiny_finetune: Settings
) -> None:
    model, rows = bold
    before = class_probabilities(model, rows)
    is_new_N = np.zeros(60, dtype=bool)
    assert calibrate(model, rows, is_new_N=is_new_N, settings=tiny_finetune) is None
    assert np.array_equal(class_probabilities(model, rows), before)
    is_new_N[10:50] = True
    found = calibrate(model, rows, is_new_N=is_new_N, settings=tiny_finetune)
    assert found == fit_temperature(before[10:50], rows.targets[10:50])


def test_weighed_classes_are_left_as_they_are(
    bold: tuple[Model, ExampleRows], tiny_finetune: Settings
) -> None:
    model, rows = bold
    weighed = replace(tiny_finetune, "train", class_weight="balanced")
    assert calibrate(model, rows, is_new_N=np.ones(60, dtype=bool), settings=weighed) is None


def test_unseen_examples_are_no_training_examples() -> None:
    train = [Example("one", "a", "f", 1), Example("two", "a", "f", 2, pair="three")]
    asked = [
        *(Example("one", "b", "g", 1), Example("two", "a", "g", 2)),
        Example("two", "a", "g", 3, pair="three"),
    ]
    assert unseen(asked, train=train).tolist() == [False, True, False]


def test_run_tells_its_temperature(
    splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    files: dict[str, Any] = {"base": None, "train": splits["train"], "settings": tiny_finetune}
    result = finetune(valid=splits["valid"], out=tmp_path / "run", **files)
    info = load_run(tmp_path / "run").info
    assert info.temperature == result.temperature == info.result["temperature"] is not None
    # Accuracies were told before it, and are those of the weights that are kept.
    run = load_run(tmp_path / "run")
    texts, names = zip(*make_examples(16, seed=4), strict=True)
    targets = [run.info.labels.index(name) for name in names]
    rows = ExampleRows(texts, targets=targets, tokenizer=run.tokenizer, data=run.settings.data)
    chances = class_probabilities(run.model, rows)
    assert accuracy(chances.argmax(axis=1), rows.targets) == result.valid_accuracy[-1]

    same = finetune(valid=splits["train"], out=tmp_path / "same", **files)
    assert same.temperature is load_run(tmp_path / "same").info.temperature is None


def test_held_out_examples_choose_when_to_answer_and_whose_label_may_be_wrong(
    tiny_finetune: Settings, splits: dict[str, Path], tmp_path: Path
) -> None:
    learning = {"train.epochs": 10, "train.lr": 0.01, "model.dropout": 0, "data.max_length": 64}
    examples = make_examples(60, seed=7)
    swapped = {"negative": "positive", "positive": "negative"}
    wrong = {row + 2 for row in range(0, 60, 5)}  # rows of the file, after its header
    rows = [(t, swapped[n] if row + 2 in wrong else n) for row, (t, n) in enumerate(examples)]
    files: dict[str, Any] = {
        "base": None,
        "train": write_csv(tmp_path / "train.csv", make_examples(120)),
    }
    result = finetune(
        **files,
        valid=write_csv(tmp_path / "valid.csv", rows),
        out=tmp_path / "run",
        settings=resolve("finetune", overrides={**TINY, **learning}),
        target_accuracy=0.8,
    )
    classifier = load_classifier(tmp_path / "run")
    assert classifier.abstain_below == result.abstain_below >= 0.5
    held_out = load_examples(tmp_path / "valid.csv", data=classifier.data)
    chances_NC = classifier.predict_proba([example.text for example in held_out])
    expected = find_label_issues(held_out, chances_NC, labels=Labels(classifier.labels))
    issues = read_label_issues(tmp_path / "run/label_issues.csv")
    assert [issue.row for issue in issues] == [issue.row for issue in expected]
    assert len(issues) == result.num_label_issues
    assert wrong & {issue.row for issue in issues}

    files |= {"valid": files["train"], "settings": tiny_finetune}
    with pytest.raises(DataError, match="not trained on"):
        finetune(**files, out=tmp_path / "none", target_accuracy=0.8)
    given = finetune(**files, out=tmp_path / "given", abstain_below=0.9)
    assert (given.abstain_below, given.num_label_issues) == (0.9, 0)
    assert read_label_issues(tmp_path / "given/label_issues.csv") == []


def test_result_without_a_temperature_can_be_read(
    splits: dict[str, Path], tiny_finetune: Settings, tmp_path: Path
) -> None:
    result = finetune(
        base=None, train=splits["train"], out=tmp_path / "run", settings=tiny_finetune
    )
    values = result.to_dict()
    assert values.pop("temperature") is not None
    assert FinetuneResult.from_dict(values).temperature is None


def test_scoring_counts_against_a_budget_of_minutes(
    shared_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    score = finetuning._valid_accuracy

    def slow_score(*inputs: Any) -> float:
        time.sleep(0.5)
        return score(*inputs)

    monkeypatch.setattr(finetuning, "_valid_accuracy", slow_score)
    train = write_examples(tmp_path / "train.csv", 8, seed=1)
    settings = resolve("finetune", overrides={**TINY, "train.minutes": 0.01})
    result = finetune(
        base=shared_base, train=train, valid=train, out=tmp_path / "run", settings=settings
    )
    # Before the first epoch, and once more: by then all of the 0.6 s are gone.
    assert len(result.valid_accuracy) <= 3
    assert result.seconds >= 0.5
