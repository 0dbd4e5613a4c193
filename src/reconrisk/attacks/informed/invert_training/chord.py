"""Reconstruction of many records at once by accelerated, safeguarded chord steps; each step is one training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.informed.invert_training.problem import Problem
from reconrisk.attacks.informed.invert_training.tangents import Tangents
from reconrisk.core.progress import track

_SURE = 0.02  # of the expected residual: below it nothing can be gained
_WINDOW = 4  # trainings in which the residual must halve, or the derivative is taken anew
# A local minimum is assumed if a derivative at the point itself leaves 95 % of the residual after a window. The first
# such derivative does not count: its steps start long and halve when they fail, so they may only have been too long.
_STILL = 0.95
_TWICE = 2
_LARGEST = 0.1  # of the longest possible step: limit of the first step, whose derivative was taken elsewhere


@dataclass(frozen=True)
class Effort:
    """Effort per record.

    Attributes:
        iterations: Largest number of trainings.
        refreshes: Largest number of times that the derivative is computed anew.
        directions: Number of directions along which each derivative is computed.
        memory: Number of earlier steps that a step is mixed with.
    """

    iterations: int
    refreshes: int
    directions: int
    memory: int


@dataclass(eq=False)
class Fit:
    """Records under given labels, and the residuals of their trained models.

    Attributes:
        records: Flat records (n, d).
        labels: Their labels (n,).
        residuals: Observed minus trained parameters (n, p).
    """

    records: Tensor
    labels: Tensor
    residuals: Tensor

    @property
    def norms(self) -> Tensor:
        """Length of each residual, inf if it is not a number."""
        norms: Tensor = self.residuals.norm(dim=1)
        return norms.nan_to_num(nan=torch.inf)


@dataclass(eq=False)
class ChordSearch:
    r"""Chord steps with a derivative J taken at another point, mixed with earlier steps (Anderson acceleration).

    .. math:: g(x) = J^+ (\theta - F(x)), \qquad x' = x + g - \sum_j \gamma_j (\Delta x_j + \Delta g_j), \quad
        \gamma = \arg\min |g - \sum_j \gamma_j \Delta g_j|

    Here F is the training, :math:`\theta` the observed model, and :math:`J^+` the pseudoinverse of J. The differences
    :math:`\Delta x_j` and :math:`\Delta g_j` are between earlier points and the best point. A step counts only if it
    lowers the residual; after a failed step the next is half as long. If the residual does not halve in a few steps, J
    is taken at the best point. ``fit`` is always the best so far.

    ``expected`` is the length of residuals that noise or rounding may leave. The search of a record ends if its
    residual is below that and no longer halves.

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
        self._reset_progress(torch.arange(n))

    def run(self, label: str) -> None:
        """Iterate until every record fits as well as rounding allows, or no step helps."""
        for number in track(range(self.effort.iterations), label):
            rows = self._open.nonzero()[:, 0]
            if not len(rows) or not self.in_time():
                return
            self._advance(rows, number)
            self._close_or_refresh(rows)

    def _reset_progress(self, rows: Tensor) -> None:
        """Measure the progress of these rows from here, with their current derivative."""
        self._known[rows] = False
        self._step = self.tangents.solve(_finite(self.fit.residuals))
        self._since[rows] = 0
        self._before[rows] = self.fit.norms[rows]

    def _advance(self, rows: Tensor, number: int) -> None:
        """Take one safeguarded step of these rows: one training each."""
        low, high = self.data_range
        change = self._mixed_step(rows)
        length = change.norm(dim=1)
        change = change * (self._radius[rows] / length.clamp_min(1e-300)).clamp_max(1)[:, None]  # avoids 0 / 0
        points = (self.fit.records[rows] + change).clamp(low, high)
        residuals = self.observed[rows] - self.problem.values(points.to(self.dtype), self.fit.labels[rows]).double()
        # solve() factors all rows once; rows that are not advanced are solved along and ignored
        whole = self.fit.residuals.clone()
        whole[rows] = residuals
        steps = self.tangents.solve(_finite(whole))[rows]
        norms = residuals.norm(dim=1).nan_to_num(nan=torch.inf)
        place = number % self.effort.memory  # ring buffer of the latest secants
        better = norms < self.fit.norms[rows]
        gone = rows[better]
        # both the point left behind and a refused point are useful secants for the mixing
        self._points[rows, place] = torch.where(better[:, None], self.fit.records[rows], points)
        self._steps[rows, place] = torch.where(better[:, None], self._step[rows], steps)
        self._known[rows, place] = norms.isfinite()
        self.fit.records[gone], self.fit.residuals[gone] = points[better], residuals[better]
        self._step[gone] = steps[better]
        taken = length.minimum(self._radius[rows])
        # trust region: may grow to twice a successful step, shrinks to half of a failed one
        self._radius[rows] = torch.where(better, self._radius[rows].maximum(2 * taken), taken / 2)

    def _mixed_step(self, rows: Tensor) -> Tensor:
        """Step of each row after mixing with earlier ones."""
        known = self._known[rows][:, :, None]
        points = (self._points[rows] - self.fit.records[rows][:, None]) * known
        steps = (self._steps[rows] - self._step[rows][:, None]) * known
        # unit columns make the cut-off rcond independent of the lengths of the secants
        size = steps.norm(dim=2, keepdim=True).clamp_min(1e-300)
        sides = (steps / size).mT
        target = self._step[rows][:, :, None]
        # nearly parallel secants are cut off; gelsd is the driver that handles rank deficiency
        solved: Tensor = torch.linalg.lstsq(sides, target, rcond=1e-6, driver="gelsd").solution
        mix = solved / size
        mixed: Tensor = target - (points + steps).mT @ mix
        return mixed[:, :, 0]

    def _close_or_refresh(self, rows: Tensor) -> None:
        """Close rows that fit to rounding, and renew the derivative of rows that no longer improve."""
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
            self.tangents = self.tangents.replace_rows(renewed, fresh)
            self._refreshed[renewed] += 1
            self._radius[renewed] = self._longest  # a derivative at the point itself allows full steps
            self._reset_progress(renewed)


def _finite(residuals: Tensor) -> Tensor:
    """Replace residuals that are not numbers by zero: no step can be derived from them."""
    return residuals.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
