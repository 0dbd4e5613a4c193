"""What a training run has told about each of its records: informations, their errors, and the bounds they give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.bounds.mse.premises import constant_guess_mse
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.core.guarantee import Guarantee
from reconrisk.core.mechanism import Composed, NoiseMechanism, NoisePhase, dp_sgd
from reconrisk.core.storage.result import ReportedResult, Row
from reconrisk.core.validation import check_not_empty, check_probability, invalid_input
from reconrisk.integrations.fisher_accountant.summary import LeakageSummary, summarize

_ROUNDING = 64 * float(np.finfo(float).eps)


@dataclass(frozen=True)
class TrainingPhase:
    """Consecutive steps with one noise multiplier, clip norm and sampling; ``poisson`` is False for shuffled epochs."""

    noise_multiplier: float
    clip_norm: float
    sampling_probability: float
    poisson: bool
    steps: int


@dataclass(frozen=True, eq=False)
class FisherAccount(ReportedResult):
    r"""Estimated traces of the Fisher information of a training run about each tracked record.

    Assumes: each record's label is public, the others are known; estimates are unbiased. One run is an unbiased
    estimate of an upper limit of the information: :func:`average_accounts` several runs before inverting.
    Notation: ``least`` is what finished cycles of evaluations found; ``overshoot`` the largest norm of a clipped
    gradient over the clip norm; ``degrees`` those of freedom behind the standard errors; ``resolution`` is the relative
    precision of the evaluations.
    Reference: Theorems 2 to 4 and Algorithm 1, guo2022. The values depend on private data and must not be published
    (its footnote 2).
    """

    traces: Tensor
    standard_errors: Tensor
    least: Tensor
    degrees: int
    dimension: int
    records: Tensor
    phases: tuple[TrainingPhase, ...]
    overshoot: float
    subsampling: str
    runs: int = 1
    resolution: float = 0.0

    @property
    def steps(self) -> int:
        """Steps of the run so far."""
        return sum(phase.steps for phase in self.phases)

    def dfil(self) -> Tensor:
        """Fisher information leakage per coordinate, tr(I)/d, one value per record."""
        return self.traces / self.dimension

    def upper_traces(self, confidence: float = 0.95) -> Tensor:
        """Upper limits of the traces, each with this confidence by itself, approximately.

        By Student's distribution for the logarithm of the trace, or for the trace where it is not above zero.
        Edge cases: infinite where the standard error is not known yet; never below what finished cycles found, nor
        below what derivatives of the size of rounding errors would tell.
        """
        if not 0.5 <= check_probability("confidence", confidence) < 1:
            raise invalid_input("confidence", confidence, "in [0.5, 1)", "0.95 is usual.")
        quantile = float(stdtrit(self.degrees, confidence)) if self.degrees > 0 else math.inf
        spread = torch.where(self.standard_errors > 0, quantile * self.standard_errors, 0.0)
        # squares are skewed: where their mean is too small, so is their spread, which the logarithm makes up for
        usual = (self.traces > 0) & self.traces.isfinite()
        skewed = self.traces * torch.exp(spread / torch.where(usual, self.traces, 1.0))
        upper = torch.where(usual, skewed, self.traces + spread)
        return torch.maximum(upper, self.least).clamp_min(self._rounded_off())

    def _rounded_off(self) -> float:
        """The information that may hide below rounding: too small to be told from zero is no infinite safety."""
        steps = (
            phase.steps * (phase.sampling_probability / (phase.noise_multiplier * phase.clip_norm)) ** 2
            for phase in self.phases
        )
        return self.dimension * self.resolution**2 * sum(steps)

    def mse_lower_bounds(self, *, confidence: float = 0.95, data_range: tuple[float, float] | None = None) -> Tensor:
        r"""Lower bounds on the mean squared error of unbiased estimates, one per record: d over the upper limit.

        Edge cases: 0 where nothing is known yet; very large for a record that moves nothing, unless ``data_range``
        (low, high) caps it by the error of a constant guess.
        """
        bounds = self.dimension / self.upper_traces(confidence) * (1 - _ROUNDING)
        if data_range is None:
            return bounds
        return bounds.clamp(max=constant_guess_mse(low=data_range[0], high=data_range[1]))

    def mechanism(self) -> NoiseMechanism:
        """The steps as a mechanism, as the Renyi bound reads it.

        Assumes: shuffled epochs are run to their end, so that a record takes part at most once in each.
        """
        if not self.phases:
            raise invalid_input("steps", 0, ">= 1", "Train first.")
        parts = tuple(self._part(phase) for phase in self.phases)
        return parts[0] if len(parts) == 1 else Composed(parts)

    def _part(self, phase: TrainingPhase) -> NoisePhase:
        # a longer clipped gradient is as good as less noise
        noise, rate, steps = phase.noise_multiplier / self.overshoot, phase.sampling_probability, phase.steps
        if not phase.poisson and rate < 1:
            # a phase that begins within an epoch touches one more
            steps = min(steps, math.ceil(steps * rate - 1e-9) + (len(self.phases) > 1))
            rate = 1.0
        return dp_sgd(
            noise_multiplier=noise,
            clip_norm=phase.clip_norm * self.overshoot,
            sampling_probability=rate,
            steps=steps,
        )

    def rdp_bound(self, *, data_range: tuple[float, float]) -> Guarantee:
        """The bound for every record in the box from Renyi DP of the same run (guo2022, Theorem 1)."""
        low, high = data_range
        return mse_lower_bound_from_rdp(replace_one_order_two(self.mechanism()), low=low, high=high)

    def summary(
        self, *, data_range: tuple[float, float] | None = None, confidence: float = 0.95, listed: int = 10
    ) -> LeakageSummary:
        """The distribution over records, the extremes, and the Renyi bound beside it if ``data_range`` is stated."""
        return summarize(self, data_range=data_range, confidence=confidence, listed=listed)

    @property
    def kind(self) -> str:
        """Tag of this kind of result; its JSON is that of the summary."""
        return "fisher-account"

    def to_report(self) -> LeakageSummary:
        """Return :meth:`summary` without a data range."""
        return self.summary()

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each tracked record."""
        bounds, dfil = self.mse_lower_bounds().tolist(), self.dfil().tolist()
        errors = (self.standard_errors / self.dimension).tolist()
        names = ("record", "dfil", "standard_error", "mse_lower_bound")
        rows = zip(self.records.tolist(), dfil, errors, bounds, strict=True)
        return tuple(dict(zip(names, row, strict=True)) for row in rows)


