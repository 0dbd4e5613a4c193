"""The optimisation loop of every attack that matches a release.

:class:`GradientMatching` is assembled from parts: distance, regularizers, update rule, start, parametrization and
labels. A paper is a function that assembles them (``published.py``). A generative prior is another parametrization.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.attacks.matching.distances import Distance, GaussianLikelihood, LaplaceLikelihood
from reconrisk.attacks.matching.optimizers import Point, UpdateRule, Variables, select_points
from reconrisk.attacks.matching.regularizers import Penalty, Regularizer
from reconrisk.attacks.matching.variables import FixedLabels, LabelStrategy, NormalStart, Parametrization, Start, Values
from reconrisk.core.observation import LAPLACE, Observation
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import ZERO_RELEASE, AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel
from reconrisk.core.validation import check_positive, check_whole
from reconrisk.releases.derivative_check import check_attacked_model

Released = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class WeightedPenalty:
    """A penalty whose weight changes from ``first`` to ``last`` over the budget, evenly on a logarithmic scale.

    Attributes:
        first: Weight at the start of the search.
        last: Weight at the end; 0 makes the weight fall linearly instead.
        penalty: The penalty.
    """

    first: float
    last: float
    penalty: Penalty

    def weight(self, progress: float) -> float:
        """Return the weight when the share ``progress`` of the budget is spent."""
        return float(self.first ** (1 - progress) * self.last**progress) if self.last else self.first * (1 - progress)


@dataclass(eq=False)
class Objective:
    """Distance of the candidates' releases from the observed release, plus penalties: one number per restart.

    The objective divides the distance by its mean over the starts. A weight of a penalty then has the same effect for
    any network. If the threat model knows the noise, the distance is the negative log-likelihood without scaling.
    Priors on coordinates, such as latent values of a generator, then enter by their density, and the sum is a negative
    log-posterior. All restarts are evaluated by one vectorised call if a test shows that torch does this correctly,
    else one after the other.
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
        self._observed = whiten_and_mask(
            {name: t.to(dtype) for name, t in self.observation.released.items()}, self.observation
        )

    @classmethod
    def build(
        cls,
        observation: Observation,
        distance: Distance,
        regularizers: Sequence[Regularizer],
        parametrization: Parametrization,
        labels: Callable[[Variables], Tensor],
    ) -> Objective:
        """Build the objective for an observation; known noise replaces the distance by its likelihood.

        Args:
            observation: The observation to match.
            distance: Distance of releases, used without known noise.
            regularizers: Penalties on candidates.
            parametrization: Coordinates of the candidates.
            labels: Function from variables to labels.

        Returns:
            The objective, with only those penalties whose weight is above zero.
        """
        # A weight of zero also skips the checks of a penalty, such as for images.
        regularizers = [part for part in regularizers if part.weight > 0]
        if observation.noise_std is None:
            # Next to a distance, weights are relative to its value at the start.
            penalties = [(part.weight, part.weight * part.final_share, part) for part in regularizers]
        else:
            distance = likelihood_for(observation)
            penalties = [(part.prior_weight, part.prior_weight, part) for part in regularizers]
        bound = [WeightedPenalty(first, last, part.bind(observation)) for first, last, part in penalties if first > 0]
        return cls(observation, distance, bound, parametrization, labels)

    def __call__(self, variables: Variables) -> Point:
        """Return objective and gradients at ``variables``, after projecting them onto the allowed set."""
        place = self.parametrization.project(variables["inputs"].detach(), self.observation)
        variables = {**{name: value.detach() for name, value in variables.items()}, "inputs": place}
        restarts = len(place)
        self.evaluations += restarts
        # The first call is at the starts, which set the scale of the distance.
        if self._scale is None:
            check_attacked_model(self.observation.forward, self.inputs(variables)[0], self.labels(variables)[0])
            self._scale = self._scale_at(variables)
        if restarts > 1 and self._vectorised is None:
            self._vectorised = self._agrees(variables)
        return self._together(variables) if restarts > 1 and self._vectorised else self._one_by_one(variables)

    def inputs(self, variables: Variables) -> Tensor:
        """Return the candidates at ``variables``."""
        with torch.no_grad():
            return self.parametrization.decode(variables["inputs"], self.observation)

    def _scale_at(self, starts: Variables) -> float:
        """Return the mean distance over the starts, or 1 for a likelihood."""
        if isinstance(self.distance, (GaussianLikelihood, LaplaceLikelihood)):
            return 1.0
        inputs, labels = self.inputs(starts), self.labels(starts)
        with torch.no_grad():
            distances = torch.stack([self._distance(one, of) for one, of in zip(inputs, labels, strict=True)])
        # A start at the solution, or one that overflows, must not set the scale.
        usable = distances[distances.isfinite() & (distances > 0)]
        return float(usable.mean()) if len(usable) else 1.0

    def _values(self, variables: Variables, distances: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the objective now, and the objective with the final weights of the penalties."""
        inputs = self.parametrization.decode(variables["inputs"], self.observation)
        values = distances(inputs, self.labels(variables)) / (self._scale or 1.0)
        if isinstance(self.distance, (GaussianLikelihood, LaplaceLikelihood)):
            values = values + self.parametrization.negative_log_density(variables["inputs"]) / self.distance.dimension
        scores = values
        for part in self.penalties:
            penalty = part.penalty(inputs)
            values, scores = values + part.weight(self.progress) * penalty, scores + part.last * penalty
        return values, scores

    def _distance(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the distance of the candidates of one restart."""
        return self.distance(
            whiten_and_mask(self.observation.forward(inputs, labels), self.observation), self._observed
        )

    def _one_by_one(self, variables: Variables) -> Point:
        """Evaluate the restarts one after the other."""
        leaves = {name: value.detach().requires_grad_() for name, value in variables.items()}

        def distances(inputs: Tensor, labels: Tensor) -> Tensor:
            return torch.stack([self._distance(one, of) for one, of in zip(inputs, labels, strict=True)])

        with torch.enable_grad():
            values, scores = self._values(leaves, distances)
            found = torch.autograd.grad(values.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True)
        return Point(variables, values.detach(), dict(zip(leaves, found, strict=True)), scores.detach())

    def _together(self, variables: Variables) -> Point:
        """Evaluate all restarts by one vectorised call."""

        def total(leaves: Variables) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            values, scores = self._values(leaves, torch.func.vmap(self._distance))
            return values.sum(), (values, scores)

        # Only functorch: autograd around a vectorised gradient is silently wrong for layer norm in torch 2.13.
        gradients, (values, scores) = torch.func.grad(total, has_aux=True)(variables)
        return Point(variables, values.detach(), gradients, scores.detach())

    def _agrees(self, variables: Variables) -> bool:
        """Return True if torch vectorises the objective correctly, tested on two restarts in double precision.

        Single precision would hide errors of a few parts in a thousand, such as that of layer norm in torch 2.13.
        """
        some = {name: value[:2].double() for name, value in variables.items()}
        try:
            plain, fast = self._one_by_one(some), self._together(some)
        except (RuntimeError, ValueError, NotImplementedError):
            return False
        # A restart with a gradient that is not finite cannot be compared.
        usable = torch.stack([value.flatten(1).isfinite().all(1) for value in plain.gradients.values()]).all(0)
        near = torch.finfo(torch.float64).eps ** 0.5  # double precision after two derivatives
        pairs = [(fast.gradients[name][usable], value[usable]) for name, value in plain.gradients.items()]
        return bool(usable.any()) and all(
            torch.allclose(found, expected, rtol=near, atol=near * float(expected.abs().max()))
            for found, expected in pairs
        )


def likelihood_for(observation: Observation) -> GaussianLikelihood | LaplaceLikelihood:
    """Return the negative log-likelihood of the known noise, which replaces the distance.

    Args:
        observation: An observation with known noise.

    Returns:
        The likelihood for Laplacian or Gaussian noise.
    """
    size = observation.batch_size * math.prod(observation.input_shape)
    return LaplaceLikelihood(size) if observation.noise_law == LAPLACE else GaussianLikelihood(size)


def whiten_and_mask(released: Released, observation: Observation) -> dict[str, Tensor]:
    """Prepare released values for a distance: mask values that were not sent and divide by the known noise.

    Args:
        released: Released values by name, of a candidate or of the observation.
        observation: The observation with the mask and the noise.

    Returns:
        The values of the observed names.
    """
    values = {name: released[name] for name in observation.released}
    if observation.kept is not None:
        values = {name: value * observation.kept[name] for name, value in values.items()}
    if observation.noise_std is not None:
        values = {name: value / observation.noise_std[name].to(value.dtype) for name, value in values.items()}
    return values


@dataclass(frozen=True, eq=False)
class Match:
    """Result of a search: records, and the coordinates of the winning restart.

    Attributes:
        estimates: The reconstructed records.
        coordinates: Coordinates that they were decoded from.
        value: Objective of the winning restart.
        status: Status of the search.
        evaluations: Evaluations of the release.
        labels: Classes that the search used, or None.
    """

    estimates: Tensor
    coordinates: Tensor
    value: float
    status: Status
    evaluations: int
    labels: tuple[int, ...] | None

    def reconstruction(self, attack: str, cost: Cost) -> Reconstruction:
        """Return the records as the reconstruction of ``attack`` at ``cost``."""
        objective = (self.value,) * len(self.estimates)
        account = AttackReport(attack, self.status, objective, cost, self.labels)
        return Reconstruction(self.estimates.detach().to(torch.get_default_dtype()), account)


@dataclass(frozen=True, kw_only=True)
class GradientMatching:
    r"""Attack that searches for records whose release is nearest to the observed one, from several starts.

    .. math:: \hat x = \arg\min_x D(f(x), y) + \sum_k \lambda_k R_k(x)

    Here f(x) is the release of the records x, y the observed release, and :math:`\lambda_k` the weight of penalty
    :math:`R_k`.

    All restarts move at once. The estimate is the candidate with the lowest objective seen in the whole search. The
    learning rate follows the larger of the spent shares of ``steps`` and ``seconds``.

    Attributes:
        name: Name of the attack.
        distance: Distance D of releases.
        update: Update rule of the candidates.
        steps: Largest number of steps.
        regularizers: Penalties :math:`R_k` with their weights.
        start: First candidates.
        parametrization: Coordinates of the candidates.
        labels: Strategy for labels that are not known.
        restarts: Number of starts.
        seconds: Time limit in seconds; None for no limit.
        patience: Steps without a gain of one part in a thousand after which the search stops; None for no such limit.
        tolerance: Objective at which the search stops.
        needs: Weakest threat model that allows the attack.
        can_restart: False for attacks without a setting ``restarts``; their status then does not recommend more
            restarts.

    Guarantee: the result is selected by the adversary's own objective. A restart with a NaN objective never wins.
    Edge cases: on interruption it returns the best so far. The time limit is checked between steps.
    """

    name: str
    distance: Distance
    update: UpdateRule
    steps: int
    regularizers: tuple[Regularizer, ...] = ()
    start: Start = field(default_factory=NormalStart)
    parametrization: Parametrization = field(default_factory=Values)
    labels: LabelStrategy = field(default_factory=FixedLabels)
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
        """Return the best candidates with their coordinates."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        labels = self.labels.begin(observation, self.restarts, rng)
        starts = self.start(observation, self.restarts, rng)
        objective = Objective.build(observation, self.distance, self.regularizers, self.parametrization, labels.decode)
        variables = {"inputs": self.parametrization.begin(observation, starts, rng), **labels.variables}
        search = _Search(objective(variables))
        status = self._search(objective, search, begun)
        # By scores, since the weights of penalties change over the search.
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
        """Run the update rule until a stopping criterion holds, and return the status."""
        if objective.observation.is_zero:
            return ZERO_RELEASE
        memory = self.update.begin(search.best)
        bar = ProgressBar(self.name, total=self.steps)
        try:
            for step in range(self.steps):
                spent = 0.0 if self.seconds is None else (time.monotonic() - begun) / self.seconds
                if spent >= 1:
                    return self._budget_spent_status(search, f"{self.seconds:g} seconds, {step} steps", "seconds")
                # Schedules follow the budget that runs out first.
                objective.progress = max(step / self.steps, spent)
                point, memory = self.update.step(objective, search.point, memory, objective.progress)
                search.move(point)
                bar.advance()
                if not bool(search.best.scores.isfinite().any()):
                    return Status(Ending.DIVERGED, "no candidate has a finite objective", "Check the forward map")
                # The default tolerance 0 stops only at an exact match.
                if search.lowest() <= self.tolerance:
                    return Status(Ending.CONVERGED, f"objective {search.lowest():.1e}")
                if self.patience is not None and search.idle >= self.patience:
                    return Status(
                        Ending.CONVERGED, f"no gain in {self.patience} steps, objective {search.lowest():.1e}"
                    )
        except KeyboardInterrupt:
            return Status(Ending.INTERRUPTED, "stopped by the user", "Run again without interruption")
        finally:
            bar.close()
        return self._budget_spent_status(search, f"{self.steps} steps", "steps")

    def _budget_spent_status(self, search: _Search, spent: str, setting: str) -> Status:
        remedy = f"Raise {setting} or restarts" if self.can_restart else f"Raise {setting}"
        return Status(Ending.BUDGET_SPENT, f"objective {search.lowest():.2e} after {spent}", remedy)


@dataclass(eq=False)
class _Search:
    """Current point of every restart, and the best point it has visited."""

    point: Point
    best: Point = field(init=False)
    idle: int = 0

    def __post_init__(self) -> None:
        self.best = self.point
        self._milestone = self.lowest()

    def move(self, point: Point) -> None:
        """Take a step; NaN is never better."""
        self.point = point
        better = (point.scores < self.best.scores) | (point.scores.isfinite() & ~self.best.scores.isfinite())
        self.best = select_points(better, point, self.best)
        lowest = self.lowest()
        # A gain below one part in a thousand does not reset the patience.
        gained = lowest < self._milestone - 1e-3 * abs(self._milestone) or not math.isfinite(self._milestone)
        self._milestone = lowest if gained else self._milestone
        self.idle = 0 if gained else self.idle + 1

    def lowest(self) -> float:
        """Return the lowest objective of all restarts."""
        return float(self.best.scores.nan_to_num(nan=math.inf).min())
