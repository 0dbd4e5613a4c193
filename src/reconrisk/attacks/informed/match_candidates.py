"""The candidate that DP-SGD was trained on: likelihoods of the released models for each given candidate.

:func:`clipped_gradients` has one row per candidate at given parameters; :func:`_iterates_of` reads the iterates of the
training between which they lead.
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

from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import (
    check_all_finite,
    check_nonnegative,
    check_not_empty,
    check_positive,
    check_probability,
    invalid_input,
)
from reconrisk.releases.model_state import LossFunction, called
from reconrisk.releases.updates.clipping import HardClip

_VALUES_AT_ONCE = 2**24
_AGREEMENT = 1e-3


def _iterates_of(model: nn.Module, trajectory: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The parameters of each iterate, in the order of the model; at least two of them."""
    names = [name for name, _ in model.named_parameters()]
    if len(trajectory) < 2:
        remedy = "Pass the parameters before the first step and after every step."
        raise invalid_input("trajectory", f"of {len(trajectory)} iterates", "to have at least two", remedy)
    steps = []
    for place, iterate in enumerate(trajectory):
        missing = [name for name in names if name not in iterate]
        if missing:
            raise invalid_input(f"trajectory[{place}]", sorted(iterate), f"to hold {missing[0]}, as the model")
        for name in names:
            check_all_finite(f"trajectory[{place}][{name!r}]", iterate[name])
        steps.append({name: iterate[name].detach() for name in names})
    return steps


def _flat(values: Mapping[str, Tensor]) -> Tensor:
    """All values one after the other, in double precision."""
    return torch.cat([value.reshape(-1).double() for value in values.values()])


def clipped_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    parameters: Mapping[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
    clip_norm: float,
) -> Tensor:
    """The gradient of each record's loss by the parameters, clipped, (records, values) in double precision.

    Guarantee: vectorised only where that agrees with one record after the other, at the first two.

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
        return loss_fn(called(model, {**fixed, **values}, record[None]), label[None])

    gradient = torch.func.grad(loss)
    together = torch.func.vmap(gradient, in_dims=(None, 0, 0))

    def single(rows: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([_flat(gradient(point, row, target)) for row, target in zip(rows, targets, strict=True)])

    def vectorised(rows: Tensor, targets: Tensor) -> Tensor:
        found = together(point, rows, targets)
        return torch.cat([found[name].reshape(len(rows), -1).double() for name in point], dim=1)

    way = single
    try:
        some = single(inputs[:2], labels[:2])
        near = _AGREEMENT * float(some.abs().max())
        if torch.allclose(vectorised(inputs[:2], labels[:2]), some, rtol=_AGREEMENT, atol=near):
            way = vectorised
    except (RuntimeError, ValueError, NotImplementedError):  # control flow that depends on the data
        way = single
    rows = max(1, _VALUES_AT_ONCE // size)
    gradients = torch.cat(
        [way(x, y) for x, y in zip(inputs.detach().split(rows), labels.split(rows), strict=True)]
    ).detach()
    norms = gradients.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return gradients * HardClip(clip_norm).factor(norms)


NEEDS = ThreatModel(
    sees=Sees.EVERY_UPDATE,
    knows=frozenset({Knows.OTHER_RECORDS, Knows.INITIALISATION, Knows.PRIOR, Knows.DEFENSE}),
)
"""The weakest adversary who can run it; of a single step the final model is enough."""

_ROWS = 1024
_FALSE_ALARM = 1e-6  # how often a run as it is stated to be may be said to be another
_ROUNDINGS = 8  # units of the last place that a step and a sum of gradients may be off by
_REMEDY = "Check known records, labels, learning rate, clip norm, noise, batch size, and that the target is a candidate"


@dataclass(frozen=True, eq=False)
class Identification:
    """The candidate that most posterior mass lies around, and the posterior probability of each.

    ``mass`` is the posterior probability within the radius of ``index``: the success that the attack expects of itself,
    0 where no candidate explains the run.
    ``log_ratios`` compare each candidate with a run without the target.
    """

    index: int
    estimate: Tensor
    posterior: Tensor
    mass: float
    log_ratios: Tensor
    account: Account

    @property
    def status(self) -> Status:
        """How the attack ended."""
        return self.account.status

    @property
    def reconstruction(self) -> Reconstruction:
        """The chosen candidate as estimates that metrics and reports take."""
        return Reconstruction(self.estimate[None], self.account)

    def __repr__(self) -> str:
        """The choice and its probability, no values."""
        return f"Identification(candidate {self.index} of {len(self.posterior)}, mass {self.mass:.3g}, {self.status})"


def log_likelihood_ratios(
    residuals: Tensor, contributions: Tensor, *, noise_std: float, sampling_probability: float = 1.0
) -> Tensor:
    r"""How much likelier each candidate makes noisy sums than no candidate at all, as logarithms.

    .. math:: \sum_t \log\Bigl(1 - q + q \exp\frac{\langle r_t, g_{tc}\rangle - |g_{tc}|^2/2}{\sigma^2}\Bigr)

    Notation: ``residuals`` r, (steps, values), are noisy sums less what known records contributed; ``contributions``
    g, (steps, candidates, values), what each candidate would have contributed; ``noise_std`` sigma,
    ``sampling_probability`` q: by a coin of its own a record enters a step.
    Reference: the likelihoods behind balle2022, Section VII-A, and hayes2023.

    >>> seen, two = torch.tensor([[1.0, 0.0]]), torch.eye(2)[None]
    >>> log_likelihood_ratios(seen, two, noise_std=1.0)
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    noise = check_positive("noise_std", noise_std, "Without noise the nearest candidate is certain: best_candidate().")
    rate = check_positive("sampling_probability", check_probability("sampling_probability", sampling_probability))
    if contributions.ndim != 3 or residuals.shape != (contributions.shape[0], contributions.shape[2]):
        raise invalid_input(
            "residuals.shape",
            tuple(residuals.shape),
            f"to be (steps, values) for contributions (steps, candidates, values)={tuple(contributions.shape)}",
        )
    return _sampled(_exponents(residuals, contributions, noise), rate).sum(0)


