"""Conversion of dp_accounting events to mechanisms. No other file imports dp_accounting."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from reconrisk.accounting.laplace import laplace_profile
from reconrisk.accounting.renyi import ORDERS
from reconrisk.core.mechanism import (
    Composed,
    Gaussian,
    Mechanism,
    Neighbouring,
    NoisePhase,
    PoissonSampled,
    PrivacyCurve,
    RenyiDP,
    Repeated,
    ZeroConcentratedDP,
)
from reconrisk.core.validation import invalid_input

_ACCOUNTANT_ORDERS = tuple(float(order) for order in ORDERS if order <= 512)  # its time grows with the order
_EPSILONS = (0.0, *np.geomspace(1e-3, 64.0, 97).tolist())
_ROUNDED = 1e-15  # relative; above the round-off of a reciprocal
_ROUND_OFF = 1e-12  # allowance for the FFT of the PLD accountant
_LOSS_STEP = 1e-3  # ten times the default: the curve changes by less than 1e-5, and takes 1 second instead of 20
_RELATIONS = {
    Neighbouring.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Neighbouring.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
}


def from_event(event: dp_event.DpEvent, *, neighbouring: Neighbouring = Neighbouring.ADD_OR_REMOVE) -> Mechanism:
    """Return the mechanism that a ``DpEvent`` describes.

    Gaussian events, Poisson sampled or not, repeated and composed, become the mechanism itself. A zCDP event without
    offset becomes its rho. Laplace events become their (epsilon, delta) curve, exact for one and composed here for
    several. Other events become the Renyi curve of dp_accounting's RDP accountant, the (epsilon, delta) curve of its
    PLD accountant, or both if both support them; bounds then use the smaller.

    Args:
        event: An event of dp_accounting.
        neighbouring: Neighbouring relation of the guarantee.

    Returns:
        The mechanism.

    Raises:
        InvalidInput: If the event releases nothing, has no privacy guarantee, or no accountant supports it.

    Assumes: fixed-size batches (``SampledWithoutReplacementDpEvent``) are for ``Neighbouring.REPLACE_ONE``.
    Guarantee: fixed-size batches are accounted with half the noise multiplier. An event defines the multiplier by the
    norm of one contribution, replacing a record moves the sum by up to twice that, and the accountant does not double
    it.
    Edge cases: the error message names the event that is not supported.

    >>> sampled = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.1))
    >>> from_event(dp_event.SelfComposedDpEvent(sampled, 500)).steps
    500
    """
    leaves = list(_leaves(event, 1))
    if not leaves:
        raise invalid_input("event", event, "to release something", "Pass an event other than NoOpDpEvent.")
    for leaf, _ in leaves:
        if isinstance(leaf, (dp_event.NonPrivateDpEvent, dp_event.UnsupportedDpEvent)):
            raise invalid_input(
                "type(event)", type(leaf).__name__, "to have a privacy guarantee", "Pass an event with noise."
            )
    if neighbouring is Neighbouring.ADD_OR_REMOVE:
        phases = [_phase_from_event(leaf, count) for leaf, count in leaves]
        exact = [phase for phase in phases if phase is not None]
        if len(exact) == len(phases):
            return exact[0] if len(exact) == 1 else Composed(tuple(exact))
    if len(leaves) == 1:
        guarantee = _guarantee_from_event(*leaves[0], neighbouring)
        if guarantee is not None:
            return guarantee
    return _compute_curve(leaves, neighbouring)


def _leaves(event: dp_event.DpEvent, count: int) -> Iterator[tuple[dp_event.DpEvent, int]]:
    """Yield the events that release something, with the number of their repetitions."""
    if isinstance(event, dp_event.SelfComposedDpEvent):
        yield from _leaves(event.event, count * event.count)
    elif isinstance(event, dp_event.ComposedDpEvent):
        for part in event.events:
            yield from _leaves(part, count)
    elif not isinstance(event, dp_event.NoOpDpEvent) and count > 0:
        yield event, count


def _phase_from_event(event: dp_event.DpEvent, count: int) -> NoisePhase | None:
    """Return the equivalent mechanism of a Gaussian event, or None for other events."""
    rate = 1.0
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        event, rate = event.event, event.sampling_probability
    if not isinstance(event, dp_event.GaussianDpEvent):
        return None
    gaussian = Gaussian(noise_multiplier=event.noise_multiplier)
    step = gaussian if rate == 1 else PoissonSampled(gaussian, rate)
    return step if count == 1 else Repeated(step, count)


def _guarantee_from_event(event: dp_event.DpEvent, count: int, neighbouring: Neighbouring) -> Mechanism | None:
    """Return the privacy guarantee of an event that has a closed form, or None."""
    if isinstance(event, dp_event.ZCDpEvent) and event.xi == 0:
        return ZeroConcentratedDP(count * event.rho, neighbouring)
    return None


def _compute_curve(leaves: list[tuple[dp_event.DpEvent, int]], neighbouring: Neighbouring) -> RenyiDP | PrivacyCurve:
    """Return the curves that accountants compute, both if both support the events."""
    events = [(_halve_noise(leaf) if neighbouring is Neighbouring.REPLACE_ONE else leaf, n) for leaf, n in leaves]
    renyi, unsupported = _renyi_curve(events, neighbouring)
    profile = _profile(events, neighbouring)
    if profile is not None:
        return PrivacyCurve(*profile, neighbouring, renyi)
    if renyi is not None:
        return renyi
    if not unsupported:
        names = [type(event).__name__ for event, _ in events]
        remedy = "Pass its epsilon and delta as ApproximateDP."
        raise invalid_input("event", names, "to have a finite, positive Renyi curve", remedy)
    remedy = "Pass its epsilon and delta as ApproximateDP, or its Renyi curve as RenyiDP."
    name = type(unsupported[0]).__name__
    raise invalid_input("type(event)", name, f"to have an accountant for {neighbouring.value}", remedy)


def _renyi_curve(
    events: list[tuple[dp_event.DpEvent, int]], neighbouring: Neighbouring
) -> tuple[RenyiDP | None, list[dp_event.DpEvent]]:
    """Return the Renyi curve of dp_accounting or None, and the events that its accountant does not support."""
    renyi = RdpAccountant(_ACCOUNTANT_ORDERS, _RELATIONS[neighbouring])
    unsupported = [event for event, _ in events if not renyi.supports(event)]
    if unsupported:
        return None, unsupported
    for event, count in events:
        renyi.compose(event, count)
    orders, epsilons = np.asarray(renyi.orders), np.asarray(renyi.rdp)
    usable = np.isfinite(epsilons) & (epsilons > 0)  # on numerical trouble the accountant returns zero
    if not usable.any():
        return None, []
    return RenyiDP(tuple(orders[usable].tolist()), tuple(epsilons[usable].tolist()), neighbouring), []


def _profile(
    events: list[tuple[dp_event.DpEvent, int]], neighbouring: Neighbouring
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return (epsilon, delta) pairs: our own for Laplace events, otherwise those of dp_accounting, or None."""
    if all(isinstance(event, dp_event.LaplaceDpEvent) for event, _ in events):
        found = laplace_profile([(1 / event.noise_multiplier * (1 + _ROUNDED), count) for event, count in events])
        return tuple(found.epsilons.tolist()), tuple(found.deltas.tolist())
    losses = PLDAccountant(_RELATIONS[neighbouring], value_discretization_interval=_LOSS_STEP)
    if neighbouring is not Neighbouring.ADD_OR_REMOVE or not all(losses.supports(event) for event, _ in events):
        return None
    for event, count in events:
        losses.compose(event, count)
    # get_delta returns upper bounds, except for the round-off of its transforms
    deltas = [min(1.0, float(losses.get_delta(epsilon)) + _ROUND_OFF) for epsilon in _EPSILONS]
    return _EPSILONS, tuple(deltas)


def _halve_noise(event: dp_event.DpEvent) -> dp_event.DpEvent:
    """Halve the noise multipliers, because replacing a record moves a sum by up to two clip norms."""
    if isinstance(event, (dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent)):
        return type(event)(event.noise_multiplier / 2)
    if isinstance(event, dp_event.SampledWithoutReplacementDpEvent):
        return dp_event.SampledWithoutReplacementDpEvent(
            event.source_dataset_size, event.sample_size, _halve_noise(event.event)
        )
    return event
