import math

import pytest

from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Goal, Limit
from reconrisk.core.storage.serialization import from_json, to_json


def test_a_goal_is_a_value_that_needs_no_metric():
    goal = Goal("of_a_plugin", 0.25, higher_is_better=False)
    assert str(goal) == "of_a_plugin<=0.25"
    assert goal.is_reached_by(0.25)
    assert not goal.is_reached_by(0.26)
    assert from_json(to_json(Limit(goal, 0.5))) == Limit(goal, 0.5)


@pytest.mark.parametrize("threshold", [math.nan, math.inf, "20", None])
def test_thresholds_are_finite_numbers(threshold):
    with pytest.raises(InvalidInput, match="threshold"):
        Goal("psnr", threshold, higher_is_better=True)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_limit_is_a_probability(share):
    with pytest.raises(InvalidInput, match="at_most"):
        Limit(Goal("psnr", 20, higher_is_better=True), share)
