"""From trained models to records under every label that may be theirs, and how well each explains its model."""

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
"""Times the rounding of the victim's training: a record whose residual is below explains the model completely."""

_MANY_STEPS = 30.0  # times the precision of a model: rounding of many steps of training stays below
_NOISE = 1.1  # times the size of noise: its residual stays below
_RARE = 1e-4  # probability of a residual by which a record is said not to explain its model, though it does
_GLANCE = 5  # trainings after which the labels worth going on with are chosen
_EXACT_STEPS = 8  # with exact derivatives, once noise decides
_WIDER = 4  # times more directions for what few do not solve
_AT_ONCE = 16  # models whose labels are tried together: their derivatives take memory


@dataclass(eq=False)
class Inversion:
    """Records behind the models ``observed`` (n, p), in units of their noise if there are ``noisy`` values.

    ``labels`` are the known ones or None, ``starts`` a record for each class or one for all, ``released`` the
    precision of what was released. ``fit`` is the best so far.
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
        rounding = (_MANY_STEPS * min(single, released) + released) * self.observed.norm(dim=1)
        self.rounding: Tensor = released * self.observed.norm(dim=1)
        self._expected = torch.full_like(rounding, _NOISE * self.noisy**0.5) if self.noisy else rounding
        self.accuracy = torch.full((n,), torch.inf, dtype=torch.float64)
        self._whole = False
        self._known: dict[int, Tangents] = {}
        self._running: tuple[Tensor, ChordSearch] | None = None

    def run(self) -> bool:
        """Try labels, best first, until a record explains its model; whether the user stopped it."""
        try:
            order, norms, begun = self._glance()
            self._attempt(torch.arange(len(self.observed)), begun)
            if order.shape[1] > 1:
                self._go_on(order, norms)
            self._widen()
        except KeyboardInterrupt:
            if self._running is not None:
                rows, search = self._running
                self._keep(rows, search.fit)
            return True
        return False

    @property
    def explained(self) -> Tensor:
        """Which residuals are no larger than rounding, or than the known noise."""
        limits: Tensor = self._expected if self.noisy else EXACT * self.rounding
        return self.fit.norms <= limits

    @property
    def plausible(self) -> Tensor:
        """Which models are told to be explained: under noise, all but one in ten thousand that are."""
        if not self.noisy:
            return self.explained
        return self.explained | (self.fit.norms.square() <= float(chi2.isf(_RARE, self.noisy)))

    @property
    def sizes(self) -> Tensor:
        """Residuals in units of rounding, or with noise half their square in units of it."""
        norms = self.fit.norms
        return norms.square() / 2 if self.noisy else norms / self.rounding.clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def errors(self) -> Tensor:
        """Root mean square errors of the records to be expected from rounding, or from the known noise."""
        return self.accuracy if self.noisy else self.accuracy * self.rounding / self.observed.shape[1] ** 0.5

    def _start(self, labels: Tensor) -> Tensor:
        return self.starts[labels if len(self.starts) > 1 else torch.zeros(len(labels), dtype=torch.int64)].clone()

    def _begun(self, rows: Tensor, labels: Tensor) -> ChordSearch:
        """A search for these models under ``labels``, before its first step; derivatives are shared by a class."""
        shared = self.problem.classes is not None
        kinds, which = torch.unique(labels, return_inverse=True) if shared else (labels, torch.arange(len(labels)))
        points = self._start(kinds).to(self.problem.coarse)
        values = self.problem.values(points, kinds).double()[which]
        tangents = self._tangents(points, kinds).repeated(which)
        self._whole = len(tangents.basis) == self.problem.d
        fit = Fit(self._start(labels), labels.clone(), self.observed[rows] - values)
        return self._search(rows, fit, tangents, self.problem.coarse)

    def _tangents(self, points: Tensor, labels: Tensor) -> Tangents:
        if self.problem.classes is None:
            return self.problem.tangents(points, labels, self.effort.directions)
        for point, label in zip(points, labels, strict=True):
            if int(label) not in self._known:
                self._known[int(label)] = self.problem.tangents(point[None], label[None], self.effort.directions)
        return Tangents.joined([self._known[int(label)] for label in labels])

    def _search(self, rows: Tensor, fit: Fit, tangents: Tangents, dtype: torch.dtype) -> ChordSearch:
        rounding = _MANY_STEPS * self.observed[rows].norm(dim=1) * torch.finfo(dtype).eps
        expected = self._expected[rows].maximum(rounding)
        settings = (self.data_range, self.effort, self.in_time)
        search = ChordSearch(self.problem, self.observed[rows], expected, *settings, fit, tangents, dtype)
        self._running = rows, search
        return search

    def _glance(self) -> tuple[Tensor, Tensor, ChordSearch]:
        """For each model its labels, most likely first, with their residuals, and the search under the first so far."""
        n, classes = len(self.observed), self.problem.classes
        everyone = torch.arange(n)
        if self.labels is not None or classes is None:
            begun = self._begun(everyone, self.fit.labels)
            return self.fit.labels[:, None], begun.fit.norms[:, None], begun
        every = torch.arange(classes)
        values = self.problem.values(self._start(every).to(self.problem.coarse), every).double()
        distances = torch.stack([(self.observed - one).norm(dim=1) for one in values], 1)
        order = distances.nan_to_num(nan=torch.inf).argsort(1)[:, : self.labels_tried]
        order, norms, fits = self._tried_in_parts(everyone, order)
        fit = Fit(*(torch.cat([getattr(one, name) for one in fits]) for name in ("records", "labels", "residuals")))
        tangents = self._tangents(self._start(fit.labels).to(self.problem.coarse), fit.labels)
        return order, norms, self._search(everyone, fit, tangents, self.problem.coarse)

    def _go_on(self, tried: Tensor, norms: Tensor) -> None:
        """A few steps under all other labels where the first one explains nothing, then the best of them in turn."""
        rows = (~self.explained).nonzero()[:, 0]
        if not len(rows) or not self.in_time():
            return
        order, norms = tried[rows], norms[rows]
        every = torch.arange(self.problem.classes or 0)
        others = torch.stack([every[~torch.isin(every, known)] for known in order])
        if others.shape[1]:
            ranked, found, _ = self._tried_in_parts(rows, others)
            order, norms = torch.cat([order, ranked], 1), torch.cat([norms, found], 1)
        ranks = norms[:, 1:].argsort(1) + 1  # the first of all has had its turn
        for attempt in range(min(self.labels_tried, ranks.shape[1])):
            left = (~self.explained[rows]).nonzero()[:, 0]
            if not len(left) or not self.in_time():
                return
            labels = order[left].gather(1, ranks[left, attempt : attempt + 1])[:, 0]
            self._attempt(rows[left], self._begun(rows[left], labels))

    def _tried_in_parts(self, rows: Tensor, order: Tensor) -> tuple[Tensor, Tensor, list[Fit]]:
        parts = [self._tried(rows[some], order[some]) for some in torch.arange(len(rows)).split(_AT_ONCE)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]), [one[2] for one in parts]

    def _tried(self, rows: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Fit]:
        """Labels ranked by the residuals that a few steps under each leave, and what they led to under the best."""
        count = order.shape[1]
        search = self._begun(rows.repeat_interleave(count), order.flatten())
        if count > 1:
            search.effort = replace(self.effort, iterations=_GLANCE, refreshes=0)
            search.run("labels")
        norms = search.fit.norms.view(-1, count)
        ranks = norms.argsort(1)
        best = ranks[:, 0] + count * torch.arange(len(rows))
        found = search.fit
        fit = Fit(found.records[best], found.labels[best], found.residuals[best])
        return order.gather(1, ranks), norms.gather(1, ranks), fit

    def _attempt(self, rows: Tensor, search: ChordSearch) -> None:
        """Rebuild these, first in coarse, then in double precision; keep what fits better than what there was."""
        self._running = rows, search
        search.run("records")
        if search.dtype != torch.float64:
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
        kept = self._keep(rows, search.fit)
        self._running = None
        self.accuracy[rows[kept]] = search.tangents.spread()[kept]
        if not self.noisy:
            self._measure_rounding(rows)

    def _widen(self) -> None:
        """Go on with more directions from the best record of what is not explained, if the derivative was cut short."""
        rows = (~self.explained & self.fit.norms.isfinite()).nonzero()[:, 0]
        effort = replace(self.effort, directions=_WIDER * self.effort.directions)
        if not len(rows) or self.noisy or self._whole or not self.in_time():
            return
        self.effort, best = effort, self.fit
        fit = Fit(best.records[rows], best.labels[rows], best.residuals[rows])
        tangents = self.problem.tangents(fit.records.to(self.problem.coarse), fit.labels, effort.directions)
        self._attempt(rows, self._search(rows, fit, tangents, self.problem.coarse))

    def _keep(self, rows: Tensor, fit: Fit) -> Tensor:
        better = fit.norms < self.fit.norms[rows]
        chosen = rows[better]
        self.fit.records[chosen], self.fit.labels[chosen] = fit.records[better], fit.labels[better]
        self.fit.residuals[chosen] = fit.residuals[better]
        return better

    def _measure_rounding(self, rows: Tensor) -> None:
        """What training in the victim's precision makes of the records found: how far a true record may be off."""
        records, labels = self.fit.records[rows], self.fit.labels[rows]
        double = self.problem.values(records, labels)
        single = self.problem.values(records.float(), labels)
        if self.released == torch.float64:
            lost = (double - single).norm(dim=1) * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        else:
            lost = (double - single.to(self.released)).norm(dim=1)
        least = 4.0 if self.released == torch.float64 else 0.25  # the search rounds in double precision as well
        self.rounding[rows] = lost.maximum(least * torch.finfo(self.released).eps * self.observed[rows].norm(dim=1))
