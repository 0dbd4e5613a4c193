import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.core.goal import HIGHER_IS_BETTER, Goal, Limit, goal_from_text, limit_from_text, mse, ncc, psnr, ssim
from reconrisk.core.storage.serialization import from_json, to_json

numbers = st.floats(0, 1e6).map(lambda number: float(f"{number:.4g}"))
goals = st.builds(Goal, st.sampled_from(sorted(HIGHER_IS_BETTER)), numbers)


@given(goals)
def test_a_goal_is_read_as_it_is_written(goal):
    assert goal_from_text(str(goal)) == goal
    assert from_json(to_json(goal)) == goal


@given(goals, st.integers(0, 10**6))
def test_a_limit_is_read_as_it_is_written(goal, millionths):
    limit = Limit(goal, millionths / 10**6)
    again = limit_from_text(str(limit))
    assert again.goal == goal
    assert again.at_most == pytest.approx(limit.at_most, rel=1e-5)
    assert from_json(to_json(limit)) == limit


@given(goals, st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_what_is_better_than_a_success_is_one(goal, one, other):
    better, worse = (max(one, other), min(one, other)) if goal.higher_is_better else (min(one, other), max(one, other))
    assert goal.reached(better) or not goal.reached(worse)
    assert goal.reached(goal.threshold)
    assert not goal.reached(math.nan)


@given(st.floats(-40, 90), st.floats(1e-3, 1e3), st.floats(1e-12, 1e6))
def test_a_ratio_in_decibel_stands_for_its_error(decibel, width, error):
    goal, data_range = psnr(decibel), (-width / 4, 3 * width / 4)
    ratio = 10 * math.log10(width**2 / error)
    assume(abs(ratio - decibel) > 1e-9)
    assert goal.reached(ratio) == (error <= goal.mean_squared_error(data_range))


def test_an_error_stands_for_itself_and_similarities_for_none():
    assert mse(0.05).mean_squared_error((0.0, 9.0)) == 0.05
    assert ssim(0.9).mean_squared_error((0.0, 1.0)) is None
    assert ncc(0.9).mean_squared_error((0.0, 1.0)) is None


@pytest.mark.parametrize("decibel", [-1e6, 1e6])
def test_ratios_beyond_all_floats_stand_for_an_error(decibel):
    assert 0 <= psnr(decibel).mean_squared_error((0.0, 1.0)) < math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("psnr>20", "to be a metric"),
        ("lpips<=0.1", "to be a metric (psnr, mse, ssim, ncc) with a threshold"),
        ("psnr<=20", "to be written with >=. A better psnr is on that side"),
        ("mse>=0.1", "to be written with <="),
        ("mse<=-0.1", "Expected threshold=-0.1 >= 0"),
        ("psnr>=high", "to hold a number where it has 'high'"),
        ("psnr>=inf", "to hold a finite number"),
        ("psnr>=20: 1%", "to be a metric"),
        ("", "to be a metric"),
    ],
)
def test_texts_that_state_no_goal_are_refused(text, message):
    with pytest.raises(InvalidInput) as refused:
        goal_from_text(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("psnr>=20", "to be a goal and a share, such as 'psnr>=20: 1%'"),
        ("psnr>=20: often", "to hold a number where it has 'often'"),
        ("psnr>=20: 101%", "Expected at_most=1.01 in [0, 1]"),
        ("psnr>=20: nan", "to hold a finite number"),
        ("20: 1%", "to be a metric"),
        ("psnr>=20: 1", "to have a percent sign or a share below 1. Write 1% or 0.01."),
        ("psnr>=20: 1.0", "Write 1% or 0.01."),
        ("psnr>=20: 25", "Write 25% or 0.25."),
        ("psnr>=20: 101", "No share is above 100%."),
    ],
)
def test_texts_that_state_no_limit_are_refused(text, message):
    with pytest.raises(InvalidInput) as refused:
        limit_from_text(text)
    assert message in str(refused.value)


def test_all_is_stated_in_percent():
    assert limit_from_text("psnr>=20: 100%") == Limit(psnr(20), 1.0)


@pytest.mark.parametrize("build", [psnr, mse, ssim, ncc])
@pytest.mark.parametrize("threshold", [math.nan, math.inf, "20", None])
def test_thresholds_are_finite_numbers(build, threshold):
    with pytest.raises(InvalidInput, match="threshold"):
        build(threshold)


def test_a_goal_in_an_unknown_metric_is_refused():
    with pytest.raises(InvalidInput, match="Expected metric='lpips' to be one of psnr, mse, ssim, ncc"):
        Goal("lpips", 0.1)
