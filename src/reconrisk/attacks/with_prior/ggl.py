"""Gradient inversion in the latent space of a generator by an evolution strategy, without derivatives."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reconrisk.attacks.labels.infer import class_labels_or_none, labels_for
from reconrisk.attacks.matching.distances import Distance, SquaredError, check_distance
from reconrisk.attacks.matching.loop import likelihood_for, whiten_and_mask
from reconrisk.attacks.with_prior.latents import NEEDS, Latents, check_generator
from reconrisk.core.errors import MissingExtra
from reconrisk.core.observation import Observation
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import ZERO_RELEASE, AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_nonnegative, check_positive, check_whole
from reconrisk.priors.generator import GeneratorPrior

_SEEDS = 2**31 - 1  # largest seed that is drawn
_LARGEST_FULL = 256  # most latent values with a full covariance matrix; beyond that only variances are learned


@dataclass(frozen=True, eq=False)
class Ggl:
    """Attack configured by :func:`ggl`."""

    prior: GeneratorPrior
    steps: int = 200
    population: int = 50
    spread: float = 0.5
    latent_weight: float = 0.1
    distance: Distance = field(default_factory=SquaredError)
    seconds: float | None = None
    needs: ThreatModel = NEEDS

    def __post_init__(self) -> None:
        check_generator(self.prior)
        _library()  # fail at configuration, so that an audit can skip the attack before it begins
        check_whole("steps", self.steps)
        check_whole("population", self.population, minimum=4)
        check_positive("spread", self.spread)
        check_nonnegative("latent_weight", self.latent_weight)
        check_distance(self.distance)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        self.prior.check_fits(observation.input_shape, observation.data_range)
        labels = labels_for(observation)
        fitness = _Fitness(self, observation, labels)
        status, best, value = self._evolve(fitness, rng, begun)
        account = AttackReport(
            attack=repr(self),
            status=ZERO_RELEASE if observation.is_zero else status,
            objective=(value,) * observation.batch_size,
            cost=Cost(time.monotonic() - begun, fitness.evaluations),
            labels=class_labels_or_none(labels),
        )
        low, high = observation.data_range
        return Reconstruction(fitness.records(best)[0].clamp(low, high).to(torch.get_default_dtype()), account)

    def _evolve(
        self, fitness: _Fitness, rng: torch.Generator, begun: float
    ) -> tuple[Status, np.ndarray[Any, Any], float]:
        """Run CMA-ES and return the status, the best latent values and their objective."""
        strategy = self._strategy(fitness.size, rng)
        best, value = np.zeros(fitness.size), math.inf
        status = Status(Ending.BUDGET_SPENT, f"{self.steps} generations", "Raise steps or population")
        bar = ProgressBar("evolving latent values", total=self.steps)
        try:
            for step in range(self.steps):
                if self.seconds is not None and step and time.monotonic() - begun > self.seconds:
                    status = Status(
                        Ending.BUDGET_SPENT, f"{step} generations in {self.seconds:g} seconds", "Raise seconds"
                    )
                    break
                candidates = strategy.ask()
                scores = fitness(np.stack(candidates))
                strategy.tell(candidates, scores.tolist())
                place = int(scores.argmin())
                if scores[place] < value:
                    best, value = np.array(candidates[place]), float(scores[place])
                bar.advance()
                if strategy.stop():
                    status = Status(Ending.CONVERGED, f"no improvement in generation {step + 1}")
                    break
        except KeyboardInterrupt:
            status = Status(Ending.INTERRUPTED, "stopped by the user", "Run again without interruption")
        finally:
            bar.close()
        # An interruption or a time limit is reported as such.
        if not math.isfinite(value) and not status.is_failure:
            status = Status(Ending.DIVERGED, "no candidate has a finite objective", "Check the forward map")
        return status, best, value

    def _strategy(self, size: int, rng: torch.Generator) -> Any:
        """Return a CMA-ES strategy with its own random generator."""
        drawn = np.random.default_rng(int(torch.randint(1, _SEEDS, (1,), generator=rng, device=rng.device)))
        options: dict[str, Any] = {"popsize": self.population, "verbose": -9, "CMA_diagonal": size > _LARGEST_FULL}
        # A separate generator: the seed option of cma would reset the global one of numpy, which belongs to the user.
        options |= {"seed": math.nan, "randn": lambda *shape: drawn.standard_normal(shape)}
        return _library().CMAEvolutionStrategy(np.zeros(size), self.spread, options)

    def __repr__(self) -> str:
        """Return the call with every setting; the prior is shown by name."""
        names = ("steps", "population", "spread", "latent_weight", "distance", "seconds")
        return f"ggl({self.prior.name}, {', '.join(f'{name}={getattr(self, name)}' for name in names)})"


def ggl(
    prior: GeneratorPrior,
    *,
    steps: int = 200,
    population: int = 50,
    spread: float = 0.5,
    latent_weight: float = 0.1,
    distance: Distance | None = None,
    seconds: float | None = None,
) -> Ggl:
    r"""Reconstruct records in the range of a generator by evolving its latent values, without derivatives.

    .. math:: \hat z = \arg\min_z D(f(g(z)), y) / s + \lambda (|z|^2 / k - 1)^2, \qquad \hat x = g(\hat z)

    Here D is the distance between the release f(x) of records x and the observed release y, g the generator, k the
    number of latent values z, and s the standard deviation of the distance over the first generation. The distance is
    divided by s because noise adds the same amount to all distances. If the noise is known, its likelihood replaces the
    distance, and the normal density of the latent values replaces the second term. Their sum is a negative
    log-posterior.

    Args:
        prior: Generator prior.
        steps: Generations of CMA-ES.
        population: Candidates per generation, at least 4.
        spread: Initial standard deviation of the latent values, around zero.
        latent_weight: Weight :math:`\lambda`, which keeps latent values at the length of random draws.
        distance: Distance D of releases; None is the squared error.
        seconds: Time limit in seconds; None for no limit.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If ``prior`` is not a generator or a setting is out of its domain; when the attack is called, if
            the prior does not fit the records.
        MissingExtra: If ``cma`` is not installed.

    Assumes: a prior of the shape and range of the records. Nothing needs to be differentiable.
    Edge cases: the records of a batch are evolved together. On interruption it returns the best so far. Needs the extra
    ``diffusion`` for ``cma``.
    Reference: `Li et al. (2022) <https://arxiv.org/abs/2203.15696>`_, a baseline of meng2025; Hansen (2016), The CMA
    Evolution Strategy.

    >>> from reconrisk.core.threat import Knows
    >>> from reconrisk.priors.generator import generator
    >>> ggl(generator(lambda latents: latents, (2,), 2)).needs.knows == {Knows.PRIOR}
    True
    """
    settings = (steps, population, spread, latent_weight)
    return Ggl(prior, *settings, SquaredError() if distance is None else distance, seconds)


def _library() -> Any:
    """Import ``cma``, or raise MissingExtra."""
    try:
        import cma
    except ImportError as error:
        raise MissingExtra("cma", "diffusion", "ggl") from error
    return cma


class _Fitness:
    """Objective of a whole generation: the fit of the decoded records to the release."""

    def __init__(self, attack: Ggl, observation: Observation, labels: Tensor) -> None:
        self._attack, self._observation, self._labels = attack, observation, labels
        self._latents = Latents(attack.prior)
        dtype = torch.get_default_dtype()
        released = {name: value.to(dtype) for name, value in observation.released.items()}
        self._observed = whiten_and_mask(released, observation)
        self._likelihood = None if observation.noise_std is None else likelihood_for(observation)
        self._unit: float | None = None
        self.size = observation.batch_size * attack.prior.latent_size
        self.evaluations = 0

    def __call__(self, flat: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the objective of each row; inf where it is not finite."""
        with torch.no_grad():
            seen, distance = self._observation, self._likelihood or self._attack.distance
            caused = (whiten_and_mask(seen.forward(each, self._labels), seen) for each in self.records(flat))
            distances = torch.stack([distance(each, self._observed) for each in caused])
        self.evaluations += len(flat)
        found = distances.double().cpu().numpy()
        scores = found + self._prior_penalty(flat, found)
        return np.where(np.isfinite(scores), scores, np.inf)

    def records(self, flat: np.ndarray[Any, Any]) -> Tensor:
        """Return the records of latent values, one row per candidate."""
        shape = (-1, self._observation.batch_size, self._attack.prior.latent_size)
        dtype = torch.get_default_dtype()
        latents = torch.as_tensor(np.atleast_2d(flat).reshape(shape), dtype=dtype, device=self._observation.device)
        with torch.no_grad():
            return self._latents.decode(latents, self._observation)

    def _prior_penalty(self, flat: np.ndarray[Any, Any], distances: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the penalty of latent values that are improbable under the prior, in units of the distances."""
        if self._likelihood is not None:
            return np.asarray((flat**2).sum(1) / (2 * self._likelihood.dimension))
        # Fixed at the first generation, so that objectives of all generations are comparable.
        if self._unit is None:
            self._unit = float(np.std(distances[np.isfinite(distances)])) if np.isfinite(distances).any() else 0.0
        # Mean square of the latent values of each record, 1 for draws of a standard normal.
        lengths = (flat.reshape(len(flat), -1, self._attack.prior.latent_size) ** 2).mean(2)
        return np.asarray(self._unit * self._attack.latent_weight * ((lengths - 1) ** 2).mean(1))
