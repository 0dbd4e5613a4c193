"""The search for a defense: strengths that meet the target, confirmed on fresh records, then trained with.

:func:`smallest_met` finds the smallest strength that meets a condition in few tries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from scipy import stats
from torch import nn

from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Estimate, Quantity
from reconrisk.core.metric import Limit
from reconrisk.core.progress import CancelToken, ProgressBar
from reconrisk.core.validation import check_positive, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.families import rounded_level
from reconrisk.defenses.registry import FamilyInfo, family_by_name
from reconrisk.studies.common.defended_training import train_defended
from reconrisk.studies.common.guarantees import GuaranteeFinder
from reconrisk.studies.common.subjects.subject import UpdateRecipe
from reconrisk.studies.recommend.attacked_share import Attackers, OutOfTime, Share, timed
from reconrisk.studies.recommend.public_part import PublicPart
from reconrisk.studies.recommend.result import DefenseOption, Met, TrainingCost

_CLIENTS = 16  # records of a training step


@dataclass(frozen=True, eq=False)
class Trained:
    """How models are trained under the defenses that pass: with public records as a test."""

    model: nn.Module
    private: Dataset
    public: Dataset
    steps: int
    seeds: int
    learning_rate: float
    recipe: UpdateRecipe
    seed: int

    def cost(self, defense: Defense | None) -> TrainingCost:
        """Accuracy and loss of public records after training, over seeds that are the same for every defense."""
        clients = max(1, min(_CLIENTS, len(self.private)) // self.recipe.batch_size)
        is_gradient = self.recipe.local_steps is None
        runs = [
            train_defended(
                self.model,
                self.private,
                defense,
                steps=self.steps,
                test=self.public,
                clients=clients,
                update=self.recipe,
                learning_rate=self.learning_rate if is_gradient else 1.0,  # changes are added as they are
                rng=torch.Generator().manual_seed(self.seed + run),
            )
            for run in range(self.seeds)
        ]
        accuracy = [run.test_accuracy for run in runs if run.test_accuracy is not None]
        losses = [run.test_loss for run in runs if run.test_loss is not None]
        return TrainingCost(_mean(accuracy), _mean(losses), self.steps, self.seeds)


def _mean(values: Sequence[float]) -> Estimate | None:
    """Mean over seeds with a 95% t interval; None where there is nothing finite."""
    if not values or not all(math.isfinite(value) for value in values):
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, mean, mean, 0.0, 1, "one seed")
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return Estimate(mean, mean - half, mean + half, 0.95, len(values), "t over seeds")


_GROWTH = 4.0


def smallest_met(
    is_met: Callable[[float], bool], *, low: float, high: float, start: float, resolution: float = 1.5
) -> float | None:
    r"""The smallest level in [``low``, ``high``] at which ``is_met``, up to a factor; None if it is not at ``high``.

    From ``start`` it goes up or down by factors of four until the answer changes, then halves the bracket in logarithms
    until its ends differ by at most the factor ``resolution``. Levels are rounded up to three digits.

    Assumes: ``is_met`` from some level on; where it is not so, the level returned is still one at which it was met.
    Guarantee: for the threshold t the level is within [t, ``resolution`` t], up to rounding; ``low`` if t is below it.
    Edge cases: what ``is_met`` raises passes: whoever calls knows what was tried.

    >>> smallest_met(lambda level: level >= 0.3, low=0.01, high=100.0, start=1.0, resolution=1.5)
    0.354
    """
    for name, value in (("low", low), ("high", high), ("start", start)):
        check_positive(name, value)
    if not low < high:
        raise invalid_input("low", low, f"< high={high}")
    if not resolution > 1:
        raise invalid_input(
            "resolution", resolution, "> 1", "It is the factor between what is found and what is needed."
        )
    met, unmet = _bracket(is_met, low, high, min(max(start, low), high))
    if met is None or unmet is None:
        return met
    while met > resolution * unmet:
        middle = rounded_level(math.sqrt(met * unmet))
        if not unmet < middle < met:
            break
        met, unmet = (middle, unmet) if is_met(middle) else (met, middle)
    return met


def _bracket(
    is_met: Callable[[float], bool], low: float, high: float, start: float
) -> tuple[float | None, float | None]:
    """The lowest level that was met and the highest that was not, next to each other; None where an end is reached."""
    level = rounded_level(start)
    first = is_met(level)
    while True:
        beyond = max(low, level / _GROWTH) if first else min(high, level * _GROWTH)
        following = rounded_level(beyond)
        if following == level or (first and level <= low) or (not first and level >= high):
            return (level, None) if first else (None, level)
        if is_met(following) != first:
            return (level, following) if first else (following, level)
        level = following


UNDEFENDED = "none"
"""The family of the update as it is."""

ATTEMPTS = 4
"""How often a family is confirmed, each time stronger than before, by steps that grow."""

SEARCHED, STOPPED = "searched, no interval", "stopped early, no interval"
"""What stands for an interval where the counts themselves decided when counting ended."""

_SEARCH_SHARE, _CONFIRM_SHARE = 0.5, 0.9  # of the budget, after which the next part begins
_STRONGER = "stronger than the search found, which fresh records did not confirm"
_NOT_BEYOND_GUESSES = "guesses alone rebuild too many of the fresh records: more records are needed"
_NO_ATTACK = "there are updates on which no attack worked, which shows nothing"


@dataclass(frozen=True, eq=False)
class Case:
    """What is asked, and everything that answers are found with.

    ``search`` and ``confirm`` are the numbers of updates; ``allowed`` says how many records of the latter may be
    rebuilt, ``level`` is the confidence of their intervals. Limits are attacked only if ``evidence`` is "measured";
    ``guess`` are then the shares of records that guesses rebuild.
    """

    public: PublicPart
    attackers: Attackers
    guarantees: GuaranteeFinder
    limits: tuple[Limit, ...]
    mse_bound: float | None
    evidence: str
    guess: tuple[float, ...]
    search: range
    confirm: range
    allowed: tuple[int, ...]
    level: float
    resolution: float
    finalists: int
    training: Trained

    @property
    def is_attacked(self) -> bool:
        """Whether a limit is judged by attacks."""
        return bool(self.limits) and self.evidence == "measured"

    @property
    def is_beyond_guessing(self) -> bool:
        """Whether guesses alone rebuild more than is accepted: no defense changes that."""
        return any(guess > limit.at_most for guess, limit in zip(self.guess, self.limits, strict=False))

    @cached_property
    def allowed_in_search(self) -> tuple[int, ...]:
        """As many records as the limits say, without any interval, and those that a guess rebuilds."""
        records = len(self.search) * self.attackers.records_per_update
        guessed = self.attackers.guessed(self.search).reached
        pairs = zip(self.limits, guessed, strict=True)
        return tuple(int(limit.at_most * records + 1e-9) + count for limit, count in pairs)

    def proved(self, defense: Defense | None) -> tuple[float, ...]:
        """Bounds on the success of everybody, by the mechanism of the defense; 1 where it has none."""
        found = []
        for limit in self.limits:
            answers = self.guarantees.answers(limit.goal, "", defense)
            values = [
                answer.guarantee.value
                for answer in answers
                if answer.is_about_targets
                and answer.guarantee.quantity is Quantity.SUCCESS_PROBABILITY
                and answer.guarantee.covers(self.attackers.threat)
            ]
            found.append(min(values, default=1.0))
        return tuple(found)

    def is_proved(self, defense: Defense | None) -> bool:
        """Whether every limit is met by proof."""
        return all(value <= limit.at_most for value, limit in zip(self.proved(defense), self.limits, strict=True))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A defense of a family, and what attacks have shown of it."""

    family: str
    level: float
    defense: Defense | None
    code: str
    met: Met
    share: Share | None = None
    tried: int = 0
    remark: str = ""

    def with_remark(self, words: str) -> Candidate:
        """The same with something more to say of it."""
        return replace(self, remark=f"{self.remark}; {words}" if self.remark else words)


