"""The objective of an attack by optimisation, for all restarts at once.

Restarts are one vectorised call where torch evaluates it correctly. This is compared once with the plain evaluation,
because torch 2.13 differentiates a vectorised layer norm wrongly without an error. Distances are in units of their mean
over the starts, so that the weight of a penalty means the same for every network. Where the threat knows the noise, the
likelihood takes the place of the distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.attacks.matching.distances import Distance, GaussianLikelihood, LaplaceLikelihood
from reconrisk.attacks.matching.optimizers import Point, Variables
from reconrisk.attacks.matching.parametrizations import Parametrization
from reconrisk.attacks.matching.regularizers import Penalty, Regularizer
from reconrisk.core.observation import LAPLACE, Observation

Released = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class WeightedPenalty:
    """A penalty whose weight goes evenly, on a logarithmic scale, from ``first`` to ``last`` over the budget."""

    first: float
    last: float
    penalty: Penalty

    def weight(self, progress: float) -> float:
        """The weight when this share of the budget is spent."""
        return float(self.first ** (1 - progress) * self.last**progress) if self.last else self.first * (1 - progress)


@dataclass(eq=False)
class Objective:
    """Distance of the candidates' releases from the observed one, plus penalties: one number per restart.

    The distance is in units of its mean over the starts, so that weights of penalties mean the same for any network.
    Where the threat knows the noise, it is the likelihood of what was observed instead, as it is, and what is believed
    of coordinates, such as latent values of a generator, enters by its density: the sum is a posterior. Restarts are
    evaluated by one vectorised call where torch does that correctly, which is tried first, else one after the other.
    """

    observation: Observation
    distance: Distance
    penalties: Sequence[WeightedPenalty]
    parametrization: Parametrization
    labels: Callable[[Variables], Tensor]
    progress: float = 0.0
    evaluations: int = 0
    _observed: dict[str, Tensor] = field(init=False)
    _scale: float | None = None
    _vectorised: bool | None = None

    def __post_init__(self) -> None:
        dtype = torch.get_default_dtype()
        self._observed = compared(
            {name: t.to(dtype) for name, t in self.observation.released.items()}, self.observation
        )

    @classmethod
    def of(
        cls,
        observation: Observation,
        distance: Distance,
        regularizers: Sequence[Regularizer],
        parametrization: Parametrization,
        labels: Callable[[Variables], Tensor],
    ) -> Objective:
        """The objective against ``observation``; known noise replaces the distance by its likelihood."""
        regularizers = [part for part in regularizers if part.weight > 0]
        if observation.noise_std is None:
            penalties = [(part.weight, part.weight * part.final_share, part) for part in regularizers]
        else:
            distance = likelihood_of(observation)
            penalties = [(part.prior_weight, part.prior_weight, part) for part in regularizers]
        bound = [WeightedPenalty(first, last, part.bind(observation)) for first, last, part in penalties if first > 0]
        return cls(observation, distance, bound, parametrization, labels)

    def __call__(self, variables: Variables) -> Point:
        """Objective and gradients at ``variables``, after bringing them within what is allowed."""
        place = self.parametrization.project(variables["inputs"].detach(), self.observation)
        variables = {**{name: value.detach() for name, value in variables.items()}, "inputs": place}
        restarts = len(place)
        self.evaluations += restarts
        if self._scale is None:
            self._scale = self._scale_at(variables)
        if restarts > 1 and self._vectorised is None:
            self._vectorised = self._agrees(variables)
        return self._together(variables) if restarts > 1 and self._vectorised else self._one_by_one(variables)

    def inputs(self, variables: Variables) -> Tensor:
        """The candidates behind ``variables``."""
        with torch.no_grad():
            return self.parametrization.decode(variables["inputs"], self.observation)

    def _scale_at(self, starts: Variables) -> float:
        if isinstance(self.distance, (GaussianLikelihood, LaplaceLikelihood)):
            return 1.0
        inputs, labels = self.inputs(starts), self.labels(starts)
        with torch.no_grad():
            distances = torch.stack([self._distance(one, of) for one, of in zip(inputs, labels, strict=True)])
        usable = distances[distances.isfinite() & (distances > 0)]
        return float(usable.mean()) if len(usable) else 1.0

    def _values(self, variables: Variables, distances: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The objective now, and with the penalties of the end."""
        inputs = self.parametrization.decode(variables["inputs"], self.observation)
        values = distances(inputs, self.labels(variables)) / (self._scale or 1.0)
        if isinstance(self.distance, (GaussianLikelihood, LaplaceLikelihood)):
            values = values + self.parametrization.improbability(variables["inputs"]) / self.distance.dimension
        scores = values
        for part in self.penalties:
            penalty = part.penalty(inputs)
            values, scores = values + part.weight(self.progress) * penalty, scores + part.last * penalty
        return values, scores

    def _distance(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Of the candidates of one restart."""
        return self.distance(compared(self.observation.forward(inputs, labels), self.observation), self._observed)

    def _one_by_one(self, variables: Variables) -> Point:
        leaves = {name: value.detach().requires_grad_() for name, value in variables.items()}

        def distances(inputs: Tensor, labels: Tensor) -> Tensor:
            return torch.stack([self._distance(one, of) for one, of in zip(inputs, labels, strict=True)])

        with torch.enable_grad():
            values, scores = self._values(leaves, distances)
            found = torch.autograd.grad(values.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True)
        return Point(variables, values.detach(), dict(zip(leaves, found, strict=True)), scores.detach())

    def _together(self, variables: Variables) -> Point:
        def total(leaves: Variables) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            values, scores = self._values(leaves, torch.func.vmap(self._distance))
            return values.sum(), (values, scores)

        # functorch alone: autograd outside of a vectorised gradient is silently wrong for layer norm in torch 2.13
        gradients, (values, scores) = torch.func.grad(total, has_aux=True)(variables)
        return Point(variables, values.detach(), gradients, scores.detach())

    def _agrees(self, variables: Variables) -> bool:
        """Whether torch vectorises the objective, and correctly, at the first two restarts in double precision.

        Single precision would hide an error of a few in a thousand, as that of layer norm in torch 2.13.
        """
        some = {name: value[:2].double() for name, value in variables.items()}
        try:
            plain, fast = self._one_by_one(some), self._together(some)
        except (RuntimeError, ValueError, NotImplementedError):
            return False
        usable = torch.stack([value.flatten(1).isfinite().all(1) for value in plain.gradients.values()]).all(0)
        return bool(usable.any()) and all(
            _close(fast.gradients[name][usable], value[usable]) for name, value in plain.gradients.items()
        )


def _close(found: Tensor, expected: Tensor) -> bool:
    """Up to the rounding of double precision through two derivatives."""
    tolerance = torch.finfo(torch.float64).eps ** 0.5
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def likelihood_of(observation: Observation) -> GaussianLikelihood | LaplaceLikelihood:
    """What takes the place of a distance where the noise is known."""
    size = observation.batch_size * math.prod(observation.input_shape)
    return LaplaceLikelihood(size) if observation.noise_law == LAPLACE else GaussianLikelihood(size)


def compared(released: Released, observation: Observation) -> dict[str, Tensor]:
    """Released values as they enter a distance: without those not sent, in units of the known noise."""
    values = {name: released[name] for name in observation.released}
    if observation.kept is not None:
        values = {name: value * observation.kept[name] for name, value in values.items()}
    if observation.noise_std is not None:
        values = {name: value / observation.noise_std[name].to(value.dtype) for name, value in values.items()}
    return values
