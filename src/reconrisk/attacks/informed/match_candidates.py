"""Identification of the candidate that a DP-SGD run was trained on, by the likelihood of the released models.

:func:`clipped_gradients` computes the contribution of each candidate to a step, :func:`log_likelihood_ratios` and
:func:`most_likely_candidate` compare candidates, and :func:`match_candidates` is the attack.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor, nn

from reconrisk.attacks.informed.step_bits import count_infeasible_steps
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import (
    check_all_finite,
    check_nonnegative,
    check_not_empty,
    check_positive,
    check_probability,
    invalid_input,
)
from reconrisk.releases.model_state import LossFunction, call_module
from reconrisk.releases.updates.clipping import HardClip

_VALUES_AT_ONCE = 2**24  # gradient values held at a time: 128 MB in double precision
_AGREEMENT = 1e-3  # relative difference between vectorised and single gradients that rounding may cause


def read_trajectory(model: nn.Module, trajectory: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return the parameters of each iterate in the order of the model.

    Args:
        model: Model that was trained.
        trajectory: Parameters before the first step and after each step, by name.

    Returns:
        The parameters alone.

    Raises:
        InvalidInput: If there are fewer than two iterates, a parameter is missing, or a value is not finite.
    """
    names = [name for name, _ in model.named_parameters()]
    if len(trajectory) < 2:
        remedy = "Pass the parameters before the first step and after each step."
        raise invalid_input("len(trajectory)", len(trajectory), ">= 2", remedy)
    steps = []
    for place, iterate in enumerate(trajectory):
        missing = [name for name in names if name not in iterate]
        if missing:
            raise invalid_input(
                f"trajectory[{place}]",
                sorted(iterate),
                f"to contain {missing[0]}",
                "Pass every parameter of the model.",
            )
        for name in names:
            check_all_finite(f"trajectory[{place}][{name!r}]", iterate[name])
        steps.append({name: iterate[name].detach() for name in names})
    return steps


def flat_vector(values: Mapping[str, Tensor]) -> Tensor:
    """Concatenate all values in double precision.

    Args:
        values: Tensors by name.

    Returns:
        One vector, in the order of the names.
    """
    return torch.cat([value.reshape(-1).double() for value in values.values()])


