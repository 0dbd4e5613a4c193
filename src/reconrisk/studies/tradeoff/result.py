"""The frontier between leakage and utility: one row per defense, strength and attacker, Pareto fronts and dominance.

A :class:`TradeoffCell` is one defense at one strength with one seed: the unit that is run and stored.
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
    """Mean scores of one attack by one attacker over all attacked records; ``failures`` of them a guess stands for."""

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
    """What training under a defense gave, and attacks on what it sends, for one seed.

    ``utility_1`` is E<g, y> over the squared norm of the gradient g, ``utility_2`` is -Var<g, y>, y what is sent.
    ``fisher_trace`` is the information of what is sent about one record, ``mse_bound`` an estimate, no proof, of what
    it implies for records of the stated prior: the lower end at 95 % confidence. ``defense_gradients`` is the cost of
    the defense in ordinary gradients, None where it is not told.
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
        """What an attack by an attacker came to."""
        for score in self.scores:
            if (score.attacker, score.attack) == (attacker, attack):
                return score
        raise invalid_input("attack", attack, f"to be one that the {attacker} attacker ran")


UNDEFENDED = "none"
"""The family of the reference point: training and sending as it is."""

ATTACKERS = ("unaware", "aware")
"""Who does not know the defense, and who knows it: its clipping, its mask and the size of its noise."""

UTILITIES: Mapping[str, int] = {
    "test_accuracy": 1,
    "training_loss": -1,
    "test_loss": -1,
    "utility_1": 1,
    "utility_2": 1,
}
"""What a defense costs: 1 where more is better, -1 where less is."""

LEAKAGES: Mapping[str, int] = {"mse": 1, "psnr": -1, "fisher_trace": -1, "mse_bound": 1}
"""What a defense protects: 1 where more is better for who defends, -1 where less is."""

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

    ``mse`` and ``psnr`` are those of ``attack``, the attack or guess with the smallest mean squared error.
    ``mse_bound`` is the smallest estimate of the bound of all seeds, no proof. ``diverged`` seeds had no finite
    gradient at some step.
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

    def measured(self, name: str) -> Estimate:
        """The utility or leakage of this name."""
        if name == "mse_bound":
            return Estimate(self.mse_bound, self.mse_bound, math.inf, 0.95, self.seeds, "estimated bound, no proof")
        found = getattr(self, name) if name in UTILITIES or name in LEAKAGES else None
        if not isinstance(found, Estimate):
            known = (*UTILITIES, *LEAKAGES)
            raise invalid_input(
                "measure", name, f"to be one of {', '.join(known)}, and measured", did_you_mean(name, known)
            )
        return found

    def to_row(self) -> Row:
        """Return everything that was measured as values by name."""
        names = ("attacker", "attack", "is_guess", "mse_bound", "seeds", "diverged", "seconds")
        row: Row = {"family": self.family, "strength": self.strength}
        for name in _ESTIMATES:
            found = getattr(self, name)
            row |= dict.fromkeys((name, f"{name}_low", f"{name}_high")) if found is None else found.columns(name)
        return {**row, **{name: getattr(self, name) for name in names}}

    @property
    def label(self) -> str:
        """Family and strength."""
        return self.family if self.strength is None else f"{self.family} {self.strength:g}"