def _exponents(residuals: Tensor, contributions: Tensor, noise: float) -> Tensor:
    """The logarithms (steps, candidates) for a candidate who entered every step."""
    check_all_finite("residuals", residuals)
    check_all_finite("contributions", contributions)
    gradients = contributions.double()
    products = torch.einsum("tp,tcp->tc", residuals.double(), gradients)
    return (products - gradients.square().sum(2) / 2) / noise**2


def _sampled(exponents: Tensor, rate: float) -> Tensor:
    if rate == 1:
        return exponents
    return torch.logaddexp(exponents + math.log(rate), torch.full_like(exponents, math.log1p(-rate)))


def most_likely_candidate(
    log_ratios: Tensor, candidates: Tensor, *, prior: Tensor | None = None, mse: float = 0.0
) -> tuple[int, Tensor, Tensor]:
    r"""The candidate within whose radius most posterior mass lies, the posterior, and the mass around each.

    .. math:: \hat z = \arg\max_{z_0} \sum_{z: \mathrm{mse}(z, z_0) \le \eta} P(z \mid \text{release})

    Assumes: the target was drawn from ``prior`` (one weight per candidate, equal by default).
    Guarantee: no attack that names a candidate is within ``mse`` of the target more often.
    Edge cases: ``mse = 0`` is the maximum a posteriori rule; candidates that are equal count as one.
    Reference: Section VII-A, balle2022.

    >>> index, posterior, _ = most_likely_candidate(torch.tensor([0.0, 1.0]), torch.eye(2))
    >>> index, posterior.round(decimals=3).tolist()
    (1, [0.269, 0.731])
    """
    check_not_empty("candidates", candidates)
    weights = torch.ones(len(candidates), dtype=torch.float64) if prior is None else prior.double()
    if weights.shape != (len(candidates),) or not bool((weights >= 0).all()) or not bool(weights.any()):
        raise invalid_input(
            "prior", "given", f"to be {len(candidates)} numbers >= 0, not all 0, one for each candidate"
        )
    check_all_finite("candidates", candidates)
    posterior = (log_ratios.double() + (weights / weights.sum()).log()).softmax(0)
    rows = candidates.flatten(1).double()
    radius = math.sqrt(rows.shape[1] * check_nonnegative("mse", mse)) * (1 + 1e-12)
    mode = "donot_use_mm_for_euclid_dist"
    near = (torch.cdist(part, rows, compute_mode=mode) <= radius for part in rows.split(_ROWS))  # some at a time
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
    learning_rate: float,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: float | None = None,
    sampling_probability: float = 1.0,
    participation: Tensor | None = None,
    prior: Tensor | None = None,
    mse: float = 0.0,
) -> Identification:
    r"""Name the candidate that a DP-SGD run was trained on, from its iterates and all other records.

    .. math:: \theta_{t+1} = \theta_t - \frac{\text{rate}}{B} \Bigl(\sum_{i \in S_t} \mathrm{clip}(g_i) +
              N(0, \sigma^2 C^2)\Bigr)

    ``trajectory`` holds the parameters before the first step, after it, and so on: the two of a single step are
    initialisation and final model. The likelihood of every step is that of :func:`log_likelihood_ratios`.

    Assumes: plain gradient descent on the loss of each record, clipped to ``clip_norm`` C, with noise of
    ``noise_multiplier`` sigma; B is ``batch_size``, by default the number of records. With ``sampling_probability``
    below 1, ``batch_size`` is needed (the one that sums were divided by), and ``participation`` (steps, known records),
    which says who else entered each step.
    Guarantee: the maximum a posteriori rule (within the radius ``mse``): no adversary who sees the same and names a
    candidate is right more often, and none can exceed ``success_upper_bound`` of the run.
    Edge cases: steps that are not seen cannot be matched; a final model of several steps is refused, since its
    likelihood is an integral over all ways there. Where what every candidate leaves is more than the noise can be (a
    chi-square test, wrong in one of a million runs), the ending is "not applicable".
    Reference: Section VII-A, balle2022.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> start = {"weight": torch.zeros(1, 2)}
    >>> loss = lambda output, label: (output - label).square().sum() / 2
    >>> after = {"weight": torch.tensor([[0.9, 0.1]])}
    >>> found = match_candidates(
    ...     layer, loss, [start, after], torch.eye(2), torch.ones(2, 1), known_inputs=torch.zeros(1, 2),
    ...     known_labels=torch.zeros(1, 1), learning_rate=2.0, clip_norm=1.0, noise_multiplier=0.5,
    ... )
    >>> found.index
    0
    """
    begun = time.monotonic()
    steps = _iterates_of(model, trajectory)
    _check_records(model, loss_fn, candidates, candidate_labels, known_inputs, known_labels)
    rate = check_positive("sampling_probability", check_probability("sampling_probability", sampling_probability))
    who = _participation(participation, len(steps) - 1, len(known_inputs), rate)
    if batch_size is None and rate < 1:
        remedy = "Pass what sums were divided by: under sampling usually the expected batch, records times probability."
        raise invalid_input("batch_size", None, "to be given under sampling", remedy)
    divisor = len(known_inputs) + 1.0 if batch_size is None else check_positive("batch_size", batch_size)
    scale = divisor / check_positive("learning_rate", learning_rate)
    std = check_positive("noise_multiplier", noise_multiplier) * check_positive("clip_norm", clip_norm)
    ratios, left = torch.zeros(2, len(candidates), dtype=torch.float64)
    rounded = 0.0
    for step, (before, after) in enumerate(itertools.pairwise(steps)):
        known = clipped_gradients(model, loss_fn, before, known_inputs[who[step]], known_labels[who[step]], clip_norm)
        own = clipped_gradients(model, loss_fn, before, candidates, candidate_labels, clip_norm)
        residual = scale * (_flat(before) - _flat(after)) - known.sum(0)
        exponents = _exponents(residual[None], own[None], std)[0]
        ratios += _sampled(exponents, rate)
        # whoever did not enter leaves the residual as it is
        left += (residual / std).square().sum() - 2 * (exponents if rate == 1 else exponents.clamp(min=0))
        # rounding moves the noisy sum by that of the iterates, and by that of the gradients
        unit = _ROUNDINGS * max(torch.finfo(value.dtype).eps for value in before.values())
        norms = _flat(before).norm() + _flat(after).norm()
        rounded += float(unit * (scale * norms + (len(known) + 1) * clip_norm)) ** 2
    index, posterior, masses = most_likely_candidate(ratios, candidates, prior=prior, mse=mse)
    status = _status(float(left.min()), len(_flat(steps[0])) * (len(steps) - 1), math.sqrt(rounded) / std)
    mass = 0.0 if status is not None else float(masses[index].clamp(max=1.0))
    named = Status(Ending.CONVERGED, f"posterior mass {mass:.3g} around one of {len(candidates)} candidates")
    account = Account(
        attack=f"match_candidates({len(candidates)} candidates, {len(steps) - 1} steps, mse={mse:g})",
        status=status or named,
        objective=(-float(ratios[index]),),
        cost=Cost(time.monotonic() - begun, (len(steps) - 1) * (len(candidates) + len(known_inputs))),
    )
    return Identification(index, candidates[index].detach().clone(), posterior, mass, ratios, account)


