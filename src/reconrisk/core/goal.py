"""What counts as a rebuilt record, and how often that may happen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_finite, check_nonnegative, check_probability, refuse

HIGHER_IS_BETTER: Mapping[str, bool] = {"psnr": True, "mse": False, "ssim": True, "ncc": True}
"""Metrics that goals are stated in, and whether a larger score means a better estimate."""

_LARGEST_EXPONENT = 100.0  # beyond it every estimate succeeds anyway, and powers would overflow
_FORM = "such as 'psnr>=20' or 'mse<=0.05'"


@serializable("goal")
@dataclass(frozen=True)
class Goal:
    """An adversary's goal: a score of one record at ``threshold`` or better.

    >>> print(psnr(20), mse(0.05))
    psnr>=20 mse<=0.05
    """

    metric: str
    threshold: float

    def __post_init__(self) -> None:
        if self.metric not in HIGHER_IS_BETTER:
            raise refuse("metric", self.metric, f"to be one of {', '.join(HIGHER_IS_BETTER)}")
        if self.metric == "mse":
            check_nonnegative("threshold", self.threshold, "No squared error is smaller.")
        object.__setattr__(self, "threshold", check_finite("threshold", self.threshold))

    @property
    def higher_is_better(self) -> bool:
        """Whether scores above the threshold reach it."""
        return HIGHER_IS_BETTER[self.metric]

    def reached(self, score: float) -> bool:
        """Whether a score is at the threshold or better.

        >>> psnr(20).reached(19.9), mse(0.05).reached(0.05)
        (False, True)
        """
        return score >= self.threshold if self.higher_is_better else score <= self.threshold

    def mean_squared_error(self, data_range: tuple[float, float]) -> float | None:
        """The mean squared error at the threshold, None for a metric that no error stands for.

        >>> psnr(20).mean_squared_error((0.0, 1.0)), ssim(0.9).mean_squared_error((0.0, 1.0))
        (0.01, None)
        """
        if self.metric == "psnr":
            exponent = min(-self.threshold / 10, _LARGEST_EXPONENT)
            return float((data_range[1] - data_range[0]) ** 2 * 10**exponent)
        return self.threshold if self.metric == "mse" else None

    def __str__(self) -> str:
        """Metric, direction and threshold, as :func:`goal_from_text` reads it."""
        return f"{self.metric}{'>=' if self.higher_is_better else '<='}{self.threshold:g}"


@serializable("limit")
@dataclass(frozen=True)
class Limit:
    """How often a goal may be reached: with probability ``at_most``."""

    goal: Goal
    at_most: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_most", check_probability("at_most", self.at_most))

    def __str__(self) -> str:
        """Goal and share, as :func:`limit_from_text` reads it."""
        return f"{self.goal}: {100 * self.at_most:.6g}%"


def psnr(at_least: float) -> Goal:
    """The goal of an estimate with a peak signal-to-noise ratio of ``at_least`` so many decibel."""
    return Goal("psnr", at_least)


def mse(at_most: float) -> Goal:
    """The goal of an estimate with a mean squared error of ``at_most`` so much."""
    return Goal("mse", at_most)


def ssim(at_least: float) -> Goal:
    """The goal of an estimate with a structural similarity of ``at_least`` so much; images only."""
    return Goal("ssim", at_least)


def ncc(at_least: float) -> Goal:
    """The goal of an estimate with a normalised cross-correlation of ``at_least`` so much."""
    return Goal("ncc", at_least)


def goal_from_text(text: str) -> Goal:
    """The goal that a text states.

    >>> goal_from_text("psnr >= 20")
    Goal(metric='psnr', threshold=20.0)
    """
    found = re.fullmatch(r"\s*([a-z]+)\s*(>=|<=)\s*([^\s:]+)\s*", str(text))
    if found is None or found[1] not in HIGHER_IS_BETTER:
        raise refuse("goal", text, f"to be a metric ({', '.join(HIGHER_IS_BETTER)}) with a threshold, {_FORM}")
    if (found[2] == ">=") != HIGHER_IS_BETTER[found[1]]:
        better = ">=" if HIGHER_IS_BETTER[found[1]] else "<="
        raise refuse("goal", text, f"to be written with {better}", f"A better {found[1]} is on that side.")
    return Goal(found[1], _number("goal", text, found[3]))


def limit_from_text(text: str) -> Limit:
    """The limit that a text states: a goal, a colon, a percentage or a probability.

    Edge cases: a number from 1 on without a percent sign is refused, since one reader takes 1 for all, the other for
    one in a hundred.

    >>> print(limit_from_text("psnr>=20: 1%"), limit_from_text("mse<=0.05: 0.25"))
    psnr>=20: 1% mse<=0.05: 25%
    """
    goal, colon, share = str(text).partition(":")
    if not colon:
        raise refuse("max_risk", text, "to be a goal and a share, such as 'psnr>=20: 1%'")
    word = share.strip()
    percent = word.endswith("%")
    number = _number("max_risk", text, word.removesuffix("%"))
    if not percent and number >= 1:
        raise refuse("max_risk", text, "to have a percent sign or a share below 1", _write_instead(number))
    return Limit(goal_from_text(goal), number / 100 if percent else number)


def _write_instead(number: float) -> str:
    return f"Write {number:g}% or {number / 100:g}." if number <= 100 else "No share is above 100%."


def _number(name: str, text: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError as error:
        raise refuse(name, text, f"to hold a number where it has {word!r}, {_FORM}") from error
    if not math.isfinite(number):
        raise refuse(name, text, "to hold a finite number")
    return number
