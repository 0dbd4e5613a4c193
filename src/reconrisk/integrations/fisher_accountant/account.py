"""Result of Fisher accounting: information about each record, its standard errors, and the resulting bounds."""

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
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Guarantee
from reconrisk.core.mechanism import Composed, NoiseMechanism, NoisePhase, dp_sgd
from reconrisk.core.storage.result import ReportedResult, Row
from reconrisk.core.validation import check_not_empty, check_probability, invalid_input
from reconrisk.integrations.fisher_accountant.summary import LeakageSummary, summarize

_ROUNDING = 64 * float(np.finfo(float).eps)  # relative margin of a bound for rounding


@dataclass(frozen=True)
class TrainingPhase:
    """Consecutive training steps with the same settings.

    Attributes:
        noise_multiplier: Standard deviation of the noise divided by the clip norm.
        clip_norm: Largest norm of the gradient of a record.
        sampling_probability: Probability that a record is in the batch of a step.
        poisson: True for Poisson samples, False for shuffled epochs.
        steps: Number of steps.
    """

    noise_multiplier: float
    clip_norm: float
    sampling_probability: float
    poisson: bool
    steps: int


@dataclass(frozen=True, eq=False)
class FisherAccount(ReportedResult):
    """Estimated traces of the Fisher information of a training run about each tracked record.

    Attributes:
        traces: Estimated trace for each tracked record.
        standard_errors: Standard errors of ``traces``, absolute; infinite while unknown.
        least: Trace found by finished cycles, which evaluate every record once; upper limits are never below it.
        degrees: Degrees of freedom of the standard errors.
        dimension: Number of coordinates of a record.
        records: Indices of the tracked records.
        phases: Settings of the training, in order.
        overshoot: Largest norm of a clipped gradient divided by the clip norm; above 1 only for smooth clipping.
        subsampling: Factor for amplification by sampling: ``"exact"``, ``"none"`` or ``"guo2022"``.
        runs: Number of training runs that were averaged.
        resolution: Relative rounding error of the evaluations, such as 1.2e-7 for float32.

    Assumes: the label of each record is public, the other records are known; estimates are unbiased. The trace of one
    run is an unbiased estimate of an upper limit of the information. Call :func:`average_accounts` on several runs
    before you compute bounds.
    Reference: Theorems 2 to 4 and Algorithm 1, guo2022. The values depend on private data and must not be published
    (footnote 2 of guo2022).

    >>> phase = TrainingPhase(noise_multiplier=1.0, clip_norm=1.0, sampling_probability=0.1, poisson=True, steps=5)
    >>> account = FisherAccount(
    ...     traces=torch.tensor([4.0]), standard_errors=torch.zeros(1), least=torch.zeros(1), degrees=3,
    ...     dimension=2, records=torch.tensor([0]), phases=(phase,), overshoot=1.0, subsampling="exact",
    ... )
    >>> account.dfil(), account.mse_lower_bounds()
    (tensor([2.]), tensor([0.5000]))
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
        """Number of steps so far."""
        return sum(phase.steps for phase in self.phases)

    def dfil(self) -> Tensor:
        """Return the Fisher information leakage per coordinate, tr(I)/d, one value per record.

        Here I is the Fisher information about the record and d its number of coordinates.
        """
        return self.traces / self.dimension

    def upper_traces(self, confidence: float = 0.95) -> Tensor:
        """Return approximate upper limits of the traces, each with this confidence by itself.

        Uses Student's distribution for the logarithm of the trace, or for the trace if it is not above zero.
        Edge cases: infinite while the standard error is unknown; never below the result of finished cycles, nor below
        the information in derivatives of the size of rounding errors.
        """
        if not 0.5 <= check_probability("confidence", confidence) < 1:
            raise invalid_input("confidence", confidence, "in [0.5, 1)", "Pass 0.95, for instance.")
        # without degrees of freedom the spread is unknown, and the limit infinite
        quantile = float(stdtrit(self.degrees, confidence)) if self.degrees > 0 else math.inf
        spread = torch.where(self.standard_errors > 0, quantile * self.standard_errors, 0.0)
        # sums of squares are skewed: a mean that is too small comes with a spread that is too small; a limit in the
        # logarithm compensates
        usual = (self.traces > 0) & self.traces.isfinite()
        skewed = self.traces * torch.exp(spread / torch.where(usual, self.traces, 1.0))
        upper = torch.where(usual, skewed, self.traces + spread)
        return torch.maximum(upper, self.least).clamp_min(self._rounding_floor())

    def _rounding_floor(self) -> float:
        """Return the trace that rounding could hide; smaller estimates do not show that there is no information."""
        steps = (
            phase.steps * (phase.sampling_probability / (phase.noise_multiplier * phase.clip_norm)) ** 2
            for phase in self.phases
        )
        return self.dimension * self.resolution**2 * sum(steps)

    def mse_lower_bounds(self, *, confidence: float = 0.95, data_range: tuple[float, float] | None = None) -> Tensor:
        """Return lower bounds on the mean squared error of unbiased estimates: d / upper limit of the trace.

        Args:
            confidence: Confidence of each bound by itself, in [0.5, 1).
            data_range: Smallest and largest possible value. Bounds are then at most the error of a constant guess.

        Returns:
            Lower bounds on the mean squared error per coordinate, in the order of ``records``.

        Edge cases: 0 while nothing is known; very large for a record without influence, unless ``data_range`` is given.
        """
        bounds = self.dimension / self.upper_traces(confidence) * (1 - _ROUNDING)
        if data_range is None:
            return bounds
        return bounds.clamp(max=constant_guess_mse(low=data_range[0], high=data_range[1]))

    def mechanism(self) -> NoiseMechanism:
        """Return the steps as a mechanism, for the bound from Renyi DP.

        Assumes: shuffled epochs run to their end, so a record is in at most one batch of each.
        """
        if not self.phases:
            raise InvalidInput(
                "Expected at least one accounted step, got 0. Train with the accountant attached, or call step()."
            )
        parts = tuple(self._phase_mechanism(phase) for phase in self.phases)
        return parts[0] if len(parts) == 1 else Composed(parts)

    def _phase_mechanism(self, phase: TrainingPhase) -> NoisePhase:
        """Return one phase as a mechanism."""
        # a clipped gradient longer than the clip norm is equivalent to less noise
        noise, rate, steps = phase.noise_multiplier / self.overshoot, phase.sampling_probability, phase.steps
        if not phase.poisson and rate < 1:
            # a phase that begins inside an epoch touches one more epoch; 1e-9 undoes rounding of steps * rate
            steps = min(steps, math.ceil(steps * rate - 1e-9) + (len(self.phases) > 1))
            rate = 1.0
        return dp_sgd(
            noise_multiplier=noise,
            clip_norm=phase.clip_norm * self.overshoot,
            sampling_probability=rate,
            steps=steps,
        )

    def rdp_bound(self, *, data_range: tuple[float, float]) -> Guarantee:
        """Return the bound from Renyi DP of the same run, for every record in the data range (guo2022, Theorem 1)."""
        low, high = data_range
        return mse_lower_bound_from_rdp(replace_one_order_two(self.mechanism()), low=low, high=high)

    def summary(
        self, *, data_range: tuple[float, float] | None = None, confidence: float = 0.95, listed: int = 10
    ) -> LeakageSummary:
        """Return the distribution over records, the extremes and, with a data range, the bound from Renyi DP.

        Args:
            data_range: Smallest and largest possible value; None to leave out the bound from Renyi DP.
            confidence: Confidence of each bound by itself.
            listed: Number of most and least exposed records to list.

        Returns:
            The summary. It depends on private records and must not be published.
        """
        return summarize(self, data_range=data_range, confidence=confidence, listed=listed)

    @property
    def kind(self) -> str:
        """Tag of this kind of result. Its JSON is that of the summary."""
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
    """Object with an account, such as :class:`FisherAccountant`."""

    def account(self) -> FisherAccount:
        """Return the account so far."""


def average_accounts(runs: Sequence[FisherAccount | HasAccount]) -> FisherAccount:
    """Average the information over independent runs of one training, as Theorem 3 of guo2022 requires.

    Args:
        runs: Accounts or accountants of runs with the same settings and tracked records.

    Returns:
        The averaged account.

    Raises:
        InvalidInput: If there is no run, or the runs differ in settings or records.

    Guarantee: ``mse_lower_bounds`` of the result uses the inverse of the mean information, which is a valid lower
    bound; the mean of the inverses would be larger.
    Edge cases: the standard error is computed from the differences between runs, which contain every source of
    variation; a single run keeps its own. A record that some run evaluated in fewer than three cycles stays unknown.

    >>> def run(trace):
    ...     return FisherAccount(
    ...         traces=torch.tensor([trace]), standard_errors=torch.ones(1), least=torch.zeros(1), degrees=3,
    ...         dimension=2, records=torch.tensor([0]), phases=(), overshoot=1.0, subsampling="exact",
    ...     )
    >>> average_accounts([run(1.0), run(3.0)]).dfil()
    tensor([1.])
    """
    check_not_empty("runs", runs)
    accounts = [each if isinstance(each, FisherAccount) else each.account() for each in runs]
    first = accounts[0]
    for each in accounts[1:]:
        for name in ("phases", "dimension", "overshoot", "subsampling"):
            if getattr(each, name) != getattr(first, name):
                raise invalid_input(
                    name,
                    getattr(each, name),
                    f"to equal {getattr(first, name)!r} of the first run",
                    "Pass accounts of runs with the same settings.",
                )
        if not torch.equal(each.records, first.records):
            raise invalid_input(
                "records",
                f"{len(each.records)} records",
                f"to be the same {len(first.records)} records as in the first run",
                "Pass accounts of the same records.",
            )
    if len(accounts) == 1:
        return first
    traces = torch.stack([each.traces for each in accounts])
    unknown = torch.stack([each.standard_errors.isinf() | each.traces.isinf() for each in accounts]).any(0)
    # zeros where unknown, so that infinities do not make NaN; those records are overwritten below
    spread = torch.where(unknown, 0.0, traces).std(0) / math.sqrt(len(accounts))
    return FisherAccount(
        traces=traces.mean(0),
        standard_errors=torch.where(unknown, torch.inf, spread),
        least=torch.zeros_like(first.least),  # floors of single runs do not bound the mean
        degrees=len(accounts) - 1,
        dimension=first.dimension,
        records=first.records,
        phases=first.phases,
        overshoot=first.overshoot,
        subsampling=first.subsampling,
        runs=len(accounts),
        resolution=max(each.resolution for each in accounts),
    )