class HasAccount(Protocol):
    """An accountant."""

    def account(self) -> FisherAccount:
        """What it knows so far."""


def average_accounts(runs: Sequence[FisherAccount | HasAccount]) -> FisherAccount:
    """The mean of the informations over independent runs of one training: what guo2022, Theorem 3, bounds.

    Guarantee: invert after averaging, as ``mse_lower_bounds`` of the result does; the mean of the inverses is larger.
    Edge cases: the standard error is that between runs, which contains everything that varies; one run has its own. A
    record that some run evaluated in fewer than three cycles stays unknown.
    """
    check_not_empty("runs", runs)
    accounts = [each if isinstance(each, FisherAccount) else each.account() for each in runs]
    first = accounts[0]
    for each in accounts[1:]:
        for name in ("phases", "dimension", "overshoot", "subsampling"):
            if getattr(each, name) != getattr(first, name):
                raise invalid_input(name, getattr(each, name), f"to equal {getattr(first, name)!r} of the first run")
        if not torch.equal(each.records, first.records):
            raise invalid_input("records", each.records.tolist()[:3], "to be those of the first run")
    if len(accounts) == 1:
        return first
    traces = torch.stack([each.traces for each in accounts])
    unknown = torch.stack([each.standard_errors.isinf() | each.traces.isinf() for each in accounts]).any(0)
    spread = torch.where(unknown, 0.0, traces).std(0) / math.sqrt(len(accounts))
    return FisherAccount(
        traces=traces.mean(0),
        standard_errors=torch.where(unknown, torch.inf, spread),
        least=torch.zeros_like(first.least),
        degrees=len(accounts) - 1,
        dimension=first.dimension,
        records=first.records,
        phases=first.phases,
        overshoot=first.overshoot,
        subsampling=first.subsampling,
        runs=len(accounts),
        resolution=max(each.resolution for each in accounts),
    )
