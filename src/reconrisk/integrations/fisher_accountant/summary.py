"""Summary of the leakage of a training run, for reading and for reports."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from reconrisk.bounds.mse.premises import constant_guess_mse
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Guarantee, format_rounded_down
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_whole

if TYPE_CHECKING:
    from reconrisk.integrations.fisher_accountant.account import FisherAccount

# levels of the reported quantiles of the leakage over records
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_BINS = 20  # of the histogram over records

NOTICE = (
    "These values depend on private records: do not publish them, nor which records are most exposed "
    "(guo2022, footnote 2)."
)
_ASSUMPTIONS = (
    "estimates are unbiased: a biased adversary, such as a constant guess, is not covered",
    "labels are public, and so are all other records",
    "the loss of a record depends on that record alone, and its clipped gradient is differentiable there",
)
_APPROXIMATE = (
    "upper limits are approximate, by Student's distribution from the spread of evaluations, cycles or runs: unlike "
    "proved limits they may hold somewhat less often than stated"
)
_POISSON = "each record enters each step independently with the sampling probability, and membership is secret"
_SHUFFLED = (
    "batches are not Poisson samples: no amplification by sampling is counted; each step is read as a fresh draw, and "
    "epochs are run to their end"
)
_SAMPLING = {
    "exact": "subsampling by the exact factors of a Poisson-sampled Gaussian step",
    "none": "no amplification by sampling is counted (guo2022, equation 2)",
    "guo2022": "subsampling by the factor printed in guo2022, equation 3: this is not a bound",
}


@serializable("record-leakage")
@dataclass(frozen=True)
class RecordLeakage:
    """Leakage of one record.

    Attributes:
        record: Index of the record.
        dfil: Fisher information leakage per coordinate, tr(I)/d, with the Fisher information I and dimension d.
        standard_error: Standard error of ``dfil``, absolute.
        mse_lower_bound: Smallest mean squared error of unbiased estimates.
    """

    record: int
    dfil: float
    standard_error: float
    mse_lower_bound: float


@serializable("leakage-summary")
@dataclass(frozen=True)
class LeakageSummary(Result):
    """Distribution of the Fisher information leakage tr(I)/d over records, with extremes, bounds and assumptions.

    Attributes:
        records: Number of tracked records.
        dimension: Number of coordinates of a record.
        steps: Number of training steps.
        runs: Number of runs that were averaged.
        maximum: Largest leakage.
        median: Median leakage.
        mean: Mean leakage.
        quantiles: Pairs of a share of the records and the leakage that this share does not exceed.
        edges: Edges of the histogram, evenly spaced in the logarithm.
        histogram: Number of records between consecutive edges.
        not_positive: Number of records outside the histogram, because their estimate is not above zero or not finite.
        unsettled: Number of records without a known standard error yet, whose bound is 0.
        relative_standard_error: Standard error divided by the leakage, median over records.
        confidence: Confidence of each bound by itself.
        least_mse_lower_bound: Bound of the most exposed record.
        median_mse_lower_bound: Median of the bounds.
        most_exposed: Records with the largest leakage, largest first.
        least_exposed: Records with the smallest leakage, smallest first.
        rdp_bound: Bound from Renyi DP for any record; None without a data range.
        constant_guess_mse: Error of a constant guess, at most; None without a data range.
        assumptions: Assumptions of the bounds.
        notice: Warning against publishing the values.

    >>> from reconrisk.integrations.fisher_accountant.account import FisherAccount, TrainingPhase
    >>> phase = TrainingPhase(noise_multiplier=1.0, clip_norm=1.0, sampling_probability=0.1, poisson=True, steps=5)
    >>> summary = FisherAccount(
    ...     traces=torch.tensor([4.0]), standard_errors=torch.zeros(1), least=torch.zeros(1), degrees=3,
    ...     dimension=2, records=torch.tensor([0]), phases=(phase,), overshoot=1.0, subsampling="exact",
    ... ).summary()
    >>> summary.maximum, summary.steps, summary.unsettled
    (2.0, 5, 0)
    """

    records: int
    dimension: int
    steps: int
    runs: int
    maximum: float
    median: float
    mean: float
    quantiles: tuple[tuple[float, float], ...]
    edges: tuple[float, ...]
    histogram: tuple[int, ...]
    not_positive: int
    unsettled: int
    relative_standard_error: float
    confidence: float
    least_mse_lower_bound: float
    median_mse_lower_bound: float
    most_exposed: tuple[RecordLeakage, ...]
    least_exposed: tuple[RecordLeakage, ...]
    rdp_bound: Guarantee | None
    constant_guess_mse: float | None
    assumptions: tuple[str, ...]
    notice: str = NOTICE

    @property
    def sentence(self) -> str:
        """Leakage of the most exposed and the median record, and the smallest bound."""
        most = f" (record {self.most_exposed[0].record})" if self.most_exposed else ""
        return (
            f"Over {self.steps} steps the most exposed of {self.records} records{most} leaks tr(I)/d = "
            f"{self.maximum:.4g}, the median one {self.median:.4g}. Unbiased estimates have a mean squared error of at "
            f"least {format_rounded_down(self.least_mse_lower_bound)}, with {self.confidence:.0%} confidence for each "
            "record by itself."
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each record that is listed, the most exposed first."""
        return tuple(asdict(row) for row in dict.fromkeys((*self.most_exposed, *reversed(self.least_exposed))))

    def table(self) -> str:
        """Return the distribution over records, the bounds, the extremes and the assumptions."""
        worst = format_rounded_down(self.least_mse_lower_bound)
        rows = [
            ("records, dimension, steps, runs", f"{self.records}, {self.dimension}, {self.steps}, {self.runs}"),
            ("leakage tr(I)/d: maximum", f"{self.maximum:.4g}"),
            ("                 median", f"{self.median:.4g}"),
            *((f"                 {level:.0%} quantile", f"{value:.4g}") for level, value in self.quantiles),
            ("relative standard error (median)", f"{self.relative_standard_error:.2g}"),
            (f"MSE of unbiased estimates >= (worst record, {self.confidence:.0%})", worst),
            ("                             (median record)", format_rounded_down(self.median_mse_lower_bound)),
        ]
        if self.rdp_bound is not None and self.constant_guess_mse is not None:
            rows.append(("the same from Renyi DP, any record", format_rounded_down(self.rdp_bound.value)))
            rows.append(("MSE of a constant guess, at most", f"{self.constant_guess_mse:.4g}"))
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        lines += ["", "most exposed records", *_listing(self.most_exposed)]
        lines += ["least exposed records", *_listing(self.least_exposed)]
        if self.unsettled:
            lines.append(
                f"{self.unsettled} records have been evaluated fewer than three times: train longer for their bounds."
            )
        lines += ["", *(f"Assumes: {each}." for each in self.assumptions), self.notice]
        return "\n".join(lines)


