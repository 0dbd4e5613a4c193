"""Goals of an adversary in registered metrics: stated in Python, read from text, and as a mean squared error."""

from __future__ import annotations

import math
import re

from reconrisk.core.metric import Goal, Limit
from reconrisk.core.registry import WRITABLE
from reconrisk.core.validation import check_finite, did_you_mean, invalid_input
from reconrisk.metrics.registry import METRICS, MetricInfo

_FORM = "such as 'psnr>=20' or 'mse<=0.05'"


def goal_in(metric: str, threshold: float) -> Goal:
    """State a goal in any registered metric, including plugins.

    Args:
        metric: Name in :data:`reconrisk.metrics.registry.METRICS`.
        threshold: Score to reach.

    Returns:
        The goal.

    Raises:
        InvalidInput: If the metric cannot state a goal, or if no score reaches the threshold.

    >>> print(goal_in("lpips", 0.2))
    lpips<=0.2
    """
    row = _row_of_goal("metric", metric)
    return _check_reachable(row, Goal(metric, check_finite("threshold", threshold), row.higher_is_better))


def psnr_at_least(at_least: float) -> Goal:
    """State the goal of reaching a peak signal-to-noise ratio.

    Args:
        at_least: Smallest ratio that counts as success, in dB.

    Returns:
        The goal.

    Raises:
        InvalidInput: If ``at_least`` is not finite.

    >>> print(psnr_at_least(20))
    psnr>=20
    """
    return goal_in("psnr", at_least)


def mse_at_most(at_most: float) -> Goal:
    """State the goal of reaching a mean squared error.

    Args:
        at_most: Largest error that counts as success.

    Returns:
        The goal.

    Raises:
        InvalidInput: If ``at_most`` is negative or not finite.

    >>> print(mse_at_most(0.05))
    mse<=0.05
    """
    return goal_in("mse", at_most)


def ssim_at_least(at_least: float) -> Goal:
    """State the goal of reaching a structural similarity; for images only.

    Args:
        at_least: Smallest similarity that counts as success, at most 1.

    Returns:
        The goal.

    Raises:
        InvalidInput: If ``at_least`` is above 1 or not finite.

    >>> print(ssim_at_least(0.9))
    ssim>=0.9
    """
    return goal_in("ssim", at_least)


def ncc_at_least(at_least: float) -> Goal:
    """State the goal of reaching a normalised cross-correlation.

    Args:
        at_least: Smallest correlation that counts as success, at most 1.

    Returns:
        The goal.

    Raises:
        InvalidInput: If ``at_least`` is above 1 or not finite.

    >>> print(ncc_at_least(0.8))
    ncc>=0.8
    """
    return goal_in("ncc", at_least)


def check_goal(goal: Goal) -> MetricInfo:
    """Check that the metric of a goal is known, has this direction and can reach the threshold.

    Args:
        goal: Goal to check.

    Returns:
        The registry row of the metric.

    Raises:
        InvalidInput: If the metric is unknown, if a better score is on the other side, or if no score reaches the
            threshold.

    >>> check_goal(psnr_at_least(20)).unit
    'dB'
    """
    row = _row_of_goal("metric", goal.metric)
    if row.higher_is_better != goal.higher_is_better:
        raise invalid_input("goal", str(goal), f"to be written with {_better(row)}", _direction_hint(row))
    _check_reachable(row, goal)
    return row


def mean_squared_error_at(goal: Goal, data_range: tuple[float, float]) -> float | None:
    """Return the mean squared error at the threshold of a goal.

    Args:
        goal: Goal in a registered metric.
        data_range: Smallest and largest value of a record.

    Returns:
        The error; None if the scores of the metric do not determine it, or if its plugin is not installed, so that
        stored results can be read without the plugin.

    >>> mean_squared_error_at(psnr_at_least(20), (0.0, 1.0)), mean_squared_error_at(ssim_at_least(0.9), (0.0, 1.0))
    (0.01, None)
    """
    row = METRICS.get(goal.metric)
    return None if row is None or row.error_at is None else row.error_at(goal.threshold, data_range)


