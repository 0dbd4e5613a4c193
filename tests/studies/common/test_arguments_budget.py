import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.core.progress import CancelToken
from reconrisk.studies.common.arguments import seconds_from_budget


@given(st.floats(0.01, 1e5).map(lambda number: round(number, 3)))
def test_units_are_what_they_say(number):
    assert seconds_from_budget(number) == seconds_from_budget(str(number)) == number
    assert seconds_from_budget(f"{number} min") == pytest.approx(60 * number)
    assert seconds_from_budget(f"{number}H") == pytest.approx(3600 * number)


@pytest.mark.parametrize("budget", [None, "none"])
def test_no_budget_is_no_limit(budget):
    assert seconds_from_budget(budget) is None
    assert CancelToken(seconds_from_budget(budget)).seconds_left == float("inf")


@pytest.mark.parametrize("budget", ["soon", "2 days", "1.2.3s", "", "-3s", 0, -1, float("nan"), "0min"])
def test_what_is_no_time_is_refused(budget):
    with pytest.raises(InvalidInput, match="budget"):
        seconds_from_budget(budget)
