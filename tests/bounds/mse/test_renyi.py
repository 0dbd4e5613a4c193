"""guo2022 Theorem 1 against a mechanism whose every unbiased and linear estimate is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Quantity, Scope
from reconrisk.core.mechanism import Neighbouring, RenyiDP


@given(width=st.floats(0.01, 20), noise=st.floats(0.05, 20), place=st.floats(0, 1), slope=st.floats(0, 1))
def test_holds_for_every_linear_estimate_of_a_number_plus_noise(width, noise, place, slope):
    # y = z + N(0, noise^2) on [0, width] has order-2 divergence (width/noise)^2; slope * y + (1-slope) * width/2 has
    # variance slope^2 noise^2 and bias (1-slope)(width/2 - z).
    record = place * width
    bias = (1 - slope) * (width / 2 - record)
    truth = slope**2 * noise**2 + bias**2
    bound = mse_lower_bound_from_rdp(
        (width / noise) ** 2, low=0.0, high=width, record=[record], slopes=slope, bias=bias, constant_guess_mse=math.inf
    )
    assert bound.value <= truth * (1 + 1e-12) + 1e-300


def test_per_record_form_is_tighter_and_tight_at_the_corner_of_a_small_box():
    plain = mse_lower_bound_from_rdp(1.0, diameters=1.0)
    corner = mse_lower_bound_from_rdp(1.0, low=0.0, high=1.0, record=[0.0], constant_guess_mse=math.inf)
    centre = mse_lower_bound_from_rdp(1.0, low=0.0, high=1.0, record=[0.5], constant_guess_mse=math.inf)
    assert corner.value == pytest.approx(4 * plain.value)
    assert centre.value == pytest.approx(plain.value)
    small = mse_lower_bound_from_rdp(1e-8, low=0.0, high=1e-4, record=[0.0], constant_guess_mse=math.inf)
    assert small.value == pytest.approx(1.0, rel=1e-6)  # noise 1: Theorem 1 without the factor 4 lost


def test_values():
    # Observation 3 of guo2022: [0, 100] at epsilon 2 gives about 391.
    assert mse_lower_bound_from_rdp(2.0, diameters=100.0).value == pytest.approx(391, abs=0.5)
    assert mse_lower_bound_from_rdp(2.0, diameters=[100.0, 100.0]).value == pytest.approx(391, abs=0.5)


def test_small_epsilon_keeps_its_digits_and_large_epsilon_does_not_overflow():
    tiny = mse_lower_bound_from_rdp(1e-13, diameters=1.0, constant_guess_mse=math.inf)
    assert tiny.value == pytest.approx(0.25e13, rel=1e-12)
    assert mse_lower_bound_from_rdp(1e4, diameters=1.0).value == 0


def test_capped_by_the_constant_guess_and_saying_so():
    bound = mse_lower_bound_from_rdp(0.1, diameters=1.0)
    assert bound.value == 0.25
    assert any("constant guess has mean squared error 0.25" in text for text in bound.assumptions)
    assert any("the bound by itself is 2.37" in text for text in bound.assumptions)
    assert mse_lower_bound_from_rdp(0.0, diameters=1.0).value == 0.25
    assert mse_lower_bound_from_rdp(0.0, diameters=1.0, constant_guess_mse=math.inf).value == math.inf
    # A constant guess has slope 0: its error is its bias, and the bound says just that.
    still = mse_lower_bound_from_rdp(0.0, diameters=1.0, slopes=0.0, bias=[0.3, 0.4])
    assert still.value == pytest.approx(0.125)


@given(epsilon=st.floats(0, 100), more=st.floats(0, 10))
def test_falls_with_epsilon(epsilon, more):
    bounds = [mse_lower_bound_from_rdp(value, diameters=1.0).value for value in (epsilon, epsilon + more)]
    assert bounds[1] <= bounds[0]
    assert not math.isnan(bounds[0])


def test_what_it_says_about_itself():
    bound = mse_lower_bound_from_rdp(1.0, diameters=1.0)
    assert bound.quantity is Quantity.MEAN_SQUARED_ERROR
    assert bound.scope is Scope.UNBIASED_ESTIMATORS
    assert bound.mechanism == RenyiDP((2.0,), (1.0,), Neighbouring.REPLACE_ONE)
    assert any("replacing the record" in text for text in bound.assumptions)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epsilon": -1.0}, "epsilon=-1.0 >= 0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"diameters": [1.0, -1.0]}, r"diameters\[1\]=-1.0 >= 0"),
        ({"diameters": None}, "either diameters, or both low and high"),
        ({"low": 0.0, "high": 1.0}, "either diameters, or both low and high"),
        ({"record": [0.5]}, "either diameters, or both low and high"),
        ({"diameters": None, "low": 0.0, "high": 1.0, "record": [2.0]}, r"record\[0\]=2.0 in \[0.0, 1.0\]"),
        ({"slopes": -0.5}, "slopes"),
        ({"diameters": [1.0, 1.0], "slopes": [1.0]}, "slopes.shape"),
        ({"constant_guess_mse": -1.0}, "constant_guess_mse=-1.0 >= 0"),
    ],
)
def test_bad_input_is_named(setting, message):
    arguments = {"epsilon": 1.0, "diameters": 1.0} | setting
    with pytest.raises(InvalidInput, match=message):
        mse_lower_bound_from_rdp(arguments.pop("epsilon"), **arguments)


def test_holds_for_a_two_dimensional_release():
    rng = np.random.default_rng(0)
    record, noise = np.array([0.2, 0.9]), 0.8
    estimates = record + noise * rng.standard_normal((100_000, 2))
    # Replacing the record moves the mean by at most sqrt(2): order-2 divergence 2 / noise^2.
    bound = mse_lower_bound_from_rdp(2 / noise**2, low=0.0, high=1.0, record=record, constant_guess_mse=math.inf)
    assert bound.value <= ((estimates - record) ** 2).mean()
