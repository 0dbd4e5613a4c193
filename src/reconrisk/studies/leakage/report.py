"""Report of each record's leakage through one training step, which is printed, stored and read back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from reconrisk.core.guarantee import Guarantee, format_rounded_down
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input

NOTICE = "Everything here depends on private records; do not publish (guo2022, footnote 2)."

SCALED = (
    "each numeric column is scaled to [0, 1] by its range in the data, and mean squared errors are in these units; "
    "the model must have been trained on the same scaling"
)
"""Units of a table's values; other records are in the units that the model sees."""

LISTED = 8
"""Number of records listed as most and as least exposed."""

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 10  # of the histogram
_WIDEST = 40  # characters of its longest bar
_COLUMNS = ("records", "labels", "dfil", "low", "high", "mse_lower_bounds", "probes")


class ExposedRecord(NamedTuple):
    """One record: index, label, leakage with its interval, and lower bound on the error of unbiased estimates."""

    record: int
    label: str
    dfil: float
    low: float
    high: float
    mse_lower_bound: float


@serializable("leakage-report")
@dataclass(frozen=True)
class LeakageReport(Result):
    """Fisher information leakage tr(I)/d of each record through one noisy step, with everything it depends on.

    Values per record are in the order of ``records``. If the computation was interrupted, they are a random sample of
    the requested records.

    Attributes:
        model: Name of the model.
        data: Name of the data set.
        loss: Name of the training loss.
        mechanism: Mechanism of the step.
        clipping: "hard" or "smooth".
        parameters: Names of the released parameters; empty for all.
        dimension: Number of values of a record (d).
        requested: Number of records to measure; larger than ``len(records)`` after an interruption.
        records: Indices of the measured records.
        labels: Label of each record.
        dfil: Leakage of each record.
        low: Lower interval end of each leakage.
        high: Upper interval end of each leakage. The coverage is ``confidence``, up to a few percent.
        mse_lower_bounds: Lower bound on the mean squared error of unbiased estimates of each record. It uses a proved
            upper limit, with probability ``confidence`` for each record by itself. A constant guess is biased and may
            have a smaller error.
        probes: Number of random directions used for each record.
        relative_error: Largest standard error of a leakage, relative to its value.
        confidence: Confidence of each interval and bound by itself.
        seed: Seed of the random generator.
        guarantee: Bound for the most exposed record, never above ``constant_guess_mse``.
        constant_guess_mse: Largest mean squared error of a constant guess.
        units: Units of the values.
        notice: Warning that the report is private.
    """

    model: str
    data: str
    loss: str
    mechanism: Mechanism
    clipping: str
    parameters: tuple[str, ...]
    dimension: int
    requested: int
    records: tuple[int, ...]
    labels: tuple[str, ...]
    dfil: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    mse_lower_bounds: tuple[float, ...]
    probes: tuple[int, ...]
    relative_error: float
    confidence: float
    seed: int
    guarantee: Guarantee
    constant_guess_mse: float
    units: str = ""
    notice: str = NOTICE

    def __post_init__(self) -> None:
        check_not_empty("records", self.records)
        for name in _COLUMNS:
            if len(getattr(self, name)) != len(self.records):
                raise invalid_input(
                    f"len({name})", len(getattr(self, name)), f"to be {len(self.records)}, one per record"
                )

    @property
    def is_complete(self) -> bool:
        """True if every requested record was measured."""
        return len(self.records) == self.requested

    @property
    def maximum(self) -> float:
        """Largest leakage of any record."""
        return max(self.dfil)

    @property
    def median(self) -> float:
        """Leakage that half of the records do not exceed."""
        return self.quantile(0.5)

    def quantile(self, level: float) -> float:
        """Return the smallest leakage that this share of the records does not exceed, without interpolation."""
        return sorted(self.dfil)[max(0, math.ceil(level * len(self.dfil)) - 1)]

    def most_exposed(self, count: int = LISTED) -> tuple[ExposedRecord, ...]:
        """Return the records with the largest leakage, largest first; ties are in the order of their indices."""
        return self._exposed_records(sorted(range(len(self.dfil)), key=lambda row: -self.dfil[row]), count)

    def least_exposed(self, count: int = LISTED) -> tuple[ExposedRecord, ...]:
        """Return the records with the smallest leakage, smallest first."""
        return self._exposed_records(sorted(range(len(self.dfil)), key=lambda row: self.dfil[row]), count)

    def _exposed_records(self, order: list[int], count: int) -> tuple[ExposedRecord, ...]:
        columns = (self.records, self.labels, self.dfil, self.low, self.high, self.mse_lower_bounds)
        rows = tuple(zip(*columns, strict=True))
        return tuple(ExposedRecord(*rows[place]) for place in order[: check_whole("count", count, minimum=0)])

    def histogram(self) -> tuple[tuple[float, float, int], ...]:
        """Return bins (low, high, count) of the positive finite leakages, evenly spaced in the logarithm."""
        shown = [value for value in self.dfil if 0 < value < math.inf]
        if not shown:
            return ()
        low, high = math.log(min(shown)), math.log(max(shown))
        if high == low:
            return ((shown[0], shown[0], len(shown)),)
        counts = [0] * _BINS
        for value in shown:
            counts[min(_BINS - 1, int(_BINS * (math.log(value) - low) / (high - low)))] += 1
        ends = [math.exp(low + (high - low) * place / _BINS) for place in range(_BINS + 1)]
        return tuple(zip(ends, ends[1:], counts, strict=False))

    @property
    def sentence(self) -> str:
        """Most exposed record and the error bound that its leakage implies."""
        worst = self.most_exposed(1)[0]
        guess = f"; a constant guess, which is biased, has at most {self.constant_guess_mse:.4g}"
        return (
            f"Of {len(self.records)} records of {self.data}, record {worst.record} ({worst.label}) leaks most through "
            f"one noisy step: dFIL {worst.dfil:.4g} [{worst.low:.4g}, {worst.high:.4g}]. For it, an unbiased attack "
            f"has a mean squared error of at least {format_rounded_down(worst.mse_lower_bound)}, with "
            f"{self.confidence:.0%} confidence{guess if worst.mse_lower_bound > self.constant_guess_mse else ''}."
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each record."""
        names = ("record", "label", "dfil", "low", "high", "mse_lower_bound", "probes")
        columns = (getattr(self, name) for name in _COLUMNS)
        return tuple(dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))

    def table(self) -> str:
        """Return the distribution of leakages, the error bounds, and the most and least exposed records."""
        return "\n".join(
            [
                *self._heading_lines(),
                "",
                *self._distribution_lines(),
                "",
                *self._bound_lines(),
                "",
                *self._record_lines(),
            ]
        )

    def _heading_lines(self) -> list[str]:
        lines = [
            NOTICE,
            f"{len(self.records)} records of {self.data} ({self.dimension} values each), model {self.model}",
        ]
        lines.append(f"one step of {self.mechanism}, {self.clipping} clipping, loss {self.loss}")
        if self.units:
            lines.append(f"units: {self.units}")
        if self.parameters:
            lines.append(f"only the parameters {', '.join(self.parameters)}")
        if not self.is_complete:
            share = f"{len(self.records)} of {self.requested} records, a random sample of them, are done"
            lines.append(f"INTERRUPTED: {share}.")
        return lines

    def _distribution_lines(self) -> list[str]:
        lines = ["dFIL, tr(I)/d, over records", f"  maximum     {self.maximum:.4g}"]
        lines += [f"  {level:>4.0%}        {self.quantile(level):.4g}" for level in reversed(_QUANTILES)]
        lines.append(f"  minimum     {min(self.dfil):.4g}")
        bins = self.histogram()
        largest = max((count for _, _, count in bins), default=0)
        for low, high, count in bins:
            bar = "#" * math.ceil(_WIDEST * count / largest)
            lines.append(f"  {low:9.3g} to {high:<9.3g} {count:>7} {bar}".rstrip())
        outside = len(self.dfil) - sum(count for _, _, count in bins)
        return [*lines, f"  zero or infinite       {outside:>7}"] if outside else lines

    def _bound_lines(self) -> list[str]:
        ordered = sorted(self.mse_lower_bounds)
        lines = [
            "lower bound on the mean squared error of an unbiased attack",
            f"  most exposed record   {format_rounded_down(ordered[0])}",
            f"  median record         {format_rounded_down(ordered[(len(ordered) - 1) // 2])}",
            f"a constant guess, which is biased, has at most {self.constant_guess_mse:.4g} for any release",
        ]
        if ordered[0] > self.constant_guess_mse:
            lines.append("so guessing beats every unbiased attack here: the bound implies nothing more")
        return [*lines, "Assumes:", *(f"  - {assumption}" for assumption in self.guarantee.assumptions)]

    def _record_lines(self) -> list[str]:
        interval = f"{self.confidence:.0%} interval"
        head = f"  {'record':>8}  {'label':<12} {'dFIL':>10}  {interval:<24} unbiased MSE at least"
        sides = (("most exposed", self.most_exposed()), ("least exposed", self.least_exposed()))
        lines = []
        for title, rows in sides:
            lines += [title, head]
            for row in rows:
                interval = f"[{row.low:.4g}, {row.high:.4g}]"
                scores = f"{row.dfil:>10.4g}  {interval:<24} {format_rounded_down(row.mse_lower_bound)}"
                lines.append(f"  {row.record:>8}  {row.label[:12]:<12} {scores}")
        return lines