def summarize(
    account: FisherAccount, *, data_range: tuple[float, float] | None, confidence: float, listed: int
) -> LeakageSummary:
    """Summarise an account.

    Args:
        account: Account of at least one step.
        data_range: Smallest and largest possible value; None to leave out the bound from Renyi DP.
        confidence: Confidence of each bound by itself.
        listed: Number of most and least exposed records to list.

    Returns:
        The summary.

    Raises:
        InvalidInput: If there is no step yet, or a number is out of range.
    """
    if not account.phases:
        raise InvalidInput(
            "Expected at least one accounted step, got 0. Train with the accountant attached, or call step()."
        )
    dfil = account.dfil()
    bounds = account.mse_lower_bounds(confidence=confidence, data_range=data_range)
    values = dfil.numpy()
    edges, counts, rest = _histogram(values)
    order = torch.argsort(dfil, stable=True).tolist()  # least exposed first; ties by index
    count = min(check_whole("listed", listed, minimum=0), len(order))
    errors = account.standard_errors
    relative = torch.where(errors.isfinite() & (errors > 0), errors / account.traces.abs(), errors).numpy()
    return LeakageSummary(
        records=len(values),
        dimension=account.dimension,
        steps=account.steps,
        runs=account.runs,
        maximum=float(values.max()),
        median=_quantile(values, 0.5),
        mean=float(values.mean()),
        quantiles=tuple((level, _quantile(values, level)) for level in _QUANTILES),
        edges=edges,
        histogram=counts,
        not_positive=rest,
        unsettled=int(account.standard_errors.isinf().sum()),
        relative_standard_error=_quantile(relative, 0.5),
        confidence=confidence,
        least_mse_lower_bound=float(bounds.min()),
        median_mse_lower_bound=_quantile(bounds.numpy(), 0.5),
        most_exposed=tuple(_row(account, bounds, i) for i in reversed(order[len(order) - count :])),
        least_exposed=tuple(_row(account, bounds, i) for i in order[:count]),
        rdp_bound=None if data_range is None else account.rdp_bound(data_range=data_range),
        constant_guess_mse=None if data_range is None else constant_guess_mse(low=data_range[0], high=data_range[1]),
        assumptions=_assumptions(account),
    )


def _row(account: FisherAccount, bounds: torch.Tensor, i: int) -> RecordLeakage:
    """Return the leakage of the tracked record with position ``i``."""
    return RecordLeakage(
        record=int(account.records[i]),
        dfil=float(account.traces[i]) / account.dimension,
        standard_error=float(account.standard_errors[i]) / account.dimension,
        mse_lower_bound=float(bounds[i]),
    )


def _assumptions(account: FisherAccount) -> tuple[str, ...]:
    """Return the assumptions that apply to this account, as sentences without a full stop."""
    poisson = all(phase.poisson for phase in account.phases)
    runs = "one run: an unbiased estimate of the limit on the information; average several runs before inverting"
    several = (runs,) if account.runs == 1 else ()
    method = _SAMPLING[account.subsampling] if poisson else _SAMPLING["none"]
    sampling = _POISSON if poisson else _SHUFFLED
    single = "upper limits hold for each record by itself, not for all at once"
    return (sampling, method, *_ASSUMPTIONS, *several, single, _APPROXIMATE)


def _quantile(values: NDArray[np.float64], level: float) -> float:
    """Return the smallest value that at least this share of values does not exceed."""
    # no interpolation, which would turn infinities into NaN
    ordered = np.sort(values)
    return float(ordered[max(0, math.ceil(level * len(ordered)) - 1)])


def _histogram(values: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[int, ...], int]:
    """Return edges and counts of a histogram in the logarithm, and the number of values outside it."""
    positive = values[(values > 0) & np.isfinite(values)]
    rest = len(values) - len(positive)
    if not len(positive):
        return (), (), rest
    low, high = np.log(positive.min()), np.log(positive.max())
    counts, edges = np.histogram(
        np.log(positive), bins=_BINS, range=(low, max(high, low + 1e-9))
    )  # an empty range is not allowed
    return tuple(float(edge) for edge in np.exp(edges)), tuple(int(each) for each in counts), rest


def _listing(rows: tuple[RecordLeakage, ...]) -> list[str]:
    """Return one line of text per record."""
    return [
        f"  record {row.record:>8}  tr(I)/d {row.dfil:.4g} +- {row.standard_error:.2g}  MSE >= "
        f"{format_rounded_down(row.mse_lower_bound)}"
        for row in rows
    ]
