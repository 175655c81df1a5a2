"""The sentences of a report: nothing is claimed that was not shown."""

import dataclasses

import pytest
from comparisons import ARMS, TESTS, comparison, full_comparison

from regraft.comparison.results import Opening, Outcomes, Split
from regraft.report import sentences as words
from regraft.report.sentences import paired_test_in_words
from regraft.runtime import in_points
from regraft.stats.metrics import LengthBin
from regraft.stats.significance import Interval


def test_paired_test_names_the_better_arm():
    assert paired_test_in_words(TESTS[1]) == (
        "linear beats pretrained by 6.2 points: pretrained minus linear is \N{MINUS SIGN}6.2 "
        "points, 95 % interval \N{MINUS SIGN}8.0 to \N{MINUS SIGN}4.0; "
        "p < 0.001 by permutation, p = 0.002 by McNemar's test."
    )


def test_paired_test_does_not_claim_what_is_not_shown():
    told = paired_test_in_words(TESTS[0])
    assert told.startswith("No difference shown between pretrained and scratch: ")
    wide = dataclasses.replace(TESTS[1], difference=Interval(-0.06, -0.13, 0.01))
    assert paired_test_in_words(wide).startswith("No difference shown")


def test_paired_test_goes_by_the_corrected_p():
    corrected = dataclasses.replace(TESTS[1], p_holm=0.06)
    told = paired_test_in_words(corrected)
    assert told.startswith("No difference shown")
    assert told.endswith(
        "p < 0.001 by permutation, p = 0.002 by McNemar's test; p = 0.060 corrected."
    )


def test_paired_test_tells_what_could_not_be_seen():
    found = dataclasses.replace(TESTS[0], p_difference=0.45, p_holm=0.9, smallest_difference=0.021)
    assert paired_test_in_words(found).endswith(
        "p = 0.410 by permutation, p = 0.450 over new seeds and examples, p = 0.500 by McNemar's "
        "test; p = 0.900 corrected; a comparison of this size detects a true gap of 2.1 points in "
        "4 cases out of 5."
    )
    hopeless = dataclasses.replace(found, smallest_difference=1.6)
    assert "use more seeds" in paired_test_in_words(hopeless)
    clear = dataclasses.replace(TESTS[1], smallest_difference=0.021)
    assert "detects" not in paired_test_in_words(clear)


def test_verdict_begins_with_one_sentence():
    verdict = "It pays: 81.2 % against 79.0 %. With few texts, little is seen. One seed only."
    headline, limits = words.verdict_parts(verdict)
    assert headline == "It pays: 81.2 % against 79.0 %."
    assert limits == "With few texts, little is seen. One seed only."
    assert words.verdict_parts("It pays.") == ("It pays.", "")


def test_gap_to_the_base_has_the_sign_of_the_arm():
    assert words.against_base(TESTS[1]) == ("+6.2", "")
    apart = dataclasses.replace(TESTS[1], p_holm=None, p_difference=0.103)
    assert words.against_base(apart)[1] == "may be chance"
    assert words.against_base(None) == (words.UNKNOWN, "")


def test_base_arm_is_the_pretrained_one_or_the_first():
    assert words.base_arm(comparison()) == "pretrained"
    wide = dataclasses.replace(ARMS[0], name="pretrained:wide")
    assert words.base_arm(comparison(arms=(ARMS[1], wide))) == "pretrained:wide"
    assert words.base_arm(comparison(arms=ARMS[1:])) == "frozen"
    assert words.base_arm(comparison(arms=ARMS[3:])) == "linear"
    tests = (dataclasses.replace(TESTS[1], first="frozen"),)
    assert words.base_arm(comparison(tests=tests)) == "frozen"


def test_paired_test_of_single_runs_says_so():
    of_runs = dataclasses.replace(TESTS[1], is_of_runs=True, p_holm=0.002)
    told = paired_test_in_words(of_runs)
    assert told.startswith("That of linear beats this run of pretrained by 6.2 points: ")
    assert "new seeds" not in told
    unclear = dataclasses.replace(TESTS[0], is_of_runs=True)
    assert paired_test_in_words(unclear).startswith(
        "No difference shown between this run of pretrained and that of scratch: "
    )