@serializable("dominance")
@dataclass(frozen=True)
class Dominance:
    """For how many strengths of ``other`` some strength of ``family`` is at least as good in both measures.

    ``dominated`` counts them by the means, ``clearly`` where intervals of the differences over seeds leave no doubt,
    and ``never`` where they rule it out. At ``guessed`` of them no attack beat a guess, so that nothing protects more.
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
        """The part of the strengths at which it dominates by the means."""
        return self.dominated / self.strengths

    def __str__(self) -> str:
        """The statement in a sentence."""
        measures = f"{_words(self.utility)} and {_words(self.leakage)}"
        unclear = self.strengths - self.clearly - self.never
        guesses = f" At {self.guessed} of them no attack beat a guess." if self.guessed else ""
        return (
            f"Against the {self.attacker} attacker, {self.family} is at least as good as {self.other} in {measures} at "
            f"{self.dominated} of its {self.strengths} strengths; by intervals over {self.seeds} seeds this is sure at "
            f"{self.clearly}, ruled out at {self.never} and open at {unclear}.{guesses}"
        )


@serializable("tradeoff-result")
@dataclass(frozen=True)
class TradeoffResult(Result):
    """The frontier between leakage and utility, as :func:`reconrisk.studies.tradeoff.tradeoff.tradeoff` measured it.

    ``rows`` has one entry per defense, strength and attacker, the undefended reference (family ``"none"``) first.
    ``cells`` are the runs behind it. ``utility`` and ``leakage`` say what :meth:`front` and :meth:`dominates` compare.
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
        """Families in the order in which they were passed, without the reference."""
        return tuple(dict.fromkeys(row.family for row in self.rows if row.family != UNDEFENDED))

    def of(self, attacker: str, family: str | None = None) -> tuple[TradeoffRow, ...]:
        """Rows of an attacker, and of a family if one is named."""
        if attacker not in ATTACKERS:
            raise invalid_input("attacker", attacker, f"to be one of {', '.join(ATTACKERS)}")
        known = (UNDEFENDED, *self.families)
        if family is not None and family not in known:
            raise invalid_input(
                "family", family, f"to be one of {', '.join(known)}", did_you_mean(family, known).strip()
            )
        return tuple(row for row in self.rows if row.attacker == attacker and family in (None, row.family))

    def judged_by(self, *, utility: str | None = None, leakage: str | None = None) -> TradeoffResult:
        """The same measurements, compared by another utility or leakage."""
        return replace(self, utility=utility or self.utility, leakage=leakage or self.leakage)

    def front(self, attacker: str) -> tuple[TradeoffRow, ...]:
        """Rows that no other row of the attacker beats: better in one measure and no worse in the other, by means."""
        rows = self.of(attacker)
        signs = ((self.utility, UTILITIES[self.utility]), (self.leakage, LEAKAGES[self.leakage]))
        useful, protected = ([sign * row.measured(name).value for row in rows] for name, sign in signs)
        kept = pareto(list(zip(useful, protected, strict=True)))
        return tuple(row for row, is_kept in zip(rows, kept, strict=True) if is_kept)

    def dominates(self, family: str, other: str, *, attacker: str = "aware") -> Dominance:
        """For how many strengths of ``other`` some strength of ``family`` is at least as good in both measures.

        Doubt is judged by the differences seed by seed, since all defenses meet the same records under one seed; each
        difference by itself has the confidence of the result.
        """
        rivals, rows = self.of(attacker, family), self.of(attacker, other)
        counts = {"dominated": 0, "clearly": 0, "never": 0}
        for row in rows:
            gains = [self._gains(rival, row) for rival in rivals]
            counts["dominated"] += any(all(gain.value >= 0 for gain in each) for each in gains)
            counts["clearly"] += any(all(gain.low >= 0 for gain in each) for each in gains)
            counts["never"] += not any(all(gain.high >= 0 for gain in each) for each in gains)
        counts["guessed"] = sum(row.is_guess for row in rows) if self.leakage in ("mse", "psnr") else 0
        seeds = len(self._shared_seeds)
        return Dominance(family, other, attacker, self.utility, self.leakage, len(rows), seeds=seeds, **counts)

    def table(self) -> str:
        """All rows as text; a star marks the Pareto front of each attacker."""
        front = {id(row) for attacker in ATTACKERS for row in self.front(attacker)}
        head = ("", *_HEADS, f"est. MSE bound{'' if self.is_smooth else '?'}", "best attack")
        written = align_columns([head, *(_cells(row, starred=id(row) in front) for row in self.rows)])
        compared = f"* on the front by {_words(self.utility)} and {_words(self.leakage)}"
        seeds = max((row.seeds for row in self.rows), default=0)
        ends = f"+- {100 * self.confidence:g}% over {seeds} seeds" if seeds > 1 else "one seed, no intervals"
        state = "" if self.is_complete else " Not complete: the same call with the same store goes on."
        return "\n".join([*written, f"{compared}; {ends}.{state}", *self.notes])

    @property
    def sentence(self) -> str:
        """The settings that nothing beats against an attacker who knows the defense."""
        rows, front = self.of(ATTACKERS[-1]), self.front(ATTACKERS[-1])
        labels = ", ".join("no defense" if row.family == UNDEFENDED else row.label for row in front)
        state = "" if self.is_complete else " Not every setting was run."
        return (
            f"Against an attacker who knows the defense, {len(front)} of {len(rows)} settings are beaten by no other "
            f"in {_words(self.utility)} and {_words(self.leakage)} together: {labels}.{state}"
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each defense, strength and attacker."""
        front = {id(row) for attacker in ATTACKERS for row in self.front(attacker)}
        return tuple({**row.to_row(), "on_front": id(row) in front} for row in self.rows)

    @property
    def is_smooth(self) -> bool:
        """Whether gradients are known to move without jumps as the record moves, which the bound assumes."""
        return not any(note.startswith("MSE bound?") for note in self.notes)

    def _gains(self, rival: TradeoffRow, row: TradeoffRow) -> tuple[Estimate, Estimate]:
        """By how much a row is better than another in utility and protection, over the seeds that both have."""
        found = []
        for name, sign in ((self.utility, UTILITIES[self.utility]), (self.leakage, LEAKAGES[self.leakage])):
            ours, theirs = self._by_seed(rival, name), self._by_seed(row, name)
            gains = [0.0 if ours[each] == theirs[each] else sign * (ours[each] - theirs[each]) for each in ours]
            found.append(_over_seeds(gains, self.confidence))
        return found[0], found[1]

    def _by_seed(self, row: TradeoffRow, name: str) -> dict[int, float]:
        row.measured(name)
        cells = [cell for cell in self.cells if (cell.family, cell.strength) == (row.family, row.strength)]
        shared = self._shared_seeds
        if name not in ("mse", "psnr"):
            return {cell.seed: getattr(cell, name) for cell in cells if cell.seed in shared}
        return {cell.seed: getattr(cell.score(row.attacker, row.attack), name) for cell in cells if cell.seed in shared}

    @property
    def _shared_seeds(self) -> frozenset[int]:
        """Seeds that every defense has been run with."""
        runs: dict[tuple[str, float | None], set[int]] = {}
        for cell in self.cells:
            runs.setdefault((cell.family, cell.strength), set()).add(cell.seed)
        return frozenset.intersection(*(frozenset(each) for each in runs.values()))


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points no other point beats: at least as large in both coordinates and larger in one.

    >>> pareto([(0.0, 2.0), (1.0, 1.0), (0.0, 1.0), (1.0, 1.0)])
    [True, True, False, True]
    """
    return [
        not any(other[0] >= point[0] and other[1] >= point[1] and other != point for other in points)
        for point in points
    ]


def rows_from_cells(cells: Iterable[TradeoffCell], *, confidence: float) -> tuple[TradeoffRow, ...]:
    """One row for every defense, strength and attacker, in the order in which they first occur."""
    groups: dict[tuple[str, float | None], list[TradeoffCell]] = {}
    for cell in cells:
        groups.setdefault((cell.family, cell.strength), []).append(cell)
    return tuple(_row(group, attacker, confidence) for group in groups.values() for attacker in ATTACKERS)


def _over_seeds(values: Sequence[float], confidence: float) -> Estimate:
    return student_interval(values, confidence, over="seeds")


def _row(cells: Sequence[TradeoffCell], attacker: str, confidence: float) -> TradeoffRow:
    def over(read: Callable[[TradeoffCell], float]) -> Estimate:
        return _over_seeds([read(cell) for cell in cells], confidence)

    scores = [{score.attack: score for score in cell.scores if score.attacker == attacker} for cell in cells]
    shared = [attack for attack in scores[0] if all(attack in each for each in scores)]
    attack = min(shared, key=lambda name: statistics.fmean(each[name].mse for each in scores))
    rights = [cell.test_accuracy for cell in cells if cell.test_accuracy is not None]
    return TradeoffRow(
        family=cells[0].family,
        strength=cells[0].strength,
        attacker=attacker,
        attack=attack,
        is_guess=scores[0][attack].is_guess,
        mse=_over_seeds([each[attack].mse for each in scores], confidence),
        psnr=_over_seeds([each[attack].psnr for each in scores], confidence),
        test_accuracy=_over_seeds(rights, confidence) if len(rights) == len(cells) else None,
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


def _cells(row: TradeoffRow, *, starred: bool) -> tuple[str, ...]:
    strength = "" if row.strength is None else f"{row.strength:g}"
    loss = _shown(row.training_loss) + (f" ({row.diverged} diverged)" if row.diverged else "")
    return (
        "*" if starred else "",
        row.family,
        strength,
        row.attacker,
        _shown(row.mse),
        _shown(row.psnr),
        "" if row.test_accuracy is None else _shown(row.test_accuracy),
        loss,
        _shown(row.utility_1),
        _shown(row.utility_2),
        _shown(row.fisher_trace),
        f"{row.mse_bound:.3g}",
        row.attack,
    )


def _shown(estimate: Estimate) -> str:
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:.3g} +- {half:.2g}" if math.isfinite(half) and half > 0 else f"{estimate.value:.3g}"


def _words(name: str) -> str:
    return {"mse": "MSE", "psnr": "PSNR", "utility_1": "U1", "utility_2": "U2", "mse_bound": "estimated MSE bound"}.get(
        name, name.replace("_", " ")
    )
