"""CSV files: a row for each arm, point and test, and empty cells for what is not known."""

import csv
import io

from comparisons import comparison, full_comparison

from regraft.report.tables import comparison_tables


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_arms_have_scores_cost_and_calibration():
    found = rows(comparison_tables(full_comparison())["arms.csv"])
    assert [row["arm"] for row in found] == [arm.name for arm in full_comparison().arms]
    first = found[0]
    assert float(first["test_accuracy"]) == 0.874
    assert float(first["seconds"]) == 412
    assert float(first["temperature"]) == 1.4
    assert found[7]["collapsed"] == "1"


def test_what_is_not_known_is_an_empty_cell():
    found = rows(comparison_tables(comparison())["arms.csv"])
    assert {row["temperature"] for row in found} == {""}
    assert {row["calibrated_error"] for row in found} == {""}


def test_curve_has_a_row_for_each_arm_and_size():
    found = rows(comparison_tables(full_comparison())["curve.csv"])
    assert len(found) == 11 * 6
    assert found[5]["labels"] == "1600"
    assert float(found[5]["accuracy"]) == 0.874
    assert float(found[5]["macro_f1_low"]) < float(found[5]["macro_f1"])


def test_tests_have_corrected_p():
    found = rows(comparison_tables(full_comparison())["tests.csv"])
    assert (found[1]["first"], found[1]["second"]) == ("pretrained", "scratch")
    assert float(found[1]["p_holm"]) == 0.001


def test_tables_without_rows_are_left_out():
    assert list(comparison_tables(comparison(tests=()))) == ["arms.csv"]