def goal_from_text(text: str) -> Goal:
    """Read a goal from text, such as ``psnr>=20``.

    Args:
        text: Metric, ``>=`` or ``<=``, and threshold.

    Returns:
        The goal.

    Raises:
        InvalidInput: If the text is not a goal, if its metric is unknown, or if a better score is on the other side.

    >>> print(goal_from_text("psnr >= 20"))
    psnr>=20
    """
    # The threshold may not contain a colon, so that a limit is never read as a goal.
    found = re.fullmatch(rf"\s*({WRITABLE.pattern})\s*(>=|<=)\s*([^\s:]+)\s*", str(text))
    if found is None or found[1] not in METRICS or not METRICS[found[1]].is_goal:
        hint = "" if found is None else did_you_mean(found[1], _names()).strip()
        raise invalid_input("goal", text, f"to be a metric ({', '.join(_names())}) with a threshold, {_FORM}", hint)
    row = METRICS[found[1]]
    goal = Goal(row.name, _number("goal", text, found[3]), row.higher_is_better)
    if found[2] != _better(row):
        raise invalid_input("goal", text, f"to be written with {_better(row)}", _direction_hint(row))
    return _check_reachable(row, goal)


def limit_from_text(text: str) -> Limit:
    """Read a limit from text, such as ``psnr>=20: 1%``.

    Args:
        text: Goal, colon, and a percentage or a probability below 1.

    Returns:
        The limit.

    Raises:
        InvalidInput: If there is no colon, if the goal is invalid, or if the share is not a number.

    Edge cases: a number from 1 on without a percent sign is an error, because 1 could mean all trials or one in a
    hundred.

    >>> print(limit_from_text("psnr>=20: 1%"), limit_from_text("mse<=0.05: 0.25"))
    psnr>=20: 1% mse<=0.05: 25%
    """
    goal, colon, share = str(text).partition(":")
    if not colon:
        raise invalid_input("max_risk", text, "to be a goal and a share, such as 'psnr>=20: 1%'")
    word = share.strip()
    percent = word.endswith("%")
    number = _number("max_risk", text, word.removesuffix("%"))
    if not percent and number >= 1:  # ambiguous: "1" may mean 1 % or all
        remedy = f"Write {number:g}% or {number / 100:g}." if number <= 100 else "Write a share of at most 100%."
        raise invalid_input("max_risk", text, "to have a percent sign or a share below 1", remedy)
    return Limit(goal_from_text(goal), number / 100 if percent else number)


def _row_of_goal(argument: str, name: str) -> MetricInfo:
    """Return the registry row of a metric that can state goals."""
    if name not in METRICS or not METRICS[name].is_goal:
        raise invalid_input(argument, name, f"to be one of {', '.join(_names())}", did_you_mean(name, _names()).strip())
    return METRICS[name]


def _names() -> list[str]:
    """Names of the metrics that can state goals; plugins are listed without importing them."""
    # METRICS iterates over built-in rows only; METRICS.names also has the entry points of plugins.
    own = [name for name, row in METRICS.items() if row.is_goal]
    return [*own, *(name for name in METRICS.names if name not in set(METRICS))]


def _check_reachable(row: MetricInfo, goal: Goal) -> Goal:
    unreachable = goal.threshold > row.best if row.higher_is_better else goal.threshold < row.best
    if unreachable:
        worse = "<=" if row.higher_is_better else ">="
        raise invalid_input(
            "threshold",
            goal.threshold,
            f"{worse} {row.best:g}, the best {row.name}",
            "Pass a score that can be reached.",
        )
    return goal


def _better(row: MetricInfo) -> str:
    return ">=" if row.higher_is_better else "<="


def _direction_hint(row: MetricInfo) -> str:
    return f"A {'higher' if row.higher_is_better else 'lower'} {row.name} is better."


def _number(name: str, text: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError as error:
        raise invalid_input(name, text, f"to have a number in place of {word!r}, {_FORM}") from error
    if not math.isfinite(number):
        raise invalid_input(name, text, f"to have a finite number in place of {word!r}")
    return number
