"""Gradient inversion in the range of a generator: its latent values first, then its weights."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch

from reconrisk.attacks.matching.distances import Cosine, Distance, check_distance
from reconrisk.attacks.matching.loop import GradientMatching
from reconrisk.attacks.matching.optimizers import Adam
from reconrisk.attacks.with_prior.latents import NEEDS, GeneratorWeights, Latents, check_generator, module_of
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Cost, Reconstruction
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_positive, check_whole
from reconrisk.priors.generator import GeneratorPrior


@dataclass(frozen=True, eq=False)
class Gias:
    """Attack configured by :func:`gias`."""

    prior: GeneratorPrior
    steps: int = 500
    weight_steps: int = 500
    restarts: int = 4
    learning_rate: float = 0.05
    weight_learning_rate: float = 1e-3
    distance: Distance = field(default_factory=Cosine)
    seconds: float | None = None
    needs: ThreatModel = NEEDS

    def __post_init__(self) -> None:
        check_generator(self.prior)
        check_whole("steps", self.steps)
        if check_whole("weight_steps", self.weight_steps, minimum=0):
            module_of(self.prior)
        check_whole("restarts", self.restarts)
        check_positive("learning_rate", self.learning_rate)
        check_positive("weight_learning_rate", self.weight_learning_rate)
        check_distance(self.distance)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``."""
        begun = time.monotonic()
        # Half of the time for each of the two stages.
        share = None if self.seconds is None else self.seconds / 2
        first = GradientMatching(
            name="gias, latent values",
            distance=self.distance,
            update=Adam(self.learning_rate, schedule="cosine"),
            steps=self.steps,
            parametrization=Latents(self.prior),
            restarts=self.restarts,
            seconds=share,
            needs=self.needs,
        )
        match = first.match(observation, rng=rng)
        evaluations = match.evaluations
        if self.weight_steps and not match.status.is_failure:
            second = replace(
                first,
                name="gias, weights",
                update=Adam(self.weight_learning_rate, schedule="cosine"),
                steps=self.weight_steps,
                parametrization=GeneratorWeights(self.prior, match.coordinates),
                restarts=1,
            )
            match = second.match(observation, rng=rng)
            evaluations += match.evaluations
        return match.reconstruction(repr(self), Cost(time.monotonic() - begun, evaluations))

    def __repr__(self) -> str:
        """Return the call with every setting; the prior is shown by name."""
        names = ("steps", "weight_steps", "restarts", "learning_rate", "weight_learning_rate", "distance", "seconds")
        return f"gias({self.prior.name}, {', '.join(f'{name}={getattr(self, name)}' for name in names)})"


def gias(
    prior: GeneratorPrior,
    *,
    steps: int = 500,
    weight_steps: int = 500,
    restarts: int = 4,
    learning_rate: float = 0.05,
    weight_learning_rate: float = 1e-3,
    distance: Distance | None = None,
    seconds: float | None = None,
) -> Gias:
    r"""Reconstruct records in the range of a generator, first by its latent values, then by its weights.

    .. math:: \hat z = \arg\min_z D(f(g_w(z)), y), \qquad \hat w = \arg\min_w D(f(g_w(\hat z)), y), \qquad
        \hat x = g_{\hat w}(\hat z)

    Here :math:`g_w` is the generator with weights w, z are its latent values, and D is the distance between the release
    f(x) of records x and the observed release y.

    Args:
        prior: Generator prior.
        steps: Steps of Adam on the latent values.
        weight_steps: Steps of Adam on the weights, of which each record has its own copy. 0 keeps the weights, so that
            estimates stay in the range of the generator.
        restarts: Number of random starts of the latent values.
        learning_rate: Initial learning rate of the latent values.
        weight_learning_rate: Initial learning rate of the weights.
        distance: Distance D of releases; None is the cosine distance. Known noise is fitted by its likelihood instead.
        seconds: Time limit in seconds, half of it for each stage; None for no limit.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If ``prior`` is not a generator, has no weights while ``weight_steps`` is positive, or a setting
            is out of its domain; when the attack is called, if the prior does not fit the records.

    Assumes: a prior of the shape and range of the records. Only the weights of a module can be tuned: for a plain
    function, pass ``weight_steps=0``.
    Guarantee: restarts are compared by the attack's own objective.
    Edge cases: on interruption it returns the best so far.
    Reference: `Jeon et al. (2021) <https://arxiv.org/abs/2110.14962>`_; a baseline of meng2025.

    >>> from reconrisk.core.threat import Knows
    >>> from reconrisk.priors.generator import generator
    >>> gias(generator(lambda latents: latents, (2,), 2), weight_steps=0).needs.knows == {Knows.PRIOR}
    True
    """
    settings = (steps, weight_steps, restarts, learning_rate, weight_learning_rate)
    return Gias(prior, *settings, Cosine() if distance is None else distance, seconds)
