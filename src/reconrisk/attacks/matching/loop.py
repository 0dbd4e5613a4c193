"""The loop of every attack that matches a release by optimisation.

:class:`GradientMatching` is assembled from values: distance, regularizers, update rule, start, parametrization and
labels. A paper is a function that assembles them (``published.py``); a generative prior is another parametrization.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reconrisk.attacks.matching.distances import Distance
from reconrisk.attacks.matching.initialization import GivenLabels, LabelStrategy, NormalStart, Start
from reconrisk.attacks.matching.objective import Objective
from reconrisk.attacks.matching.optimizers import Point, UpdateRule, chosen
from reconrisk.attacks.matching.parametrizations import Parametrization, Values
from reconrisk.attacks.matching.regularizers import Regularizer
from reconrisk.core.observation import Observation
from reconrisk.core.progress import ProgressBar
from reconrisk.core.reconstruction import ZERO_RELEASE, Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel
from reconrisk.core.validation import check_positive, check_whole


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
        winner = search.winner()
        best = {name: tensor[winner : winner + 1] for name, tensor in search.best.variables.items()}
        return Match(
            estimates=_usable(self.parametrization.finish(objective.inputs(best)[0], observation), observation),
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

    def winner(self) -> int:
        """The restart with the lowest objective."""
        return int(self.best.scores.nan_to_num(nan=math.inf).argmin())


def _usable(estimates: Tensor, observation: Observation) -> Tensor:
    low, high = observation.data_range
    middle = (low + high) / 2
    return estimates.detach().nan_to_num(nan=middle).clamp(low, high).to(torch.get_default_dtype())
