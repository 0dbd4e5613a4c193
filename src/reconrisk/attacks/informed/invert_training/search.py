"""Search for records under every possible label, and the fit of each record to its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from scipy.stats import chi2
from torch import Tensor

from reconrisk.attacks.informed.invert_training.chord import ChordSearch, Effort, Fit
from reconrisk.attacks.informed.invert_training.problem import Problem
from reconrisk.attacks.informed.invert_training.tangents import Tangents
from reconrisk.attacks.informed.invert_training.weighted import LikelihoodFit

EXACT = 3.0
"""Multiple of the rounding of the victim's training: a record with a smaller residual fits the model exactly."""

_MANY_STEPS = 30.0  # times machine epsilon: rounding accumulated over many steps of training stays below it
_NOISE = 1.1  # times the expected length of the noise: the residual of the true record stays below it
_RARE = 1e-4  # probability that the true record is reported as not fitting its model
_GLANCE = 5  # trainings per label before the most promising labels are chosen
_EXACT_STEPS = 8  # likelihood steps with exact derivatives at most
_WIDER = 4  # factor on the number of directions for models that the first search does not fit
_AT_ONCE = 16  # models whose labels are tried together: their derivatives take memory


@dataclass(eq=False)
class Inversion:
    """Search for the records behind trained models.

    Attributes:
        problem: Training as a function of the record.
        observed: Observed models (n, p), in units of their noise if there is any.
        released: Floating point type of the released values.
        noisy: Number of released values with known noise, 0 without noise.
        starts: First estimate, one record per class or one for all.
        labels: Known labels (n,), None if they are tried.
        data_range: Range of the values of records.
        effort: Limits on the trainings and derivatives of a search.
        labels_tried: Number of labels that are searched first, and of further labels if none of these fits.
        in_time: Function that returns False once the time is up.
    """

    problem: Problem
    observed: Tensor
    released: torch.dtype
    noisy: int
    starts: Tensor
    labels: Tensor | None
    data_range: tuple[float, float]
    effort: Effort
    labels_tried: int
    in_time: Callable[[], bool]

    def __post_init__(self) -> None:
        n = len(self.observed)
        labels = torch.zeros(n, dtype=torch.int64) if self.labels is None else self.labels
        self.fit = Fit(self._start(labels), labels.clone(), torch.full_like(self.observed, torch.inf))
        single, released = (torch.finfo(kind).eps for kind in (torch.float32, self.released))
        # a half-precision release was still trained in float32; its own rounding is added once
        rounding = (_MANY_STEPS * min(single, released) + released) * self.observed.norm(dim=1)
        self.rounding: Tensor = released * self.observed.norm(dim=1)
        self._expected = torch.full_like(rounding, _NOISE * self.noisy**0.5) if self.noisy else rounding
        self.accuracy = torch.full((n,), torch.inf, dtype=torch.float64)
        self._whole = False
        self._known: dict[int, Tangents] = {}
        self._running: tuple[Tensor, ChordSearch] | None = None

    def run(self) -> bool:
        """Try labels, the most likely first, until a record fits its model; return True if interrupted."""
        try:
            order, norms, begun = self._rank_first_labels()
            self._reconstruct(torch.arange(len(self.observed)), begun)
            if order.shape[1] > 1:
                self._try_other_labels(order, norms)
            self._add_directions()
        except KeyboardInterrupt:
            if self._running is not None:
                rows, search = self._running
                self._keep_better(rows, search.fit)
            return True
        return False

    @property
    def within_tolerance(self) -> Tensor:
        """Mask of the models whose residual is no larger than rounding, or than the known noise."""
        limits: Tensor = self._expected if self.noisy else EXACT * self.rounding
        return self.fit.norms <= limits

    @property
    def plausible(self) -> Tensor:
        """Mask of the models reported as fitted; under noise the test rejects one in ten thousand true records."""
        if not self.noisy:
            return self.within_tolerance
        return self.within_tolerance | (self.fit.norms.square() <= float(chi2.isf(_RARE, self.noisy)))

    @property
    def sizes(self) -> Tensor:
        """Residuals in units of rounding, or with noise half their square in units of the noise."""
        norms = self.fit.norms
        return norms.square() / 2 if self.noisy else norms / self.rounding.clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def errors(self) -> Tensor:
        """Expected root mean square errors of the records, from rounding or from the known noise."""
        return self.accuracy if self.noisy else self.accuracy * self.rounding / self.observed.shape[1] ** 0.5

    def _start(self, labels: Tensor) -> Tensor:
        return self.starts[labels if len(self.starts) > 1 else torch.zeros(len(labels), dtype=torch.int64)].clone()

    def _start_search(self, rows: Tensor, labels: Tensor) -> ChordSearch:
        """Prepare a search for these models under ``labels``; the derivative is shared within a class."""
        shared = self.problem.classes is not None
        kinds, which = torch.unique(labels, return_inverse=True) if shared else (labels, torch.arange(len(labels)))
        points = self._start(kinds).to(self.problem.coarse)
        values = self.problem.values(points, kinds).double()[which]
        tangents = self._tangents(points, kinds).select(which)
        self._whole = len(tangents.basis) == self.problem.d
        fit = Fit(self._start(labels), labels.clone(), self.observed[rows] - values)
        return self._search(rows, fit, tangents, self.problem.coarse)

    def _tangents(self, points: Tensor, labels: Tensor) -> Tangents:
        if self.problem.classes is None:
            return self.problem.tangents(points, labels, self.effort.directions)
        for point, label in zip(points, labels, strict=True):
            if int(label) not in self._known:
                self._known[int(label)] = self.problem.tangents(point[None], label[None], self.effort.directions)
        return Tangents.concatenate([self._known[int(label)] for label in labels])

    def _search(self, rows: Tensor, fit: Fit, tangents: Tangents, dtype: torch.dtype) -> ChordSearch:
        rounding = _MANY_STEPS * self.observed[rows].norm(dim=1) * torch.finfo(dtype).eps
        expected = self._expected[rows].maximum(rounding)
        settings = (self.data_range, self.effort, self.in_time)
        search = ChordSearch(self.problem, self.observed[rows], expected, *settings, fit, tangents, dtype)
        self._running = rows, search
        return search

    def _rank_first_labels(self) -> tuple[Tensor, Tensor, ChordSearch]:
        """Rank the nearest labels of each model; return them, their residuals and the search under the best."""
        n, classes = len(self.observed), self.problem.classes
        everyone = torch.arange(n)
        if self.labels is not None or classes is None:
            begun = self._start_search(everyone, self.fit.labels)
            return self.fit.labels[:, None], begun.fit.norms[:, None], begun
        every = torch.arange(classes)
        values = self.problem.values(self._start(every).to(self.problem.coarse), every).double()
        distances = torch.stack([(self.observed - one).norm(dim=1) for one in values], 1)
        # a label is promising if the model trained on its start is near to the observed one
        order = distances.nan_to_num(nan=torch.inf).argsort(1)[:, : self.labels_tried]
        order, norms, fits = self._rank_labels_in_chunks(everyone, order)
        fit = Fit(*(torch.cat([getattr(one, name) for one in fits]) for name in ("records", "labels", "residuals")))
        tangents = self._tangents(self._start(fit.labels).to(self.problem.coarse), fit.labels)
        return order, norms, self._search(everyone, fit, tangents, self.problem.coarse)

    def _try_other_labels(self, tried: Tensor, norms: Tensor) -> None:
        """Take a few steps under all other labels where the first did not fit, then search the best of them in turn."""
        rows = (~self.within_tolerance).nonzero()[:, 0]
        if not len(rows) or not self.in_time():
            return
        order, norms = tried[rows], norms[rows]
        every = torch.arange(self.problem.classes or 0)
        others = torch.stack([every[~torch.isin(every, known)] for known in order])
        if others.shape[1]:
            ranked, found, _ = self._rank_labels_in_chunks(rows, others)
            order, norms = torch.cat([order, ranked], 1), torch.cat([norms, found], 1)
        ranks = norms[:, 1:].argsort(1) + 1  # the first label was searched already
        for attempt in range(min(self.labels_tried, ranks.shape[1])):
            left = (~self.within_tolerance[rows]).nonzero()[:, 0]
            if not len(left) or not self.in_time():
                return
            labels = order[left].gather(1, ranks[left, attempt : attempt + 1])[:, 0]
            self._reconstruct(rows[left], self._start_search(rows[left], labels))

    def _rank_labels_in_chunks(self, rows: Tensor, order: Tensor) -> tuple[Tensor, Tensor, list[Fit]]:
        parts = [self._rank_labels(rows[some], order[some]) for some in torch.arange(len(rows)).split(_AT_ONCE)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]), [one[2] for one in parts]

    def _rank_labels(self, rows: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Fit]:
        """Rank labels by their residuals after a few steps; return them with the fit under the best one."""
        count = order.shape[1]
        # one search over all pairs of model and label
        search = self._start_search(rows.repeat_interleave(count), order.flatten())
        if count > 1:
            search.effort = replace(self.effort, iterations=_GLANCE, refreshes=0)
            search.run("labels")
        norms = search.fit.norms.view(-1, count)
        ranks = norms.argsort(1)
        best = ranks[:, 0] + count * torch.arange(len(rows))
        found = search.fit
        fit = Fit(found.records[best], found.labels[best], found.residuals[best])
        return order.gather(1, ranks), norms.gather(1, ranks), fit

    def _reconstruct(self, rows: Tensor, search: ChordSearch) -> None:
        """Search in coarse, then in double precision; keep fits that improve on the best so far."""
        self._running = rows, search
        search.run("records")
        if search.dtype != torch.float64:  # polish: float32 cannot reach the rounding of the released values
            fit = search.fit
            fit.residuals = self.observed[rows] - self.problem.values(fit.records, fit.labels)
            search = self._search(rows, fit, search.tangents, torch.float64)
            search.run("records, double precision")
        if self.noisy:
            fit = search.fit
            for place, row in enumerate(rows):
                settings = (fit.labels[place], self.data_range, self.in_time)
                exact = LikelihoodFit(self.problem, self.observed[row], *settings)
                fit.records[place], fit.residuals[place] = exact.run(fit.records[place], _EXACT_STEPS)
        kept = self._keep_better(rows, search.fit)
        self._running = None
        self.accuracy[rows[kept]] = search.tangents.spread()[kept]
        if not self.noisy:
            self._measure_rounding(rows)

    def _add_directions(self) -> None:
        """Continue unfitted models from their best record with more directions, if the derivative was truncated."""
        rows = (~self.within_tolerance & self.fit.norms.isfinite()).nonzero()[:, 0]
        effort = replace(self.effort, directions=_WIDER * self.effort.directions)
        if not len(rows) or self.noisy or self._whole or not self.in_time():
            return
        self.effort, best = effort, self.fit
        fit = Fit(best.records[rows], best.labels[rows], best.residuals[rows])
        tangents = self.problem.tangents(fit.records.to(self.problem.coarse), fit.labels, effort.directions)
        self._reconstruct(rows, self._search(rows, fit, tangents, self.problem.coarse))

    def _keep_better(self, rows: Tensor, fit: Fit) -> Tensor:
        """Store the fits that improve on the best so far; return their mask."""
        better = fit.norms < self.fit.norms[rows]
        chosen = rows[better]
        self.fit.records[chosen], self.fit.labels[chosen] = fit.records[better], fit.labels[better]
        self.fit.residuals[chosen] = fit.residuals[better]
        return better

    def _measure_rounding(self, rows: Tensor) -> None:
        """Measure the rounding error of training in the precision of the victim, at the records found."""
        records, labels = self.fit.records[rows], self.fit.labels[rows]
        double = self.problem.values(records, labels)
        single = self.problem.values(records.float(), labels)
        if self.released == torch.float64:
            # nothing more precise is available: scale the rounding of float32 by the ratio of the precisions
            lost = (double - single).norm(dim=1) * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        else:
            lost = (double - single.to(self.released)).norm(dim=1)
        least = 4.0 if self.released == torch.float64 else 0.25  # the search itself rounds in double precision
        self.rounding[rows] = lost.maximum(least * torch.finfo(self.released).eps * self.observed[rows].norm(dim=1))
