"""Colours that can be read, and arms that do not differ by colour alone."""

import re
from itertools import combinations

import pytest
from comparisons import full_comparison

from regraft.report.drawing import arm_styles, dark_css, light_css, page_variables

NAMES = [arm.name for arm in full_comparison().arms]
OTHERS = ["pretrained:a", "pretrained:b", "pretrained:c"]


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", NAMES + OTHERS)
def test_colours_can_be_read_as_text(name: str):
    style = arm_styles(NAMES + OTHERS)[name]
    # WCAG 2 asks for 4.5 to 1 between text and what is behind it: the card of a figure.
    assert contrast(style.colour, "#ffffff") >= 4.5
    assert contrast(style.dark_colour, "#1c1f25") >= 4.5


def test_no_two_arms_look_alike():
    styles = arm_styles(NAMES + OTHERS).values()
    for first, second in combinations(styles, 2):
        assert first.colour != second.colour
        assert first.marker != second.marker


def test_an_arm_keeps_its_style_in_other_company():
    assert arm_styles(["linear"])["linear"] == arm_styles(NAMES)["linear"]


def test_many_further_bases_still_have_a_style():
    names = [f"pretrained:{number}" for number in range(20)]
    assert set(arm_styles(names)) == set(names)


def test_every_colour_has_a_variable_in_both_themes():
    variables = set(page_variables().values())
    for css in (light_css(), dark_css()):
        assert set(re.findall(r"--([\w-]+): #[0-9a-f]{6};", css)) == variables
