"""Noise schedules: fall, spacing, and levels against the definition."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.priors.diffusion import NoiseSchedule, linear_schedule


@given(st.integers(2, 400), st.floats(1e-5, 1e-3), st.floats(2e-3, 0.5))
def test_signal_is_the_product_of_what_each_step_keeps(times, first, last):
    signal = linear_schedule(times, first=first, last=last).signal
    kept = 1.0
    for step in range(times):
        kept *= 1 - (first + (last - first) * step / (times - 1))
        assert math.isclose(float(signal[step]), kept, rel_tol=1e-9)


@given(st.integers(1, 50))
def test_times_fall_and_begin_at_the_last(steps):
    schedule = linear_schedule(50, last=0.2)
    times = schedule.times(steps)
    assert len(times) == steps
    assert times[0] == 49
    assert all(later < earlier for earlier, later in pairwise(times))
    assert times[-1] >= 0


@given(st.integers(0, 999))
def test_time_of_a_level_is_the_time_that_has_it(time):
    schedule = linear_schedule(1000)
    assert schedule.nearest_time(schedule.noise_level(time)) == time


@pytest.mark.parametrize(
    ("signal", "words"),
    [
        (torch.tensor([0.5, 0.6]), "to decrease strictly"),
        (torch.tensor([1.0, 0.5]), "to decrease strictly"),
        (torch.tensor([0.5, 0.0]), "to decrease strictly"),
        (torch.tensor([[0.5, 0.4]]), r"to be \(times,\)"),
        (torch.tensor([0.5, float("nan")]), "finite"),
    ],
)
def test_what_is_no_schedule_is_refused(signal, words):
    with pytest.raises(InvalidInput, match=words):
        NoiseSchedule(signal)


def test_more_steps_than_times_are_refused():
    with pytest.raises(InvalidInput, match="steps=11 <= 10"):
        linear_schedule(10).times(11)