@dataclass(eq=False)
class Choosing:
    """The search as it goes: whatever interrupts it, what it has found so far stays."""

    case: Case
    families: tuple[str, ...]
    total: CancelToken
    found: dict[str, Candidate] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    costs: dict[str, TrainingCost] = field(default_factory=dict)
    ended: str = "complete"

    def run(self) -> None:
        """Search, confirm and train, as long as there is time and nobody interrupts."""
        bar = ProgressBar("choosing a defense", total=len(self.families) + 2 * self.case.finalists + 2, at_once=True)
        try:
            if self.case.is_beyond_guessing:
                return
            self._search(bar)
            self._confirm(bar)
            self._train(bar)
        except KeyboardInterrupt:
            self.ended = "interrupted"
        except OutOfTime:
            self.ended = "out of time"
        finally:
            bar.close()

    @property
    def ranked(self) -> tuple[str, ...]:
        """Families that were shown to meet the target, cheapest first."""
        shown = [option for option in self.options() if option.met.is_shown]
        return tuple(option.family for option in sorted(shown, key=lambda option: option.rank, reverse=True))

    def options(self) -> tuple[DefenseOption, ...]:
        """A row for every family."""
        return tuple(self._option(name) for name in (UNDEFENDED, *self.families))

    def _option(self, name: str) -> DefenseOption:
        if name not in self._rows or self._rows[name][0] is not self.found.get(name):
            self._rows[name] = (self.found.get(name), _row(self.case, name, self.found.get(name), self.reasons))
        return replace(self._rows[name][1], training=self.costs.get(name))

    _rows: dict[str, tuple[Candidate | None, DefenseOption]] = field(default_factory=dict)

    def _search(self, bar: ProgressBar) -> None:
        ahead = _part_of(self.total, _SEARCH_SHARE)
        names = (UNDEFENDED, *self.families)
        start: float | None = None
        for place, name in enumerate(names):
            token = CancelToken(None if math.isinf(ahead.left) else max(ahead.left, 0.0) / (len(names) - place))
            candidate = self._searched(name, start, token)
            if candidate is not None:
                self.found[name] = candidate
                if candidate.met is Met.SEARCHED and name != UNDEFENDED and not family_by_name(name).prunes:
                    start = candidate.level  # levels of noise can be compared
            bar.advance()

    def _searched(self, name: str, start: float | None, token: CancelToken) -> Candidate | None:
        """The smallest strength of a family that met the target in the search, else the strongest that was tried."""
        tried: list[Candidate] = []
        try:
            with timed(token):
                if name == UNDEFENDED:
                    tried.append(self._tried(name, 0.0, token))
                else:
                    self._search_family(family_by_name(name), start, token, tried)
        except OutOfTime:
            self.reasons[name] = "its time was over"
            return _settled(_best_of(tried, self.reasons[name]))
        except KeyboardInterrupt:
            best = _settled(_best_of(tried, "interrupted"))
            if best is not None:
                self.found[name] = best
            raise
        return _best_of(tried, self.reasons.get(name, ""))

    def _search_family(
        self, family: FamilyInfo, start: float | None, token: CancelToken, tried: list[Candidate]
    ) -> None:
        reference = self.case.public.reference
        low, high = family.levels(reference)
        try:
            family.defense(reference, high)
        except InvalidInput as error:  # such as moments of a model whose layers mix records
            self.reasons[family.name] = str(error)
            return

        def is_met(level: float) -> bool:
            tried.append(self._tried(family.name, level, token))
            return tried[-1].met is Met.SEARCHED

        beginning = family.start(reference) if start is None or family.prunes else start
        smallest_met(is_met, low=low, high=high, start=beginning, resolution=self.case.resolution)

    def _tried(self, name: str, level: float, token: CancelToken) -> Candidate:
        case = self.case
        defense, code = _built(case, name, level)
        candidate = Candidate(name, level, defense, code, Met.NEVER)
        if case.mse_bound is not None and case.public.mse_bound(defense).low < case.mse_bound:
            return candidate
        if not case.is_attacked:
            return replace(candidate, met=Met.SEARCHED if case.is_proved(defense) else Met.NEVER)
        allowed = case.allowed_in_search
        share = case.attackers.share(defense, case.search, allowed, token)
        candidate = replace(candidate, share=share, met=Met.NEVER if share.exceeds(allowed) else Met.SEARCHED)
        return candidate.with_remark(_NO_ATTACK) if share.unknown else candidate

    def _confirm(self, bar: ProgressBar) -> None:
        """Attack fresh records, in the order of what defenses leave of a step, until enough of them pass."""
        rows = {name: self._option(name).step_utility for name in self.found}
        waiting = [name for name in sorted(rows, key=lambda name: -rows[name]) if self.found[name].met is Met.SEARCHED]
        token, passed = _part_of(self.total, _CONFIRM_SHARE), 0
        if self.case.is_attacked and self.case.attackers.guessed(self.case.confirm).exceeds(self.case.allowed):
            self.found |= {name: self.found[name].with_remark(_NOT_BEYOND_GUESSES) for name in waiting}
            return
        for name in waiting:
            if passed == self.case.finalists and self.case.is_attacked:  # a proof costs nothing
                break
            with timed(token):
                self._confirm_family(name, token)
            passed += self.found[name].met.is_shown
            bar.advance()

    def _confirm_family(self, name: str, token: CancelToken) -> None:
        """Confirm the defense that was found, or one that is stronger, a step at a time."""
        case, candidate = self.case, self.found[name]
        high = math.inf if name == UNDEFENDED else family_by_name(name).levels(case.public.reference)[1]
        for attempt in range(ATTEMPTS):
            if case.is_proved(candidate.defense):
                met = Met.PROVED if case.mse_bound is None else Met.ESTIMATED
                self.found[name] = replace(candidate, met=met)
                return
            share = case.attackers.share(candidate.defense, case.confirm, case.allowed, token)
            confirmed = not share.exceeds(case.allowed)
            met = Met.CONFIRMED if confirmed else Met.FAILED
            candidate = self.found[name] = replace(candidate, share=share, met=met)
            step = case.resolution ** (attempt + 1)
            if confirmed or attempt == ATTEMPTS - 1 or candidate.level * step > high or name == UNDEFENDED:
                return
            level = rounded_level(candidate.level * step)
            defense, code = _built(case, name, level)
            candidate = replace(candidate, level=level, defense=defense, code=code, remark=_STRONGER)

    def _train(self, bar: ProgressBar) -> None:
        shown = self.ranked[: self.case.finalists]
        if not self.case.training.steps or not shown:
            return
        for name in dict.fromkeys((UNDEFENDED, *shown)):
            with timed(self.total):
                if self.total.left <= 0:
                    raise OutOfTime
                defense = self.found[name].defense if name in self.found else None
                self.costs[name] = self.case.training.cost(defense)
            bar.advance()


