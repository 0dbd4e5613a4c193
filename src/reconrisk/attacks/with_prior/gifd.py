"""Gradient inversion in the feature spaces of a generator, one layer after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch

from reconrisk.attacks.labels.infer import labels_for
from reconrisk.attacks.matching.distances import Cosine, Distance, check_distance
from reconrisk.attacks.matching.loop import GradientMatching, Match, likelihood_for, whiten_and_mask
from reconrisk.attacks.matching.optimizers import Adam
from reconrisk.attacks.with_prior.latents import NEEDS, Features, Latents, check_generator, layers_of
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Cost, Reconstruction
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_positive, check_whole
from reconrisk.priors.generator import GeneratorPrior


@dataclass(frozen=True, eq=False)
class Gifd:
    """Attack configured by :func:`gifd`."""

    prior: GeneratorPrior
    steps: int = 500
    layer_steps: int = 200
    radius: float = 0.1
    restarts: int = 4
    learning_rate: float = 0.05
    distance: Distance = field(default_factory=Cosine)
    seconds: float | None = None
    needs: ThreatModel = NEEDS

    def __post_init__(self) -> None:
        check_generator(self.prior)
        layers_of(self.prior)
        for name in ("steps", "layer_steps", "restarts"):
            check_whole(name, getattr(self, name))
        check_positive("radius", self.radius)
        check_positive("learning_rate", self.learning_rate)
        check_distance(self.distance)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``."""
        begun = time.monotonic()
        layers = layers_of(self.prior)
        # One stage for the latent values and one for each further layer.
        share = None if self.seconds is None else self.seconds / len(layers)
        search = GradientMatching(
            name="gifd, latent values",
            distance=self.distance,
            update=Adam(self.learning_rate, schedule="cosine"),
            steps=self.steps,
            parametrization=Latents(self.prior),
            restarts=self.restarts,
            seconds=share,
            needs=self.needs,
        )
        best = match = search.match(observation, rng=rng)
        evaluations, lowest = match.evaluations, self._misfit(match, observation)
        for number in range(1, len(layers)):
            if match.status.is_failure:
                break
            with torch.no_grad():
                # Features of the last stage, pushed through one layer, are the centre of the next ball.
                centre = layers[number - 1](match.coordinates)
            ball = Features(self.prior, number, centre, self.radius)
            stage = replace(search, name=f"gifd, layer {number}", steps=self.layer_steps, restarts=1)
            match = replace(stage, parametrization=ball).match(observation, rng=rng)
            evaluations, misfit = evaluations + match.evaluations + 1, self._misfit(match, observation)
            best, lowest = (match, misfit) if misfit <= lowest else (best, lowest)
        found = replace(best, value=lowest, status=match.status)
        return found.reconstruction(repr(self), Cost(time.monotonic() - begun, evaluations))

    def _misfit(self, match: Match, observation: Observation) -> float:
        """Return the distance from the observed release; the objectives of stages differ in scale."""
        with torch.no_grad():
            caused = whiten_and_mask(observation.forward(match.estimates, labels_for(observation)), observation)
            observed = whiten_and_mask(observation.released, observation)
            distance = self.distance if observation.noise_std is None else likelihood_for(observation)
            return float(distance(caused, observed))

    def __repr__(self) -> str:
        """Return the call with every setting; the prior is shown by name."""
        names = ("steps", "layer_steps", "radius", "restarts", "learning_rate", "distance", "seconds")
        return f"gifd({self.prior.name}, {', '.join(f'{name}={getattr(self, name)}' for name in names)})"


def gifd(
    prior: GeneratorPrior,
    *,
    steps: int = 500,
    layer_steps: int = 200,
    radius: float = 0.1,
    restarts: int = 4,
    learning_rate: float = 0.05,
    distance: Distance | None = None,
    seconds: float | None = None,
) -> Gifd:
    r"""Reconstruct records by optimising the features between a generator's layers, one layer after the other.

    .. math:: \hat h_0 = \arg\min_{z} D(f(g(z)), y), \qquad
        \hat h_i = \arg\min_{|h - g_i(\hat h_{i-1})|_1 \le r n_i} D(f(g_L \circ \dots \circ g_{i+1}(h)), y)

    Here g is the generator with layers :math:`g_1` to :math:`g_L`, z are its latent values, h the features between two
    layers, and D is the distance between the release f(x) of records x and the observed release y.

    The attack returns the estimate of the stage with the lowest objective.

    Args:
        prior: Generator prior whose network is an ``nn.Sequential``.
        steps: Steps of Adam on the latent values.
        layer_steps: Steps of Adam on the features of each layer.
        radius: Largest mean absolute change r of the n_i features of a record.
        restarts: Number of random starts of the latent values.
        learning_rate: Initial learning rate.
        distance: Distance D of releases; None is the cosine distance. Known noise is fitted by its likelihood instead.
        seconds: Time limit in seconds, shared equally by the stages; None for no limit.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If ``prior`` is not a sequence of layers or a setting is out of its domain; when the attack is
            called, if the prior does not fit the records.

    Assumes: a generator that is an ``nn.Sequential``, of the shape and range of the records.
    Guarantee: stages are compared by the attack's own objective.
    Edge cases: on interruption it returns the best so far.
    Reference: `Fang et al. (2023) <https://arxiv.org/abs/2308.04699>`_, a baseline of meng2025.

    >>> from torch import nn
    >>> from reconrisk.core.threat import Knows
    >>> from reconrisk.priors.generator import generator
    >>> gifd(generator(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), (3,), 2)).needs.knows == {Knows.PRIOR}
    True
    """
    settings = (steps, layer_steps, radius, restarts, learning_rate)
    return Gifd(prior, *settings, Cosine() if distance is None else distance, seconds)