def clipped_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    parameters: Mapping[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
    clip_norm: float,
) -> Tensor:
    """Compute the clipped gradient of each record's loss with respect to the parameters.

    Args:
        model: Model whose buffers are used as they are.
        loss_fn: Training loss of a batch, a function of outputs and labels.
        parameters: Parameters by name at which gradients are taken.
        inputs: Records (n, ...).
        labels: Labels of the records, (n, ...).
        clip_norm: Norm that each gradient is clipped to.

    Returns:
        Gradients (n, values) in double precision.

    Guarantee: vectorised only if that agrees with one record at a time, which is tested on the first two records.

    >>> layer, one = nn.Linear(2, 1, bias=False), torch.tensor([[3.0, 4.0]])
    >>> loss = lambda output, label: output.sum()
    >>> clipped_gradients(layer, loss, dict(layer.named_parameters()), one, torch.zeros(1), 1.0)
    tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """
    fixed = {name: value.detach() for name, value in model.named_buffers()}
    point = {name: value.detach() for name, value in parameters.items()}
    size = sum(value.numel() for value in point.values())
    if len(inputs) == 0:
        return torch.zeros(0, size, dtype=torch.float64)

    def loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return loss_fn(call_module(model, {**fixed, **values}, record[None]), label[None])

    gradient = torch.func.grad(loss)
    together = torch.func.vmap(gradient, in_dims=(None, 0, 0))

    def loop_gradients(rows: Tensor, targets: Tensor) -> Tensor:
        return torch.stack(
            [flat_vector(gradient(point, row, target)) for row, target in zip(rows, targets, strict=True)]
        )

    def batch_gradients(rows: Tensor, targets: Tensor) -> Tensor:
        found = together(point, rows, targets)
        return torch.cat([found[name].reshape(len(rows), -1).double() for name in point], dim=1)

    compute = loop_gradients
    try:
        some = loop_gradients(inputs[:2], labels[:2])
        near = _AGREEMENT * float(some.abs().max())
        if torch.allclose(batch_gradients(inputs[:2], labels[:2]), some, rtol=_AGREEMENT, atol=near):
            compute = batch_gradients
    except (RuntimeError, ValueError, NotImplementedError):  # vmap refuses control flow that depends on the data
        compute = loop_gradients
    rows = max(1, _VALUES_AT_ONCE // size)
    gradients = torch.cat(
        [compute(x, y) for x, y in zip(inputs.detach().split(rows), labels.split(rows), strict=True)]
    ).detach()
    # a zero gradient has no direction: the smallest positive norm avoids 0 / 0
    norms = gradients.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return gradients * HardClip(clip_norm).factor(norms)


NEEDS = ThreatModel(
    sees=Sees.EVERY_UPDATE,
    knows=frozenset({Knows.OTHER_RECORDS, Knows.INITIALISATION, Knows.PRIOR, Knows.DEFENSE}),
)
"""Weakest adversary who can run the attack; for a single step the final model is enough."""

_ROWS = 1024  # candidates whose distances to all others are held at a time
_FALSE_ALARM = 1e-6  # probability that a correctly described run is reported as inconsistent
_ROUNDINGS = 8  # units in the last place by which a step and a sum of gradients may be off
_REMEDY = "Check known records, labels, learning rate, clip norm, noise, batch size, and that the target is a candidate"


@dataclass(frozen=True, eq=False)
class DpSgdSettings:
    """Settings of a DP-SGD run, as an adversary knows them.

    Attributes:
        learning_rate: Learning rate of plain gradient descent.
        clip_norm: Norm C that each record's gradient is clipped to.
        noise_multiplier: Standard deviation of the noise on each sum of gradients, in units of ``clip_norm``.
        batch_size: Divisor of the sums, by default the number of records. Needed if ``sampling_probability`` is below
            1.
        sampling_probability: Probability with which each record enters a step, independently of the others.
        participation: Known records that entered each step, (steps, known records). Needed if ``sampling_probability``
            is below 1; by default all enter.

    >>> DpSgdSettings(learning_rate=0.1, clip_norm=1.0, noise_multiplier=2.0).sampling_probability
    1.0
    """

    learning_rate: float
    clip_norm: float
    noise_multiplier: float
    batch_size: float | None = None
    sampling_probability: float = 1.0
    participation: Tensor | None = None

    def __post_init__(self) -> None:
        check_probability("sampling_probability", self.sampling_probability)
        for name in ("learning_rate", "clip_norm", "noise_multiplier", "sampling_probability"):
            check_positive(name, getattr(self, name))
        if self.batch_size is not None:
            check_positive("batch_size", self.batch_size)


@dataclass(frozen=True, eq=False)
class Identification:
    """Candidate with the most posterior mass around it, and the posterior probability of each candidate.

    Attributes:
        index: Index of the chosen candidate.
        estimate: The chosen candidate.
        posterior: Posterior probability of each candidate.
        mass: Posterior probability within the radius of the chosen candidate: the attack's own estimate of its success
            probability. 0 if no candidate fits the run.
        log_ratios: Logarithm of each candidate's likelihood ratio to a run without the target.
        account: Attack, status, objective and cost.
    """

    index: int
    estimate: Tensor
    posterior: Tensor
    mass: float
    log_ratios: Tensor
    account: AttackReport

    @property
    def status(self) -> Status:
        """Status of the attack: its ending, the cause and a remedy."""
        return self.account.status

    @property
    def reconstruction(self) -> Reconstruction:
        """The chosen candidate as a :class:`Reconstruction`, the form that metrics and reports take."""
        return Reconstruction(self.estimate[None], self.account)

    def __repr__(self) -> str:
        """Return the choice and its probability, no values of the record."""
        return f"Identification(candidate {self.index} of {len(self.posterior)}, mass {self.mass:.3g}, {self.status})"


def log_likelihood_ratios(
    residuals: Tensor, contributions: Tensor, *, noise_std: float, sampling_probability: float = 1.0
) -> Tensor:
    r"""Compute the log likelihood ratio of each candidate to no candidate, from noisy sums of gradients.

    .. math:: \sum_t \log\Bigl(1 - q + q \exp\frac{\langle r_t, g_{tc}\rangle - |g_{tc}|^2/2}{\sigma^2}\Bigr)

    Args:
        residuals: Noisy sums minus the contributions of the known records, r (steps, values).
        contributions: Contribution of each candidate to each step, g (steps, candidates, values).
        noise_std: Standard deviation of the noise on each value, :math:`\sigma`.
        sampling_probability: Probability q with which a record enters a step, independently of the others.

    Returns:
        The logarithms (candidates,) in double precision.

    Raises:
        InvalidInput: If the shapes disagree, a value is not finite, or ``noise_std`` or ``sampling_probability`` is not
            positive.

    Reference: the likelihoods behind balle2022, Section VII-A, and hayes2023.

    >>> seen, two = torch.tensor([[1.0, 0.0]]), torch.eye(2)[None]
    >>> log_likelihood_ratios(seen, two, noise_std=1.0)
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    noise = check_positive("noise_std", noise_std, "Use rr.attacks.best_candidate() without noise.")
    rate = check_positive("sampling_probability", check_probability("sampling_probability", sampling_probability))
    if contributions.ndim != 3 or residuals.shape != (contributions.shape[0], contributions.shape[2]):
        raise invalid_input(
            "residuals.shape",
            tuple(residuals.shape),
            f"to be (steps, values), since contributions.shape={tuple(contributions.shape)}",
        )
    return _mix_over_sampling(_step_log_ratios(residuals, contributions, noise), rate).sum(0)


def _step_log_ratios(residuals: Tensor, contributions: Tensor, noise: float) -> Tensor:
    """Log likelihood ratios (steps, candidates) for a candidate that entered every step."""
    check_all_finite("residuals", residuals)
    check_all_finite("contributions", contributions)
    gradients = contributions.double()
    products = torch.einsum("tp,tcp->tc", residuals.double(), gradients)
    return (products - gradients.square().sum(2) / 2) / noise**2  # ratio of normal densities with means g and 0


def _mix_over_sampling(exponents: Tensor, rate: float) -> Tensor:
    """Average likelihood ratios over a candidate that enters a step with probability ``rate``."""
    if rate == 1:
        return exponents
    # log(q exp(e) + 1 - q) without overflow
    return torch.logaddexp(exponents + math.log(rate), torch.full_like(exponents, math.log1p(-rate)))


def most_likely_candidate(
    log_ratios: Tensor, candidates: Tensor, *, prior: Tensor | None = None, mse: float = 0.0
) -> tuple[int, Tensor, Tensor]:
    r"""Choose the candidate with the most posterior mass within a radius.

    .. math:: \hat z = \arg\max_{z_0} \sum_{z: \mathrm{mse}(z, z_0) \le \eta} P(z \mid \text{release})

    Args:
        log_ratios: Logarithm of the likelihood of each candidate divided by the likelihood of no candidate.
        candidates: Candidate records (candidates, ...).
        prior: Prior weight of each candidate, equal by default.
        mse: Radius :math:`\eta`: the largest mean squared error that counts as success.

    Returns:
        The index of the candidate, the posterior of all candidates, and the posterior mass around each.

    Raises:
        InvalidInput: If there is no candidate, or ``prior`` is not one number >= 0 per candidate with a positive sum.

    Assumes: the target was drawn from ``prior``.
    Guarantee: no attack that names a candidate is within ``mse`` of the target more often.
    Edge cases: ``mse = 0`` is the maximum a posteriori rule; equal candidates count as one.
    Reference: Section VII-A, balle2022.

    >>> index, posterior, _ = most_likely_candidate(torch.tensor([0.0, 1.0]), torch.eye(2))
    >>> index, posterior.round(decimals=3).tolist()
    (1, [0.269, 0.731])
    """
    check_not_empty("candidates", candidates)
    weights = torch.ones(len(candidates), dtype=torch.float64) if prior is None else prior.double()
    if weights.shape != (len(candidates),) or not bool((weights >= 0).all()) or not bool(weights.any()):
        raise InvalidInput(
            f"Expected prior to be {len(candidates)} numbers >= 0, not all 0. Pass one number for each candidate."
        )
    check_all_finite("candidates", candidates)
    posterior = (log_ratios.double() + (weights / weights.sum()).log()).softmax(0)
    rows = candidates.flatten(1).double()
    radius = math.sqrt(rows.shape[1] * check_nonnegative("mse", mse)) * (1 + 1e-12)  # equal distances round alike
    mode = "donot_use_mm_for_euclid_dist"  # the product form would lose the digits of small distances
    near = (torch.cdist(part, rows, compute_mode=mode) <= radius for part in rows.split(_ROWS))
    masses = torch.cat([part.double() @ posterior for part in near])
    return int(masses.argmax()), posterior, masses


def match_candidates(
    model: nn.Module,
    loss_fn: LossFunction,
    trajectory: Sequence[Mapping[str, Tensor]],
    candidates: Tensor,
    candidate_labels: Tensor,
    *,
    known_inputs: Tensor,
    known_labels: Tensor,
    settings: DpSgdSettings,
    prior: Tensor | None = None,
    mse: float = 0.0,
    low_bits: bool = False,
) -> Identification:
    r"""Identify the candidate that a DP-SGD run was trained on, from its iterates and all other records.

    .. math:: \theta_{t+1} = \theta_t - \frac{\text{rate}}{B} \Bigl(\sum_{i \in S_t} \mathrm{clip}(g_i) +
              N(0, \sigma^2 C^2)\Bigr)

    Here :math:`\theta_t` are the parameters before step t, :math:`S_t` the records that enter step t, :math:`g_i` the
    gradient of the training loss of record i, and rate is the learning rate. :func:`log_likelihood_ratios` computes the
    likelihood of each step.

    Args:
        model: Model that was trained; its parameters give the names in ``trajectory``.
        loss_fn: Training loss of a batch, a function of outputs and labels.
        trajectory: Parameters before the first step and after each step. For a single step these are the initialisation
            and the final model.
        candidates: Candidate records (candidates, ...).
        candidate_labels: Labels of the candidates.
        known_inputs: Training records except the target.
        known_labels: Labels of the known records.
        settings: Learning rate, clipping, noise and sampling of the run.
        prior: Prior weight of each candidate, equal by default.
        mse: Largest mean squared error that counts as success; 0 is the exact record.
        low_bits: True to exclude candidates by the last bits of the weights first, as
            :func:`~reconrisk.attacks.low_bits.low_bits` does. Only the candidates with the fewest weights that no float
            noise explains are compared. For training that adds noise in the precision of the weights.

    Returns:
        The chosen candidate, the posterior of all candidates and the status.

    Raises:
        InvalidInput: If records, labels, trajectory and settings do not fit together, or ``low_bits`` is set for
            training with sampling, where the candidate may be absent from a step.

    Assumes: plain gradient descent on the loss of each record, clipped to C = ``clip_norm``, with noise of
    :math:`\sigma` = ``noise_multiplier``; B is ``batch_size``.
    Guarantee: this is the maximum a posteriori rule (within the radius ``mse``). No adversary who sees the same values
    and names a candidate is right more often, and no adversary exceeds the ``success_upper_bound`` of the run.
    Edge cases: every step must be observed. A final model after several steps is refused, since its likelihood is an
    integral over all paths. If every candidate leaves a residual larger than the noise can be, the ending is "not
    applicable"; this chi-square test is wrong in one of a million runs.
    Reference: Section VII-A, balle2022.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> start = {"weight": torch.zeros(1, 2)}
    >>> loss = lambda output, label: (output - label).square().sum() / 2
    >>> after = {"weight": torch.tensor([[0.9, 0.1]])}
    >>> found = match_candidates(
    ...     layer, loss, [start, after], torch.eye(2), torch.ones(2, 1), known_inputs=torch.zeros(1, 2),
    ...     known_labels=torch.zeros(1, 1),
    ...     settings=DpSgdSettings(learning_rate=2.0, clip_norm=1.0, noise_multiplier=0.5),
    ... )
    >>> found.index
    0
    """
    begun = time.monotonic()
    steps = read_trajectory(model, trajectory)
    _check_records(model, loss_fn, candidates, candidate_labels, known_inputs, known_labels)
    rate, clip_norm = settings.sampling_probability, settings.clip_norm
    who = check_participation(settings.participation, len(steps) - 1, len(known_inputs), rate)
    if settings.batch_size is None and rate < 1:
        remedy = "Pass the divisor of the sums, under sampling usually the expected batch: records times probability."
        raise invalid_input("batch_size", None, "to be given under sampling", remedy)
    divisor = len(known_inputs) + 1.0 if settings.batch_size is None else settings.batch_size
    if low_bits and rate < 1:
        raise invalid_input("low_bits", low_bits, "to be False under sampling", "Leave low_bits out.")
    infeasible = torch.zeros(len(candidates), dtype=torch.float64)
    scale = divisor / settings.learning_rate  # turns a change of the parameters into a noisy sum of gradients
    std = settings.noise_multiplier * clip_norm
    ratios, left = torch.zeros(2, len(candidates), dtype=torch.float64)
    rounded = 0.0
    for step, (before, after) in enumerate(itertools.pairwise(steps)):
        known = clipped_gradients(model, loss_fn, before, known_inputs[who[step]], known_labels[who[step]], clip_norm)
        own = clipped_gradients(model, loss_fn, before, candidates, candidate_labels, clip_norm)
        residual = scale * (flat_vector(before) - flat_vector(after)) - known.sum(0)
        if low_bits:
            infeasible += count_infeasible_steps(
                model,
                loss_fn,
                (before, after),
                (candidates, candidate_labels),
                (known_inputs[who[step]], known_labels[who[step]]),
                clip_norm=clip_norm,
                learning_rate=settings.learning_rate,
                divisor=divisor,
            )
        exponents = _step_log_ratios(residual[None], own[None], std)[0]
        ratios += _mix_over_sampling(exponents, rate)
        # a candidate that did not enter the step leaves the residual unchanged
        # |r - g|^2 / sigma^2 = |r|^2 / sigma^2 - 2 e, the chi-square of the residual with the candidate
        left += (residual / std).square().sum() - 2 * (exponents if rate == 1 else exponents.clamp(min=0))
        # rounding of the iterates and of the gradients shifts the noisy sum
        unit = _ROUNDINGS * max(torch.finfo(value.dtype).eps for value in before.values())
        norms = flat_vector(before).norm() + flat_vector(after).norm()
        rounded += float(unit * (scale * norms + (len(known) + 1) * clip_norm)) ** 2
    ratios = ratios.masked_fill(infeasible > infeasible.min(), -math.inf)
    index, posterior, masses = most_likely_candidate(ratios, candidates, prior=prior, mse=mse)
    status = _status(float(left.min()), len(flat_vector(steps[0])) * (len(steps) - 1), math.sqrt(rounded) / std)
    mass = 0.0 if status is not None else float(masses[index].clamp(max=1.0))
    named = Status(Ending.CONVERGED, f"posterior mass {mass:.3g} around one of {len(candidates)} candidates")
    account = AttackReport(
        attack=f"match_candidates({len(candidates)} candidates, {len(steps) - 1} steps, mse={mse:g})",
        status=status or named,
        objective=(-float(ratios[index]),),
        cost=Cost(time.monotonic() - begun, (len(steps) - 1) * (len(candidates) + len(known_inputs))),
    )
    return Identification(index, candidates[index].detach().clone(), posterior, mass, ratios, account)


def _status(left: float, values: int, rounded: float) -> Status | None:
    """Return "not applicable" if even the smallest residual exceeds noise and rounding, else None."""
    most = math.sqrt(float(chi2.isf(_FALSE_ALARM, values))) + rounded
    found = math.sqrt(max(left, 0.0))
    if found <= most:
        return None
    usual = math.sqrt(values)
    cause = f"no candidate fits the run: the nearest leaves a residual of {found / usual:.3g} times the stated noise"
    return Status(Ending.NOT_APPLICABLE, cause, _REMEDY)


def _check_records(
    model: nn.Module,
    loss_fn: LossFunction,
    candidates: Tensor,
    candidate_labels: Tensor,
    known_inputs: Tensor,
    known_labels: Tensor,
) -> None:
    check_not_empty("candidates", candidates)
    if candidates.shape[1:] != known_inputs.shape[1:]:
        raise invalid_input(
            "candidates.shape", tuple(candidates.shape), f"to end in {tuple(known_inputs.shape[1:])}, as known_inputs"
        )
    both = {"candidate": (candidates, candidate_labels), "known": (known_inputs, known_labels)}
    for name, (inputs, labels) in both.items():
        records = "candidates" if name == "candidate" else "known_inputs"
        if len(labels) != len(inputs):
            raise invalid_input(f"len({name}_labels)", len(labels), f"to be {len(inputs)}, the number of {records}")
        check_all_finite(records, inputs)
        check_all_finite(f"{name}_labels", labels)
        _check_classes(f"{name}_labels", model, loss_fn, inputs, labels)


def _check_classes(name: str, model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> None:
    """Refuse class labels that the loss does not accept; the smallest and the largest are tried."""
    if labels.is_floating_point() or labels.ndim != 1 or len(labels) == 0:
        return
    for row in (int(labels.argmin()), int(labels.argmax())):
        with torch.no_grad():
            state = {
                name: value.clone() for name, value in model.state_dict().items()
            }  # copies: batch statistics must not change
            outputs = call_module(model, state, inputs[row : row + 1])
            try:
                loss_fn(outputs, labels[row : row + 1])
            except IndexError as error:
                last = outputs.shape[-1] - 1
                raise invalid_input(f"{name}[{row}]", int(labels[row]), f"to be a class from 0 to {last}") from error


def check_participation(given: Tensor | None, steps: int, known: int, rate: float) -> Tensor:
    """Return the known records that entered each step.

    Args:
        given: Participation (steps, known records); None for all records in each step.
        steps: Number of steps.
        known: Number of known records.
        rate: Sampling probability.

    Returns:
        Participation as booleans.

    Raises:
        InvalidInput: If the shape is wrong, or it is missing under sampling.
    """
    if given is None:
        if rate < 1:
            remedy = "Pass the known records that entered each step; the likelihood depends on them."
            raise invalid_input("participation", None, "to be given under sampling", remedy)
        return torch.ones(steps, known, dtype=torch.bool)
    if given.shape != (steps, known):
        raise invalid_input(
            "participation.shape",
            tuple(given.shape),
            f"to be {(steps, known)}, one row per step and one column per known record",
        )
    return given.bool()