def _status(left: float, values: int, rounded: float) -> Status | None:
    """Not applicable where even the candidate that leaves least leaves more than noise and rounding do."""
    most = math.sqrt(float(chi2.isf(_FALSE_ALARM, values))) + rounded
    found = math.sqrt(max(left, 0.0))
    if found <= most:
        return None
    usual = math.sqrt(values)
    cause = f"no candidate explains the run: the nearest leaves {found / usual:.3g} times the noise that is stated"
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
            "candidates.shape", tuple(candidates.shape), f"to end in {tuple(known_inputs.shape[1:])}, as known"
        )
    both = {"candidate": (candidates, candidate_labels), "known": (known_inputs, known_labels)}
    for name, (inputs, labels) in both.items():
        whose = "candidates" if name == "candidate" else "known_inputs"
        if len(labels) != len(inputs):
            raise invalid_input(f"{name}_labels", f"of {len(labels)} records", f"to be of {len(inputs)}, as {whose}")
        check_all_finite(whose, inputs)
        check_all_finite(f"{name}_labels", labels)
        _check_classes(f"{name}_labels", model, loss_fn, inputs, labels)


def _check_classes(name: str, model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> None:
    """Class labels that the loss takes: the least and the greatest are tried."""
    if labels.is_floating_point() or labels.ndim != 1 or len(labels) == 0:
        return
    for row in (int(labels.argmin()), int(labels.argmax())):
        with torch.no_grad():
            state = {name: value.clone() for name, value in model.state_dict().items()}  # statistics stay as they are
            outputs = called(model, state, inputs[row : row + 1])
            try:
                loss_fn(outputs, labels[row : row + 1])
            except IndexError as error:
                remedy = f"The model has {outputs.shape[-1]} outputs; classes begin at 0."
                raise invalid_input(name, int(labels[row]), "to be a class of the model", remedy) from error


def _participation(given: Tensor | None, steps: int, known: int, rate: float) -> Tensor:
    """Which known records entered each step."""
    if given is None:
        if rate < 1:
            remedy = "Pass which known records entered each step; who does not know has another likelihood."
            raise invalid_input("participation", None, "to be given under sampling", remedy)
        return torch.ones(steps, known, dtype=torch.bool)
    if given.shape != (steps, known):
        raise invalid_input("participation.shape", tuple(given.shape), f"to be (steps, known records)={(steps, known)}")
    return given.bool()
