"""Counting rebuilt records: which counts show a limit, and what is not known counts against it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.statistics.intervals import success_interval
from reconrisk.studies.recommend.attacked_share import (
    SuccessCounts,
    largest_allowed_count,
    trials_above_guessing,
    trials_needed,
)


@settings(max_examples=25)
@given(at_most=st.floats(0.02, 0.9), per_trial=st.sampled_from([1, 4]), successes=st.integers(0, 3))
def test_the_fewest_trials_show_the_limit_and_one_less_does_not(at_most, per_trial, successes):
    def upper(trials):
        count = min(successes, trials * per_trial)
        return success_interval(count, trials=trials, per_trial=per_trial, confidence=0.95).high

    trials = trials_needed(at_most, per_trial=per_trial, confidence=0.95, successes=successes)
    assert upper(trials) <= at_most
    assert trials == 1 or upper(trials - 1) > at_most


@settings(max_examples=25)
@given(at_most=st.floats(0.0, 1.0), trials=st.integers(1, 60))
def test_the_most_successes_allowed_are_the_last_within_the_limit(at_most, trials):
    allowed = largest_allowed_count(at_most, trials=trials, per_trial=1, confidence=0.9)
    within = [
        count for count in range(trials + 1) if success_interval(count, trials=trials, confidence=0.9).high <= at_most
    ]
    assert allowed == (max(within) if within else None)


def test_more_guesses_need_more_trials_as_far_as_there_are_any():
    few = trials_above_guessing(0.1, 0.0, per_trial=1, confidence=0.95, available=1000)
    many = trials_above_guessing(0.1, 0.03, per_trial=1, confidence=0.95, available=1000)
    assert few < many <= 1000
    assert few <= trials_above_guessing(0.1, 0.03, per_trial=1, confidence=0.95, available=many - 1) < many
    assert trials_above_guessing(0.1, 0.0, per_trial=1, confidence=0.95, available=20) is None


def test_what_is_unknown_counts_against_the_upper_end_only():
    known, unknown = SuccessCounts(20, 1, (1,), 0), SuccessCounts(20, 1, (1,), 4)
    (before,), (after,) = known.estimates(0.95), unknown.estimates(0.95)
    assert (before.value, before.low) == (after.value, after.low)
    assert after.high == success_interval(5, trials=20, confidence=0.95).high > before.high
    assert not known.exceeds((1,))
    assert unknown.exceeds((1,))
    assert SuccessCounts(0, 1, (0,), 0).estimates(0.95) == ()


def test_no_trials_show_that_something_never_happens():
    with pytest.raises(InvalidInput, match="never happens"):
        trials_needed(0.0, per_trial=1, confidence=0.95)
