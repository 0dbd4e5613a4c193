"""Result of a leakage-utility study: one row per defense, strength and attacker, Pareto fronts and dominance.

A :class:`TradeoffCell` is one defense at one strength with one seed, the unit that is run and stored.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from reconrisk.core.guarantee import Estimate
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.storage.text_table import align_columns
from reconrisk.core.validation import check_not_empty, check_real, check_whole, did_you_mean, invalid_input
from reconrisk.statistics.intervals import student_interval


@serializable("attack-score")
@dataclass(frozen=True)
class AttackScore:
    """Mean scores of one attack over all attacked records of a cell.

    Attributes:
        attacker: "aware" or "unaware" of the defense.
        attack: Name of the attack.
        is_guess: True for a baseline that ignores the update.
        mse: Mean squared error.
        psnr: Mean peak signal-to-noise ratio in dB.
        failures: Records on which the attack failed; a baseline replaces its estimate there.
    """

    attacker: str
    attack: str
    is_guess: bool
    mse: float
    psnr: float
    failures: int = 0

    def __post_init__(self) -> None:
        check_real("mse", self.mse)
        check_real("psnr", self.psnr)


@serializable("tradeoff-cell")
@dataclass(frozen=True)
class TradeoffCell:
    """Outcome of training under a defense and of attacks on its updates, for one seed.

    In the formulas, g is the gradient and y the defended gradient that is sent.

    Attributes:
        family: Name of the family; ``"none"`` is no defense.
        strength: Strength within the family; None for no defense.
        seed: Seed of split, training and attacks.
        training_loss: Mean training loss on all training records after training.
        test_loss: The same loss on test records after training.
        test_accuracy: Accuracy on test records; None for real-valued labels.
        diverged: True if a training step had no finite gradient.
        utility_1: E<g, y> / |g|^2, the part of a step that remains.
        utility_2: -Var<g, y>, the noise along the gradient.
        fisher_trace: Trace of the Fisher information of the sent update about one record.
        mse_bound: Estimated lower bound on the mean squared error for records of the stated prior, not a proof. It is
            the lower end at 95 % confidence.
        scores: Scores of every attack.
        seconds: Duration of the run.
        defense_gradients: Cost of the defense in ordinary gradients; None if unknown.
    """

    family: str
    strength: float | None
    seed: int
    training_loss: float
    test_loss: float
    test_accuracy: float | None
    diverged: bool
    utility_1: float
    utility_2: float
    fisher_trace: float
    mse_bound: float
    scores: tuple[AttackScore, ...]
    seconds: float
    defense_gradients: float | None = None

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, minimum=0)
        check_not_empty("scores", self.scores)

    def score(self, attacker: str, attack: str) -> AttackScore:
        """Return the score of an attack run by an attacker.

        Args:
            attacker: "aware" or "unaware".
            attack: Name of the attack.

        Returns:
            Mean scores of that attack over the attacked records of the cell.
        """
        for score in self.scores:
            if (score.attacker, score.attack) == (attacker, attack):
                return score
        raise invalid_input("attack", attack, f"to be an attack that the {attacker} attacker ran")


UNDEFENDED = "none"
"""Family name of the reference point without a defense."""

ATTACKERS = ("unaware", "aware")
"""Attackers without and with knowledge of the defense: its clipping, its mask and the size of its noise."""

UTILITIES: Mapping[str, int] = {
    "test_accuracy": 1,
    "training_loss": -1,
    "test_loss": -1,
    "utility_1": 1,
    "utility_2": 1,
}
"""Measures of utility: 1 if larger is better, -1 if smaller is better."""

LEAKAGES: Mapping[str, int] = {"mse": 1, "psnr": -1, "fisher_trace": -1, "mse_bound": 1}
"""Measures of leakage: 1 if larger values mean more protection, -1 if smaller values do."""

_ESTIMATES = (
    "mse",
    "psnr",
    "test_accuracy",
    "training_loss",
    "test_loss",
    "utility_1",
    "utility_2",
    "fisher_trace",
)
_HEADS = ("defense", "strength", "attacker", "MSE", "PSNR", "accuracy", "training loss", "U1", "U2", "Fisher trace")


@serializable("tradeoff-row")
@dataclass(frozen=True)
class TradeoffRow:
    """A defense at one strength against one attacker, with intervals over seeds.

    Attributes:
        family: Name of the family; ``"none"`` is no defense.
        strength: Strength within the family; None for no defense.
        attacker: "aware" or "unaware" of the defense.
        attack: Attack or baseline with the smallest mean squared error.
        is_guess: True if that is a baseline.
        mse: Mean squared error of that attack.
        psnr: Peak signal-to-noise ratio of that attack in dB.
        test_accuracy: Accuracy on test records; None for real-valued labels.
        training_loss: Mean training loss on all training records after training.
        test_loss: The same loss on test records after training.
        utility_1: Part of a step that remains (U1).
        utility_2: Negative variance along the gradient (U2).
        fisher_trace: Trace of the Fisher information of the sent update about one record.
        mse_bound: Smallest estimated bound over the seeds, not a proof.
        seeds: Number of seeds.
        diverged: Number of seeds with a training step without a finite gradient.
        seconds: Total duration.
    """

    family: str
    strength: float | None
    attacker: str
    attack: str
    is_guess: bool
    mse: Estimate
    psnr: Estimate
    test_accuracy: Estimate | None
    training_loss: Estimate
    test_loss: Estimate
    utility_1: Estimate
    utility_2: Estimate
    fisher_trace: Estimate
    mse_bound: float
    seeds: int
    diverged: int
    seconds: float

    def estimate_for(self, name: str) -> Estimate:
        """Return the utility or leakage of this name, with its interval over seeds."""
        if name == "mse_bound":
            # one-sided: the bound is the lower end at 95 % confidence of each seed
            return Estimate(self.mse_bound, self.mse_bound, math.inf, 0.95, self.seeds, "estimated bound, not a proof")
        found = getattr(self, name) if name in UTILITIES or name in LEAKAGES else None
        if not isinstance(found, Estimate):
            known = (*UTILITIES, *LEAKAGES)
            raise invalid_input(
                "measure", name, f"to be one of {', '.join(known)}, and measured", did_you_mean(name, known)
            )
        return found

    def to_row(self) -> Row:
        """Return all measurements as values by name."""
        names = ("attacker", "attack", "is_guess", "mse_bound", "seeds", "diverged", "seconds")
        row: Row = {"family": self.family, "strength": self.strength}
        for name in _ESTIMATES:
            found = getattr(self, name)
            row |= dict.fromkeys((name, f"{name}_low", f"{name}_high")) if found is None else found.columns(name)
        return {**row, **{name: getattr(self, name) for name in names}}

    @property
    def label(self) -> str:
        """Family and strength as text."""
        return self.family if self.strength is None else f"{self.family} {self.strength:g}"


@serializable("dominance")
@dataclass(frozen=True)
class Dominance:
    """Number of strengths of ``other`` at which some strength of ``family`` is at least as good in both measures.

    Attributes:
        family: Family that may dominate.
        other: Family that may be dominated.
        attacker: "aware" or "unaware" of the defense.
        utility: Measure of utility.
        leakage: Measure of leakage.
        strengths: Number of strengths of ``other``.
        dominated: Strengths dominated by the means over seeds.
        clearly: Strengths dominated by the intervals of the paired differences too.
        never: Strengths at which the intervals exclude dominance.
        guessed: Strengths at which no attack beat a guess, so that no defense can protect more.
        seeds: Number of seeds that all defenses share.
    """

    family: str
    other: str
    attacker: str
    utility: str
    leakage: str
    strengths: int
    dominated: int
    clearly: int
    never: int
    guessed: int
    seeds: int

    @property
    def share(self) -> float:
        """Share of the strengths that are dominated by the means."""
        return self.dominated / self.strengths

    def __str__(self) -> str:
        """State the result in a sentence."""
        measures = f"{_describe_measure(self.utility)} and {_describe_measure(self.leakage)}"
        unclear = self.strengths - self.clearly - self.never
        guesses = f" At {self.guessed} of them no attack beat a guess." if self.guessed else ""
        return (
            f"Against the {self.attacker} attacker, {self.family} is at least as good as {self.other} in {measures} at "
            f"{self.dominated} of its {self.strengths} strengths; intervals over {self.seeds} seeds confirm this at "
            f"{self.clearly}, exclude it at {self.never} and leave it open at {unclear}.{guesses}"
        )


@serializable("tradeoff-result")
@dataclass(frozen=True)
class TradeoffResult(Result):
    """Leakage and utility of families of defenses, measured by :func:`reconrisk.studies.tradeoff.tradeoff.tradeoff`.

    Attributes:
        rows: One row per defense, strength and attacker; the reference without a defense (``"none"``) comes first.
        cells: Runs that the rows summarise.
        utility: Measure of utility that :meth:`front` and :meth:`dominates` compare.
        leakage: Measure of leakage that :meth:`front` and :meth:`dominates` compare.
        confidence: Confidence of every interval.
        is_complete: True if every run was finished.
        notes: Notes under the table.
        signature: The call in one line, with digests of model and data. Families list strengths: configure their
            defenses again to repeat the call.
    """

    rows: tuple[TradeoffRow, ...]
    cells: tuple[TradeoffCell, ...]
    utility: str
    leakage: str
    confidence: float
    is_complete: bool
    notes: tuple[str, ...]
    signature: str

    def __post_init__(self) -> None:
        for name, value, known in (("utility", self.utility, UTILITIES), ("leakage", self.leakage, LEAKAGES)):
            if value not in known:
                raise invalid_input(name, value, f"to be one of {', '.join(known)}", did_you_mean(value, known).strip())

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the families in the order in which they were passed, without the reference."""
        return tuple(dict.fromkeys(row.family for row in self.rows if row.family != UNDEFENDED))

    def rows_for(self, attacker: str, family: str | None = None) -> tuple[TradeoffRow, ...]:
        """Return the rows of an attacker.

        Args:
            attacker: "aware" or "unaware".
            family: Name of a family; None for all.

        Returns:
            Rows of this attacker in the order of the result, restricted to the family if one is given.
        """
        if attacker not in ATTACKERS:
            raise invalid_input("attacker", attacker, f"to be one of {', '.join(ATTACKERS)}")
        known = (UNDEFENDED, *self.families)
        if family is not None and family not in known:
            raise invalid_input(
                "family", family, f"to be one of {', '.join(known)}", did_you_mean(family, known).strip()
            )
        return tuple(row for row in self.rows if row.attacker == attacker and family in (None, row.family))

    def with_measures(self, *, utility: str | None = None, leakage: str | None = None) -> TradeoffResult:
        """Return the same measurements, compared by another utility or leakage; nothing is computed again.

        Args:
            utility: Measure of utility; None to keep the present one.
            leakage: Measure of leakage; None to keep the present one.

        Returns:
            A copy whose rows are compared by these measures.
        """
        return replace(self, utility=utility or self.utility, leakage=leakage or self.leakage)

    def pareto_rows(self, attacker: str) -> tuple[TradeoffRow, ...]:
        """Return the Pareto front of an attacker: rows that no other row dominates by the means."""
        rows = self.rows_for(attacker)
        signs = ((self.utility, UTILITIES[self.utility]), (self.leakage, LEAKAGES[self.leakage]))
        useful, protected = ([sign * row.estimate_for(name).value for row in rows] for name, sign in signs)
        kept = pareto_front(list(zip(useful, protected, strict=True)))
        return tuple(row for row, is_kept in zip(rows, kept, strict=True) if is_kept)

    def dominates(self, family: str, other: str, *, attacker: str = "aware") -> Dominance:
        """Count the strengths of ``other`` at which some strength of ``family`` is at least as good in both measures.

        Intervals are those of paired differences over seeds, since all defenses use the same records under one seed.
        Each interval by itself has the confidence of the result.

        Args:
            family: Family that may dominate.
            other: Family that may be dominated.
            attacker: "aware" or "unaware".

        Returns:
            Numbers of strengths at which the means show dominance, the intervals show it, and the intervals exclude it.
        """
        rivals, rows = self.rows_for(attacker, family), self.rows_for(attacker, other)
        counts = {"dominated": 0, "clearly": 0, "never": 0}
        for row in rows:
            gains = [self._paired_gains(rival, row) for rival in rivals]
            counts["dominated"] += any(all(gain.value >= 0 for gain in each) for each in gains)
            counts["clearly"] += any(all(gain.low >= 0 for gain in each) for each in gains)
            counts["never"] += not any(all(gain.high >= 0 for gain in each) for each in gains)
        # only these two measures depend on the success of attacks
        counts["guessed"] = sum(row.is_guess for row in rows) if self.leakage in ("mse", "psnr") else 0
        seeds = len(self._shared_seeds)
        return Dominance(family, other, attacker, self.utility, self.leakage, len(rows), seeds=seeds, **counts)

    def table(self) -> str:
        """Return all rows as text; a star marks the Pareto front of each attacker."""
        front = {id(row) for attacker in ATTACKERS for row in self.pareto_rows(attacker)}
        head = ("", *_HEADS, f"est. MSE bound{'' if self.is_smooth else '?'}", "best attack")
        written = align_columns([head, *(_format_row(row, starred=id(row) in front) for row in self.rows)])
        measures = f"* on the Pareto front by {_describe_measure(self.utility)} and {_describe_measure(self.leakage)}"
        seeds = max((row.seeds for row in self.rows), default=0)
        ends = f"+- {100 * self.confidence:g}% over {seeds} seeds" if seeds > 1 else "one seed, no intervals"
        state = "" if self.is_complete else " Not complete: repeat the call with the same store to continue."
        return "\n".join([*written, f"{measures}; {ends}.{state}", *self.notes])

    @property
    def sentence(self) -> str:
        """Settings on the Pareto front against an attacker who knows the defense."""
        rows, front = self.rows_for(ATTACKERS[-1]), self.pareto_rows(ATTACKERS[-1])
        labels = ", ".join("no defense" if row.family == UNDEFENDED else row.label for row in front)
        state = "" if self.is_complete else " Not every setting was run."
        return (
            f"Against an attacker who knows the defense, {len(front)} of {len(rows)} settings are on the Pareto front "
            f"of {_describe_measure(self.utility)} and {_describe_measure(self.leakage)}: {labels}.{state}"
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each defense, strength and attacker."""
        front = {id(row) for attacker in ATTACKERS for row in self.pareto_rows(attacker)}
        return tuple({**row.to_row(), "on_front": id(row) in front} for row in self.rows)

    @property
    def is_smooth(self) -> bool:
        """True if the gradient is known to be a smooth function of the record, which the bound assumes."""
        return not any(note.startswith("MSE bound?") for note in self.notes)

    def _paired_gains(self, rival: TradeoffRow, row: TradeoffRow) -> tuple[Estimate, Estimate]:
        """Return how much ``rival`` is better than ``row`` in utility and in protection, paired by seed."""
        found = []
        for name, sign in ((self.utility, UTILITIES[self.utility]), (self.leakage, LEAKAGES[self.leakage])):
            ours, theirs = self._values_by_seed(rival, name), self._values_by_seed(row, name)
            # equal infinities (traces without noise) differ by 0, not by NaN
            gains = [0.0 if ours[each] == theirs[each] else sign * (ours[each] - theirs[each]) for each in ours]
            found.append(_interval_over_seeds(gains, self.confidence))
        return found[0], found[1]

    def _values_by_seed(self, row: TradeoffRow, name: str) -> dict[int, float]:
        row.estimate_for(name)  # raises if the measure does not exist, such as the accuracy of real-valued labels
        cells = [cell for cell in self.cells if (cell.family, cell.strength) == (row.family, row.strength)]
        shared = self._shared_seeds
        if name not in ("mse", "psnr"):
            return {cell.seed: getattr(cell, name) for cell in cells if cell.seed in shared}
        return {cell.seed: getattr(cell.score(row.attacker, row.attack), name) for cell in cells if cell.seed in shared}

    @property
    def _shared_seeds(self) -> frozenset[int]:
        """Seeds that were run with every defense."""
        runs: dict[tuple[str, float | None], set[int]] = {}
        for cell in self.cells:
            runs.setdefault((cell.family, cell.strength), set()).add(cell.seed)
        return frozenset.intersection(*(frozenset(each) for each in runs.values()))


def pareto_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return a flag for each point: True if no other point dominates it.

    A point dominates another if it is at least as large in both coordinates and larger in one.

    Args:
        points: Pairs of values, larger is better.

    Returns:
        One flag per point.

    >>> pareto_front([(0.0, 2.0), (1.0, 1.0), (0.0, 1.0), (1.0, 1.0)])
    [True, True, False, True]
    """
    return [
        not any(other[0] >= point[0] and other[1] >= point[1] and other != point for other in points)
        for point in points
    ]


def rows_from_cells(cells: Iterable[TradeoffCell], *, confidence: float) -> tuple[TradeoffRow, ...]:
    """Summarise cells into one row for every defense, strength and attacker.

    Args:
        cells: Runs of all seeds.
        confidence: Confidence of the intervals over seeds.

    Returns:
        The rows in the order in which defenses first occur.
    """
    groups: dict[tuple[str, float | None], list[TradeoffCell]] = {}
    for cell in cells:
        groups.setdefault((cell.family, cell.strength), []).append(cell)
    return tuple(_summarise_cells(group, attacker, confidence) for group in groups.values() for attacker in ATTACKERS)


def _interval_over_seeds(values: Sequence[float], confidence: float) -> Estimate:
    return student_interval(values, confidence, over="seeds")


def _summarise_cells(cells: Sequence[TradeoffCell], attacker: str, confidence: float) -> TradeoffRow:
    def over(read: Callable[[TradeoffCell], float]) -> Estimate:
        return _interval_over_seeds([read(cell) for cell in cells], confidence)

    scores = [{score.attack: score for score in cell.scores if score.attacker == attacker} for cell in cells]
    # an attack may apply under some seeds only; compare those that have a score under every seed
    shared = [attack for attack in scores[0] if all(attack in each for each in scores)]
    attack = min(shared, key=lambda name: statistics.fmean(each[name].mse for each in scores))
    rights = [cell.test_accuracy for cell in cells if cell.test_accuracy is not None]
    return TradeoffRow(
        family=cells[0].family,
        strength=cells[0].strength,
        attacker=attacker,
        attack=attack,
        is_guess=scores[0][attack].is_guess,
        mse=_interval_over_seeds([each[attack].mse for each in scores], confidence),
        psnr=_interval_over_seeds([each[attack].psnr for each in scores], confidence),
        test_accuracy=_interval_over_seeds(rights, confidence) if len(rights) == len(cells) else None,
        training_loss=over(lambda cell: cell.training_loss),
        test_loss=over(lambda cell: cell.test_loss),
        utility_1=over(lambda cell: cell.utility_1),
        utility_2=over(lambda cell: cell.utility_2),
        fisher_trace=over(lambda cell: cell.fisher_trace),
        mse_bound=min(cell.mse_bound for cell in cells),
        seeds=len(cells),
        diverged=sum(cell.diverged for cell in cells),
        seconds=sum(cell.seconds for cell in cells),
    )


def _format_row(row: TradeoffRow, *, starred: bool) -> tuple[str, ...]:
    strength = "" if row.strength is None else f"{row.strength:g}"
    loss = _format_estimate(row.training_loss) + (f" ({row.diverged} diverged)" if row.diverged else "")
    return (
        "*" if starred else "",
        row.family,
        strength,
        row.attacker,
        _format_estimate(row.mse),
        _format_estimate(row.psnr),
        "" if row.test_accuracy is None else _format_estimate(row.test_accuracy),
        loss,
        _format_estimate(row.utility_1),
        _format_estimate(row.utility_2),
        _format_estimate(row.fisher_trace),
        f"{row.mse_bound:.3g}",
        row.attack,
    )


def _format_estimate(estimate: Estimate) -> str:
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:.3g} +- {half:.2g}" if math.isfinite(half) and half > 0 else f"{estimate.value:.3g}"


def _describe_measure(name: str) -> str:
    return {"mse": "MSE", "psnr": "PSNR", "utility_1": "U1", "utility_2": "U2", "mse_bound": "estimated MSE bound"}.get(
        name, name.replace("_", " ")
    )
