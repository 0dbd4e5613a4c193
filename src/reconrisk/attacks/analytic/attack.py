"""Inversion of a linear layer that reads the record: exact without noise, and the best use of the gradient under noise.

:func:`average_observations` joins several updates of the same record into one with less noise. An attack reports
``exact`` only if that can be checked: a probe shows that the layer reads the record, or the release of the estimate is
the observed one.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.attacks.analytic.estimates import LayerEstimate, known_norm, least_squares, total_least_squares
from reconrisk.attacks.first_layer import LayerGradient, Scales, read_layer, with_scales
from reconrisk.attacks.labels.infer import labels_for
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, Sees, ThreatModel
from reconrisk.core.validation import check_not_empty, invalid_input


def average_observations(observations: Sequence[Observation]) -> Observation:
    r"""The mean of several observations of the same records through the same parameters, as one observation.

    .. math:: \bar y = \sum_k y_k / \tau_k^2 \Big/ \sum_k 1 / \tau_k^2, \quad
              \bar\tau^{-2} = \sum_k \tau_k^{-2}

    Assumes: the adversary can tell that the updates hold the same records, and the parameters were the same in each, as
    when a malicious server sends them; neither can be checked here.
    Guarantee: with known equal noise the variance of every value is that of one observation over their number.
    Edge cases: without known noise the plain mean; values that were never sent stay unsent.
    Reference: Proposition IV.10, riess2025.

    >>> from reconrisk.core.threat import ThreatModel
    >>> every = ThreatModel(Sees.EVERY_UPDATE)
    >>> seen = [Observation({"y": torch.tensor([y])}, dict, every, (1,), (0.0, 1.0)) for y in (1.0, 2.0)]
    >>> average_observations(seen).released
    {'y': tensor([1.5000])}
    """
    check_not_empty("observations", observations, "Pass those that hold the record.")
    first = observations[0]
    for other in observations[1:]:
        _check_match(first, other)
    precisions = [{name: _precision(each, name) for name in first.released} for each in observations]
    totals = {name: functools.reduce(torch.add, [each[name] for each in precisions]) for name in first.released}
    released = {}
    for name, total in totals.items():
        weighted = [each.released[name] * known[name] for each, known in zip(observations, precisions, strict=True)]
        whole = functools.reduce(torch.add, weighted)
        released[name] = torch.where(total > 0, whole / torch.where(total > 0, total, 1.0), 0.0)
    kept = None if first.kept is None else {name: total > 0 for name, total in totals.items()}
    noise_std = None
    if first.noise_std is not None:  # where nothing was sent that of one observation, since it does not matter
        noise_std = {
            name: torch.where(total > 0, torch.where(total > 0, total, 1.0).rsqrt(), first.noise_std[name])
            for name, total in totals.items()
        }
    return replace(first, released=released, noise_std=noise_std, kept=kept)


def _precision(observation: Observation, name: str) -> Tensor:
    ones = torch.ones_like(observation.released[name])
    if observation.noise_std is not None:
        ones = ones / observation.noise_std[name].square()
    return ones if observation.kept is None else ones * observation.kept[name]


def _check_match(first: Observation, other: Observation) -> None:
    if first.threat.sees is not Sees.EVERY_UPDATE:
        raise invalid_input(
            "threat", first.threat, "to see every update, of which these are several", "Use Sees.EVERY_UPDATE."
        )
    for name in ("threat", "input_shape", "data_range", "batch_size"):
        if getattr(first, name) != getattr(other, name):
            raise invalid_input(name, getattr(other, name), f"to be {getattr(first, name)} in every observation")
    shapes, expected = ({key: tuple(value.shape) for key, value in each.released.items()} for each in (other, first))
    if shapes != expected:
        raise invalid_input("released", shapes, f"to have the names and shapes of the first, {expected}")
    for name in ("labels", "record_norms"):
        mine, its = getattr(first, name), getattr(other, name)
        if mine is not None and its is not None and not torch.equal(mine, its):
            raise invalid_input(name, its.tolist(), f"to be {mine.tolist()}, as for the same records")
    for name in ("noise_std", "kept"):
        if (getattr(first, name) is None) != (getattr(other, name) is None):
            raise invalid_input(name, "given for some", "to be known of every observation or of none")


_ROUNDING = 1e-3  # of a relative residual: a wrong layer leaves far more, also in half precision
_EXACT = 1e-5  # the same for an exact estimate: float32 releases leave 1e-7, noise that nobody knows of leaves more
_OTHER_ATTACK = "Use an attack that optimises, such as gauss_newton()"


@dataclass(frozen=True)
class Analytic:
    """The configured attack that :func:`analytic` returns."""

    estimate: LayerEstimate | None = None
    scales: Scales | None = None

    def __post_init__(self) -> None:
        check_estimate(self.estimate, self.scales)

    @property
    def needs(self) -> ThreatModel:
        """One update, and what the estimate knows beyond it."""
        return HONEST_BUT_CURIOUS.knowing(*known_for(self.estimate, self.scales))

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the one record behind ``observation``; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        check_single(observation)
        layer = read_layer(observation)
        estimate = self.estimate
        if estimate is None and observation.record_norms is not None and (layer.noisy or layer.bias is None):
            estimate = known_norm()
        elif estimate is None:
            estimate = total_least_squares() if layer.noisy else least_squares()
        attack = f"Analytic(estimate={estimate!r}, scales={self.scales!r})"
        evaluations = 0
        if estimate.uses_scales and layer.is_active:
            layer, evaluations = with_scales(layer, self.scales, observation), int(self.scales is None)
        return inverted(layer, estimate, observation, attack=attack, begun=begun, evaluations=evaluations)


def analytic(*, estimate: LayerEstimate | None = None, scales: Scales | None = None) -> Analytic:
    r"""Rebuild a record from the gradient of the first linear layer, whose rows are multiples of it.

    .. math:: w_j = s_j x + \mathrm{noise}, \quad b_j = s_j + \mathrm{noise}, \qquad
              \hat x = \sum_j b_j w_j \Big/ \sum_j b_j^2

    ``estimate`` says how: :func:`least_squares`, :func:`ratio`, :func:`total_least_squares`, :func:`known_scale`,
    :func:`james_stein`, :func:`known_norm` or :func:`posterior_mean`. Without it, known_norm() if the norm is known,
    total_least_squares() if noise is known, and least_squares() else. ``scales`` states the :math:`s_j` for estimates
    that use them, one for all or one for each neuron; without it they are read off the known release, clipping
    included, at a first estimate.

    Assumes: a batch of one; a released linear layer whose input is the record, with bias unless norm or scales are
    known. Several local steps on the one record do as well.
    Guarantee: exact without noise whenever one neuron of the layer is active; the status says exact only if the layer
    is seen to read the record or the release of the estimate is the observed one.
    Edge cases: all neurons inactive, or a layer that reads something else than the record, end as not applicable. The
    estimate is cut to the data range: for the law of an estimate as such, state a wide one. Values that a known defense
    did not send are left out.
    Reference: Proposition 3.1, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_; Section III, riess2025.

    >>> from reconrisk.releases.updates.gradient import GradientMap
    >>> forward = GradientMap(torch.nn.Linear(2, 3))
    >>> record, label = torch.tensor([[0.25, 0.5]]), torch.tensor([1])
    >>> released = {name: value.detach() for name, value in forward(record, label).items()}
    >>> observation = Observation(released, forward, HONEST_BUT_CURIOUS, (2,), (0.0, 1.0))
    >>> analytic()(observation, rng=torch.Generator()).estimates.round(decimals=4)
    tensor([[0.2500, 0.5000]])
    """
    return Analytic(estimate, scales)


def known_for(estimate: LayerEstimate | None, scales: Scales | None) -> frozenset[Knows]:
    """The side information of an estimate; scales that are not stated are replayed through the known defense."""
    if estimate is None:
        return frozenset()
    replayed = estimate.uses_scales and scales is None
    return estimate.knows | (frozenset({Knows.DEFENSE}) if replayed else frozenset())


def check_estimate(estimate: LayerEstimate | None, scales: Scales | None) -> None:
    """Refuse an estimate that is not one, and scales that would not be used."""
    if not (estimate is None or isinstance(estimate, LayerEstimate)):
        raise invalid_input("estimate", estimate, "to be an estimate", "Write estimate=rr.attacks.known_norm().")
    if scales is not None and (estimate is None or not estimate.uses_scales):
        raise invalid_input(
            "scales", scales, f"to be None for estimate={estimate!r}", "Use estimate=rr.attacks.known_scale()."
        )


def check_single(observation: Observation) -> None:
    """Refuse batches, whose layer holds a mixture of the records."""
    if observation.batch_size != 1:
        raise InvalidInput(
            f"Expected batch_size={observation.batch_size} to be 1: a layer's gradient mixes the records."
        )


def inverted(
    layer: LayerGradient,
    estimate: LayerEstimate,
    observation: Observation,
    *,
    attack: str,
    begun: float,
    evaluations: int,
) -> Reconstruction:
    """The estimate from a layer, cut to the data range, with the status it deserves.

    The objective is the norm of what the estimate leaves unexplained of the layer, relative to the layer.
    """
    low, high = observation.data_range
    flat, residual = torch.full_like(layer.weight[0], (low + high) / 2), math.inf
    if layer.reads_record is False:
        cause = f"the layer does not read the record: a probe reaches {layer.name!r} changed"
        status = Status(Ending.NOT_APPLICABLE, cause, _OTHER_ATTACK)
    elif not layer.is_active:
        status = Status(Ending.NOT_APPLICABLE, "no neuron of the layer is active", "Attack the other layers")
    else:
        flat = estimate(layer, observation)
        residual = layer.residual(flat)
        status = _status(layer, estimate, residual)
        if layer.reads_record is None and status.ending is Ending.EXACT:
            status, evaluations = _confirmed(observation, flat), evaluations + 1
        smallest, largest = (float(end) for end in flat.aminmax())
        is_within = max(low - smallest, largest - high) <= _ROUNDING * (high - low)
        if status.ending is Ending.EXACT and not is_within:  # the estimate is cut to the stated range
            cut = f"with values from {smallest:.3g} to {largest:.3g} that are cut to {observation.data_range}"
            remedy = "State the range of the records as data_range"
            status = Status(Ending.CONVERGED, f"{status.cause}, {cut}", remedy)
    account = Account(attack, status, (residual,), Cost(time.monotonic() - begun, evaluations))
    estimates = flat.clamp(low, high).view(1, *observation.input_shape).to(torch.get_default_dtype())
    return Reconstruction(estimates, account)


def _status(layer: LayerGradient, estimate: LayerEstimate, residual: float) -> Status:
    unsent = layer.unsent
    if unsent and not layer.noisy:
        cause = f"{estimate!r} over what was sent of {layer.name!r}; {unsent} values of the record were not in it"
        return Status(Ending.CONVERGED, cause, _OTHER_ATTACK)
    if residual < _EXACT and not layer.noisy:
        return Status(Ending.EXACT, f"the estimate explains the gradient of {layer.name!r}")
    return Status(
        Ending.CONVERGED, f"{estimate!r} over {len(layer.weight)} noisy neurons, relative residual {residual:.1e}"
    )


def _confirmed(observation: Observation, flat: Tensor) -> Status:
    """Exact only if the estimate has the observed release, up to a factor that unknown clipping may have left."""
    try:
        labels = labels_for(observation)
    except InvalidInput:
        cause = (
            "the estimate explains the layer's gradient; without labels it is open whether the layer reads the record"
        )
        return Status(Ending.CONVERGED, cause, "Add Knows.LABELS to the threat")
    candidate = observation.forward(flat.view(1, *observation.input_shape), labels)
    names = list(observation.released)
    observed = torch.cat([observation.released[name].double().flatten() for name in names])
    caused = torch.cat([candidate[name].detach().double().flatten() for name in names])
    factor = (caused @ observed) / (caused @ caused).clamp_min(torch.finfo(caused.dtype).tiny)
    off = float((factor * caused - observed).norm() / observed.norm())
    if off < _EXACT and factor > 0:
        return Status(Ending.EXACT, f"the estimate has the observed release, up to the factor {float(factor):.4g}")
    if off < _ROUNDING and factor > 0:
        return Status(Ending.CONVERGED, f"the estimate's release is off by {off:.1e}: rounding or noise")
    cause = f"the layer does not read the record: the estimate's release is off by {off:.1e}"
    return Status(Ending.NOT_APPLICABLE, cause, _OTHER_ATTACK)
