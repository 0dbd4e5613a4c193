"""The search in strength: laws on step functions, and what it does where there is no step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.studies.recommend.search import find_smallest_level

LOW, HIGH = 1e-3, 1e3
ROUNDING = 1.011  # three digits, rounded up, are at most one in a hundred above


@given(
    threshold=st.floats(1e-4, 1e4),
    start=st.floats(LOW, HIGH),
    resolution=st.floats(1.05, 4.0),
)
def test_the_threshold_of_a_step_is_found_within_the_resolution(threshold, start, resolution):
    tried = []

    def is_met(level):
        tried.append(level)
        return level >= threshold

    found = find_smallest_level(is_met, low=LOW, high=HIGH, start=start, resolution=resolution)
    if found is None:
        assert threshold > HIGH
    else:
        assert found >= threshold
        assert found <= ROUNDING * max(LOW, resolution * threshold)
        assert found in tried
    assert len(tried) <= 20  # at most ten factors of four, then halvings of one
    assert len(set(tried)) == len(tried)


@given(answers=st.lists(st.booleans(), min_size=40, max_size=40))
def test_what_is_returned_was_met_whatever_the_answers(answers):
    said = {}

    def is_met(level):
        return said.setdefault(level, answers[len(said)])

    found = find_smallest_level(is_met, low=LOW, high=HIGH, start=1.0)
    assert said[found] if found is not None else not any(said.values())


def test_what_the_question_raises_passes():
    def is_met(level):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_smallest_level(is_met, low=LOW, high=HIGH, start=1.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"low": 2.0, "high": 1.0}, "low=2.0 < high=1.0"),
        ({"start": 0.0}, "start=0.0 > 0"),
        ({"resolution": 1.0}, "resolution=1.0 > 1"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(InvalidInput, match=words):
        find_smallest_level(lambda level: True, **{"low": LOW, "high": HIGH, "start": 1.0, **settings})
