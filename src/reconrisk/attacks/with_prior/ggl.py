"""Gradient inversion in the latent space of a generator without derivatives: an evolution strategy."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reconrisk.attacks.labels.infer import labels_for, stated_labels
from reconrisk.attacks.matching.distances import Distance, SquaredError, check_distance
from reconrisk.attacks.matching.loop import compared, likelihood_of
from reconrisk.attacks.with_prior.latents import NEEDS, Latents, check_generator
from reconrisk.core.errors import MissingExtra
from reconrisk.core.observation import Observation
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import ZERO_RELEASE, Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_nonnegative, check_positive, check_whole
from reconrisk.priors.generator import GeneratorPrior

_SEEDS = 2**31 - 1
_LARGEST_FULL = 256  # latent values up to which all covariances are learned, beyond it variances alone


@dataclass(frozen=True, eq=False)
class Ggl:
    """The configured attack that :func:`ggl` returns."""

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
        _library()  # an audit leaves it out before it begins
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
        status, best, value = self._evolved(fitness, rng, begun)
        account = Account(
            attack=repr(self),
            status=ZERO_RELEASE if observation.is_zero else status,
            objective=(value,) * observation.batch_size,
            cost=Cost(time.monotonic() - begun, fitness.evaluations),
            labels=stated_labels(labels),
        )
        low, high = observation.data_range
        return Reconstruction(fitness.records(best)[0].clamp(low, high).to(torch.get_default_dtype()), account)

    def _evolved(
        self, fitness: _Fitness, rng: torch.Generator, begun: float
    ) -> tuple[Status, np.ndarray[Any, Any], float]:
        strategy = self._strategy(fitness.size, rng)
        best, value = np.zeros(fitness.size), math.inf
        status = Status(Ending.BUDGET_SPENT, f"{self.steps} generations", "Raise steps or population")
        bar = ProgressBar("evolving latent values", total=self.steps)
        try:
            for step in range(self.steps):
                if self.seconds is not None and step and time.monotonic() - begun > self.seconds:
                    status = Status(Ending.BUDGET_SPENT, f"{step} generations in {self.seconds:g} s", "Allow more")
                    break
                candidates = strategy.ask()
                scores = fitness(np.stack(candidates))
                strategy.tell(candidates, scores.tolist())
                place = int(scores.argmin())
                if scores[place] < value:
                    best, value = np.array(candidates[place]), float(scores[place])
                bar.advance()
                if strategy.stop():
                    status = Status(Ending.CONVERGED, f"generation {step + 1} improves nothing")
                    break
        except KeyboardInterrupt:
            status = Status(Ending.INTERRUPTED, "stopped by the user", "Run again for the full strength")
        finally:
            bar.close()
        if not math.isfinite(value) and not status.is_failure:
            status = Status(Ending.DIVERGED, "no candidate has a finite objective", "Check the forward map")
        return status, best, value

    def _strategy(self, size: int, rng: torch.Generator) -> Any:
        drawn = np.random.default_rng(int(torch.randint(1, _SEEDS, (1,), generator=rng, device=rng.device)))
        options: dict[str, Any] = {"popsize": self.population, "verbose": -9, "CMA_diagonal": size > _LARGEST_FULL}
        # a generator of its own: a seed would be that of numpy's global one, which belongs to the user
        options |= {"seed": math.nan, "randn": lambda *shape: drawn.standard_normal(shape)}
        return _library().CMAEvolutionStrategy(np.zeros(size), self.spread, options)

    def __repr__(self) -> str:
        """Every setting; the prior by its name."""
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
    r"""Rebuild records in the range of a generator by evolving its latent values, without any derivative.

    .. math:: \hat z = \arg\min_z D(f(g(z)), y) / s + \lambda (|z|^2 / k - 1)^2, \qquad \hat x = g(\hat z)

    Each of ``steps`` generations of CMA-ES has ``population`` candidates, the first ones with standard deviation
    ``spread`` around zero. ``latent_weight`` is :math:`\lambda`, which keeps latent values as long as draws are.
    ``distance`` is the squared error by default, s how much it varies in the first generation: what noise adds to all
    distances alike is no reason to heed them less. Known noise is fitted by its likelihood and the latent values'
    normal law instead, whose sum is a posterior.

    Assumes: a prior of the shape and range of the records. Nothing needs to be differentiable.
    Edge cases: records of a batch are evolved together. Interrupted, it returns the best so far. Needs the extra
    ``diffusion`` for ``cma``.
    Reference: `Li et al. (2022) <https://arxiv.org/abs/2203.15696>`_, a rival of meng2025; Hansen (2016), The CMA
    Evolution Strategy.

    >>> from reconrisk.core.threat import Knows
    >>> from reconrisk.priors.generator import generator
    >>> ggl(generator(lambda latents: latents, (2,), 2)).needs.knows == {Knows.PRIOR}
    True
    """
    settings = (steps, population, spread, latent_weight)
    return Ggl(prior, *settings, SquaredError() if distance is None else distance, seconds)


def _library() -> Any:
    try:
        import cma
    except ImportError as error:
        raise MissingExtra("cma", "diffusion", "ggl") from error
    return cma


class _Fitness:
    """How well the records of latent values explain the release, for a whole generation."""

    def __init__(self, attack: Ggl, observation: Observation, labels: Tensor) -> None:
        self._attack, self._observation, self._labels = attack, observation, labels
        self._latents = Latents(attack.prior)
        dtype = torch.get_default_dtype()
        released = {name: value.to(dtype) for name, value in observation.released.items()}
        self._observed = compared(released, observation)
        self._likelihood = None if observation.noise_std is None else likelihood_of(observation)
        self._unit: float | None = None
        self.size = observation.batch_size * attack.prior.latent_size
        self.evaluations = 0

    def __call__(self, flat: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The objective of each row; inf where it is no number."""
        with torch.no_grad():
            seen, distance = self._observation, self._likelihood or self._attack.distance
            caused = (compared(seen.forward(each, self._labels), seen) for each in self.records(flat))
            distances = torch.stack([distance(each, self._observed) for each in caused])
        self.evaluations += len(flat)
        found = distances.double().cpu().numpy()
        scores = found + self._improbability(flat, found)
        return np.where(np.isfinite(scores), scores, np.inf)

    def records(self, flat: np.ndarray[Any, Any]) -> Tensor:
        """The records of latent values, one row of both for each candidate."""
        shape = (-1, self._observation.batch_size, self._attack.prior.latent_size)
        dtype = torch.get_default_dtype()
        latents = torch.as_tensor(np.atleast_2d(flat).reshape(shape), dtype=dtype, device=self._observation.device)
        with torch.no_grad():
            return self._latents.decode(latents, self._observation)

    def _improbability(self, flat: np.ndarray[Any, Any], distances: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What is added to the distances: of latent values that a generator does not expect, in their units."""
        if self._likelihood is not None:
            return np.asarray((flat**2).sum(1) / (2 * self._likelihood.dimension))
        if self._unit is None:
            self._unit = float(np.std(distances[np.isfinite(distances)])) if np.isfinite(distances).any() else 0.0
        lengths = (flat.reshape(len(flat), -1, self._attack.prior.latent_size) ** 2).mean(2)
        return np.asarray(self._unit * self._attack.latent_weight * ((lengths - 1) ** 2).mean(1))
