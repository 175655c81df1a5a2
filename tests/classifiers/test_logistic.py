"""Regressions with a chosen strength, against scikit-learn's own."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from tampering import change_facts

from regraft.classifiers.logistic import (
    NUM_FOLDS,
    REGULARISATIONS,
    TunedRegression,
    fit_regression,
    stratified_folds,
    tune,
    unit_length,
)
from regraft.data.text.records import Labels
from regraft.errors import RunFolderError

NAMES = ("bad", "fair", "good")


def clouds(
    num_rows: int, *, seed: int, num_classes: int = 3, width: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Rows around a centre for each class, classes in turn."""
    centres = np.random.default_rng(7).normal(size=(num_classes, width))
    targets = np.arange(num_rows) % num_classes
    noise = np.random.default_rng(seed).normal(size=(num_rows, width))
    return centres[targets] + 1.2 * noise, targets


def oracle(rows: np.ndarray, targets: np.ndarray, *, folds: np.ndarray) -> dict[float, np.ndarray]:
    """scikit-learn's out-of-fold probabilities for every strength."""
    return {
        strength: cross_val_predict(
            LogisticRegression(C=strength, max_iter=2_000),
            rows,
            targets,
            cv=PredefinedSplit(folds),
            method="predict_proba",
        )
        for strength in REGULARISATIONS
    }


def test_folds_choose_as_scikit_learn_would():
    rows, targets = clouds(61, seed=1)
    tuned = tune(rows, targets, labels=NAMES, seed=3)
    folds = stratified_folds(targets, num_folds=NUM_FOLDS, seed=3)
    expected = oracle(rows, targets, folds=folds)
    curve = {
        strength: accuracy_score(targets, chances.argmax(axis=1))
        for strength, chances in expected.items()
    }
    assert tuned.judged_by == "folds"
    assert tuned.valid_curve == curve
    tied = [strength for strength in curve if curve[strength] == max(curve.values())]
    best = min(tied, key=lambda strength: log_loss(targets, expected[strength]))
    assert tuned.regularisation == best
    assert tuned.valid_accuracy == curve[best]
    np.testing.assert_array_equal(tuned.judged_NC, expected[best])
    all_rows = LogisticRegression(C=best, max_iter=2_000).fit(rows, targets)
    np.testing.assert_array_equal(tuned.probabilities(rows), all_rows.predict_proba(rows))


@pytest.mark.parametrize("num_classes", [2, 3])
def test_sparse_rows_are_turned_without_a_difference(num_classes):
    """Features outnumber rows: the regression is found in the rows' own space, and led back."""
    rows, targets = clouds(24, seed=2, num_classes=num_classes, width=40)
    rows[1] = rows[0]  # the space has fewer dimensions than rows
    labels = NAMES[:num_classes]
    sparse = tune(scipy.sparse.csr_matrix(rows), targets, labels=labels)
    dense = tune(rows, targets, labels=labels)
    assert sparse.regularisation == dense.regularisation
    new, _ = clouds(9, seed=3, num_classes=num_classes, width=40)
    # Both stop when no slope is above scikit-learn's tolerance: alike, not equal.
    np.testing.assert_allclose(sparse.judged_NC, dense.judged_NC, atol=2e-2)
    np.testing.assert_allclose(
        sparse.probabilities(scipy.sparse.csr_matrix(new)), dense.probabilities(new), atol=2e-2
    )


def test_valid_judges_where_there_is_one():
    rows, targets = clouds(40, seed=1)
    valid_rows, valid_targets = clouds(31, seed=2)
    tuned = tune(rows, targets, labels=NAMES, valid=(valid_rows, valid_targets))
    assert tuned.judged_by == "valid"
    best = LogisticRegression(C=tuned.regularisation, max_iter=2_000).fit(rows, targets)
    np.testing.assert_array_equal(tuned.judged_NC, best.predict_proba(valid_rows))
    assert tuned.valid_accuracy == best.score(valid_rows, valid_targets)
    assert tuned.valid_accuracy == max(tuned.valid_curve.values())


def test_rarest_class_bounds_the_folds():
    rows, targets = clouds(30, seed=1)
    kept = np.flatnonzero((targets != 2) | (np.cumsum(targets == 2) <= 2))
    tuned = tune(rows[kept], targets[kept], labels=NAMES)
    folds = stratified_folds(targets[kept], num_folds=2, seed=0)
    expected = oracle(rows[kept], targets[kept], folds=folds)
    np.testing.assert_array_equal(tuned.judged_NC, expected[tuned.regularisation])


def test_class_of_one_row_leaves_nothing_to_judge_by():
    rows, targets = clouds(11, seed=1)
    kept = [*np.flatnonzero(targets != 2), 2]
    tuned = tune(rows[kept], targets[kept], labels=NAMES)
    assert (tuned.judged_by, tuned.regularisation) == ("nothing", 1.0)
    assert tuned.valid_accuracy is None
    assert tuned.valid_curve == {}
    assert tuned.judged_NC is None
    assert (tuned.probabilities(rows) > 0).all()


def test_class_that_train_lacks_has_no_chance():
    rows, targets = clouds(20, seed=1, num_classes=2)
    tuned = tune(rows, targets * 2, labels=NAMES)
    assert tuned.judged_NC is not None
    for chances in (tuned.judged_NC, tuned.probabilities(rows)):
        assert (chances[:, 1] == 0).all()
        np.testing.assert_allclose(chances.sum(axis=1), 1)


