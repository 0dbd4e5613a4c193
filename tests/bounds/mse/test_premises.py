import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.bounds.mse.premises import constant_guess_mse
from reconrisk.core.errors import InvalidInput


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_no_record_of_the_box_errs_more(record):
    assert constant_guess_mse(low=0.0, high=1.0, record=record) <= constant_guess_mse(low=0.0, high=1.0)


def test_the_centre_is_the_best_constant_in_the_worst_case():
    corners = np.array([[0.0, 0.0], [0.0, 4.0], [1.0, 0.0], [1.0, 4.0]])
    worst = constant_guess_mse(low=[0.0, 0.0], high=[1.0, 4.0])
    assert worst == pytest.approx((1 + 16) / 8)
    for guess in np.random.default_rng(0).uniform([0, 0], [1, 4], (200, 2)):
        assert ((corners - guess) ** 2).mean(1).max() >= worst


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"high": 0.0}, "high=0.0 > low=0.0"),
        ({"record": [0.5, 1.5]}, r"record\[1\]=1.5 in \[0.0, 1.0\]"),
        ({"low": [0.0, 0.0], "high": [1.0]}, "high.shape"),
        ({"low": [0.0, 0.0], "record": [0.5]}, "low.shape"),
    ],
)
def test_bad_input_is_named(setting, message):
    with pytest.raises(InvalidInput, match=message):
        constant_guess_mse(**({"low": 0.0, "high": 1.0} | setting))
