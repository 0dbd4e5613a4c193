"""Goals of an adversary in the metrics of the registry: from functions, from text, and as a mean squared error."""

from __future__ import annotations

import math
import re

from reconrisk.core.metric import Goal, Limit
from reconrisk.core.registry import WRITABLE
from reconrisk.core.validation import check_finite, did_you_mean, invalid_input
from reconrisk.metrics.registry import METRICS, MetricInfo

_FORM = "such as 'psnr>=20' or 'mse<=0.05'"


def goal_in(metric: str, threshold: float) -> Goal:
    """State a goal in any metric that has a name, also in one of a plugin.

    Args:
        metric: A name of :data:`reconrisk.metrics.registry.METRICS`.
        threshold: The score to reach.

    Raises:
        InvalidInput: If no goal can be stated in the metric, or no score reaches the threshold.

    >>> print(goal_in("lpips", 0.2))
    lpips<=0.2
    """
    row = _row_of_goal("metric", metric)
    return _check_reachable(row, Goal(metric, check_finite("threshold", threshold), row.higher_is_better))


def psnr_at_least(at_least: float) -> Goal:
    """State the goal of a peak signal-to-noise ratio of ``at_least`` so many decibel."""
    return goal_in("psnr", at_least)


def mse_at_most(at_most: float) -> Goal:
    """State the goal of a mean squared error of ``at_most`` so much."""
    return goal_in("mse", at_most)


def ssim_at_least(at_least: float) -> Goal:
    """State the goal of a structural similarity of ``at_least`` so much; images only."""
    return goal_in("ssim", at_least)


def ncc_at_least(at_least: float) -> Goal:
    """State the goal of a normalised cross-correlation of ``at_least`` so much."""
    return goal_in("ncc", at_least)


def check_goal(goal: Goal) -> MetricInfo:
    """Refuse a goal whose metric is unknown, has another direction, or has no such score; return the metric's row."""
    row = _row_of_goal("metric", goal.metric)
    if row.higher_is_better != goal.higher_is_better:
        raise invalid_input(
            "goal", str(goal), f"to be written with {_better(row)}", f"A better {row.name} is on that side."
        )
    _check_reachable(row, goal)
    return row


def mean_squared_error_at(goal: Goal, data_range: tuple[float, float]) -> float | None:
    """Return the mean squared error at the threshold of a goal.

    Args:
        goal: A goal in a known metric.
        data_range: The smallest and the largest value that records may take.

    Returns:
        The error; None for a metric whose scores correspond to no error, and for one of a plugin that is not installed
        here, so that results can be read without it.

    >>> mean_squared_error_at(psnr_at_least(20), (0.0, 1.0)), mean_squared_error_at(ssim_at_least(0.9), (0.0, 1.0))
    (0.01, None)
    """
    row = METRICS.get(goal.metric)
    return None if row is None or row.error_at is None else row.error_at(goal.threshold, data_range)


def goal_from_text(text: str) -> Goal:
    """Read a goal from text.

    Args:
        text: A metric, ``>=`` or ``<=``, and a threshold.

    Raises:
        InvalidInput: If the text is no goal, its metric is unknown, or the side is not the better one.

    >>> print(goal_from_text("psnr >= 20"))
    psnr>=20
    """
    found = re.fullmatch(rf"\s*({WRITABLE.pattern})\s*(>=|<=)\s*([^\s:]+)\s*", str(text))
    if found is None or found[1] not in METRICS or not METRICS[found[1]].is_goal:
        hint = "" if found is None else did_you_mean(found[1], _names()).strip()
        raise invalid_input("goal", text, f"to be a metric ({', '.join(_names())}) with a threshold, {_FORM}", hint)
    row = METRICS[found[1]]
    goal = Goal(row.name, _number("goal", text, found[3]), row.higher_is_better)
    if found[2] != _better(row):
        raise invalid_input("goal", text, f"to be written with {_better(row)}", f"A better {row.name} is on that side.")
    return _check_reachable(row, goal)


def limit_from_text(text: str) -> Limit:
    """Read a limit from text: a goal, a colon, a percentage or a probability.

    Edge cases: a number from 1 on without a percent sign is refused, since one reader takes 1 for all, the other for
    one in a hundred.

    >>> print(limit_from_text("psnr>=20: 1%"), limit_from_text("mse<=0.05: 0.25"))
    psnr>=20: 1% mse<=0.05: 25%
    """
    goal, colon, share = str(text).partition(":")
    if not colon:
        raise invalid_input("max_risk", text, "to be a goal and a share, such as 'psnr>=20: 1%'")
    word = share.strip()
    percent = word.endswith("%")
    number = _number("max_risk", text, word.removesuffix("%"))
    if not percent and number >= 1:
        remedy = f"Write {number:g}% or {number / 100:g}." if number <= 100 else "No share is above 100%."
        raise invalid_input("max_risk", text, "to have a percent sign or a share below 1", remedy)
    return Limit(goal_from_text(goal), number / 100 if percent else number)


def _row_of_goal(argument: str, name: str) -> MetricInfo:
    if name not in METRICS or not METRICS[name].is_goal:
        raise invalid_input(argument, name, f"to be one of {', '.join(_names())}", did_you_mean(name, _names()).strip())
    return METRICS[name]


def _names() -> list[str]:
    """Names that goals are stated in; those of plugins are listed without importing them."""
    own = [name for name, row in METRICS.items() if row.is_goal]
    return [*own, *(name for name in METRICS.names if name not in set(METRICS))]


def _check_reachable(row: MetricInfo, goal: Goal) -> Goal:
    unreachable = goal.threshold > row.best if row.higher_is_better else goal.threshold < row.best
    if unreachable:
        worse = "<=" if row.higher_is_better else ">="
        raise invalid_input("threshold", goal.threshold, f"{worse} {row.best:g}", f"No {row.name} is better.")
    return goal


def _better(row: MetricInfo) -> str:
    return ">=" if row.higher_is_better else "<="


def _number(name: str, text: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError as error:
        raise invalid_input(name, text, f"to hold a number where it has {word!r}, {_FORM}") from error
    if not math.isfinite(number):
        raise invalid_input(name, text, "to hold a finite number")
    return number
