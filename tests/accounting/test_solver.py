import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.accounting.solver import largest_safe, largest_safe_count, smallest_safe
from reconrisk.core.errors import InvalidInput


@given(st.floats(0.01, 100), st.floats(0.1, 5), st.floats(0.01, 100))
def test_the_smallest_safe_value_is_safe_and_near_the_root(root, power, start):
    safe = smallest_safe(lambda x: (root / x) ** power, target=1.0, start=start, tolerance=1e-6)
    assert safe.risk == (root / safe.value) ** power <= 1
    assert root * (1 - 1e-12) <= safe.value <= root * (1 + 3e-6)


@given(st.floats(0.01, 0.99), st.floats(0.02, 1.0))
def test_the_largest_safe_value_mirrors_it(root, start):
    safe = largest_safe(lambda x: x / root, target=1.0, start=start, high=1.0)
    assert safe.risk <= 1
    assert root * (1 - 3e-6) <= safe.value <= root * (1 + 1e-12)


@given(st.integers(1, 10**8), st.integers(1, 10**8))
def test_the_largest_safe_count_is_exact(limit, start):
    assert largest_safe_count(lambda n: n / limit, target=1.0, start=start).value == limit


@pytest.mark.parametrize("jump", [0.3, 1.0, 77.7])
def test_a_step_is_found_by_halving(jump):
    safe = smallest_safe(lambda x: 0.0 if x >= jump else 1.0, target=0.5, start=1.0)
    assert jump <= safe.value <= jump * (1 + 2e-6)


def test_a_wrong_slope_costs_time_not_safety():
    safe = smallest_safe(lambda x: 1 / x, target=0.5, start=3.0, slope=-1e-3)
    assert safe.risk <= 0.5
    assert safe.value == pytest.approx(2.0, rel=1e-5)


def test_a_known_slope_saves_evaluations():
    calls = []

    def risk(x):
        calls.append(x)
        return -math.log(x)

    smallest_safe(risk, target=-math.log(2), start=2.01, slope=-1.0, tolerance=1e-5)
    assert len(calls) <= 3


def test_a_bumpy_risk_still_yields_a_safe_value():
    def risk(x):
        return 1 / x + 0.05 * math.sin(1000 * x)

    safe = smallest_safe(risk, target=0.5, start=1.0)
    assert risk(safe.value) <= 0.5


def test_everything_safe_gives_the_end_of_the_range():
    assert smallest_safe(lambda x: 0.0, target=1.0, start=1.0, low=0.5).value == 0.5
    assert largest_safe(lambda x: 0.0, target=1.0, start=0.2, high=1.0).value == 1.0
    assert largest_safe_count(lambda n: 0.0, target=1.0, start=3, high=100).value == 100


def test_no_number_counts_as_unsafe():
    with pytest.raises(InvalidInput, match="within reach"):
        smallest_safe(lambda x: math.nan, target=1.0, start=1.0)


def test_an_unreachable_target_names_the_nearest():
    with pytest.raises(InvalidInput, match=r"target=0.1 to be within reach, found a risk of 0.25.* at .*safest noise"):
        smallest_safe(lambda x: 0.25 + 1 / x, target=0.1, start=1.0, high=1e30, name="noise")
    with pytest.raises(InvalidInput, match=r"found a risk of 2 at steps=1"):
        largest_safe_count(lambda n: 2 * n, target=1, name="steps")


@pytest.mark.parametrize(
    "wrong", [{"start": 0.0}, {"start": -1.0}, {"low": 2.0}, {"high": 0.5}, {"tolerance": 0.0}, {"target": math.nan}]
)
def test_bad_ranges_are_refused(wrong):
    with pytest.raises(InvalidInput):
        smallest_safe(lambda x: 1 / x, **({"target": 1.0, "start": 1.0} | wrong))
