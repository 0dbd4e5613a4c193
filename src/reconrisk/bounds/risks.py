"""Risks as values: an unwanted event and the largest probability with which it may happen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.bounds.known_norm import from_scratch_success, known_norm_success
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.bounds.prior_success import PriorSuccess, uniform_sphere
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

_LEAST_ROOM = 1e-9  # relative, in logarithms: solvers cannot distinguish a closer target from the prior


@serializable("identification-risk")
@dataclass(frozen=True)
class Identification:
    """Risk that an adversary with a prior identifies the target, or reconstructs it well enough to count as success.

    Attributes:
        log_prior_success: Natural logarithm of the best success probability without the release.
        at_most: Largest acceptable success probability with the release.
    """

    log_prior_success: float
    at_most: float

    def __post_init__(self) -> None:
        if not check_real("log_prior_success", self.log_prior_success) <= 0:
            remedy = "Pass the natural logarithm of a probability."
            raise invalid_input("log_prior_success", self.log_prior_success, "<= 0", remedy)
        prior = probability_from_log(self.log_prior_success)
        # The smallest float replaces at_most = 0, which has no logarithm and always fails the test below.
        room = math.log(check_probability("at_most", self.at_most) or math.ulp(0.0)) - self.log_prior_success
        if room <= _LEAST_ROOM * max(1.0, -self.log_prior_success) or self.at_most == 1:
            remedy = f"Pass a number above {prior:.6g}, the success of guessing alone, and below 1."
            raise invalid_input("at_most", self.at_most, f"in ({prior:.6g}, 1)", remedy)

    @property
    def limit(self) -> float:
        """Largest acceptable logarithm of the success probability."""
        return math.log(self.at_most)

    def guarantee(self, mechanism: NoiseMechanism) -> Guarantee:
        """Return the bound on this risk that ``mechanism`` gives."""
        return success_upper_bound(mechanism, log_prior_success=self.log_prior_success)

    def __str__(self) -> str:
        """Return the limit as one clause."""
        prior = probability_from_log(self.log_prior_success)
        return f"P(reconstruction) <= {self.at_most:.4g} for a prior success of {prior:.4g}"


@serializable("from-scratch-risk")
@dataclass(frozen=True)
class FromScratch:
    """Risk that an adversary who knows only the norm of the target reconstructs it from its noisy direction.

    Attributes:
        dimension: Number of values in a record.
        norm: Smallest Euclidean norm of any record.
        mse: Largest mean squared error that counts as success.
        at_most: Largest acceptable success probability.
    """

    dimension: int
    norm: float
    mse: float
    at_most: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", _check_sphere(self.dimension, self.norm, self.mse))
        if not 0 < check_probability("at_most", self.at_most) < 1:
            raise invalid_input("at_most", self.at_most, "in (0, 1)", "Pass 0.01 for 1%, for example.")

    @property
    def limit(self) -> float:
        """Largest acceptable logarithm of the success probability."""
        return math.log(self.at_most)

    def guarantee(self, mechanism: NoiseMechanism) -> Guarantee:
        """Return the bound on this risk that ``mechanism`` gives."""
        return from_scratch_success(mechanism, dimension=self.dimension, norm=self.norm, mse=self.mse)

    def __str__(self) -> str:
        """Return the limit as one clause."""
        record = f"{self.dimension} values of norm {self.norm:g}"
        return f"P(MSE <= {self.mse:.4g}) <= {self.at_most:.4g} from scratch, {record}, release x/|x| only"


@serializable("known-norm-risk")
@dataclass(frozen=True)
class KnownNorm:
    """Risk that an adversary who knows the norm of the target reconstructs it from any release of the mechanism.

    Attributes:
        dimension: Number of values in a record.
        norm: Smallest Euclidean norm of any record.
        mse: Largest mean squared error that counts as success.
        at_most: Largest acceptable success probability.
    """

    dimension: int
    norm: float
    mse: float
    at_most: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", _check_sphere(self.dimension, self.norm, self.mse))
        self.identification()  # refuses a limit below the success of guessing

    def identification(self) -> Identification:
        """Return the same limit as a risk with a prior: a direction that is uniform on the sphere."""
        prior = uniform_sphere(dimension=self.dimension, norm=self.norm, mse=self.mse)
        return Identification(prior.log_value, self.at_most)

    @property
    def limit(self) -> float:
        """Largest acceptable logarithm of the success probability."""
        return math.log(self.at_most)

    def guarantee(self, mechanism: NoiseMechanism) -> Guarantee:
        """Return the bound on this risk that ``mechanism`` gives."""
        return known_norm_success(mechanism, dimension=self.dimension, norm=self.norm, mse=self.mse)

    def __str__(self) -> str:
        """Return the limit as one clause."""
        record = f"{self.dimension} values of known norm {self.norm:g}"
        return f"P(MSE <= {self.mse:.4g}) <= {self.at_most:.4g} from any release, {record}"


@serializable("unbiased-error-risk")
@dataclass(frozen=True)
class UnbiasedError:
    """Risk that an unbiased estimate has a mean squared error that is too small.

    Attributes:
        at_least: Smallest acceptable mean squared error of unbiased estimates.
        diameters: Width of the range of each value (largest minus smallest); one number stands for all values.
    """

    at_least: float
    diameters: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.diameters:
            raise invalid_input("diameters", self.diameters, "to have at least one width")
        for width in self.diameters:
            check_positive("diameters", width, "Pass the width of the range of each value.")
        # Error of guessing the centre of the box, which no noise can push an attacker above.
        centre_guess = sum(width * width for width in self.diameters) / (4 * len(self.diameters))
        if not 0 < check_real("at_least", self.at_least) < centre_guess:
            raise invalid_input(
                "at_least",
                self.at_least,
                f"in (0, {centre_guess:.6g})",
                "Pass a number below the error of a constant guess, the upper end.",
            )

    @property
    def limit(self) -> float:
        """Largest acceptable value of the negative logarithm of the error."""
        return -math.log(self.at_least)  # negated: a larger error is safer, a smaller level is too

    def guarantee(self, mechanism: NoiseMechanism) -> Guarantee:
        """Return the bound on this risk that ``mechanism`` gives."""
        epsilon = replace_one_order_two(mechanism)  # Theorem 1 of guo2022 needs replacement of a record
        return replace(mse_lower_bound_from_rdp(epsilon, diameters=self.diameters), mechanism=mechanism)

    def __str__(self) -> str:
        """Return the limit as one clause."""
        return f"MSE of unbiased estimates >= {self.at_least:.4g}"


def _check_sphere(dimension: int, norm: float, mse: float) -> int:
    """Return the dimension after checking that guessing zero does not reach the error ``mse``."""
    size = check_whole("dimension", dimension)
    check_positive("norm", norm, "Pass the smallest norm of any record.")
    zero_guess = norm * norm / size
    if check_nonnegative("mse", mse) >= zero_guess:
        raise invalid_input(
            "mse",
            mse,
            f"< {zero_guess:.6g}, which is norm^2/dimension",
            "Pass a smaller mse: guessing zero reaches that error.",
        )
    return size


Risk: TypeAlias = Identification | FromScratch | KnownNorm | UnbiasedError

RISKS = (Identification, FromScratch, KnownNorm, UnbiasedError)


def identification(
    *,
    at_most: float,
    candidates: int | None = None,
    prior_success: float | PriorSuccess | None = None,
    log_prior_success: float | None = None,
) -> Identification:
    """State the risk that the target is identified among candidates, or reconstructed given a prior.

    Args:
        at_most: Largest acceptable success probability with the release.
        candidates: Number of equally likely candidates; the prior success is its reciprocal.
        prior_success: Best success probability without the release: a number, or a result of
            :mod:`reconrisk.bounds.prior_success`.
        log_prior_success: Natural logarithm of the prior success, for values too small for a float.

    Returns:
        The risk, for :func:`reconrisk.bounds.calibration.calibrate`.

    Raises:
        InvalidInput: If not exactly one of ``candidates``, ``prior_success`` and ``log_prior_success`` is given, or if
            ``at_most`` is not between the prior success and 1.

    Assumes: with ``candidates``, all candidates are equally likely without the release.

    >>> print(identification(candidates=1000, at_most=0.01))
    P(reconstruction) <= 0.01 for a prior success of 0.001
    """
    given = (candidates, prior_success, log_prior_success)
    if sum(item is not None for item in given) != 1:
        raise invalid_input(
            "(candidates, prior_success, log_prior_success)",
            given,
            "to have exactly one value",
            "Pass one of the three arguments.",
        )
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
    """State the risk that an adversary who knows only the norm of the target reconstructs it from its noisy direction.

    It holds for the release x/|x| plus noise and nothing else. For other releases use :func:`known_norm`.

    Args:
        at_most: Largest acceptable success probability.
        dimension: Number of values in a record.
        norm: Smallest Euclidean norm of any record.
        mse: Largest mean squared error that counts as success. Pass ``mse`` or ``psnr``.
        psnr: Smallest peak signal-to-noise ratio in dB that counts as success.
        data_range: Width of the range of values, used to convert ``psnr``.

    Returns:
        The risk, for :func:`reconrisk.bounds.calibration.calibrate`.

    Raises:
        InvalidInput: If ``at_most`` is not in (0, 1), if not exactly one threshold is given, or if guessing zero
            already reaches the threshold.

    Assumes: as :func:`reconrisk.bounds.known_norm.from_scratch_success`.

    >>> print(from_scratch(psnr=20, at_most=1e-3, dimension=12, norm=1.0))
    P(MSE <= 0.01) <= 0.001 from scratch, 12 values of norm 1, release x/|x| only
    """
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    return FromScratch(dimension, norm, threshold, at_most)


def known_norm(
    *,
    at_most: float,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
) -> KnownNorm:
    """State the risk that an adversary who knows the norm of the target reconstructs it from any release.

    Args:
        at_most: Largest acceptable success probability.
        dimension: Number of values in a record.
        norm: Smallest Euclidean norm of any record.
        mse: Largest mean squared error that counts as success. Pass ``mse`` or ``psnr``.
        psnr: Smallest peak signal-to-noise ratio in dB that counts as success.
        data_range: Width of the range of values, used to convert ``psnr``.

    Returns:
        The risk, for :func:`reconrisk.bounds.calibration.calibrate`.

    Raises:
        InvalidInput: If not exactly one threshold is given, if guessing zero already reaches the threshold, or if
            ``at_most`` is not between the success of guessing and 1.

    Assumes: as :func:`reconrisk.bounds.known_norm.known_norm_success`.

    >>> print(known_norm(psnr=20, at_most=1e-3, dimension=12, norm=1.0))
    P(MSE <= 0.01) <= 0.001 from any release, 12 values of known norm 1
    """
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    return KnownNorm(dimension, norm, threshold, at_most)


def unbiased_mse(*, at_least: float, diameters: float | tuple[float, ...] = 1.0) -> UnbiasedError:
    """State the risk that an unbiased estimate has a mean squared error below a limit.

    Args:
        at_least: Smallest acceptable mean squared error of unbiased estimates.
        diameters: Width of the range of each value (largest minus smallest); one number for equal widths.

    Returns:
        The risk, for :func:`reconrisk.bounds.calibration.calibrate`.

    Raises:
        InvalidInput: If a width is not positive, or if ``at_least`` is not below the error of a constant guess.

    Assumes: each value of a record lies in a known range of this width.
    Reference: Theorem 1, guo2022.

    >>> print(unbiased_mse(at_least=0.05))
    MSE of unbiased estimates >= 0.05
    """
    # One width is enough: the bound is a mean over coordinates, so their number cancels.
    widths = (diameters,) if isinstance(diameters, (int, float)) else tuple(diameters)
    return UnbiasedError(at_least, widths)


def risk_level(guarantee: Guarantee) -> float:
    """Return the value of a guarantee on the scale of the attribute ``limit`` of risks, on which smaller is safer.

    Args:
        guarantee: Guarantee that the method ``guarantee`` of a risk returned.

    Returns:
        Logarithm of a success probability, or negative logarithm of an error.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> risk = unbiased_mse(at_least=0.05)
    >>> risk_level(risk.guarantee(Gaussian(noise_multiplier=2.0))) <= risk.limit
    True
    """
    if guarantee.log_value is not None:  # success probabilities carry their logarithm, errors do not
        return guarantee.log_value
    return -math.log(guarantee.value) if guarantee.value > 0 else math.inf