def test_folds_are_alike_and_depend_on_the_seed():
    targets = np.array([0] * 13 + [1] * 7 + [2] * 3)
    folds = stratified_folds(targets, num_folds=5, seed=1)
    assert np.ptp(np.bincount(folds, minlength=5)) <= 1
    for target in range(3):
        assert np.ptp(np.bincount(folds[targets == target], minlength=5)) <= 1
    np.testing.assert_array_equal(folds, stratified_folds(targets, num_folds=5, seed=1))
    assert (folds != stratified_folds(targets, num_folds=5, seed=2)).any()


def test_unit_length_keeps_zeros():
    scaled = unit_length(np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32))
    np.testing.assert_allclose(scaled, [[0.6, 0.8], [0.0, 0.0]])
    assert scaled.dtype == np.float64


def test_vectors_are_scaled_before_fit_and_use():
    rows, targets = clouds(30, seed=1)
    stretch = np.random.default_rng(0).uniform(0.1, 9, size=(30, 1))
    plain = fit_regression(unit_length(rows), targets, labels=Labels(NAMES))
    stretched = fit_regression(rows * stretch, targets, labels=Labels(NAMES))
    assert plain.regularisation == stretched.regularisation
    new, _ = clouds(7, seed=5)
    np.testing.assert_allclose(
        plain.probabilities(unit_length(new)),
        stretched.probabilities(unit_length(3 * new)),
        atol=1e-5,
    )


def test_vectors_of_valid_judge():
    rows, targets = clouds(30, seed=1)
    model = fit_regression(rows, targets, labels=Labels(NAMES), valid=clouds(20, seed=2))
    assert model.judged_by == "valid"
    assert model.judged_NC is not None
    assert model.judged_NC.shape == (20, 3)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_saved_regression_answers_bit_for_bit(tmp_path, num_classes):
    rows, targets = clouds(40, seed=1, num_classes=num_classes)
    model = fit_regression(rows.astype(np.float32), targets, labels=Labels(NAMES[:num_classes]))
    model.save(tmp_path / "regression")
    again = TunedRegression.load(tmp_path / "regression")
    new, _ = clouds(50, seed=4, num_classes=num_classes)
    np.testing.assert_array_equal(again.probabilities(new), model.probabilities(new))
    for name in ("labels", "regularisation", "judged_by", "valid_accuracy", "valid_curve"):
        assert getattr(again, name) == getattr(model, name)
    assert again.seconds == model.seconds
    assert again.judged_NC is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"labels": ["bad", "good"]}, "intercepts or classes do not fit 2 labels"),
        ({"labels": None}, "'NoneType' object is not iterable"),
        ({"regularisation": "much"}, "could not convert string to float: 'much'"),
    ],
)
def test_regression_refuses_facts_that_do_not_fit(tmp_path, facts, reason):
    rows, targets = clouds(40, seed=1)
    fit_regression(rows, targets, labels=Labels(NAMES)).save(tmp_path)
    path = tmp_path / "member.json"
    change_facts(path, **facts)
    with pytest.raises(RunFolderError) as caught:
        TunedRegression.load(tmp_path)
    assert caught.value.problem == f"{path} describes no regression member: {reason}."


def label_sets(num_rows: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and for each of three labels whether it lies on one side; the last row has none."""
    rows = np.random.default_rng(seed).normal(size=(num_rows, 5))
    sides = np.random.default_rng(8).normal(size=(5, 3))
    targets = (rows @ sides + np.array([0.0, -1.0, -1.5]) > 0).astype(np.int64)
    targets[-1] = 0
    return rows, targets


def test_label_sets_have_one_regression_each_and_one_shift():
    rows, targets = label_sets(90, seed=1)
    tuned = tune(rows, targets, labels=NAMES)
    chances = tuned.probabilities(rows)
    log_odds = np.log(chances) - np.log(1 - chances)
    shifts = []
    for target in range(3):
        alone = LogisticRegression(C=tuned.regularisation, max_iter=2_000)
        alone.fit(rows, targets[:, target])
        shifts.append(log_odds[:, target] - alone.decision_function(rows))
    assert np.ptp(shifts) == pytest.approx(0, abs=1e-6)
    # Held out, they are right on average.
    assert tuned.judged_NC.sum() == pytest.approx(targets.sum(), rel=0.02)


def test_label_that_all_rows_have_or_none_is_a_constant():
    rows, targets = label_sets(20, seed=2)
    targets[:, 0], targets[:, 1] = 1, 0
    chances = tune(rows, targets, labels=NAMES, valid=(rows, targets)).probabilities(rows)
    assert np.ptp(chances[:, :2], axis=0) == pytest.approx([0, 0])
    assert chances[0, 0] > 0.5 > chances[0, 1] > 0


def test_label_sets_survive_the_disk(tmp_path):
    rows, targets = label_sets(40, seed=3)
    tuned = tune(rows, targets[:, :2], labels=("a", "b"))
    tuned.save(tmp_path / "sets")
    loaded = TunedRegression.load(tmp_path / "sets")
    assert np.array_equal(loaded.probabilities(rows), tuned.probabilities(rows))


def test_folds_of_label_sets_spread_the_rarest_label():
    _, targets = label_sets(200, seed=4)
    folds = stratified_folds(targets, num_folds=NUM_FOLDS, seed=0)
    rarest = targets.sum(axis=0).argmin()
    counts = np.bincount(folds, weights=targets[:, rarest])
    assert counts.max() - counts.min() <= 1
