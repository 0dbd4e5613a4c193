import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core import validation
from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra

CHECKS = {
    validation.check_real: st.floats(allow_nan=False),
    validation.check_finite: st.floats(allow_nan=False, allow_infinity=False),
    validation.check_positive: st.floats(min_value=1e-300, max_value=1e300),
    validation.check_nonnegative: st.floats(min_value=0, max_value=1e300),
    validation.check_probability: st.floats(min_value=0, max_value=1),
}


@pytest.mark.parametrize("check", CHECKS)
@given(data=st.data())
def test_accepted_values_come_back_unchanged(check, data):
    value = data.draw(CHECKS[check])
    assert check("argument", value) == value


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [math.nan, "1", None, True, [1.0]])
def test_what_is_not_a_number_is_refused_by_name(check, value):
    with pytest.raises(InvalidInput, match=r"^Expected argument=.* Remedy\.$"):
        check("argument", value, "Remedy.")


@pytest.mark.parametrize(
    ("check", "value", "condition"),
    [
        (validation.check_finite, math.inf, "finite"),
        (validation.check_positive, 0.0, "> 0"),
        (validation.check_positive, -1, "> 0"),
        (validation.check_nonnegative, -1e-9, ">= 0"),
        (validation.check_probability, 1.0000001, r"in \[0, 1\]"),
        (validation.check_probability, -0.1, r"in \[0, 1\]"),
    ],
)
def test_the_message_states_value_and_condition(check, value, condition):
    with pytest.raises(InvalidInput, match=rf"Expected name={float(value)!r} .*{condition}".replace("+", r"\+")):
        check("name", value)


@given(st.integers(min_value=1, max_value=2**53))
def test_whole_numbers_come_back_as_int_from_int_and_float(value):
    assert validation.check_whole("steps", value) == value
    assert type(validation.check_whole("steps", float(value))) is int


@pytest.mark.parametrize("value", [0, -3, 2.5, math.nan, math.inf, True, "3", 10**400])
def test_fractions_and_too_small_counts_are_refused(value):
    with pytest.raises(InvalidInput, match="steps"):
        validation.check_whole("steps", value)


def test_shapes_are_compared_with_both_named():
    with pytest.raises(InvalidInput, match=r"estimates\.shape=\(2,\) to equal targets\.shape=\(3,\)"):
        validation.check_same_shape("estimates", torch.zeros(2), "targets", torch.zeros(3))


def test_offending_values_are_counted_and_located():
    values = torch.zeros(2, 3)
    values[1, 2] = math.inf
    with pytest.raises(InvalidInput, match=r"1 of 6 values are not, first at index \(1, 2\)"):
        validation.check_all_finite("gradient", values)
    validation.check_all_numbers("gradient", values)
    values[0, 1] = math.nan
    with pytest.raises(InvalidInput, match=r"first at index \(0, 1\)"):
        validation.check_all_numbers("gradient", values)


def test_empty_sequences_are_refused():
    validation.check_not_empty("records", [1])
    with pytest.raises(InvalidInput, match="records with at least one element"):
        validation.check_not_empty("records", [])


def test_errors_are_of_the_kinds_people_catch():
    assert issubclass(InvalidInput, ValueError)
    assert "f.idx, byte 4: bad. Fix it." in str(InvalidFile("f.idx", "byte 4", "bad.", "Fix it."))
    assert "pip install 'reconrisk[dp]'" in str(MissingExtra("opacus", "dp", "The accountant"))
    assert issubclass(MissingExtra, ImportError)


def test_large_whole_numbers_keep_their_digits():
    assert validation.check_whole("seed", 2**63 - 512) == 2**63 - 512
