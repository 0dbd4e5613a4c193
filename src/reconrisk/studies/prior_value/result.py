"""Scores of an attack beyond its prior, as a result that is printed, stored and read back."""

from __future__ import annotations

from dataclasses import dataclass

from reconrisk.core.guarantee import Estimate
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.metrics.registry import METRICS

_MEASURED = ("attack", "prior_alone", "from_another", "over_prior", "over_another")


@serializable("metric-over-prior")
@dataclass(frozen=True)
class OverPrior:
    """Mean scores by one metric of the attack, of the prior alone, and of the attack on another record's update.

    Attributes:
        metric: Metric with its settings.
        name: Name of the metric.
        attack: Mean score of the attack.
        prior_alone: Mean score of the prior alone.
        from_another: Mean score of the attack on another record's update.
        over_prior: Mean paired gain over the prior alone; positive is better, for errors too.
        over_another: Mean paired gain over the attack on another record's update.
    """

    metric: str
    name: str
    attack: Estimate
    prior_alone: Estimate
    from_another: Estimate
    over_prior: Estimate
    over_another: Estimate

    @property
    def leaks(self) -> bool:
        """True if both intervals show that the attack is better than without the record's update."""
        return self.over_prior.low > 0 and self.over_another.low > 0

    def to_row(self) -> Row:
        """Return the scores and their differences as values by name."""
        row: Row = {"metric": self.name}
        for name in _MEASURED:
            row |= getattr(self, name).columns(name)
        return {**row, "leaks": self.leaks}

    @property
    def verdict(self) -> str:
        """Both differences as text, and the conclusion."""
        row = METRICS.get(self.name)
        unit = f" {row.unit}" if row is not None and row.unit else f" in {self.name}"
        prior, another = (_describe_difference(each, unit) for each in (self.over_prior, self.over_another))
        conclusion = "leaked" if self.leaks else "not distinguishable from the prior"
        return f"{prior} the prior alone; {another} the same attack on another record's update: {conclusion}."


@serializable("leakage-over-prior")
@dataclass(frozen=True)
class LeakageOverPrior(Result):
    """Scores of an attack beyond its prior, by each metric.

    Attributes:
        attack: Attack with its settings.
        prior: Name of the prior.
        defense: Description of the defense.
        updates: Number of attacked updates.
        batch_size: Records in an update.
        rows: One row per metric; the first decides :attr:`leaks`.
    """

    attack: str
    prior: str
    defense: str
    updates: int
    batch_size: int
    rows: tuple[OverPrior, ...]

    def __getitem__(self, name: str) -> OverPrior:
        """Return the row of the metric of this name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"Expected metric={name!r} to be one of {', '.join(row.name for row in self.rows)}.")

    @property
    def leaks(self) -> bool:
        """True if the attack learned something from the record's update, by the first metric."""
        return self.rows[0].leaks

    @property
    def sentence(self) -> str:
        """Differences and conclusion by the first metric."""
        return f"The attack is {self.rows[0].verdict}"

    def table(self) -> str:
        """Return lines for each metric: scores of attack and baselines, and differences."""
        lines = [f"{self.attack}, {self.updates} updates of {self.batch_size}, defense {self.defense}"]
        for row in self.rows:
            lines.append(f"  {row.metric}")
            lines += [f"    {name.replace('_', ' '):<14}{getattr(row, name)}" for name in _MEASURED]
        return "\n".join(lines)

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each metric."""
        return tuple(row.to_row() for row in self.rows)


def _describe_difference(difference: Estimate, unit: str) -> str:
    """Return the size of a difference with its interval and direction.

    >>> _describe_difference(Estimate(-2.0, -3.0, 1.0, 0.95, 9, "Student"), " dB")
    '2 dB [-1, 3] worse than'
    """
    value, low, high = difference.value, difference.low, difference.high
    if value < 0:
        value, low, high = -value, -high, -low
    return f"{value:.3g}{unit} [{low:.3g}, {high:.3g}] {'worse' if difference.value < 0 else 'better'} than"
