"""The next text to label: what each query picks, and how many are kept to judge by."""

import numpy as np

from regraft.apps.studio.next_text import (
    EVALUATION_EVERY,
    any_open,
    choose_offer,
    least_like,
    least_sure,
)


def test_least_sure_takes_the_smallest_margins_of_open_texts():
    chances_NC = np.array([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4], [0.45, 0.55]])
    is_open_N = np.array([True, False, True, True])
    assert least_sure(chances_NC, is_open_N=is_open_N, num=2).tolist() == [3, 2]
    assert least_sure(chances_NC, is_open_N=is_open_N, num=9).tolist() == [3, 2, 0]


def test_least_like_goes_farthest_first():
    angles_N = np.radians([0, 5, 90, 170, 40])
    vectors_ND = np.stack([np.cos(angles_N), np.sin(angles_N)], axis=1)
    is_open_N = np.array([False, True, True, True, True])
    assert least_like(vectors_ND, [0], is_open_N=is_open_N, num=3).tolist() == [3, 2, 4]
    first = least_like(vectors_ND, [], is_open_N=is_open_N)
    assert first.tolist() == [2]


def test_random_draws_are_open_texts_without_repeats():
    is_open_N = np.arange(10) % 2 == 0
    found = any_open(np.random.default_rng(0), is_open_N=is_open_N, num=9)
    assert sorted(found.tolist()) == [0, 2, 4, 6, 8]


def test_the_share_to_judge_by_is_fixed():
    assert EVALUATION_EVERY == 4


def test_offer_is_no_text_that_was_seen_or_skipped_and_some_are_to_judge_by():
    seen, uses = [], []
    nothing_learned = {"query": "uncertainty", "chances_NC": None, "vectors_ND": None, "seed": 0}
    while offer := choose_offer(9, seen=seen, skipped=[5], **nothing_learned):
        seen.append(offer.number)
        uses.append(offer.use)
    assert sorted(seen) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert uses == ["train", "train", "train", "evaluation"] * 2
