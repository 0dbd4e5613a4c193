"""Guarantees against every adversary who knows the norm of the record but not its direction.

:func:`from_scratch_success` is exact for one release, x/|x| plus Gaussian noise. :func:`known_norm_success` covers any
release of a mechanism, such as the clipped gradient of a network.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reconrisk.accounting.subsampled import DEFAULT_ACCURACY
from reconrisk.bounds.numerics.cone import log_cone_probability
from reconrisk.bounds.numerics.hits import dominating_phase, log_average_upper_bound, phases
from reconrisk.bounds.prior_success import uniform_sphere
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.guarantee import (
    IDEAL_NOISE,
    INDEPENDENT_RECORDS,
    CoveredRelease,
    Guarantee,
    Quantity,
    Scope,
    mse_threshold,
    probability_from_log,
)
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import check_positive, check_whole

Floats = NDArray[np.float64]

_ROUNDING = 1e-13  # relative; above the rounding of the few operations that it covers
_KNOWS = frozenset({Knows.RECORD_NORM, Knows.LABELS, Knows.OTHER_RECORDS, Knows.INITIALISATION, Knows.DEFENSE})
_REFERENCE = Reference("best cap of the sphere, for the release of riess2025 equation 19", "reconrisk")
_RELEASE = (
    "each release with the record is its direction x/|x| times the clip norm plus Gaussian noise, and reveals nothing "
    "else about it (riess2025, equation 19)"
)
_DIRECTION = "the norm is known and the direction is uniform on the sphere, or the least favourable one"
_UNIFORM = "the norm is known and the direction is uniform on the sphere"
_HITS_REVEALED = "the adversary knows which releases contain the record"


def from_scratch_success(
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
) -> Guarantee:
    r"""Upper bound on the success of any adversary who knows the norm of a record and sees its noisy direction.

    .. math:: \gamma = E_z\, P\Bigl(\tfrac{d-1}2, \tfrac{\max(0, 1 + \sigma z)^2 t^2}{2 \sigma^2}\Bigr), \quad
              t = \tan\arcsin(\rho/r), \quad \rho = \sqrt{d \eta} < r

    Here P is the regularised lower incomplete gamma function, :math:`\sigma` the noise multiplier, z standard normal,
    and y the noisy release. The bound is 1 if :math:`\rho \ge r`. An estimate succeeds on a cap of the sphere of
    half-angle at most arcsin(rho/r). The posterior density falls with the angle from y, so the best cap is centred on
    y. The estimate :math:`\sqrt{r^2-\rho^2}\, y/\|y\|` attains the bound.

    Several releases: T releases are worth one with noise sigma / sqrt(T). Under Poisson sampling the adversary is given
    the steps that contain the record, and the bound averages over their binomial number. Several sampled phases count
    as one phase with the smallest noise and the largest sampling probability of any.

    Args:
        mechanism: Mechanism described by its noise: Gaussian, subsampled, repeated or composed.
        dimension: Number of values in a record (d).
        norm: Euclidean norm of the record (r). For a data set pass the smallest norm.
        mse: Largest mean squared error that counts as success (:math:`\eta`). Pass ``mse`` or ``psnr``.
        psnr: Smallest peak signal-to-noise ratio in dB that counts as success.
        data_range: Width of the range of values, used to convert ``psnr``.

    Returns:
        A guarantee on the success probability, with ``log_value`` as its natural logarithm.

    Raises:
        InvalidInput: If ``dimension`` or ``norm`` is not positive, if not exactly one threshold is given, or if the
            mechanism is not described by its noise.

    Assumes: each release that contains the record is, after division by the clip norm, the release of riess2025's
    attack, :math:`x/\|x\| + N(0, \sigma^2 I)`. The bound does not cover any other function of x, and the method
    ``covers`` of the result is False for it. The clipped gradient of a network can reveal far more, also if its norm
    and noise are the same. :func:`known_norm_success` covers every release.
    Guarantee: no adversary exceeds the bound on average over uniform directions of the record, nor in the direction
    that is least favourable to the adversary. Without sampling it exceeds the exact value by less than a relative 1e-9.
    With sampling and more than 1000 steps it equals the value at up to 0.05 % less noise. Nonincreasing in noise and
    norm; nondecreasing in steps, sampling probability and threshold.
    Edge cases: ``mse = 0`` gives 0 in two or more dimensions. In one dimension only the sign is unknown and the bound
    is Phi(sqrt(T)/sigma). ``log_value`` represents probabilities below the smallest float.
    Reference: ours, for the threat model of riess2025. Corollary IV.6 of riess2025 is not a bound for this threat
    model.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> bound = from_scratch_success(Gaussian(noise_multiplier=0.1), dimension=4, norm=2.0, mse=0.3 * 0.04)
    >>> round(bound.value, 3), bound.scope.value
    (0.253, 'known norm, direction uniform on the sphere')
    >>> from_scratch_success(Gaussian(noise_multiplier=0.05), dimension=784, norm=1.0, mse=0.6 * 0.0025).value
    1.0
    """
    log_value = log_from_scratch_success(
        mechanism, dimension=dimension, norm=norm, mse=mse, psnr=psnr, data_range=data_range
    )
    several = sum(hits.attempts for _, hits in phases(mechanism)) > 1
    sampled = dominating_phase(mechanism)[1].probability < 1
    return Guarantee(
        quantity=Quantity.SUCCESS_PROBABILITY,
        value=probability_from_log(log_value),
        log_value=log_value,
        mechanism=mechanism,
        scope=Scope.KNOWN_NORM_UNIFORM_DIRECTION,
        threat=ThreatModel(sees=Sees.EVERY_UPDATE if several else Sees.ONE_UPDATE, knows=_KNOWS),
        reference=_REFERENCE,
        assumptions=(
            _RELEASE,
            _DIRECTION,
            *((_HITS_REVEALED,) if sampled else ()),
            INDEPENDENT_RECORDS,
            IDEAL_NOISE,
        ),
        release=CoveredRelease.DIRECTION,
    )


def known_norm_success(
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
    accuracy: float = DEFAULT_ACCURACY,
) -> Guarantee:
    r"""Upper bound on the success of any adversary who knows the norm of a record, for any release of a mechanism.

    .. math:: \gamma = B(\kappa), \quad
              \kappa = \tfrac12 I_{\rho^2/r^2}\bigl(\tfrac{d-1}2, \tfrac12\bigr), \quad \rho = \sqrt{d \eta} < r

    Here I is the regularised incomplete beta function and B the bound of
    :func:`reconrisk.bounds.success.success_upper_bound`. An estimate succeeds on a cap of the sphere, and
    :math:`\kappa` is the share of the largest such cap.

    Args:
        mechanism: Mechanism that produced the release, of any kind.
        dimension: Number of values in a record (d).
        norm: Euclidean norm of the record (r). For a data set pass the smallest norm.
        mse: Largest mean squared error that counts as success (:math:`\eta`). Pass ``mse`` or ``psnr``.
        psnr: Smallest peak signal-to-noise ratio in dB that counts as success.
        data_range: Width of the range of values, used to convert ``psnr``.
        accuracy: Target accuracy of the numerical composition for subsampled mechanisms.

    Returns:
        A guarantee on the success probability, with ``log_value`` as its natural logarithm.

    Raises:
        InvalidInput: If ``dimension`` or ``norm`` is not positive, if not exactly one threshold is given, or if the
            kind of mechanism is unknown.

    Assumes: the norm is known, and given the norm and the other records the direction is uniform on the sphere.
    Guarantee: holds for every release of the mechanism; never below :func:`from_scratch_success` of the same noise.
    Edge cases: 1 if :math:`\rho \ge r`, because guessing zero succeeds.
    Reference: ours; Theorem 2, balle2022, for B.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> bound = known_norm_success(Gaussian(noise_multiplier=1.0), dimension=10, norm=1.0, mse=0.03)
    >>> round(bound.value, 7), bound.release.value
    (0.0135195, 'any release of the mechanism')
    """
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    prior = uniform_sphere(dimension=dimension, norm=norm, mse=threshold)
    bound = success_upper_bound(mechanism, prior_success=prior, accuracy=accuracy)
    return replace(bound, scope=Scope.KNOWN_NORM_ANY_RELEASE, assumptions=(_UNIFORM, *bound.assumptions))


def log_from_scratch_success(
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
) -> float:
    """Logarithm of :func:`from_scratch_success` as a plain number, for root finding.

    Args:
        mechanism: Mechanism described by its noise.
        dimension: Number of values in a record.
        norm: Euclidean norm of the record.
        mse: Largest mean squared error that counts as success. Pass ``mse`` or ``psnr``.
        psnr: Smallest peak signal-to-noise ratio in dB that counts as success.
        data_range: Width of the range of values, used to convert ``psnr``.

    Returns:
        Natural logarithm of the success probability; ``-inf`` for probability zero.

    Raises:
        InvalidInput: As :func:`from_scratch_success`.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> round(log_from_scratch_success(Gaussian(noise_multiplier=1.0), dimension=3072, norm=1.0, mse=1e-7), 2)
    -12368.91
    """
    noise_multiplier, hits = dominating_phase(mechanism)
    size = check_whole("dimension", dimension)
    check_positive("norm", norm, "Pass the norm of the record; a record of norm zero is known already.")
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    # The sine of the cap's half-angle is rho / r. Sine, tangent and signal are rounded up, which only raises the bound.
    sine = math.sqrt(size) * (math.sqrt(threshold) / norm) * (1 + _ROUNDING)
    if sine >= 1:  # the ball around zero covers the sphere, so guessing zero succeeds
        return 0.0
    # (1 - s)(1 + s) instead of 1 - s^2, which loses digits near s = 1
    tangent = sine / math.sqrt((1 - sine) * (1 + sine)) * (1 + _ROUNDING)
    signal = (1 + _ROUNDING) / noise_multiplier

    def log_success_after(counts: NDArray[np.int64]) -> Floats:
        # The mean of k releases has noise sigma / sqrt(k).
        return log_cone_probability(tangent, dimension=size, signals=np.sqrt(counts) * signal)

    if hits.probability == 1:
        return float(log_success_after(np.array([hits.attempts]))[0])
    return log_average_upper_bound(hits, log_success_after)
