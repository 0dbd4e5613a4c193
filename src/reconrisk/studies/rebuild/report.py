"""Report of one attack on chosen records, which is printed, stored and read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reconrisk.core.reconstruction import AttackReport, Ending
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input

_LISTED = 40  # records in the printed table
_PER_RECORD = ("records", "updates", "labels", "objective")


@serializable("metric-scores")
@dataclass(frozen=True)
class MetricScores:
    """Scores of each record by one metric, for the attack and for a baseline on the same updates.

    Attributes:
        metric: Metric with its settings.
        name: Name of the metric.
        higher_is_better: Direction of the metric.
        values: Scores of the attack, one per record.
        guess: Scores of the baseline, one per record.
        oracle: Scores of the guided diffusion step nearest to the records, which no attacker can choose; or empty.
    """

    metric: str
    name: str
    higher_is_better: bool
    values: tuple[float, ...]
    guess: tuple[float, ...]
    oracle: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_not_empty("values", self.values)
        if len(self.values) != len(self.guess):
            raise invalid_input("len(guess)", len(self.guess), f"to be {len(self.values)}, one per record")
        if len(self.oracle) not in (0, len(self.values)):
            raise invalid_input("len(oracle)", len(self.oracle), f"to be {len(self.values)}, one per record, or none")

    @property
    def best(self) -> int:
        """Index of the record that was reconstructed best."""
        sign = 1 if self.higher_is_better else -1
        return max(range(len(self.values)), key=lambda place: sign * self.values[place])


@serializable("rebuilt-column")
@dataclass(frozen=True)
class RebuiltColumn:
    """Accuracy of the reconstruction of one column of a table.

    Attributes:
        name: Name of the column.
        right: True for each record with a correct value.
        error: Absolute error of each numeric value in its unit; empty for categories.
        typical_right: Share of correct values for a guess of the typical value of other records; None without others.
        typical_error: Mean error of that guess; None for categories and without others.
    """

    name: str
    right: tuple[bool, ...]
    error: tuple[float, ...] = ()
    typical_right: float | None = None
    typical_error: float | None = None

    def __post_init__(self) -> None:
        check_not_empty("right", self.right)
        if len(self.error) not in (0, len(self.right)):
            raise invalid_input("len(error)", len(self.error), f"to be {len(self.right)}, one per record, or none")

    def __str__(self) -> str:
        """Format shares of correct values and mean errors, for the attack and for a typical value."""
        error = sum(self.error) / len(self.error) if self.error else None
        shares = (sum(self.right) / len(self.right), self.typical_right)
        right, typical_right = ("" if share is None else f"{share:.1%}" for share in shares)
        wrong, typical_wrong = ("" if each is None else f"{each:.4g}" for each in (error, self.typical_error))
        return f"{self.name[:24]:<24}{right:>8}{wrong:>11} {typical_right:>8}{typical_wrong:>11}".rstrip()


@serializable("misfit")
@dataclass(frozen=True)
class Misfit:
    """Distance between the captured update and the update of the estimates, compared with baselines.

    Attributes:
        estimates: Misfit of the estimates, as a share of the norm of the captured update.
        guess: Misfit of the report's baseline.
        draw: Misfit of records drawn from a generative prior; None without one.
        in_noise: True if misfits are in standard deviations of known noise instead. The true records then have about 1.
    """

    estimates: float
    guess: float
    draw: float | None = None
    in_noise: bool = False

    def describe(self, guesser: str) -> str:
        """Return all misfits as text; ``guesser`` names the baseline."""
        draw = "" if self.draw is None else f", of a draw from it {self._format_value(self.draw)}"
        unit = "standard deviations of the noise" if self.in_noise else "of the update"
        return f"{self._format_value(self.estimates)} {unit}, of {guesser} {self._format_value(self.guess)}{draw}"

    def _format_value(self, value: float) -> str:
        return f"{value:.3g}" if self.in_noise else f"{100 * value:.3g}%"


@serializable("rebuild-report")
@dataclass(frozen=True)
class RebuildReport(Result):
    """Outcome of one attack on each of the chosen records, with everything it depends on.

    Values per record are in the order of ``records``. Estimates were matched to the records of their update, since an
    update does not reveal their order.

    Attributes:
        attack: Name of the attack.
        settings: Attack with its settings.
        model: Name of the model.
        data: Name of the data set; "captured" for a captured update.
        release: Description of the update.
        defense: Description of the defense.
        threat: Threat model of the attack.
        shape: Shape of one record.
        data_range: Smallest and largest value of a record.
        batch_size: Records in an update.
        requested: Number of records to attack; larger than ``len(records)`` if the attack was interrupted.
        records: Indices of the attacked records.
        updates: Index of the update that each record was part of.
        labels: Label of each record; question marks if unknown.
        inferred: Label that the attack used for each record; empty if it used none.
        objective: Value of the attack's own objective for each record, lower is better.
        scores: Scores by each metric; empty for a captured update.
        accounts: Settings, status and cost of the attack on each update.
        seed: Seed of the random generator.
        columns: Scores by column of a table.
        guesser: Name of the baseline.
        prior: Origin of the generative prior; empty without one.
        misfit: Distance to a captured update, in place of scores; None without known or inferred labels.
    """

    attack: str
    settings: str
    model: str
    data: str
    release: str
    defense: str
    threat: ThreatModel
    shape: tuple[int, ...]
    data_range: tuple[float, ...]
    batch_size: int
    requested: int
    records: tuple[int, ...]
    updates: tuple[int, ...]
    labels: tuple[str, ...]
    inferred: tuple[str, ...]
    objective: tuple[float, ...]
    scores: tuple[MetricScores, ...]
    accounts: tuple[AttackReport, ...]
    seed: int
    columns: tuple[RebuiltColumn, ...] = ()
    guesser: str = "a constant guess"
    prior: str = ""
    misfit: Misfit | None = None

    def __post_init__(self) -> None:
        check_not_empty("records", self.records)
        check_whole("requested", self.requested, minimum=len(self.records))
        columns = {name: getattr(self, name) for name in _PER_RECORD}
        columns |= {score.name: score.values for score in self.scores}
        columns |= {column.name: column.right for column in self.columns}
        for name, column in columns.items():
            if len(column) != len(self.records):
                raise invalid_input(f"len({name})", len(column), f"to be {len(self.records)}, one per record")
        if len(self.inferred) not in (0, len(self.records)):
            raise invalid_input("len(inferred)", len(self.inferred), f"to be {len(self.records)} or none")

    @property
    def is_complete(self) -> bool:
        """True if every requested record was attacked without interruption."""
        interrupted = any(account.status.ending is Ending.INTERRUPTED for account in self.accounts)
        return len(self.records) == self.requested and not interrupted

    @property
    def failed_reports(self) -> tuple[AttackReport, ...]:
        """Accounts of failed attacks; their estimates do not measure the strength of the attack."""
        return tuple(account for account in self.accounts if account.status.is_failure)

    @property
    def is_image(self) -> bool:
        """True if records are images of shape channels x height x width."""
        return len(self.shape) == 3

    @property
    def sentence(self) -> str:
        """Scores of the attack and its baseline, or for a captured update the misfit of its estimates."""
        records = _count_noun(len(self.records), "record")
        failed = (
            f" {len(self.failed_reports)} of {_count_noun(len(self.accounts), 'attack')} failed."
            if self.failed_reports
            else ""
        )
        if self.scores:
            first = self.scores[0]
            mean, guess = (sum(values) / len(values) for values in (first.values, first.guess))
            best = f"at best {first.values[first.best]:.4g} (record {self.records[first.best]})"
            reached = f"{first.name} {mean:.4g} on average, {best}; {self.guesser} reaches {guess:.4g}"
            return f"{self.attack} reconstructed {records} of {self.data}: {reached}.{failed}"
        if self.misfit is not None:
            return f"{self.attack} on a captured update: misfit {self.misfit.describe(self.guesser)}.{failed}"
        return f"{self.attack} estimated {records} from a captured update; their accuracy is unknown.{failed}"

    def table(self) -> str:
        """Return the setting, a line per record, the best reconstruction, and the status of the attacks."""
        head = f"{'column':<24}{'right':>8}{'error':>11}{'typical':>9}{'error':>11}"
        columns = (head, *map(str, self.columns)) if self.columns else ()
        parts = (self._heading_lines(), self._record_lines(), columns, self._summary_lines())
        return "\n\n".join(text for text in ("\n".join(part) for part in parts) if text)

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each record."""
        rows = []
        for place, record in enumerate(self.records):
            row: Row = {"record": record, "update": self.updates[place], "label": self.labels[place]}
            row["inferred"] = self.inferred[place] if self.inferred else None
            for score in self.scores:
                row |= {score.name: score.values[place], f"{score.name}_guess": score.guess[place]}
            for column in self.columns:
                row[f"right {column.name}"] = column.right[place]
            rows.append({**row, "objective": self.objective[place]})
        return tuple(rows)

    def _heading_lines(self) -> Iterator[str]:
        values = " x ".join(str(side) for side in self.shape)
        updates, records = _count_noun(len(self.accounts), "update"), _count_noun(self.batch_size, "record")
        yield f"attack    {self.attack}, {updates} of {records}"
        yield f"records   {self.data}, {values} in [{self.data_range[0]:g}, {self.data_range[1]:g}]"
        yield f"update    {self.release}, model {self.model}"
        yield f"defense   {self.defense}"
        knows = ", ".join(sorted(item.value for item in self.threat.knows)) or "nothing else"
        chosen = " and chooses the model" if self.threat.controls else ""
        yield f"adversary sees {self.threat.sees.value}, knows {knows}{chosen}"
        if self.prior:
            yield f"prior     {self.prior}"
        if not self.is_complete:
            yield f"INTERRUPTED: {len(self.records)} of {self.requested} records were reached."

    def _record_lines(self) -> Iterator[str]:
        metrics = "".join(f"{score.name:>10}{'guess':>9}" for score in self.scores)
        yield self._record_line("record", "update", "label", "inferred", metrics, "objective")
        for place in range(min(len(self.records), _LISTED)):
            metrics = "".join(f"{score.values[place]:>10.4g}{score.guess[place]:>9.3g}" for score in self.scores)
            inferred = self.inferred[place] if self.inferred else ""
            record, update = str(self.records[place]), str(self.updates[place])
            yield self._record_line(
                record, update, self.labels[place], inferred, metrics, f"{self.objective[place]:.3g}"
            )
        if len(self.records) > _LISTED:
            yield f"{'...':>8} and {len(self.records) - _LISTED} more in the report"

    def _record_line(self, record: str, update: str, label: str, inferred: str, metrics: str, objective: str) -> str:
        """Format one line; the columns of single-record updates and of known labels are left out."""
        shared = f"{update:>8}" if self.batch_size > 1 else ""
        used = f" {inferred[:10]:<10}" if self.inferred and Knows.LABELS not in self.threat.knows else ""
        return f"{record:>8}{shared}  {label[:10]:<10}{used}{metrics}{objective:>12}"

    def _summary_lines(self) -> Iterator[str]:
        """Yield means over all records, then the first account of each ending with the number of such accounts."""
        for score in self.scores:
            values = sum(score.values) / len(score.values), sum(score.guess) / len(score.guess)
            best = f"best rebuilt {score.values[score.best]:.4g} (record {self.records[score.best]})"
            yield f"{score.name:<9} mean {values[0]:.4g}, of {self.guesser} {values[1]:.4g}; {best}"
        if self.misfit is not None:
            yield f"misfit    {self.misfit.describe(self.guesser)}"
        peaks = [f"{score.name} {sum(score.oracle) / len(score.oracle):.4g}" for score in self.scores if score.oracle]
        if peaks:
            yield f"oracle    {', '.join(peaks)} at the steps closest to the records, which no attacker can choose"
        endings = [account.status.ending for account in self.accounts]
        for ending in dict.fromkeys(endings):
            first = endings.index(ending)
            several = f" ({_count_noun(endings.count(ending), 'update')}; this is {first})" if len(endings) > 1 else ""
            yield f"status    {self.accounts[first].status}{several}"
        seconds = sum(account.cost.seconds for account in self.accounts)
        evaluations = sum(account.cost.evaluations for account in self.accounts)
        yield f"cost      {seconds:.1f} s, {evaluations} evaluations of the release"


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
