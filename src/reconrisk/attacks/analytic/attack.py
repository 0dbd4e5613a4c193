"""Inversion of a linear layer on the record: exact without noise, and the best use of its gradient under noise.

:func:`average_observations` combines several updates of the same record into one with less noise. An attack reports
``exact`` only if this can be checked: a probe shows that the layer reads the record, or the estimate reproduces the
observed release.
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
from reconrisk.attacks.first_layer import LayerGradient, Scales, attach_scales, read_layer
from reconrisk.attacks.labels.infer import labels_for
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, Sees, ThreatModel
from reconrisk.core.validation import check_not_empty, invalid_input


def average_observations(observations: Sequence[Observation]) -> Observation:
    r"""Average several observations of the same records under the same parameters into one observation.

    .. math:: \bar y = \sum_k y_k / \tau_k^2 \Big/ \sum_k 1 / \tau_k^2, \quad
              \bar\tau^{-2} = \sum_k \tau_k^{-2}

    Here :math:`y_k` is the k-th release and :math:`\tau_k` the standard deviation of its noise.

    Args:
        observations: Observations of updates of the same records, with one threat model that sees every update.

    Returns:
        One observation with the precision-weighted mean of the releases and its noise.

    Raises:
        InvalidInput: If the sequence is empty, the threat model does not see every update, or the observations disagree
            in threat model, shapes, range, batch size, labels or norms.

    Assumes: the adversary knows that the updates hold the same records, and the parameters were the same in each, as
    when a malicious server sends them. The function can check neither.
    Guarantee: with known equal noise, the variance of every value is its variance in one observation, divided by the
    number of observations.
    Edge cases: without known noise the result is the plain mean. Values that no update contains stay marked as not
    sent.
    Reference: Proposition IV.10, riess2025.

    >>> from reconrisk.core.threat import ThreatModel
    >>> every = ThreatModel(Sees.EVERY_UPDATE)
    >>> seen = [Observation({"y": torch.tensor([y])}, dict, every, (1,), (0.0, 1.0)) for y in (1.0, 2.0)]
    >>> average_observations(seen).released
    {'y': tensor([1.5000])}
    """
    check_not_empty("observations", observations, "Pass the observations of the updates that hold the record.")
    first = observations[0]
    for other in observations[1:]:
        _check_match(first, other)
    # Inverse-variance weighting; without known noise all precisions are 1, which is the plain mean.
    precisions = [{name: _precision(each, name) for name in first.released} for each in observations]
    totals = {name: functools.reduce(torch.add, [each[name] for each in precisions]) for name in first.released}
    released = {}
    for name, total in totals.items():
        weighted = [each.released[name] * known[name] for each, known in zip(observations, precisions, strict=True)]
        whole = functools.reduce(torch.add, weighted)
        released[name] = torch.where(total > 0, whole / torch.where(total > 0, total, 1.0), 0.0)
    kept = None if first.kept is None else {name: total > 0 for name, total in totals.items()}
    noise_std = None
    if first.noise_std is not None:  # for unsent values any standard deviation does: take that of the first
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
        remedy = "Pass threat=ThreatModel(sees=Sees.EVERY_UPDATE)."
        raise invalid_input(
            "threat.sees", first.threat.sees.value, "to be every-update for several observations", remedy
        )
    for name in ("threat", "input_shape", "data_range", "batch_size"):
        if getattr(first, name) != getattr(other, name):
            raise invalid_input(name, getattr(other, name), f"to be {getattr(first, name)} in every observation", _SAME)
    shapes, expected = ({key: tuple(value.shape) for key, value in each.released.items()} for each in (other, first))
    if shapes != expected:
        raise invalid_input(
            "released", shapes, f"to have the names and shapes of the first observation, {expected}", _SAME
        )
    for name in ("labels", "record_norms"):
        mine, its = getattr(first, name), getattr(other, name)
        if mine is not None and its is not None and not torch.equal(mine, its):
            raise invalid_input(name, its.tolist(), f"to be {mine.tolist()}, as in the first observation", _SAME)
    for name in ("noise_std", "kept"):
        if (getattr(first, name) is None) != (getattr(other, name) is None):
            raise InvalidInput(
                f"{name} is known for some of the observations only. Pass it for every observation or for none."
            )


_SAME = "Pass observations of the same records under the same threat model."
_ROUNDING = 1e-3  # relative residual explained by rounding: a wrong layer leaves far more, even in half precision
_EXACT = 1e-5  # relative residual of an exact estimate: float32 leaves 1e-7, undeclared noise leaves more
_OTHER_ATTACK = "Use an attack by optimisation, such as gauss_newton()"


@dataclass(frozen=True)
class Analytic:
    """Attack configured by :func:`analytic`."""

    estimate: LayerEstimate | None = None
    scales: Scales | None = None

    def __post_init__(self) -> None:
        check_estimate(self.estimate, self.scales)

    @property
    def needs(self) -> ThreatModel:
        """Weakest threat model: one update, and the side information of the estimate."""
        return HONEST_BUT_CURIOUS.with_knowledge(*required_knowledge(self.estimate, self.scales))

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the single record of ``observation``; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        check_single_record(observation)
        layer = read_layer(observation)
        estimate = self.estimate
        # The known norm helps under noise, and replaces the bias where there is none.
        if estimate is None and observation.record_norms is not None and (layer.noisy or layer.bias is None):
            estimate = known_norm()
        elif estimate is None:
            estimate = total_least_squares() if layer.noisy else least_squares()
        attack = f"Analytic(estimate={estimate!r}, scales={self.scales!r})"
        evaluations = 0
        if estimate.uses_scales and layer.is_active:
            layer, evaluations = attach_scales(layer, self.scales, observation), int(self.scales is None)
        return invert_layer(layer, estimate, observation, attack=attack, begun=begun, evaluations=evaluations)


def analytic(*, estimate: LayerEstimate | None = None, scales: Scales | None = None) -> Analytic:
    r"""Reconstruct a record from the gradient of the first linear layer, whose rows are multiples of the record.

    .. math:: w_j = s_j x + \mathrm{noise}, \quad b_j = s_j + \mathrm{noise}, \qquad
              \hat x = \sum_j b_j w_j \Big/ \sum_j b_j^2

    Here x is the record, and :math:`w_j` and :math:`b_j` are the released gradients of the weights and of the bias of
    neuron j. The scale :math:`s_j` of neuron j is the derivative of the training loss with respect to its output, after
    clipping.

    Args:
        estimate: Estimator of the record: :func:`least_squares`, :func:`ratio`, :func:`total_least_squares`,
            :func:`known_scale`, :func:`james_stein`, :func:`known_norm` or :func:`posterior_mean`. None uses
            known_norm() if the norm is known, total_least_squares() if the noise is known, and least_squares()
            otherwise.
        scales: The :math:`s_j` for estimates that use them, one for all neurons or one per neuron. None computes them:
            the attack evaluates the known release, with its clipping, at a first estimate of the record.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If ``estimate`` is not an estimate, or ``scales`` are given for an estimate that does not use
            them; when the attack is called, if the update has several records or no suitable layer was released.

    Assumes: a batch of one; a released linear layer whose input is the record, with bias unless norm or scales are
    known. Several local steps on the one record are allowed.
    Guarantee: exact without noise whenever one neuron of the layer is active. The status is exact only if a probe (a
    test input that the attack sends through the model) shows that the layer reads the record, or the estimate
    reproduces the observed release.
    Edge cases: if no neuron is active, or the layer reads something other than the record, the status is not
    applicable. The estimate is clipped to the data range; to study the distribution of an estimate without clipping,
    pass a wide data range. Values that a known defense removed are ignored.
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