def test_paired_test_tells_the_interval_that_decides():
    wide = dataclasses.replace(TESTS[1], p_holm=0.066, corrected=Interval(-0.062, -0.13, 0.004))
    assert paired_test_in_words(wide) == (
        "No difference shown between pretrained and linear: pretrained minus linear is "
        "\N{MINUS SIGN}6.2 points, 95 % interval \N{MINUS SIGN}8.0 to \N{MINUS SIGN}4.0; "
        "p < 0.001 by permutation, p = 0.002 by McNemar's test; p = 0.066 corrected, corrected "
        "interval \N{MINUS SIGN}13.0 to +0.4."
    )


def test_other_uses_of_a_base_are_told_by_their_nearest_rival():
    more = (
        dataclasses.replace(TESTS[1], first="embedding", difference=Interval(0.02, 0.01, 0.03)),
        dataclasses.replace(
            TESTS[1], first="embedding", second="nbsvm", difference=Interval(0.04, 0.03, 0.05)
        ),
    )
    assert words.shown_tests(comparison(tests=(*TESTS, *more))) == [*TESTS, more[0]]
    assert words.shown_tests(comparison()) == list(TESTS)


def test_notes_tell_the_correction():
    assert "not corrected" in words.tests_note(comparison())
    note = words.tests_note(full_comparison())
    assert "corrected p is below 0.05" in note
    assert "true gap" not in note
    corrected = dataclasses.replace(TESTS[0], p_holm=0.9, corrected=Interval(0.005, -0.03, 0.04))
    mixed = words.tests_note(comparison(tests=(corrected, TESTS[1])))
    assert "corrected interval excludes zero" in mixed
    assert "without a corrected p" in mixed


def test_notes_tell_what_intervals_leave_out():
    assert "do not include the choice of training examples" in words.arms_note(comparison())


def test_worth_is_told_with_as_many_digits_everywhere():
    extra = Interval(749.0, 390.4, 1324.0)
    shown = dataclasses.replace(full_comparison().more_worths[1], extra=extra, is_bound=False)
    rows = words.worth_rows(full_comparison(more_worths=(shown,)))
    assert rows[1] == ("embedding", "750", "390 to 1,300", "latent")
    single = dataclasses.replace(shown, is_of_runs=True)
    title = words.worths_title(full_comparison(more_worths=(single,)))
    assert title.endswith("do not include the variance between runs")


def test_doubts_name_the_arms_that_doubt():
    doubt = dataclasses.replace(full_comparison().label_doubts[0], arms=("linear", "nbsvm"))
    assert "the runs of linear and nbsvm" in words.doubts_note(
        full_comparison(label_doubts=(doubt,))
    )


def test_lead_and_sentence_tell_how_often_the_test_was_opened():
    assert "80 test examples were opened once, at the end." in words.lead(comparison())
    assert words.openings_sentence(comparison()) == ""
    assert "opened twice so far." in words.lead(full_comparison())
    one = full_comparison(openings=full_comparison().openings[:1])
    assert "read once" in words.openings_sentence(one)
    assert "openings.json" in words.openings_sentence(one)
    three = full_comparison(openings=3 * one.openings)
    assert "read 3 times" in words.openings_sentence(three)


def test_opening_is_told_in_a_line():
    opening = Opening("test.csv", "0123456789abcdef", "2025-01-02", "regraft compare")
    assert words.opening_in_words(opening) == (
        "2025-01-02: test.csv (0123456789ab), by regraft compare"
    )


@pytest.mark.parametrize(
    ("num_leaks", "num_in_text", "starts"),
    [
        (0, None, ["No test text"]),
        (1, 0, ["1 test text occurs in train", "No test text occurs in the unlabelled text"]),
        (0, 12, ["No test text", "12 test texts occur in the unlabelled text"]),
    ],
)
def test_leaks_are_told_as_far_as_they_are_known(
    num_leaks: int, num_in_text: int | None, starts: list[str]
):
    sentences = words.leak_sentences(
        comparison(num_test_leaks=num_leaks, num_text_leaks=num_in_text)
    )
    for sentence, start in zip(sentences, starts, strict=True):
        assert sentence.startswith(start)


