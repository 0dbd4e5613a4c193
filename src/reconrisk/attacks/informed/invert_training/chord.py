"""Many records rebuilt at once from trained models: chord steps, accelerated and safeguarded, each one training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.informed.invert_training.problem import Problem
from reconrisk.attacks.informed.invert_training.tangents import Tangents
from reconrisk.core.progress import track

_SURE = 0.02  # of the residual to be expected: nothing can be gained below
_WINDOW = 4  # trainings in which the residual must halve, or the derivative is taken anew
_STILL = 0.95  # of the residual is left after a window from a derivative taken at the point itself: a minimum, ...
_TWICE = 2  # ... if that was not the first one: steps begin long, and halve where they fail
_LARGEST = 0.1  # of the longest possible step: the first one from a derivative taken elsewhere goes no further


@dataclass(frozen=True)
class Effort:
    """How much is spent on each record: trainings, derivatives taken anew, tangents in each, secants remembered."""

    iterations: int
    refreshes: int
    directions: int
    memory: int


@dataclass(eq=False)
class Fit:
    """Records (n, d) under given labels, and how far their trained models (n, p) are from the observed ones."""

    records: Tensor
    labels: Tensor
    residuals: Tensor

    @property
    def norms(self) -> Tensor:
        """The size of each residual, inf where it is no number."""
        norms: Tensor = self.residuals.norm(dim=1)
        return norms.nan_to_num(nan=torch.inf)


@dataclass(eq=False)
class ChordSearch:
    r"""Steps with a derivative J taken elsewhere, mixed so that what earlier steps taught is used.

    .. math:: g(x) = J^+ (\theta - F(x)), \qquad x' = x + g - \sum_j \gamma_j (\Delta x_j + \Delta g_j), \quad
        \gamma = \arg\min |g - \sum_j \gamma_j \Delta g_j|

    Differences are those of earlier points to the best one. A step counts only if it lowers the residual; after one
    that does not, the next is half as long. Where the residual does not halve in a few steps, J is taken at the
    best point. ``fit`` is always the best so far.
    Notation: ``expected`` is the size of residuals that noise or rounding may leave; where they are below and do not
    halve, the search ends.
    Reference: type II of `Walker and Ni (2011) <https://doi.org/10.1137/10078356X>`_.
    """

    problem: Problem
    observed: Tensor
    expected: Tensor
    data_range: tuple[float, float]
    effort: Effort
    in_time: Callable[[], bool]
    fit: Fit
    tangents: Tangents
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        n, d = self.fit.records.shape
        self._points = torch.zeros(n, self.effort.memory, d, dtype=torch.float64)
        self._steps = torch.zeros_like(self._points)
        self._known = torch.zeros(n, self.effort.memory, dtype=torch.bool)
        self._longest = (self.data_range[1] - self.data_range[0]) * d**0.5
        self._radius = torch.full((n,), _LARGEST * self._longest, dtype=torch.float64)
        self._refreshed = torch.zeros(n, dtype=torch.int64)
        self._open = self.fit.norms.isfinite()
        self._since = torch.zeros(n, dtype=torch.int64)
        self._before = self.fit.norms
        self._begin(torch.arange(n))

    def run(self, label: str) -> None:
        """Go on until every record fits as well as rounding allows, or nothing helps."""
        for number in track(range(self.effort.iterations), label):
            rows = self._open.nonzero()[:, 0]
            if not len(rows) or not self.in_time():
                return
            self._advance(rows, number)
            self._judge(rows)

    def _begin(self, rows: Tensor) -> None:
        """Count progress of these rows from here, with the derivative they have now."""
        self._known[rows] = False
        self._step = self.tangents.solve(_finite(self.fit.residuals))
        self._since[rows] = 0
        self._before[rows] = self.fit.norms[rows]

    def _advance(self, rows: Tensor, number: int) -> None:
        low, high = self.data_range
        change = self._proposed(rows)
        length = change.norm(dim=1)
        change = change * (self._radius[rows] / length.clamp_min(1e-300)).clamp_max(1)[:, None]
        points = (self.fit.records[rows] + change).clamp(low, high)
        residuals = self.observed[rows] - self.problem.values(points.to(self.dtype), self.fit.labels[rows]).double()
        whole = self.fit.residuals.clone()
        whole[rows] = residuals
        steps = self.tangents.solve(_finite(whole))[rows]
        norms = residuals.norm(dim=1).nan_to_num(nan=torch.inf)
        place = number % self.effort.memory
        better = norms < self.fit.norms[rows]
        gone = rows[better]
        # the point left behind teaches as well as one that was refused
        self._points[rows, place] = torch.where(better[:, None], self.fit.records[rows], points)
        self._steps[rows, place] = torch.where(better[:, None], self._step[rows], steps)
        self._known[rows, place] = norms.isfinite()
        self.fit.records[gone], self.fit.residuals[gone] = points[better], residuals[better]
        self._step[gone] = steps[better]
        taken = length.minimum(self._radius[rows])
        self._radius[rows] = torch.where(better, self._radius[rows].maximum(2 * taken), taken / 2)

    def _proposed(self, rows: Tensor) -> Tensor:
        """The mixed step of each row."""
        known = self._known[rows][:, :, None]
        points = (self._points[rows] - self.fit.records[rows][:, None]) * known
        steps = (self._steps[rows] - self._step[rows][:, None]) * known
        size = steps.norm(dim=2, keepdim=True).clamp_min(1e-300)
        sides = (steps / size).mT
        target = self._step[rows][:, :, None]
        solved: Tensor = torch.linalg.lstsq(sides, target, rcond=1e-6, driver="gelsd").solution
        mix = solved / size
        mixed: Tensor = target - (points + steps).mT @ mix
        return mixed[:, :, 0]

    def _judge(self, rows: Tensor) -> None:
        """Close what fits to rounding, and renew the derivative of what no longer gets better."""
        norms = self.fit.norms
        self._since[rows] += 1
        due = rows[self._since[rows] >= _WINDOW]
        halved = due[norms[due] <= 0.5 * self._before[due]]
        self._since[halved] = 0
        self._before[halved] = norms[halved]
        stuck = due[norms[due] > 0.5 * self._before[due]]
        fits = norms[stuck] <= self.expected[stuck]
        still = (self._refreshed[stuck] >= _TWICE) & (norms[stuck] > _STILL * self._before[stuck])
        spent = still | (self._refreshed[stuck] >= self.effort.refreshes)
        self._open[stuck[fits | spent]] = False
        self._open[rows[norms[rows] <= _SURE * self.expected[rows]]] = False
        renewed = stuck[~(fits | spent)]
        if len(renewed):
            points = self.fit.records[renewed].to(self.problem.coarse)
            fresh = self.problem.tangents(points, self.fit.labels[renewed], self.effort.directions)
            self.tangents = self.tangents.replaced(renewed, fresh)
            self._refreshed[renewed] += 1
            self._radius[renewed] = self._longest
            self._begin(renewed)


def _finite(residuals: Tensor) -> Tensor:
    """Residuals without those that are no numbers, which no step can be taken from."""
    return residuals.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