def required_knowledge(estimate: LayerEstimate | None, scales: Scales | None) -> frozenset[Knows]:
    """Return the side information that an estimate requires.

    Args:
        estimate: The configured estimate; None requires nothing.
        scales: Stated scales. Without them, an estimate that uses scales needs the known defense to compute them.

    Returns:
        The knowledge that the threat model must grant.
    """
    if estimate is None:
        return frozenset()
    replayed = estimate.uses_scales and scales is None
    return estimate.knows | (frozenset({Knows.DEFENSE}) if replayed else frozenset())


def check_estimate(estimate: LayerEstimate | None, scales: Scales | None) -> None:
    """Check that an estimate is valid and that stated scales would be used.

    Args:
        estimate: The estimate to check, or None.
        scales: Stated scales, or None.

    Raises:
        InvalidInput: If ``estimate`` is not a LayerEstimate, or it does not use the stated ``scales``.
    """
    if not (estimate is None or isinstance(estimate, LayerEstimate)):
        raise invalid_input(
            "estimate", estimate, "to be an estimate of the record or None", "Pass estimate=rr.attacks.known_norm()."
        )
    if scales is not None and (estimate is None or not estimate.uses_scales):
        raise invalid_input(
            "scales", scales, f"to be None for estimate={estimate!r}", "Pass estimate=rr.attacks.known_scale()."
        )


