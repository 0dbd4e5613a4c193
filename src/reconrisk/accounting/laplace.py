r"""Privacy curve of Laplace releases: the exact law of one release, and a certified composition of many.

One release of sensitivity 1 with noise of scale 1/c is c-differentially private. Its privacy loss is in [-c, c], with
atoms at both ends. Its profile is

.. math:: H(e^x) = \sup_E P(E) - e^x Q(E) = 1 - e^{(x - c)/2}, \quad |x| \le c

Here E is an event, P the law of the release with the record and Q the law without it. A release of several values has
sensitivity 1 in the sum of absolute values. Its profile is not larger: each value shifts by its part of c, one after
the other, and the success functions of two shifts compose to that of their sum.

A lattice that contains both ends and connects the values of H by chords (doroshenko2022) dominates the release.
:mod:`reconrisk.accounting.composition` composes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reconrisk.accounting.composition import compose_losses
from reconrisk.accounting.loss import EPS, Array, LossDistribution, PrivacyProfile

_CELLS = 1024  # between both ends of the loss of the least release; doubles for each unit of its epsilon above 1
_MOST_POINTS = 2**14  # of a profile, before the points that some prior needs are chosen
_ONE_RELEASE = 385  # points of the closed form
# Ranges of priors: the argument of the tilt, and the log odds for which the best point of the profile is kept. For a
# prior between two of them the bound exceeds the best one by about 1e-5.
_RANGES = (
    (0.0, np.linspace(-9.5, 10.0, 384)),
    *((float(low), np.linspace(low, low + 4.0, 32)) for low in range(-13, -34, -4)),
)


def laplace_profile(releases: Sequence[tuple[float, int]]) -> PrivacyProfile:
    """Return upper bounds on the hockey-stick divergences of Laplace releases, at the epsilons that bounds need.

    Args:
        releases: Pairs of the pure epsilon of a release and the number of such releases.

    Returns:
        The profile, at nonnegative epsilons in ascending order. The pair of laws is symmetric, so it holds in both
        directions.

    Guarantee: never below the true divergence. One release is exact up to round-off.
    Reference: the lattice follows doroshenko2022.

    >>> round(laplace_profile([(1.0, 1)]).success(0.3), 4)
    0.6934
    """
    total = sum(epsilon * count for epsilon, count in releases)
    if sum(count for _, count in releases) == 1:
        epsilons = np.linspace(0.0, total, _ONE_RELEASE)
        return PrivacyProfile(epsilons, -np.expm1((epsilons - total) / 2) * (1 + 8 * EPS))
    points = {total * (1 + 8 * EPS): 0.0}  # the pure epsilon of all releases together
    for log_smallest, log_odds in _RANGES:
        profile = _compose(releases, log_smallest)
        if profile is not None:
            found = _best_points(profile, log_odds)
            points.update({epsilon: min(delta, points.get(epsilon, 1.0)) for epsilon, delta in found.items()})
    epsilons = np.array(sorted(points))
    return PrivacyProfile(epsilons, np.array([points[epsilon] for epsilon in epsilons.tolist()]))


def _compose(releases: Sequence[tuple[float, int]], log_smallest: float) -> PrivacyProfile | None:
    """Compose on the finest lattice that fits into memory; None if none does."""
    least = min(epsilon for epsilon, _ in releases)
    cells = _CELLS * math.ceil(max(1.0, least))
    while cells >= 1:
        spacing = 2 * least / cells
        losses = [_lattice_loss(epsilon, spacing) for epsilon, _ in releases]
        profile = compose_losses(losses, [count for _, count in releases], log_smallest=log_smallest)
        if profile is not None:
            return profile
        cells //= 4
    return None


def _lattice_loss(epsilon: float, spacing: float) -> LossDistribution:
    """Return a loss on the lattice from -epsilon to epsilon, with epsilon rounded up to half a multiple of the spacing.

    The chords of H between neighbouring points have the slopes -e^(-(x + epsilon)/2) / (e^(h/2) + 1), with x the left
    end and h the spacing. The mass without the record at a point is the jump of the slope, and the mass with the record
    is e^x times that.
    """
    cells = max(1, math.ceil(2 * epsilon / spacing * (1 - 8 * EPS)))  # a rounded quotient must not add a cell
    top = cells * spacing / 2
    x = spacing * np.arange(cells + 1) - top
    mass = np.exp((x - top) / 2) * math.tanh(spacing / 4)
    share = 1 / (1 + math.exp(-spacing / 2))
    mass[0], mass[-1] = math.exp(-top) * share, share
    return LossDistribution(-top, spacing, 0, mass * (1 + EPS * (16 + 4 * top)), 0.0)


def _best_points(profile: PrivacyProfile, log_odds: Array) -> dict[float, float]:
    """Return the points of a profile that give the least success bound for some prior with these log odds."""
    usable = np.flatnonzero(profile.epsilons >= 0)
    usable = usable[:: -(-len(usable) // _MOST_POINTS)]
    epsilons, deltas = profile.epsilons[usable], profile.deltas[usable]
    found = {}
    for prior in 1 / (1 + np.exp(-log_odds)):
        with np.errstate(over="ignore"):
            # one form for small priors, one for large priors; see log_success_from_approximate
            bound = np.minimum(deltas + prior * np.exp(epsilons), 1 - np.exp(-epsilons) * (1 - deltas - prior))
        best = int(np.argmin(bound))
        found[float(epsilons[best])] = min(1.0, float(deltas[best]))
    return found
