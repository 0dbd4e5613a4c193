"""Risks people state, as values: what must not happen, and how often it may."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.bounds.known_norm import from_scratch_success
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.guarantee import Guarantee, mse_threshold, probability_from_log
from reconrisk.core.mechanism import NoiseMechanism
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import (
    check_nonnegative,
    check_positive,
    check_probability,
    check_real,
    check_whole,
    invalid_input,
)

_LEAST_ROOM = 1e-9


@serializable("identification-risk")
@dataclass(frozen=True)
class Identification:
    """The target is picked, or rebuilt within a criterion, with probability above ``at_most``, given a prior."""

    log_prior_success: float
    at_most: float

    def __post_init__(self) -> None:
        if not check_real("log_prior_success", self.log_prior_success) <= 0:
            raise invalid_input("log_prior_success", self.log_prior_success, "<= 0")
        prior = probability_from_log(self.log_prior_success)
        room = math.log(check_probability("at_most", self.at_most) or math.ulp(0.0)) - self.log_prior_success
        if room <= _LEAST_ROOM * max(1.0, -self.log_prior_success) or self.at_most == 1:
            remedy = f"Guessing alone succeeds with {prior:.6g}: allow more than that, and less than 1."
            raise invalid_input("at_most", self.at_most, f"in (prior_success, 1) = ({prior:.6g}, 1)", remedy)

    @property
    def limit(self) -> float:
        """Largest acceptable logarithm of the success probability."""
        return math.log(self.at_most)

    def guarantee(self, mechanism: NoiseMechanism) -> Guarantee:
        """The bound on this risk that ``mechanism`` gives."""
        return success_upper_bound(mechanism, log_prior_success=self.log_prior_success)

    def __str__(self) -> str:
        """The demand as a clause."""
        prior = probability_from_log(self.log_prior_success)
        return f"P(reconstruction) <= {self.at_most:.4g} for a prior success of {prior:.4g}"


@serializable("from-scratch-risk")
@dataclass(frozen=True)
class FromScratch:
    """Someone without a prior rebuilds the target within ``mse`` with probability above ``at_most``."""

    dimension: int
    norm: float
    mse: float
    at_most: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", check_whole("dimension", self.dimension))
        check_positive("norm", self.norm, "Pass the smallest norm of any record.")
        if not 0 < check_probability("at_most", self.at_most) < 1:
            raise invalid_input("at_most", self.at_most, "in (0, 1)")
        nearest = self.norm * self.norm / self.dimension
        if check_nonnegative("mse", self.mse) >= nearest:
            raise invalid_input(
                "mse", self.mse, f"< norm^2/dimension = {nearest:.6g}", "Guessing zero reaches that error."
            )

    @property
    def limit(self) -> float:
        """Largest acceptable logarithm of the success probability."""
        return math.log(self.at_most)

    def guarantee(self, mechanism: NoiseMechanism) -> Guarantee:
        """The bound on this risk that ``mechanism`` gives."""
        return from_scratch_success(mechanism, dimension=self.dimension, norm=self.norm, mse=self.mse)

    def __str__(self) -> str:
        """The demand as a clause."""
        record = f"{self.dimension} values of norm {self.norm:g}"
        return f"P(MSE <= {self.mse:.4g}) <= {self.at_most:.4g} from scratch, {record}"


@serializable("unbiased-error-risk")
@dataclass(frozen=True)
class UnbiasedError:
    """An unbiased estimate has an error below ``at_least``; records lie in a box with these ``diameters``."""

    at_least: float
    diameters: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.diameters:
            raise invalid_input("diameters", self.diameters, "to hold at least one width")
        for width in self.diameters:
            check_positive("diameters", width, "Pass the width of the range of each value.")
        most = sum(width * width for width in self.diameters) / (4 * len(self.diameters))
        if not 0 < check_real("at_least", self.at_least) < most:
            raise invalid_input(
                "at_least", self.at_least, f"in (0, {most:.6g})", "A constant guess has no larger error."
            )

    @property
    def limit(self) -> float:
        """Largest acceptable value of minus the logarithm of the error."""
        return -math.log(self.at_least)

    def guarantee(self, mechanism: NoiseMechanism) -> Guarantee:
        """The bound on this risk that ``mechanism`` gives."""
        epsilon = replace_one_order_two(mechanism)
        return replace(mse_lower_bound_from_rdp(epsilon, diameters=self.diameters), mechanism=mechanism)

    def __str__(self) -> str:
        """The demand as a clause."""
        return f"MSE of unbiased estimates >= {self.at_least:.4g}"


Risk: TypeAlias = Identification | FromScratch | UnbiasedError

RISKS = (Identification, FromScratch, UnbiasedError)


def identification(
    *,
    at_most: float,
    candidates: int | None = None,
    prior_success: float | PriorSuccess | None = None,
    log_prior_success: float | None = None,
) -> Identification:
    """The risk that the target is named among ``candidates``, or rebuilt given a prior, more often than ``at_most``.

    Assumes: without the release all candidates are equally likely; else state ``prior_success`` or its logarithm.

    >>> print(identification(candidates=1000, at_most=0.01))
    P(reconstruction) <= 0.01 for a prior success of 0.001
    """
    given = (candidates, prior_success, log_prior_success)
    if sum(item is not None for item in given) != 1:
        raise invalid_input("(candidates, prior_success, log_prior_success)", given, "to hold exactly one value")
    if candidates is not None:
        return Identification(-math.log(check_whole("candidates", candidates, minimum=2)), at_most)
    if isinstance(prior_success, PriorSuccess):
        return Identification(prior_success.log_value, at_most)
    if prior_success is not None:
        if check_probability("prior_success", prior_success) == 0:
            raise invalid_input("prior_success", prior_success, "> 0", "Pass log_prior_success for tiny values.")
        return Identification(math.log(prior_success), at_most)
    return Identification(check_real("log_prior_success", log_prior_success), at_most)


def from_scratch(
    *,
    at_most: float,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
) -> FromScratch:
    """The risk that someone who knows only the norm rebuilds the target this well more often than ``at_most``.

    Assumes: as :func:`reconrisk.bounds.known_norm.from_scratch_success`.

    >>> print(from_scratch(psnr=20, at_most=1e-3, dimension=12, norm=1.0))
    P(MSE <= 0.01) <= 0.001 from scratch, 12 values of norm 1
    """
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    return FromScratch(dimension, norm, threshold, at_most)


def unbiased_mse(*, at_least: float, diameters: float | tuple[float, ...] = 1.0) -> UnbiasedError:
    """The risk that an unbiased estimate has a mean squared error below ``at_least`` (guo2022, Theorem 1).

    Assumes: records in a box whose widths are ``diameters``, one number for equal widths.

    >>> print(unbiased_mse(at_least=0.05))
    MSE of unbiased estimates >= 0.05
    """
    widths = (diameters,) if isinstance(diameters, (int, float)) else tuple(diameters)
    return UnbiasedError(at_least, widths)


def attained(guarantee: Guarantee) -> float:
    """What a guarantee says on the scale of ``limit``: smaller is safer.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> demand = unbiased_mse(at_least=0.05)
    >>> attained(demand.guarantee(Gaussian(noise_multiplier=2.0))) <= demand.limit
    True
    """
    if guarantee.log_value is not None:
        return guarantee.log_value
    return -math.log(guarantee.value) if guarantee.value > 0 else math.inf
