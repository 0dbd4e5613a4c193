import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.guarantee import format_rounded_down, format_rounded_up


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 8))
def test_the_printed_number_lies_on_the_safe_side_and_near(value, digits):
    above, below = float(format_rounded_up(value, digits)), float(format_rounded_down(value, digits))
    assert below <= value <= above
    assert above - below <= value * 10.0 ** (1 - digits) * (1 + 1e-9)


@pytest.mark.parametrize("text", ["0.1", "0.05", "1", "0", "inf"])
def test_short_numbers_stay_as_they_are(text):
    assert format_rounded_up(float(text)) == format_rounded_down(float(text)) == text