def check_single_record(observation: Observation) -> None:
    """Check that an update has a single record, since the gradient of a layer mixes the records of a batch.

    Args:
        observation: The observation to check.

    Raises:
        InvalidInput: If the batch size is not 1.
    """
    if observation.batch_size != 1:
        raise InvalidInput(
            f"Expected batch_size={observation.batch_size} to be 1. Attack updates of one record: "
            "the gradient of a layer mixes all records."
        )


def invert_layer(
    layer: LayerGradient,
    estimate: LayerEstimate,
    observation: Observation,
    *,
    attack: str,
    begun: float,
    evaluations: int,
) -> Reconstruction:
    """Estimate the record from a layer, clip it to the data range and report the status.

    The objective is the norm of the released gradient of the layer minus its gradient at the estimate, divided by the
    norm of the released gradient.

    Args:
        layer: The released gradient of the layer.
        estimate: The configured estimate.
        observation: The observation that the attack received.
        attack: ``repr`` of the attack, for the report.
        begun: Start time of the attack (``time.monotonic``).
        evaluations: Evaluations of the release so far.

    Returns:
        The reconstruction; the middle of the data range if the layer cannot be inverted.
    """
    low, high = observation.data_range
    # The fallback is the middle of the range.
    flat, residual = torch.full_like(layer.weight[0], (low + high) / 2), math.inf
    if layer.reads_record is False:
        cause = f"the layer does not read the record: a probe is changed before it reaches {layer.name!r}"
        status = Status(Ending.NOT_APPLICABLE, cause, _OTHER_ATTACK)
    elif not layer.is_active:
        status = Status(Ending.NOT_APPLICABLE, "no neuron of the layer is active", "Attack the other layers")
    else:
        flat = estimate(layer, observation)
        residual = layer.residual(flat)
        status = _status(layer, estimate, residual)
        if layer.reads_record is None and status.ending is Ending.EXACT:
            status, evaluations = _confirm_exact(observation, flat), evaluations + 1
        # Rounding at the ends of the range does not count as leaving it.
        smallest, largest = (float(end) for end in flat.aminmax())
        is_within = max(low - smallest, largest - high) <= _ROUNDING * (high - low)
        if status.ending is Ending.EXACT and not is_within:  # clipping makes it inexact
            cut = f"with values from {smallest:.3g} to {largest:.3g} clipped to {observation.data_range}"
            remedy = "Pass the range of the records as data_range"
            status = Status(Ending.CONVERGED, f"{status.cause}, {cut}", remedy)
    account = AttackReport(attack, status, (residual,), Cost(time.monotonic() - begun, evaluations))
    estimates = flat.clamp(low, high).view(1, *observation.input_shape).to(torch.get_default_dtype())
    return Reconstruction(estimates, account)


def _status(layer: LayerGradient, estimate: LayerEstimate, residual: float) -> Status:
    unsent = layer.missing_values
    if unsent and not layer.noisy:
        cause = f"{estimate!r} over the sent values of {layer.name!r}, which lack {unsent} values of the record"
        return Status(Ending.CONVERGED, cause, _OTHER_ATTACK)
    if residual < _EXACT and not layer.noisy:
        return Status(Ending.EXACT, f"the estimate reproduces the gradient of {layer.name!r}")
    return Status(
        Ending.CONVERGED, f"{estimate!r} over {len(layer.weight)} noisy neurons, relative residual {residual:.1e}"
    )


def _confirm_exact(observation: Observation, flat: Tensor) -> Status:
    """Report exact only if the estimate reproduces the release, up to a factor left by unknown clipping."""
    try:
        labels = labels_for(observation)
    except InvalidInput:
        cause = "the estimate reproduces the gradient of the layer; without labels the release cannot be checked"
        return Status(Ending.CONVERGED, cause, "Add Knows.LABELS to the threat model")
    candidate = observation.forward(flat.view(1, *observation.input_shape), labels)
    names = list(observation.released)
    observed = torch.cat([observation.released[name].double().flatten() for name in names])
    caused = torch.cat([candidate[name].detach().double().flatten() for name in names])
    # Least-squares factor between the two releases, which unknown clipping leaves below 1.
    factor = (caused @ observed) / (caused @ caused).clamp_min(torch.finfo(caused.dtype).tiny)
    off = float((factor * caused - observed).norm() / observed.norm())
    if off < _EXACT and factor > 0:
        return Status(
            Ending.EXACT, f"the estimate reproduces the observed release, up to the factor {float(factor):.4g}"
        )
    if off < _ROUNDING and factor > 0:
        return Status(Ending.CONVERGED, f"the release of the estimate differs by {off:.1e}: rounding or noise")
    cause = f"the layer does not read the record: the release of the estimate differs by {off:.1e}"
    return Status(Ending.NOT_APPLICABLE, cause, _OTHER_ATTACK)