def _built(case: Case, name: str, level: float) -> tuple[Defense | None, str]:
    if name == UNDEFENDED:
        return None, "no defense"
    return family_by_name(name).defense(case.public.reference, level)


def _best_of(tried: Sequence[Candidate], remark: str) -> Candidate | None:
    """The weakest that met the target, else the strongest that was tried."""
    if not tried:
        return None
    met = [candidate for candidate in tried if candidate.met is Met.SEARCHED]
    best = min(met, key=lambda each: each.level) if met else max(tried, key=lambda each: each.level)
    best = replace(best, tried=len(tried))
    return best.with_remark(remark) if remark else best


def _settled(candidate: Candidate | None) -> Candidate | None:
    """What a search that did not end shows: stronger defenses of the family may have met the target."""
    return replace(candidate, met=Met.UNSETTLED) if candidate is not None and candidate.met is Met.NEVER else candidate


def _row(case: Case, name: str, candidate: Candidate | None, reasons: dict[str, str]) -> DefenseOption:
    if candidate is None:
        return DefenseOption(name, "", None, Met.UNTRIED, (), (), None, None, None, remark=reasons.get(name, ""))
    kept, deviation = case.public.utility(candidate.defense)
    return DefenseOption(
        family=name,
        code=candidate.code,
        strength=candidate.level,
        met=candidate.met,
        risks=_risks(case, candidate),
        proved=case.proved(candidate.defense),
        mse_bound=case.public.mse_bound(candidate.defense),
        utility_kept=kept,
        utility_deviation=deviation,
        tried=candidate.tried,
        remark=candidate.remark,
    )


def _risks(case: Case, candidate: Candidate) -> tuple[Estimate, ...]:
    """Shares, with intervals where fresh records were counted to the end: all else was chosen by its outcome."""
    if candidate.share is None:
        return ()
    if candidate.met not in (Met.CONFIRMED, Met.FAILED):
        return candidate.share.without_intervals(SEARCHED)
    return (
        candidate.share.estimates(case.level)
        if candidate.share.is_whole
        else candidate.share.without_intervals(STOPPED)
    )


def _part_of(total: CancelToken, share: float) -> CancelToken:
    """Return a token that ends at a share of the time, counted from the beginning."""
    return CancelToken(None if total.seconds is None else max(0.0, total.left - (1 - share) * total.seconds))
