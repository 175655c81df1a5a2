"""A head that starts from logistic regression on the frozen vectors of its base."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, make_examples
from sklearn.linear_model import LogisticRegression

from regraft.classifiers.epochs import EpochRecord, best_epoch, kept_epoch
from regraft.classifiers.finetuning import finetune, train_classifier
from regraft.classifiers.head_start import start_from_regression
from regraft.classifiers.starts import Start, start_from_base, without_base
from regraft.config.resolution import resolve
from regraft.data.rows import ExampleRows
from regraft.errors import ConfigError
from regraft.models.heads import ClassifierHead, Model
from regraft.training.inference import class_probabilities, head_vectors, pooled_vectors

REGRESSION = {"head.start": "regression"}


def start_of(base: Path, **overrides: Any) -> Start:
    given = {**TINY, "train.epochs": 2, **REGRESSION, **overrides}
    return start_from_base(base, settings=resolve("finetune", overrides=given))


def rows_of(num: int, *, start: Start, seed: int, num_classes: int = 2) -> ExampleRows:
    texts, names = zip(*make_examples(num, seed=seed), strict=True)
    targets = [int(name == "positive") for name in names]
    if num_classes > 2:
        targets = [place % num_classes for place in range(num)]
    data = start.settings.data
    return ExampleRows(texts, targets=targets, tokenizer=start.tokenizer, data=data)


def built(start: Start, *, num_classes: int = 2) -> Model:
    return start.build_model(num_classes=num_classes, seed=0)[0]


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("pooling", ["mean", "last", "attention"])
def test_predictions_before_training_are_those_of_the_regression(
    shared_base: Path, num_classes: int, pooling: str
) -> None:
    start = start_of(shared_base, **{"head.pooling": pooling, "model.dropout": 0.5})
    model = built(start, num_classes=num_classes).train()
    rows = rows_of(33, start=start, seed=3, num_classes=num_classes)
    others = rows_of(15, start=start, seed=4, num_classes=num_classes)
    vectors_ND, others_MD = head_vectors(model, rows), head_vectors(model, others)
    tuned = start_from_regression(model, rows, seed=0)

    scale = np.linalg.norm(vectors_ND, axis=1).mean()
    regression = LogisticRegression(C=tuned.regularisation, max_iter=2_000)
    regression.fit(vectors_ND / scale, rows.targets)
    expected = regression.predict_proba(others_MD / scale)
    np.testing.assert_allclose(class_probabilities(model, others), expected, atol=1e-5)
    assert tuned.judged_by == "folds"


def test_vectors_are_read_as_the_head_reads_them(shared_base: Path) -> None:
    start = start_of(shared_base)
    model, rows = built(start), rows_of(9, start=start, seed=3)
    head = model.head
    assert isinstance(head, ClassifierHead)
    assert head.between is not None
    head.between = None
    pooled_ND = pooled_vectors(model.backbone, rows, pooling="mean")
    np.testing.assert_allclose(head_vectors(model, rows), pooled_ND, atol=1e-5)


def test_class_without_examples_is_all_but_excluded(shared_base: Path) -> None:
    start = start_of(shared_base)
    model, rows = built(start, num_classes=3), rows_of(32, start=start, seed=3)
    start_from_regression(model, rows, seed=0)
    assert class_probabilities(model, rows)[:, 2].max() < 1e-4


def test_start_is_one_of_the_epochs_to_choose_from(shared_base: Path) -> None:
    # A rate that destroys what the base knows: nothing after the start can be better.
    start = start_of(shared_base, **{"train.lr": 1.0, "train.epochs": 2})
    model, rows = built(start), rows_of(64, start=start, seed=3)
    expected = built(start)
    start_from_regression(expected, rows, seed=0)
    records = list(train_classifier(model, rows=rows, valid_rows=rows, settings=start.settings))
    assert kept_epoch(records, settings=start.settings) == 0
    assert records[0].valid_accuracy > max(record.valid_accuracy for record in records[1:])
    ours, theirs = class_probabilities(model, rows), class_probabilities(expected, rows)
    np.testing.assert_array_equal(ours, theirs)


def test_start_is_not_chosen_when_the_head_is_random() -> None:
    accuracies = (0.9, 0.5, 0.7)
    records = [EpochRecord(n, n, None, value, 0.0) for n, value in enumerate(accuracies)]
    assert best_epoch(records) == 2
    assert best_epoch(records, includes_start=True) == 0
    plain = resolve("finetune", overrides={"train.patience": 1})
    assert kept_epoch(records, settings=plain) == 2
    assert kept_epoch(records, settings=resolve("finetune")) is None


def test_head_start_does_not_depend_on_the_random_head(shared_base: Path) -> None:
    start = start_of(shared_base)
    rows = rows_of(32, start=start, seed=3)
    models = [start.build_model(num_classes=2, seed=seed)[0] for seed in (0, 1)]
    for model in models:
        start_from_regression(model, rows, seed=0)
    first, second = (class_probabilities(model, rows) for model in models)
    np.testing.assert_array_equal(first, second)


def test_scratch_has_nothing_to_start_from(
    shared_base: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    settings = resolve("finetune", overrides={**TINY, **REGRESSION})
    with pytest.raises(ConfigError, match=r"head\.start is regression, and there is no base"):
        finetune(base=None, train=splits["train"], out=tmp_path / "run", settings=settings)
    # The arms of a comparison that have no base stay random.
    plain = resolve("finetune", overrides=TINY)
    assert without_base(settings) == plain
    start = start_of(shared_base)
    scratch = dataclasses.replace(start, base=None, settings=without_base(start.settings))
    rows = rows_of(8, start=start, seed=3)
    model, before = built(scratch), class_probabilities(built(scratch), rows)
    first = next(iter(train_classifier(model, rows=rows, valid_rows=rows, settings=plain)))
    assert first.epoch == 0
    np.testing.assert_array_equal(class_probabilities(model, rows), before)


def test_several_labels_and_pre_training_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"head\.start: regression needs one label per example"):
        resolve("finetune", overrides={**REGRESSION, "data.label_separator": "|"})
    with pytest.raises(ConfigError, match=r"head\.start: .*set it for fine-tuning only"):
        resolve("pretrain", overrides=REGRESSION)


def test_random_is_the_default_of_every_preset() -> None:
    for preset in ("lab", "bert", "modern", "bag"):
        settings = resolve("finetune", preset=preset)
        assert (settings.head.start, settings.train.base_rate) == ("random", None)


def test_bases_made_in_stages_start_at_the_regression_and_move_slowly() -> None:
    staged = {"objective.stages": "auto"}
    modern = resolve("pretrain", preset="modern", overrides=staged)
    settings = resolve("finetune", base=modern)
    assert (settings.head.start, settings.train.base_rate) == ("regression", 0.1)
    # What the user sets counts, and label sets have no regression to start from.
    own = resolve("finetune", base=modern, overrides={"head.start": "random"})
    assert own.head.start == "random"
    several = resolve("finetune", base=modern, overrides={"data.label_separator": "|"})
    assert (several.head.start, several.train.base_rate) == ("random", 0.1)
    # The lab is fine-tuned as it always was, and so are bases without stages.
    unstaged = resolve("pretrain", preset="modern", overrides={"objective.stages": "language"})
    for base in (resolve("pretrain", preset="lab"), unstaged):
        plain = resolve("finetune", base=base)
        assert (plain.head.start, plain.train.base_rate) == ("random", None)


def test_base_rate_is_a_share_of_the_learning_rate(shared_base: Path) -> None:
    trained = []
    for overrides in ({"train.lr": 1e-3, "train.base_rate": 0.1}, {"train.lr": 1e-4}):
        start = start_of(shared_base, **{**overrides, "train.epochs": 1})
        model, rows = built(start), rows_of(9, start=start, seed=3)
        list(train_classifier(model, rows=rows, valid_rows=rows, settings=start.settings))
        trained.append(class_probabilities(model, rows))
    np.testing.assert_allclose(*trained, atol=1e-6)
