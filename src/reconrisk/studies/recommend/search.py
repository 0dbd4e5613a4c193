"""Search for a defense: find strengths that meet the target, confirm them on fresh records, train with the best.

:func:`find_smallest_level` finds the smallest strength that meets a condition in few tries.
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
from reconrisk.defenses.families import round_level_up
from reconrisk.defenses.registry import FamilyInfo, family_by_name
from reconrisk.studies.common.defended_training import train_defended
from reconrisk.studies.common.guarantees import GuaranteeFinder
from reconrisk.studies.common.subjects.subject import UpdateRecipe
from reconrisk.studies.recommend.attacked_share import AttackEnsemble, OutOfTime, SuccessCounts, time_limit
from reconrisk.studies.recommend.public_part import PublicPart
from reconrisk.studies.recommend.result import DefenseOption, TargetStatus, TrainingCost

_CLIENTS = 16  # records in a training step, over all its clients


@dataclass(frozen=True, eq=False)
class TrainingCostEstimator:
    """Training runs under defenses that passed; public records are the test set.

    Attributes:
        model: Model at the start of training.
        private: Training records.
        public: Test records.
        steps: Training steps.
        seeds: Number of runs for each defense.
        learning_rate: Server learning rate for gradients.
        recipe: Recipe of the clients' updates.
        seed: Seed of the first run.
    """

    model: nn.Module
    private: Dataset
    public: Dataset
    steps: int
    seeds: int
    learning_rate: float
    recipe: UpdateRecipe
    seed: int

    def measure(self, defense: Defense | None) -> TrainingCost:
        """Return test accuracy and loss after training under a defense; all defenses share the same seeds."""
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
                learning_rate=self.learning_rate
                if is_gradient
                else 1.0,  # weight changes already contain the local rate
                rng=torch.Generator().manual_seed(self.seed + run),
            )
            for run in range(self.seeds)
        ]
        accuracy = [run.test_accuracy for run in runs if run.test_accuracy is not None]
        losses = [run.test_loss for run in runs if run.test_loss is not None]
        return TrainingCost(_mean_over_seeds(accuracy), _mean_over_seeds(losses), self.steps, self.seeds)


def _mean_over_seeds(values: Sequence[float]) -> Estimate | None:
    """Return the mean over seeds with a 95% t interval; None unless all values are finite."""
    if not values or not all(math.isfinite(value) for value in values):
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:  # no spread to estimate: a point with confidence 0
        return Estimate(mean, mean, mean, 0.0, 1, "one seed")
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return Estimate(mean, mean - half, mean + half, 0.95, len(values), "t over seeds")


_GROWTH = 4.0  # factor between levels while the threshold is bracketed: few trials over many orders of magnitude


def find_smallest_level(
    is_met: Callable[[float], bool], *, low: float, high: float, start: float, resolution: float = 1.5
) -> float | None:
    r"""Return the smallest level that meets a condition, up to a factor.

    From ``start`` the search goes up or down by factors of four until the answer changes. Then it bisects the bracket
    in logarithms until its ends differ by at most the factor ``resolution``. Levels are rounded up to three digits.

    Args:
        is_met: Condition on a level.
        low: Smallest level, above 0.
        high: Largest level.
        start: First level that is tried.
        resolution: Largest accepted factor between the returned level and the threshold, above 1.

    Returns:
        A level in [``low``, ``high``] that met the condition; None if ``high`` does not meet it.

    Raises:
        InvalidInput: If a level is not positive, ``low`` is not below ``high``, or ``resolution`` is not above 1.

    Assumes: the condition holds from some threshold upwards. Otherwise the returned level still met it.
    Guarantee: for the threshold t the level is within [t, ``resolution`` t], up to rounding; ``low`` if t is below it.
    Edge cases: exceptions of ``is_met`` pass through.

    >>> find_smallest_level(lambda level: level >= 0.3, low=0.01, high=100.0, start=1.0, resolution=1.5)
    0.354
    """
    for name, value in (("low", low), ("high", high), ("start", start)):
        check_positive(name, value)
    if not low < high:
        raise invalid_input("low", low, f"< high={high}")
    if not resolution > 1:
        raise invalid_input(
            "resolution",
            resolution,
            "> 1",
            "Pass 1.2, for instance: the factor between the strength found and the smallest sufficient.",
        )
    met, unmet = _bracket_threshold(is_met, low, high, min(max(start, low), high))
    if met is None or unmet is None:
        return met
    while met > resolution * unmet:
        middle = round_level_up(math.sqrt(met * unmet))
        if not unmet < middle < met:  # rounding to three digits leaves no level between the ends
            break
        met, unmet = (middle, unmet) if is_met(middle) else (met, middle)
    return met


def _bracket_threshold(
    is_met: Callable[[float], bool], low: float, high: float, start: float
) -> tuple[float | None, float | None]:
    """Return neighbouring levels that were met and not met; None for a side that the range does not contain."""
    level = round_level_up(start)
    first = is_met(level)
    while True:
        beyond = max(low, level / _GROWTH) if first else min(high, level * _GROWTH)
        following = round_level_up(beyond)
        if following == level or (first and level <= low) or (not first and level >= high):
            return (level, None) if first else (None, level)
        if is_met(following) != first:
            return (level, following) if first else (following, level)
        level = following


UNDEFENDED = "none"
"""Family name of the update without a defense."""

ATTEMPTS = 4
"""Number of confirmation attempts for a family, each with a larger strength than the one before."""

SEARCHED, STOPPED = "searched, no interval", "stopped early, no interval"
"""Notes in place of an interval, for counts that themselves decided when counting ended."""

_SEARCH_SHARE, _CONFIRM_SHARE = 0.5, 0.9  # shares of the budget after which confirmation and training begin
_STRONGER = "stronger than the search result, which fresh records did not confirm"
_TOO_MANY_GUESSED = "guesses alone reconstruct too many of the fresh records; pass more records"
_NO_ATTACK = "every attack failed on some updates, which count as possibly reconstructed"


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """The target of a search, and everything needed to test defenses against it.

    Attributes:
        public: Quantities from public records: utilities, the Bayesian bound, references of defenses.
        ensemble: Attacks on private records.
        guarantees: Finder of proved bounds.
        limits: Accepted shares of reconstructed records.
        mse_bound: Smallest accepted Bayesian bound; None for no such target.
        evidence: "measured" by attacks, or "proved" by mechanisms.
        guess: Share of public records that guesses reconstruct, for each limit; empty unless measured.
        search: Indices of the updates used in the search.
        confirm: Indices of the fresh updates that confirm.
        allowed: Largest number of reconstructed records in confirmation, for each limit.
        interval_confidence: Confidence of each confirming interval.
        resolution: Factor between the strength found and the smallest sufficient one.
        finalists: Number of defenses to confirm and train with.
        training: Training runs that measure the cost of a defense.
    """

    public: PublicPart
    ensemble: AttackEnsemble
    guarantees: GuaranteeFinder
    limits: tuple[Limit, ...]
    mse_bound: float | None
    evidence: str
    guess: tuple[float, ...]
    search: range
    confirm: range
    allowed: tuple[int, ...]
    interval_confidence: float
    resolution: float
    finalists: int
    training: TrainingCostEstimator

    @property
    def is_attacked(self) -> bool:
        """True if limits are tested by attacks."""
        return bool(self.limits) and self.evidence == "measured"

    @property
    def guesses_exceed_limits(self) -> bool:
        """True if guesses alone exceed a limit, which no defense changes."""
        return any(guess > limit.at_most for guess, limit in zip(self.guess, self.limits, strict=False))

    @cached_property
    def allowed_in_search(self) -> tuple[int, ...]:
        """Largest counts that pass the search: the accepted share without an interval, plus the guessed records."""
        records = len(self.search) * self.ensemble.records_per_update
        guessed = self.ensemble.count_guessed(self.search).reached
        pairs = zip(self.limits, guessed, strict=True)
        # 1e-9 keeps products such as 0.29 * 100 = 28.999999999999996 from losing a record
        return tuple(int(limit.at_most * records + 1e-9) + count for limit, count in pairs)

    def proved_bounds(self, defense: Defense | None) -> tuple[float, ...]:
        """Return upper bounds on the success of any adversary from the defense's mechanism; 1 without one."""
        found = []
        for limit in self.limits:
            answers = self.guarantees.find_bounds(limit.goal, "", defense)
            values = [
                answer.guarantee.value
                for answer in answers
                if answer.is_about_targets
                and answer.guarantee.quantity is Quantity.SUCCESS_PROBABILITY
                and answer.guarantee.covers(self.ensemble.threat, release=answer.release)
            ]
            found.append(min(values, default=1.0))
        return tuple(found)

    def is_proved(self, defense: Defense | None) -> bool:
        """Return True if a proved bound meets every limit."""
        bounds = self.proved_bounds(defense)
        return all(value <= limit.at_most for value, limit in zip(bounds, self.limits, strict=True))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A defense of a family at one strength, with the outcome of its tests.

    Attributes:
        family: Name of the family.
        level: Strength within the family.
        defense: Configured defense; None for no defense.
        code: Call that builds the defense.
        met: State of the evidence that the target is met.
        counts: Counts of the last attacks; None if nothing was attacked.
        tried: Number of strengths tried in the search.
        remark: Deviations from the planned search, as text; empty if there are none.
    """

    family: str
    level: float
    defense: Defense | None
    code: str
    met: TargetStatus
    counts: SuccessCounts | None = None
    tried: int = 0
    remark: str = ""

    def with_remark(self, words: str) -> Candidate:
        """Return a copy with another remark appended."""
        return replace(self, remark=f"{self.remark}; {words}" if self.remark else words)


@dataclass(eq=False)
class DefenseSearch:
    """Stateful search over families; an interruption leaves the results found so far in place.

    Attributes:
        problem: Target and tests.
        families: Names of the families to search.
        total: Token with the time for everything.
        candidates: Best candidate of each family so far.
        reasons: Reasons for families without a result.
        costs: Training costs by family.
        ended: "complete", "out of time" or "interrupted".
    """

    problem: SearchProblem
    families: tuple[str, ...]
    total: CancelToken
    candidates: dict[str, Candidate] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    costs: dict[str, TrainingCost] = field(default_factory=dict)
    ended: str = "complete"

    def run(self) -> None:
        """Search, confirm and train until done, out of time or interrupted."""
        # one step per family and for no defense in the search, then confirmation and training of each finalist
        steps = len(self.families) + 2 * self.problem.finalists + 2
        bar = ProgressBar("choosing a defense", total=steps, at_once=True)
        try:
            if self.problem.guesses_exceed_limits:
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
    def ranking(self) -> tuple[str, ...]:
        """Families that were shown to meet the target, cheapest first."""
        shown = [option for option in self.options() if option.met.is_shown]
        return tuple(option.family for option in sorted(shown, key=lambda option: option.rank, reverse=True))

    def options(self) -> tuple[DefenseOption, ...]:
        """Return a row for no defense and for every family."""
        return tuple(self._option(name) for name in (UNDEFENDED, *self.families))

    def _option(self, name: str) -> DefenseOption:
        """Return the row of a family; it is cached, since utility and bound take many gradients."""
        candidate = self.candidates.get(name)
        if name not in self._rows or self._rows[name][0] is not candidate:
            self._rows[name] = (candidate, _build_option(self.problem, name, candidate, self.reasons))
        return replace(self._rows[name][1], training=self.costs.get(name))

    _rows: dict[str, tuple[Candidate | None, DefenseOption]] = field(default_factory=dict)

    def _search(self, bar: ProgressBar) -> None:
        ahead = _token_for_share(self.total, _SEARCH_SHARE)
        names = (UNDEFENDED, *self.families)
        start: float | None = None
        for place, name in enumerate(names):
            # an equal share of the time that is left, so that families that end early leave more to the others
            token = CancelToken(
                None if math.isinf(ahead.seconds_left) else max(ahead.seconds_left, 0.0) / (len(names) - place)
            )
            candidate = self._find_candidate(name, start, token)
            if candidate is not None:
                self.candidates[name] = candidate
                if candidate.met is TargetStatus.SEARCHED and name != UNDEFENDED and not family_by_name(name).prunes:
                    start = candidate.level  # noise levels of different families are comparable
            bar.advance()

    def _find_candidate(self, name: str, start: float | None, token: CancelToken) -> Candidate | None:
        """Return the smallest strength of a family that met the target, or the largest that was tried."""
        tried: list[Candidate] = []
        try:
            with time_limit(token):
                if name == UNDEFENDED:
                    tried.append(self._try_level(name, 0.0, token))
                else:
                    self._search_family(family_by_name(name), start, token, tried)
        except OutOfTime:
            self.reasons[name] = "the time for this family ran out"
            return _mark_unsettled(_choose_best(tried, self.reasons[name]))
        except KeyboardInterrupt:
            best = _mark_unsettled(_choose_best(tried, "interrupted"))
            if best is not None:
                self.candidates[name] = best
            raise
        return _choose_best(tried, self.reasons.get(name, ""))

    def _search_family(
        self, family: FamilyInfo, start: float | None, token: CancelToken, tried: list[Candidate]
    ) -> None:
        reference = self.problem.public.reference
        low, high = family.levels(reference)
        try:
            family.defense(reference, high)
        except InvalidInput as error:  # such as no moments for a model whose layers mix records
            self.reasons[family.name] = str(error)
            return

        def is_met(level: float) -> bool:
            tried.append(self._try_level(family.name, level, token))
            return tried[-1].met is TargetStatus.SEARCHED

        beginning = family.start(reference) if start is None or family.prunes else start
        find_smallest_level(is_met, low=low, high=high, start=beginning, resolution=self.problem.resolution)

    def _try_level(self, name: str, level: float, token: CancelToken) -> Candidate:
        problem = self.problem
        defense, code = _build_defense(problem, name, level)
        candidate = Candidate(name, level, defense, code, TargetStatus.NEVER)
        # cheapest test first: the bound needs no attack, and its lower interval end must reach the target
        if problem.mse_bound is not None and problem.public.mse_bound(defense).low < problem.mse_bound:
            return candidate
        if not problem.is_attacked:
            return replace(candidate, met=TargetStatus.SEARCHED if problem.is_proved(defense) else TargetStatus.NEVER)
        allowed = problem.allowed_in_search
        counts = problem.ensemble.count_successes(defense, problem.search, allowed, token)
        met = TargetStatus.NEVER if counts.exceeds(allowed) else TargetStatus.SEARCHED
        candidate = replace(candidate, counts=counts, met=met)
        return candidate.with_remark(_NO_ATTACK) if counts.unknown else candidate

    def _confirm(self, bar: ProgressBar) -> None:
        """Attack fresh records under the candidates, highest step utility first, until enough of them pass."""
        problem = self.problem
        utilities = {name: self._option(name).step_utility for name in self.candidates}
        ordered = sorted(utilities, key=lambda name: -utilities[name])
        waiting = [name for name in ordered if self.candidates[name].met is TargetStatus.SEARCHED]
        token, passed = _token_for_share(self.total, _CONFIRM_SHARE), 0
        if problem.is_attacked and problem.ensemble.count_guessed(problem.confirm).exceeds(problem.allowed):
            self.candidates |= {name: self.candidates[name].with_remark(_TOO_MANY_GUESSED) for name in waiting}
            return
        for name in waiting:
            if passed == problem.finalists and problem.is_attacked:  # checking a proof is cheap: check all
                break
            with time_limit(token):
                self._confirm_family(name, token)
            passed += self.candidates[name].met.is_shown
            bar.advance()

    def _confirm_family(self, name: str, token: CancelToken) -> None:
        """Confirm the candidate of a family, or stronger ones, up to ``ATTEMPTS`` times."""
        problem, candidate = self.problem, self.candidates[name]
        high = math.inf if name == UNDEFENDED else family_by_name(name).levels(problem.public.reference)[1]
        for attempt in range(ATTEMPTS):
            if problem.is_proved(candidate.defense):  # also if there are no limits but only a Bayesian bound
                met = TargetStatus.PROVED if problem.mse_bound is None else TargetStatus.ESTIMATED
                self.candidates[name] = replace(candidate, met=met)
                return
            counts = problem.ensemble.count_successes(candidate.defense, problem.confirm, problem.allowed, token)
            confirmed = not counts.exceeds(problem.allowed)
            met = TargetStatus.CONFIRMED if confirmed else TargetStatus.FAILED
            candidate = self.candidates[name] = replace(candidate, counts=counts, met=met)
            step = problem.resolution ** (attempt + 1)  # growing steps, to reach far in few attempts
            if confirmed or attempt == ATTEMPTS - 1 or candidate.level * step > high or name == UNDEFENDED:
                return
            level = round_level_up(candidate.level * step)
            defense, code = _build_defense(problem, name, level)
            candidate = replace(candidate, level=level, defense=defense, code=code, remark=_STRONGER)

    def _train(self, bar: ProgressBar) -> None:
        shown = self.ranking[: self.problem.finalists]
        if not self.problem.training.steps or not shown:
            return
        for name in dict.fromkeys((UNDEFENDED, *shown)):
            with time_limit(self.total):
                if self.total.seconds_left <= 0:
                    raise OutOfTime
                defense = self.candidates[name].defense if name in self.candidates else None
                self.costs[name] = self.problem.training.measure(defense)
            bar.advance()


def _build_defense(problem: SearchProblem, name: str, level: float) -> tuple[Defense | None, str]:
    if name == UNDEFENDED:
        return None, "no defense"
    return family_by_name(name).defense(problem.public.reference, level)


def _choose_best(tried: Sequence[Candidate], remark: str) -> Candidate | None:
    """Return the weakest candidate that met the target, or the strongest that was tried."""
    if not tried:
        return None
    met = [candidate for candidate in tried if candidate.met is TargetStatus.SEARCHED]
    best = min(met, key=lambda each: each.level) if met else max(tried, key=lambda each: each.level)
    best = replace(best, tried=len(tried))
    return best.with_remark(remark) if remark else best


def _mark_unsettled(candidate: Candidate | None) -> Candidate | None:
    """Mark a candidate of an unfinished search as unsettled: a stronger one might have met the target."""
    if candidate is None or candidate.met is not TargetStatus.NEVER:
        return candidate
    return replace(candidate, met=TargetStatus.UNSETTLED)


def _build_option(
    problem: SearchProblem, name: str, candidate: Candidate | None, reasons: dict[str, str]
) -> DefenseOption:
    if candidate is None:
        remark = reasons.get(name, "")
        return DefenseOption(name, "", None, TargetStatus.UNTRIED, (), (), None, None, None, remark=remark)
    kept, deviation = problem.public.utility(candidate.defense)
    return DefenseOption(
        family=name,
        code=candidate.code,
        strength=candidate.level,
        met=candidate.met,
        risks=_risk_estimates(problem, candidate),
        proved=problem.proved_bounds(candidate.defense),
        mse_bound=problem.public.mse_bound(candidate.defense),
        utility_kept=kept,
        utility_deviation=deviation,
        tried=candidate.tried,
        remark=candidate.remark,
    )


def _risk_estimates(problem: SearchProblem, candidate: Candidate) -> tuple[Estimate, ...]:
    """Return the shares of reconstructed records; intervals are valid only for complete counts of fresh records."""
    if candidate.counts is None:
        return ()
    if candidate.met not in (TargetStatus.CONFIRMED, TargetStatus.FAILED):
        return candidate.counts.without_intervals(SEARCHED)
    return (
        candidate.counts.estimates(problem.interval_confidence)
        if candidate.counts.is_complete
        else candidate.counts.without_intervals(STOPPED)
    )


def _token_for_share(total: CancelToken, share: float) -> CancelToken:
    """Return a token that ends after this share of the total time, counted from the start of the search."""
    return CancelToken(None if total.seconds is None else max(0.0, total.seconds_left - (1 - share) * total.seconds))
