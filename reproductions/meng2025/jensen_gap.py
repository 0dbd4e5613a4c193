"""What guided sampling loses by taking the mean of the clean records for all of them: the Jensen gap, measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from scipy.special import stdtrit
from torch import Tensor

from reconrisk.attacks.labels.infer import labels_for
from reconrisk.attacks.matching.distances import sum_of_squares
from reconrisk.attacks.matching.loop import whiten_and_mask
from reconrisk.attacks.with_prior.guided_diffusion import GuidedSampling, ggss_r
from reconrisk.core.guarantee import Estimate
from reconrisk.core.observation import Observation
from reconrisk.core.progress import track
from reconrisk.core.validation import check_all_finite, check_probability, check_whole, invalid_input
from reconrisk.priors.diffusion import DiffusionPrior, draw_clean
from reconrisk.priors.gaussian import GaussianPrior
from reconrisk.releases.release import standard_normal

GapOf = Literal["loss", "release"]

_POINTS = 8
_LEAST_CONFIDENCE = 0.8  # the inequality for sums of weighted squares holds beyond 1.54 standard errors squared
_METHOD = "Student t, triangle inequality"


@dataclass(frozen=True)
class GapAt:
    """The gap at one time of the prior, and what printed expressions of it are made of, in the units of the data.

    ``at_mean`` is the loss, or the size of the release, at the mean of the clean records; ``distance_to_mean`` is their
    mean distance from it and ``total_variance`` the sum of their variances.
    """

    time: int
    gap: Estimate
    at_mean: float
    distance_to_mean: float
    total_variance: float


@dataclass(frozen=True)
class JensenGap:
    """Gaps along the path of one guided sampling, from much noise to little; ``posterior`` says how it was sampled."""

    points: tuple[GapAt, ...]
    of: GapOf
    posterior: str

    @property
    def times(self) -> tuple[int, ...]:
        """The times of the prior."""
        return tuple(point.time for point in self.points)

    @property
    def gaps(self) -> tuple[Estimate, ...]:
        """The gap at each of them."""
        return tuple(point.gap for point in self.points)

    def table(self) -> str:
        """One line for each time."""
        head = f"Jensen gap of the {self.of}, posterior {self.posterior}"
        lines = [f"  t = {p.time:<5} gap {p.gap}, {self.of} at the mean {p.at_mean:.4g}" for p in self.points]
        return "\n".join([head, *lines])

    __str__ = table


def jensen_gap(
    prior: DiffusionPrior | GaussianPrior,
    observation: Observation,
    *,
    of: GapOf = "loss",
    attack: GuidedSampling | None = None,
    times: Sequence[int] | None = None,
    draws: int = 64,
    posterior_steps: int = 20,
    confidence: float = 0.95,
    rng: torch.Generator,
) -> JensenGap:
    r"""Measure the gap between a mean over the clean records behind a noisy one, and the value at their mean.

    .. math:: \bigl| E_{x_0 \mid x_t}\, h(x_0) - h(E[x_0 \mid x_t]) \bigr|, \qquad
        h = \mathcal L(f(x_0), y) \quad \text{or} \quad h = f(x_0)

    Guided sampling takes the second for the first. ``of`` is the attack loss (Theorem 5.2) or the release, whose gap is
    the length of a vector (Theorem 5.1), both in units of the noise where it is known. The noisy records are those that
    ``attack`` passes through, by default :func:`ggss_r` as it is; ``times`` are the prior's, of which the nearest on
    that path are taken, by default eight. Each has ``draws`` clean batches.

    Assumes: draws enough for the normal limit.
    Guarantee: under a Gaussian prior the clean records are drawn exactly. Under a diffusion they are drawn by
    ``posterior_steps`` of the reverse diffusion, which is an approximation: the interval is that of chance alone. The
    mean of n values of total variance v misses the truth by more than :math:`t \sqrt{v / n}`, t of Student, with
    probability 1 - confidence at most, whatever their covariance; so does then the length.
    Edge cases: a linear release has no gap, and an interval that begins at zero.
    Reference: Definition 4.1, meng2025; the radius by `Szekely and Bakirov (2003)
    <https://doi.org/10.1007/s00440-003-0262-6>`_.

    >>> from reconrisk.attacks.with_prior.latents import NEEDS
    >>> from reconrisk.core.threat import Knows
    >>> from reconrisk.priors.gaussian import gaussian
    >>> observation = Observation(
    ...     {"y": torch.tensor([0.25, 0.5])}, lambda records, labels: {"y": records[0].square()},
    ...     NEEDS.with_knowledge(Knows.LABELS), (2,), (0.0, 1.0), labels=torch.tensor([0]),
    ... )
    >>> prior = gaussian(torch.full((2,), 0.5), 0.04 * torch.eye(2))
    >>> found = jensen_gap(prior, observation, of="release", times=[999], rng=torch.Generator().manual_seed(0))
    >>> found.gaps[0].low < 0.04 * 2**0.5 < found.gaps[0].high  # of x^2 it is the variance, here that of the prior
    True
    """
    if of not in get_args(GapOf):
        raise invalid_input("of", of, 'to be "loss" or "release"')
    if not _LEAST_CONFIDENCE <= check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, f"in [{_LEAST_CONFIDENCE}, 1)", "0.95 is usual.")
    check_whole("draws", draws, minimum=2, remedy="An interval needs two draws.")
    check_whole("posterior_steps", posterior_steps)
    wrapped = prior.diffusion if isinstance(prior, GaussianPrior) else prior
    if not isinstance(attack, GuidedSampling | None):
        raise invalid_input(
            "attack", attack, "to be one of rr.attacks.ggss_r", "Pass ggss_r(prior, ...) of this prior."
        )
    guided = ggss_r(prior) if attack is None else attack
    if guided.prior is not wrapped:
        raise invalid_input("attack", guided, "to have the same prior", "Pass ggss_r(prior, ...) of this prior.")
    path = _path(guided, observation, rng)
    measured = _Measured(observation, guided, of)
    exact = isinstance(prior, GaussianPrior)
    points = []
    for time in track(_nearest(tuple(path), times, len(wrapped.schedule)), "Jensen gap"):
        mean = wrapped.records(wrapped.clean(path[time], time)).detach()
        clean = _clean_records(prior, path[time], mean, time, draws, posterior_steps, rng)
        points.append(measured.at(time, mean, clean, confidence))
    how = "exact" if exact else f"approximate, by at most {posterior_steps} steps of the reverse diffusion"
    return JensenGap(tuple(points), of, how)


def _path(attack: GuidedSampling, observation: Observation, rng: torch.Generator) -> dict[int, Tensor]:
    """The noisy records that guided sampling passes through, by their times."""
    seen: dict[int, Tensor] = {}

    def remembering(noisy: Tensor, times: Tensor) -> Tensor:
        seen[int(times[0])] = noisy.detach().clone()
        return attack.prior.noise(noisy, int(times[0]))

    replace(attack, prior=replace(attack.prior, predict_noise=remembering)).trace(observation, rng=rng)
    return seen


def _nearest(path: tuple[int, ...], wanted: Sequence[int] | None, count: int) -> list[int]:
    """The times on the path nearest to those wanted, each once, from the last down."""
    if wanted is None:
        wanted = [path[round(place * (len(path) - 1) / (_POINTS - 1))] for place in range(_POINTS)]
    if not len(wanted):
        raise invalid_input("times", list(wanted), "to hold one time at least")
    for time in wanted:
        if check_whole("times", time, minimum=0) >= count:
            raise invalid_input("times", time, f"< {count}, the times of the prior")
    return sorted({min(path, key=lambda own: abs(own - time)) for time in wanted}, reverse=True)


def _clean_records(
    prior: DiffusionPrior | GaussianPrior,
    noisy: Tensor,
    mean: Tensor,
    time: int,
    draws: int,
    steps: int,
    rng: torch.Generator,
) -> Tensor:
    """Batches (draws, records, *shape) of clean records that the noisy batch may come from."""
    if isinstance(prior, DiffusionPrior):
        repeated = noisy.expand(draws, *noisy.shape).flatten(0, 1)
        drawn_back = draw_clean(prior, repeated, time, steps=steps, rng=rng)
        found: Tensor = drawn_back.unflatten(0, (draws, len(noisy)))
        return found
    share = float(prior.schedule.signal[time])
    width = 2 / (prior.data_range[1] - prior.data_range[0])  # of its diffusion, whose units are -1 to 1
    left = prior.variances * (1 - share) / (share * prior.variances * width**2 + 1 - share)
    drawn = standard_normal(left.expand(draws, len(noisy), -1), rng)
    moved = (drawn * left.sqrt()) @ prior.directions.T
    batches: Tensor = mean + moved.to(mean.dtype).unflatten(2, prior.shape)
    return batches


class _Measured:
    """Values of loss or release, and the gap between their mean and that at the mean."""

    def __init__(self, observation: Observation, attack: GuidedSampling, of: GapOf) -> None:
        self._observation, self._of, self._distance = observation, of, attack.distance
        self._labels = labels_for(observation)
        dtype = torch.get_default_dtype()
        self._observed = whiten_and_mask({name: t.to(dtype) for name, t in observation.released.items()}, observation)

    def at(self, time: int, mean: Tensor, clean: Tensor, confidence: float) -> GapAt:
        """The gap of this time."""
        centre = self._value(mean)
        differences = torch.stack([self._value(batch) for batch in clean]) - centre  # a release is of a whole batch
        check_all_finite(f"the {self._of} at time {time}", differences, "Check the forward map.")
        offsets = (clean - mean).flatten(1).double()
        return GapAt(
            time,
            _length_of_mean(differences, confidence),
            float(centre.norm()),
            float(offsets.norm(dim=1).mean()),
            float(offsets.square().sum(1).mean()),
        )

    def _value(self, records: Tensor) -> Tensor:
        with torch.no_grad():
            caused = whiten_and_mask(self._observation.forward(records, self._labels), self._observation)
        if self._of == "release":
            return torch.cat([value.flatten() for value in caused.values()]).double()
        if self._distance is not None:
            return self._distance(caused, self._observed).double().reshape(1)
        residual = sum_of_squares({name: caused[name] - value for name, value in self._observed.items()})
        return residual.double().sqrt().reshape(1)


def _length_of_mean(vectors: Tensor, confidence: float) -> Estimate:
    """The length of what rows are a sample of the mean of, with the interval that :func:`jensen_gap` states."""
    count = len(vectors)
    length = float(vectors.mean(0).norm())
    radius = float(stdtrit(count - 1, (1 + confidence) / 2)) * math.sqrt(float(vectors.var(0).sum()) / count)
    return Estimate(length, max(0.0, length - radius), length + radius, confidence, count, _METHOD)
