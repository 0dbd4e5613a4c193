"""The loop of every attack that matches a release by optimisation.

:class:`GradientMatching` is assembled from values: distance, regularizers, update rule, start, parametrization and
labels. A paper is a function that assembles them (``published.py``); a generative prior is another parametrization.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.attacks.matching.distances import Distance, GaussianLikelihood, LaplaceLikelihood
from reconrisk.attacks.matching.optimizers import Point, UpdateRule, Variables, chosen
from reconrisk.attacks.matching.regularizers import Penalty, Regularizer
from reconrisk.attacks.matching.variables import GivenLabels, LabelStrategy, NormalStart, Parametrization, Start, Values
from reconrisk.core.observation import LAPLACE, Observation
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import ZERO_RELEASE, Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel
from reconrisk.core.validation import check_positive, check_whole

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
        near = torch.finfo(torch.float64).eps ** 0.5  # the rounding of double precision through two derivatives
        pairs = [(fast.gradients[name][usable], value[usable]) for name, value in plain.gradients.items()]
        return bool(usable.any()) and all(
            torch.allclose(found, expected, rtol=near, atol=near * float(expected.abs().max()))
            for found, expected in pairs
        )


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


@dataclass(frozen=True, eq=False)
class Match:
    """Records and the ``coordinates`` of one restart that they were decoded from, with what the search says of them."""

    estimates: Tensor
    coordinates: Tensor
    value: float
    status: Status
    evaluations: int
    labels: tuple[int, ...] | None

    def reconstruction(self, attack: str, cost: Cost) -> Reconstruction:
        """These records as what ``attack`` returns."""
        objective = (self.value,) * len(self.estimates)
        account = Account(attack, self.status, objective, cost, self.labels)
        return Reconstruction(self.estimates.detach().to(torch.get_default_dtype()), account)


@dataclass(frozen=True, kw_only=True)
class GradientMatching:
    r"""Records whose release is nearest to the observed one, by optimisation from several starts.

    .. math:: \hat x = \arg\min_x D(f(x), y) + \sum_k \lambda_k R_k(x)

    Every part is a value: ``labels`` x ``start`` x ``parametrization`` x ``distance`` x ``regularizers`` x ``update``.
    All ``restarts`` move at once; the estimate is the candidate with the lowest objective ever seen. The learning rate
    follows the share of ``steps`` or ``seconds`` spent, whichever is larger. ``patience`` is the number of steps
    without a gain of one in a thousand after which it stops. ``can_restart`` is false for an attack that has no such
    setting, so that its status names none.

    Guarantee: the result is chosen by the attacker's own objective; a restart that is not a number never wins.
    Edge cases: interrupted, it returns the best so far; the budget of seconds is checked between steps.
    """

    name: str
    distance: Distance
    update: UpdateRule
    steps: int
    regularizers: tuple[Regularizer, ...] = ()
    start: Start = field(default_factory=NormalStart)
    parametrization: Parametrization = field(default_factory=Values)
    labels: LabelStrategy = field(default_factory=GivenLabels)
    restarts: int = 1
    seconds: float | None = None
    patience: int | None = None
    tolerance: float = 0.0
    needs: ThreatModel = HONEST_BUT_CURIOUS
    can_restart: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        check_whole("steps", self.steps)
        check_whole("restarts", self.restarts)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if self.patience is not None:
            check_whole("patience", self.patience)

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the records behind ``observation``."""
        begun = time.monotonic()
        match = self.match(observation, rng=rng)
        return match.reconstruction(repr(self), Cost(time.monotonic() - begun, match.evaluations))

    def match(self, observation: Observation, *, rng: torch.Generator) -> Match:
        """The best candidates with their coordinates."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        labels = self.labels.begin(observation, self.restarts, rng)
        starts = self.start(observation, self.restarts, rng)
        objective = Objective.of(observation, self.distance, self.regularizers, self.parametrization, labels.decode)
        variables = {"inputs": self.parametrization.begin(observation, starts, rng), **labels.variables}
        search = _Search(objective(variables))
        status = self._search(objective, search, begun)
        winner = int(search.best.scores.nan_to_num(nan=math.inf).argmin())
        best = {name: tensor[winner : winner + 1] for name, tensor in search.best.variables.items()}
        low, high = observation.data_range
        made = self.parametrization.finish(objective.inputs(best)[0], observation).detach()
        return Match(
            estimates=made.nan_to_num(nan=(low + high) / 2).clamp(low, high).to(torch.get_default_dtype()),
            coordinates=best["inputs"][0],
            value=float(search.best.scores[winner]),
            status=status,
            evaluations=objective.evaluations,
            labels=labels.chosen(best),
        )

    def _search(self, objective: Objective, search: _Search, begun: float) -> Status:
        if objective.observation.is_zero:
            return ZERO_RELEASE
        memory = self.update.begin(search.best)
        bar = ProgressBar(self.name, total=self.steps)
        try:
            for step in range(self.steps):
                spent = 0.0 if self.seconds is None else (time.monotonic() - begun) / self.seconds
                if spent >= 1:
                    return self._spent(search, f"{self.seconds:g} seconds, {step} steps", "seconds")
                objective.progress = max(step / self.steps, spent)
                point, memory = self.update.step(objective, search.point, memory, objective.progress)
                search.move(point)
                bar.advance()
                if not bool(search.best.scores.isfinite().any()):
                    return Status(Ending.DIVERGED, "no candidate has a finite objective", "Check the forward map")
                if search.lowest() <= self.tolerance:
                    return Status(Ending.CONVERGED, f"objective {search.lowest():.1e}")
                if self.patience is not None and search.idle >= self.patience:
                    return Status(
                        Ending.CONVERGED, f"no gain in {self.patience} steps, objective {search.lowest():.1e}"
                    )
        except KeyboardInterrupt:
            return Status(Ending.INTERRUPTED, "stopped by the user", "Run again for the full strength")
        finally:
            bar.close()
        return self._spent(search, f"{self.steps} steps", "steps")

    def _spent(self, search: _Search, what: str, setting: str) -> Status:
        remedy = f"Raise {setting} or restarts" if self.can_restart else f"Raise {setting}"
        return Status(Ending.BUDGET_SPENT, f"objective {search.lowest():.2e} after {what}", remedy)


@dataclass(eq=False)
class _Search:
    """Where every restart is, and the best it has seen."""

    point: Point
    best: Point = field(init=False)
    idle: int = 0

    def __post_init__(self) -> None:
        self.best = self.point
        self._milestone = self.lowest()

    def move(self, point: Point) -> None:
        """Take a step; what is not a number is never better."""
        self.point = point
        better = (point.scores < self.best.scores) | (point.scores.isfinite() & ~self.best.scores.isfinite())
        self.best = chosen(better, point, self.best)
        lowest = self.lowest()
        gained = lowest < self._milestone - 1e-3 * abs(self._milestone) or not math.isfinite(self._milestone)
        self._milestone = lowest if gained else self._milestone
        self.idle = 0 if gained else self.idle + 1

    def lowest(self) -> float:
        """The lowest objective of all restarts."""
        return float(self.best.scores.nan_to_num(nan=math.inf).min())
