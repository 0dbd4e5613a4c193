import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Goal, Limit
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.metrics.goals import (
    check_goal,
    goal_from_text,
    goal_in,
    limit_from_text,
    mean_squared_error_at,
    mse_at_most,
    ncc_at_least,
    psnr_at_least,
    ssim_at_least,
)
from reconrisk.metrics.registry import METRICS
from tests.offered_plugins import offer_plugins

numbers = st.floats(0, 1e6).map(lambda number: float(f"{number:.4g}"))
goals = st.one_of(
    st.builds(goal_in, st.sampled_from(("psnr", "mse", "lpips")), numbers),
    st.builds(goal_in, st.sampled_from(("ssim", "ncc")), st.floats(-1, 1).map(lambda number: float(f"{number:.4g}"))),
)


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
    assert goal.is_reached_by(better) or not goal.is_reached_by(worse)
    assert goal.is_reached_by(goal.threshold)
    assert not goal.is_reached_by(math.nan)


@given(st.floats(-40, 90), st.floats(1e-3, 1e3), st.floats(1e-12, 1e6))
def test_a_ratio_in_decibel_stands_for_its_error(decibel, width, error):
    goal, data_range = psnr_at_least(decibel), (-width / 4, 3 * width / 4)
    ratio = 10 * math.log10(width**2 / error)
    assume(abs(ratio - decibel) > 1e-9)
    assert goal.is_reached_by(ratio) == (error <= mean_squared_error_at(goal, data_range))


def test_an_error_stands_for_itself_and_similarities_for_none():
    assert mean_squared_error_at(mse_at_most(0.05), (0.0, 9.0)) == 0.05
    assert mean_squared_error_at(ssim_at_least(0.9), (0.0, 1.0)) is None
    assert mean_squared_error_at(ncc_at_least(0.9), (0.0, 1.0)) is None
    assert mean_squared_error_at(Goal("of_a_plugin_elsewhere", 1.0, True), (0.0, 1.0)) is None


@pytest.mark.parametrize("decibel", [-1e6, 1e6])
def test_ratios_beyond_all_floats_stand_for_an_error(decibel):
    assert 0 <= mean_squared_error_at(psnr_at_least(decibel), (0.0, 1.0)) < math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("psnr>20", "to be a metric"),
        ("lpisp<=0.1", "to be a metric (psnr, mse, ncc, ssim, lpips) with a threshold"),
        ("lpisp<=0.1", "Did you mean lpips?"),
        ("judge_kl<=0.1", "to be a metric (psnr, mse, ncc, ssim, lpips) with a threshold"),
        ("ssim>=1.5", "Expected threshold=1.5 <= 1, the best ssim."),
        ("psnr<=20", "to be written with >=. A higher psnr is better"),
        ("mse>=0.1", "to be written with <="),
        ("mse<=-0.1", "Expected threshold=-0.1 >= 0"),
        ("psnr>=high", "to have a number in place of 'high'"),
        ("psnr>=inf", "to have a finite number"),
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
        ("psnr>=20: often", "to have a number in place of 'often'"),
        ("psnr>=20: 101%", "Expected at_most=1.01 in [0, 1]"),
        ("psnr>=20: nan", "to have a finite number"),
        ("20: 1%", "to be a metric"),
        ("psnr>=20: 1", "to have a percent sign or a share below 1. Write 1% or 0.01."),
        ("psnr>=20: 1.0", "Write 1% or 0.01."),
        ("psnr>=20: 25", "Write 25% or 0.25."),
        ("psnr>=20: 101", "Write a share of at most 100%."),
    ],
)
def test_texts_that_state_no_limit_are_refused(text, message):
    with pytest.raises(InvalidInput) as refused:
        limit_from_text(text)
    assert message in str(refused.value)


def test_all_is_stated_in_percent():
    assert limit_from_text("psnr>=20: 100%") == Limit(psnr_at_least(20), 1.0)


@pytest.mark.parametrize("build", [psnr_at_least, mse_at_most, ssim_at_least, ncc_at_least])
@pytest.mark.parametrize("threshold", [math.nan, math.inf, "20", None])
def test_thresholds_are_finite_numbers(build, threshold):
    with pytest.raises(InvalidInput, match="threshold"):
        build(threshold)


def test_a_goal_in_an_unknown_metric_is_refused():
    with pytest.raises(InvalidInput, match="Expected metric='lpsi' to be one of psnr, mse, ncc, ssim, lpips"):
        goal_in("lpsi", 0.1)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (Goal("psnr", 20.0, higher_is_better=False), "to be written with >="),
        (Goal("mse", -0.1, higher_is_better=False), "threshold=-0.1 >= 0"),
        (Goal("judge_kl", 0.1, higher_is_better=False), "metric='judge_kl' to be one of psnr"),
        (Goal("nonsense", 0.1, higher_is_better=False), "metric='nonsense' to be one of psnr"),
    ],
)
def test_a_goal_that_does_not_fit_its_metric_is_refused(goal, message):
    with pytest.raises(InvalidInput, match=message):
        check_goal(goal)


SOURCE = """
import torch
from reconrisk.core.metric import Metric
from reconrisk.metrics.registry import MetricInfo

def largest_error(*, data_range):
    \"\"\"Largest error of any value, of the range.\"\"\"
    width = data_range[1] - data_range[0]
    return Metric("max", lambda one, other: (one - other).double().abs().flatten(1).amax(1) / width, 0.0, float("inf"))

CLOSE = Metric("close", lambda one, other: ((one - other).double().abs() < 0.1).double().flatten(1).mean(1), 1.0, 0.0)
ROW = MetricInfo("x", "stand_in_metric:largest_error", "Largest error.", best=0.0, worst=float("inf"), smallest_image=5)
"""


def offer(tmp_path, monkeypatch, **points):
    where = {name: f"stand_in_metric:{point}" for name, point in points.items()}
    offer_plugins(tmp_path, monkeypatch, {"reconrisk.metrics": where}, SOURCE, module="stand_in_metric")


def test_goals_can_be_stated_in_a_metric_of_a_plugin(tmp_path, monkeypatch):
    offer(tmp_path, monkeypatch, largest_error="largest_error", share_close="CLOSE")
    assert goal_from_text("largest_error<=0.1") == Goal("largest_error", 0.1, higher_is_better=False)
    assert limit_from_text("share_close >= 0.5: 1%").goal.higher_is_better
    with pytest.raises(InvalidInput, match="to be written with <="):
        goal_from_text("largest_error>=0.1")
    with pytest.raises(InvalidInput, match="ssim, lpips, largest_error, share_close"):
        goal_from_text("share_far>=0.1")
    assert mean_squared_error_at(goal_from_text("share_close>=0.5"), (0.0, 1.0)) is None


def test_a_plugin_may_state_its_row_itself(tmp_path, monkeypatch):
    offer(tmp_path, monkeypatch, largest_in_row="ROW")
    assert not METRICS["largest_in_row"].fits((4, 4))
    assert METRICS["largest_in_row"].fits((1, 5, 5))
    assert goal_in("largest_in_row", 0.25).metric == "largest_in_row"