def test_texts_that_decide_although_they_were_read_are_told():
    kept = Outcomes("0123", 4, "1110", "0001", "1100", "0000", runs=())
    whole = comparison(num_test=4, num_test_leaks=1, num_text_leaks=2, num_deciding=3)
    sentences = words.leak_sentences(dataclasses.replace(whole, outcomes=kept))
    assert "2 test texts occur in the unlabelled text" in sentences[1]
    assert "they are included" in sentences[1]
    assert sentences[2].startswith("3 of 4 test examples, not seen in labelled data")
    note = words.arms_note(dataclasses.replace(whole, outcomes=kept))
    assert "test texts that were not seen in labelled data" in note
    left_out = dataclasses.replace(kept, decides="0010")
    sentences = words.leak_sentences(dataclasses.replace(whole, outcomes=left_out))
    assert sentences[1].endswith("every arm is scored with and without them.")


def test_splits_tell_what_was_cut_and_what_contradicts():
    splits = (Split("train", 10, {"a": 10}, 0.2, 1), Split("test", 10, {"a": 10}, 0.0, 0))
    assert words.split_sentences(comparison(splits=splits)) == [
        "Truncated to the length of the model: 20.0 % of train.",
        "In train, 1 text occurs more than once, with different labels.",
    ]


def test_choices_are_counted_over_seeds():
    chosen = ({"C": 1.0}, {"C": 1.0}, {"C": 10.0})
    arm = dataclasses.replace(ARMS[3], chosen=chosen)
    assert words.choices_in_words(arm) == "C 1 (2 seeds); C 10 (1 seed)"
    same = dataclasses.replace(ARMS[3], chosen=chosen[:2])
    assert words.choices_in_words(same) == "C 1"


def test_accuracy_note_names_arms_without_epochs():
    assert "The dashed line is the linear arm" in words.accuracy_note(comparison())
    assert "dashed" not in words.accuracy_note(comparison(arms=ARMS[:3]))
    note = words.accuracy_note(full_comparison())
    assert "without epochs: linear, latent, nbsvm, embedding, fit." in note


def test_points_have_no_minus_zero():
    assert in_points(-0.0001) == in_points(0.0) == "+0.0"


def test_lengths_of_one_number_are_told_once():
    assert words.words_range(LengthBin(10, 10, 4, 0.5)) == "10"
    assert words.words_range(LengthBin(10, 1544, 4, 0.5)) == "10\N{EN DASH}1,544"


def test_costs_share_one_unit():
    assert [words.in_seconds(s) for s in (0.26, 59.7, 7500)] == ["0.3 s", "60 s", "7,500 s"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "none"),
        (True, "yes"),
        (1200, "1,200"),
        (0.1, "0.1"),
        ([1, "a"], "1, a"),
        ((), "none"),
        ("x", "x"),
    ],
)
def test_facts_are_written_as_people_do(value: object, expected: str):
    assert words.fact(value) == expected


def test_lead_tells_of_a_curve_that_ends_before_all_labels():
    points = tuple(point for point in full_comparison().curve if point.num_labels <= 400)
    assert words.lead(full_comparison()).startswith("Trained on 1,600 examples, tuned on 400; ")
    told = words.lead(full_comparison(curve=points))
    assert told.startswith("Trained on 400 of 1,600 examples, tuned on 400; ")


def test_what_decides_is_told_where_it_is_not_all():
    whole = comparison(num_deciding=77)
    assert "Scores are those of the 77 of 80 test texts that were not" in words.arms_note(whole)
    assert words.leak_sentences(whole)[-1].startswith("77 of 80 test examples")
    repeats = comparison(num_test_leaks=0, num_deciding=77)
    assert words.has_leaks(repeats)
    assert not words.has_leaks(comparison(num_test_leaks=0, num_deciding=80))
    arm = dataclasses.replace(repeats.arms[0], macro_f1_without_leaks=0.75)
    assert words.whole_macro_f1(repeats, arm).endswith(" on all")
    assert words.whole_macro_f1(comparison(num_test_leaks=0), arm) == ""
