import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.bounds.numerics.hits import argmax_of_concave, level_set_of_concave


@given(low=st.integers(-100, 100), size=st.integers(0, 3000), place=st.floats(-1, 2), drop=st.floats(0, 1e4))
def test_against_looking_at_every_number(low, size, place, drop):
    high, centre = low + size, low + place * size

    def function(k):
        return -(np.abs(k - centre) ** 1.5)

    numbers = np.arange(low, high + 1)
    values = function(numbers)
    peak = argmax_of_concave(function, low, high)
    assert function(np.array([peak]))[0] == values.max()
    inside = numbers[values >= values.max() - drop]
    assert level_set_of_concave(function, low, peak, high, float(values.max() - drop)) == (inside[0], inside[-1])


def test_a_plateau_of_nothing_before_the_peak():
    def function(k):
        return np.where(k < 700, -np.inf, -0.1 * k)

    assert argmax_of_concave(function, 0, 1000) == 700
