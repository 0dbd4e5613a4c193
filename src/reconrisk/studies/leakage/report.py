"""How much each record leaks through one step of training, as a value that is printed, stored and read back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from reconrisk.core.guarantee import Guarantee, rounded_down
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input

NOTICE = "Everything here depends on private records; do not publish (guo2022, footnote 2)."

SCALED = (
    "each numeric column is scaled to [0, 1] by its range in the data, and mean squared errors are in these units; "
    "the model must have been trained on the same scaling"
)
"""What the values of a table are; other records are the values that the model sees."""

LISTED = 8
"""Records that are named at either end."""

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 10
_WIDEST = 40
_COLUMNS = ("records", "labels", "dfil", "low", "high", "mse_lower_bounds", "probes")


class ExposedRecord(NamedTuple):
    """One record: its index, label, leakage with interval, and the error that unbiased estimates have at least."""

    record: int
    label: str
    dfil: float
    low: float
    high: float
    mse_lower_bound: float


@serializable("leakage-report")
@dataclass(frozen=True)
class LeakageReport(Result):
    """The Fisher information leakage tr(I)/d of each record through one noisy step, with everything it depends on.

    ``low`` and ``high`` contain the leakage of a record with probability ``confidence``, up to a few percent.
    ``mse_lower_bounds`` hold for unbiased estimates and come from upper limits that are proved, each with that
    probability by itself; a constant guess, which is biased, may be better than they say. ``guarantee`` is the bound of
    the most exposed record, never above ``constant_guess_mse``. Columns are in the order of ``records``; ``requested``
    is larger than their number if the computation was interrupted, and then they are a random sample of those.
    ``units`` says what a value is.
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
        """Whether every record that was asked for has been processed."""
        return len(self.records) == self.requested

    @property
    def maximum(self) -> float:
        """The largest leakage of any record."""
        return max(self.dfil)

    @property
    def median(self) -> float:
        """The leakage that half of the records do not exceed."""
        return self.quantile(0.5)

    def quantile(self, level: float) -> float:
        """The smallest leakage that this share of the records does not exceed; nothing is interpolated."""
        return sorted(self.dfil)[max(0, math.ceil(level * len(self.dfil)) - 1)]

    def most_exposed(self, count: int = LISTED) -> tuple[ExposedRecord, ...]:
        """The records that leak most, the worst first; the smaller index first where they are equal."""
        return self._rows(sorted(range(len(self.dfil)), key=lambda row: -self.dfil[row]), count)

    def least_exposed(self, count: int = LISTED) -> tuple[ExposedRecord, ...]:
        """The records that leak least, the least first."""
        return self._rows(sorted(range(len(self.dfil)), key=lambda row: self.dfil[row]), count)

    def _rows(self, order: list[int], count: int) -> tuple[ExposedRecord, ...]:
        columns = (self.records, self.labels, self.dfil, self.low, self.high, self.mse_lower_bounds)
        rows = tuple(zip(*columns, strict=True))
        return tuple(ExposedRecord(*rows[place]) for place in order[: check_whole("count", count, minimum=0)])

    def histogram(self) -> tuple[tuple[float, float, int], ...]:
        """Counts of positive leakages between ends that are evenly spaced in the logarithm."""
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
        """The record that leaks most, and what that bounds."""
        worst = self.most_exposed(1)[0]
        guess = f"; a constant guess, which is biased, has at most {self.constant_guess_mse:.4g}"
        return (
            f"Of {len(self.records)} records of {self.data}, record {worst.record} ({worst.label}) leaks most through "
            f"one noisy step: dFIL {worst.dfil:.4g} [{worst.low:.4g}, {worst.high:.4g}]. An unbiased attacker has a "
            f"mean squared error of at least {rounded_down(worst.mse_lower_bound)} there, with {self.confidence:.0%} "
            f"confidence{guess if worst.mse_lower_bound > self.constant_guess_mse else ''}."
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each record."""
        names = ("record", "label", "dfil", "low", "high", "mse_lower_bound", "probes")
        columns = (getattr(self, name) for name in _COLUMNS)
        return tuple(dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))

    def table(self) -> str:
        """Return the distribution, what it bounds, and the records at either end."""
        return "\n".join([*self._heading(), "", *self._distribution(), "", *self._bounds(), "", *self._listing()])

    def _heading(self) -> list[str]:
        lines = [
            NOTICE,
            f"{len(self.records)} records of {self.data} ({self.dimension} values each), model {self.model}",
        ]
        lines.append(f"one step of {self.mechanism}, {self.clipping} clipping, loss {self.loss}")
        if self.units:
            lines.append(f"units: {self.units}")
        if self.parameters:
            lines.append(f"only of the parameters {', '.join(self.parameters)}")
        if not self.is_complete:
            share = f"{len(self.records)} of {self.requested} records, a random sample of them, are done"
            lines.append(f"INTERRUPTED: {share}.")
        return lines

    def _distribution(self) -> list[str]:
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

    def _bounds(self) -> list[str]:
        ordered = sorted(self.mse_lower_bounds)
        lines = [
            "mean squared error that an unbiased attacker has at least",
            f"  most exposed record   {rounded_down(ordered[0])}",
            f"  median record         {rounded_down(ordered[(len(ordered) - 1) // 2])}",
            f"a constant guess, which is biased, has at most {self.constant_guess_mse:.4g} whatever is released",
        ]
        if ordered[0] > self.constant_guess_mse:
            lines.append("so guessing beats every unbiased attacker here: the bound alone says no more than that")
        return [*lines, "Assumes:", *(f"  - {assumption}" for assumption in self.guarantee.assumptions)]

    def _listing(self) -> list[str]:
        interval = f"{self.confidence:.0%} interval"
        head = f"  {'record':>8}  {'label':<12} {'dFIL':>10}  {interval:<24} unbiased MSE at least"
        sides = (("most exposed", self.most_exposed()), ("least exposed", self.least_exposed()))
        lines = []
        for title, rows in sides:
            lines += [title, head]
            for row in rows:
                interval = f"[{row.low:.4g}, {row.high:.4g}]"
                scores = f"{row.dfil:>10.4g}  {interval:<24} {rounded_down(row.mse_lower_bound)}"
                lines.append(f"  {row.record:>8}  {row.label[:12]:<12} {scores}")
        return lines
