"""Recommend the cheapest defense that keeps the risk of a model's updates within the requested limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from reconrisk.bounds.mse.bayesian import box_prior_information
from reconrisk.core.errors import InvalidInput
from reconrisk.core.executor import IN_PROCESS, Executor, check_executor
from reconrisk.core.metric import Limit
from reconrisk.core.progress import CancelToken
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_finite, check_positive, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.registry import FAMILIES, family_by_name
from reconrisk.releases.updates.gradient import check_recipe
from reconrisk.statistics.intervals import success_interval
from reconrisk.studies.common.arguments import (
    StudyOptions,
    check_goals,
    check_limits,
    check_options,
    seconds_from_budget,
)
from reconrisk.studies.common.guarantees import GuaranteeFinder
from reconrisk.studies.common.plan import AttackChoice
from reconrisk.studies.common.population import LARGEST, Population
from reconrisk.studies.common.subjects.model_updates import ModelUpdates
from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT, ONE_GRADIENT, Records, UpdateRecipe
from reconrisk.studies.recommend.attacked_share import (
    AttackEnsemble,
    largest_allowed_count,
    trials_above_guessing,
    trials_needed,
)
from reconrisk.studies.recommend.public_part import compute_public_part, split_public_records
from reconrisk.studies.recommend.result import Recommendation
from reconrisk.studies.recommend.search import ATTEMPTS, UNDEFENDED, DefenseSearch, SearchProblem, TrainingCostEstimator


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(StudyOptions):
    """Settings of a search for a defense that most calls leave at their defaults.

    Attributes:
        search_trials: Updates that are attacked at each strength of the search.
        confirm_trials: Fresh updates that confirm a defense; by default as many as the target needs.
        finalists: Defenses to confirm and to train with.
        resolution: Largest factor between the strength found and the smallest sufficient one, above 1.
        training_steps: Training steps under each finalist; 0 for no training.
        learning_rate: Learning rate of that training for gradients. Weight changes of local steps are added as sent.
        training_seeds: Training runs under each finalist.
        seed: Seed of every random choice. The same seed repeats the same trials.
        confidence: Joint confidence of the intervals of all families and limits, in (0, 1).
        public: Public records, none of them a target; by default a quarter of the data, at most 256, is split off.
        name: Name of the model in reports; by default its class.
        show_plan: Function that receives the plan before the first trial; by default no plan is shown.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> RecommendOptions(training_steps=0, seed=3).finalists
    3
    """

    search_trials: int = 8
    confirm_trials: int | None = None
    finalists: int = 3
    resolution: float = 1.5
    training_steps: int = 100
    learning_rate: float = 0.1
    training_seeds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"search_trials": 1, "confirm_trials": 1, "finalists": 1, "training_steps": 0, "training_seeds": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None or name != "confirm_trials":
                object.__setattr__(self, name, check_whole(name, value, minimum=minimum))
        if not check_finite("resolution", self.resolution) > 1:
            remedy = "Pass 1.2, for instance: the factor between the strength found and the smallest sufficient."
            raise invalid_input("resolution", self.resolution, "> 1", remedy)
        check_positive("learning_rate", self.learning_rate)


DEFAULT_OPTIONS = RecommendOptions()


_GUESSED = 32  # public updates on which guesses are scored
_MARGIN = 0.99  # largest accepted target, as a share of the bound without a release, which only infinite noise reaches


def recommend_defense(
    model: nn.Module,
    data: Records,
    *,
    accept: Sequence[Limit | str] | Limit | str = (),
    mse_bound: float | None = None,
    evidence: Literal["measured", "proved"] = "measured",
    families: Sequence[str] | None = None,
    threat: ThreatModel = DEFAULT_THREAT,
    attacks: str | Sequence[AttackChoice] = "quick",
    budget: float | str | None = "20min",
    update: UpdateRecipe = ONE_GRADIENT,
    executor: Executor = IN_PROCESS,
    options: RecommendOptions = DEFAULT_OPTIONS,
) -> Recommendation:
    r"""Recommend the cheapest defense of updates that meets a target: limits on the success, or an error bound.

    For each family (:data:`reconrisk.defenses.registry.FAMILIES`), the search finds the smallest strength that meets
    the target on a few updates. The defenses found are then attacked on fresh updates, in the order of their step
    utility, until enough of them pass. A defense that fails is made stronger and tried again, at most three times.
    The model is trained with the defenses that pass, on the updates that clients send. The most accurate one is
    recommended. Half of the budget is for the search.

    Args:
        model: Model that clients train, with its weights.
        data: Records of the clients.
        accept: Limits on the share of reconstructed records, such as ``"psnr>=20: 5%"``.
        mse_bound: Smallest accepted Bayesian bound on the mean squared error of any attack. The bound is an estimate,
            not a proof, because the expected Fisher information in it is an average over random records.
        evidence: Evidence required for a limit. ``"measured"``: the upper interval end of the attacks' success is
            within the limit. ``"proved"``: the mechanism bounds the success of any adversary.
        families: Names of the families to search; by default all.
        threat: Abilities of the adversary; by default one who sees an update and knows the defense.
        attacks: A portfolio, ``"quick"`` or ``"thorough"``, or a list of attacks.
        budget: Time for everything: seconds, a text such as ``"20min"``, or None for no limit.
        update: Training of a client before it sends an update; by default one gradient of one record.
        executor: Engine that runs the trials; by default this process.
        options: Seed, confidence, public records, numbers of trials, training, and the name for the report.

    Returns:
        The recommended defense, its cost, the second best, and a row for every family.

    Raises:
        InvalidInput: If an argument is invalid, there is no target, or there are too few records to show it.

    Assumes: ``options.public`` records are public: they configure noise and masks. By default a quarter of ``data``, at
    most 256 records, is split off in their place. Public records are neither attacked nor trained on; they also test
    the accuracy.
    Guarantee: noise, masks and clip norms of a family at a strength depend on public records only. The choice of family
    and strength depends on private records: on attacks if measured, on distances between records if proved, and on
    training. No guarantee of a mechanism covers what this choice reveals. Records of the search never confirm.
    Intervals from fresh records hold together for all families, no defense, attempts and limits, with probability
    ``options.confidence``. Counts that stopped early or are from the search have no interval. A record counts as
    reconstructed if any attack or guess reconstructs it.
    Edge cases: Ctrl-C and the end of the budget return the results so far. If guesses exceed the target or no family
    meets it, the result has no recommendation and states the nearest defense.
    Reference: utilities and bound, chen2025; success as in balle2022, Section VII.

    >>> data = Dataset("toy", torch.rand(160, 4, generator=torch.Generator().manual_seed(0)), torch.arange(160) % 2)
    >>> found = recommend_defense(
    ...     nn.Linear(4, 2), data, accept="mse<=0.001: 10%", families=["gaussian_noise"], attacks=["analytic"],
    ...     options=RecommendOptions(training_steps=0),
    ... )
    >>> found.best, found.option("none").met.value
    ('gaussian_noise', 'no')
    """
    check_recipe(update)
    total = CancelToken(seconds_from_budget(budget))
    if not ModelUpdates.supports(model):
        raise invalid_input(
            "type(model)", type(model).__name__, "to be a torch model", "Pass the model itself, with its weights."
        )
    subject = ModelUpdates.of(model, data, update)
    options, executor = check_options(options, RecommendOptions), check_executor(executor)
    dataset, limits = subject.dataset, check_limits(accept)
    check_goals(None, limits, dataset)
    _check_target(limits, mse_bound, evidence, dataset.data_range)
    chosen = _check_families(families)
    rng = torch.Generator().manual_seed(options.seed)
    reference, rows = split_public_records(dataset, options.public_dataset(), rng)
    settings = _SearchSettings(
        subject=subject,
        limits=limits,
        mse_bound=mse_bound,
        evidence=evidence,
        reference=reference,
        rows=rows,
        threat=subject.threat(threat),
        attacks=attacks,
        interval_confidence=_interval_confidence(options.confidence, families=len(chosen), limits=len(limits)),
        executor=executor,
        options=options,
    )
    problem = settings.build_problem(rng)
    if options.show_plan is not None:
        options.show_plan(
            f"Families: {', '.join(chosen)}. Updates: {len(problem.search)} at each strength of the search, "
            f"{len(problem.confirm)} fresh ones to confirm."
        )
    search = DefenseSearch(problem, chosen, total)
    search.run()
    return _build_result(settings, search)


@dataclass(frozen=True, eq=False)
class _SearchSettings:
    """Checked arguments of a search; ``interval_confidence`` is that of each confirming interval."""

    subject: ModelUpdates
    limits: tuple[Limit, ...]
    mse_bound: float | None
    evidence: str
    reference: Dataset
    rows: tuple[int, ...]
    threat: ThreatModel
    attacks: str | Sequence[AttackChoice]
    interval_confidence: float
    executor: Executor
    options: RecommendOptions

    @property
    def measured_limits(self) -> tuple[Limit, ...]:
        """Limits that are tested by attacks."""
        return self.limits if self.evidence == "measured" else ()

    def build_problem(self, rng: torch.Generator) -> SearchProblem:
        """Draw the updates of search and confirmation, and assemble the search problem."""
        options, private = self.options, self.subject.dataset.subset(list(self.rows))
        known = compute_public_part(replace(self.subject, dataset=self.reference), seed=options.seed)
        if self.mse_bound is not None and not known.is_smooth:
            condition = (
                "to be left out for a model that is not known to be smooth, such as one with ReLU or max-pooling"
            )
            raise invalid_input(
                "mse_bound", self.mse_bound, condition, "Pass accept= instead: the gradient of such a model may jump."
            )
        population, size = Population(self.subject.dataset, self.rows[:LARGEST]), self.subject.recipe.batch_size
        # its one update is a placeholder: guesses are scored first and decide how many updates are drawn
        first = AttackEnsemble(
            self.subject,
            population,
            self.reference,
            self.threat,
            self.attacks,
            (self.rows[:size],),
            self.limits,
            options.seed,
            self.executor,
        )
        guess = _guessed_shares(first, rng) if self.measured_limits else ()
        tried, fresh = options.search_trials, 0
        if self.measured_limits:
            available = max(0, len(self.rows) // size - tried)
            fresh = _count_fresh_updates(
                self.measured_limits, guess, available, size, self.interval_confidence, options
            )
        return SearchProblem(
            public=known,
            ensemble=replace(first, updates=_draw_updates(population.dataset, self.rows, size, tried, fresh, rng)),
            guarantees=GuaranteeFinder.of(self.subject, population, self.threat),
            limits=self.limits,
            mse_bound=self.mse_bound,
            evidence=self.evidence,
            guess=guess,
            search=range(tried),
            confirm=range(tried, tried + fresh),
            allowed=_allowed_counts(self.measured_limits, fresh, size, self.interval_confidence),
            interval_confidence=self.interval_confidence,
            resolution=options.resolution,
            finalists=options.finalists,
            training=TrainingCostEstimator(
                model=self.subject.model,
                private=private,
                public=self.reference,
                steps=options.training_steps,
                seeds=options.training_seeds,
                learning_rate=options.learning_rate,
                recipe=self.subject.recipe,
                seed=options.seed,
            ),
        )


def _build_result(settings: _SearchSettings, search: DefenseSearch) -> Recommendation:
    problem, low, high = search.problem, *settings.subject.dataset.data_range
    ranked = (*search.ranking, None, None)
    return Recommendation(
        subject=settings.options.name or type(settings.subject.model).__name__,
        data=settings.subject.dataset.name,
        accept=settings.limits,
        mse_bound=settings.mse_bound,
        evidence=settings.evidence,
        threat=settings.threat,
        attacks=problem.ensemble.labels if settings.measured_limits else (),
        options=search.options(),
        best=ranked[0],
        runner_up=ranked[1],
        undefended=search.costs.get(UNDEFENDED),
        guess=problem.guess,
        is_smooth=problem.public.is_smooth,
        prior_information=float(box_prior_information(high - low)),
        data_range=(low, high),
        reference_records=len(settings.reference),
        search_trials=len(problem.search),
        confirm_trials=len(problem.confirm),
        confidence=settings.options.confidence,
        seed=settings.options.seed,
        seconds=time.monotonic() - search.total.begun,
        ended=search.ended,
        defenses={family: candidate.defense for family, candidate in search.candidates.items()},
    )


def _interval_confidence(confidence: float, *, families: int, limits: int) -> float:
    """Return the confidence of each interval such that all possible ones hold together, by the union bound."""
    # one interval for each family and for no defense, each confirmation attempt and each limit
    return 1 - (1 - confidence) / ((families + 1) * ATTEMPTS * max(1, limits))


def _check_families(names: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(names, str):
        raise invalid_input("families", names, "to be a list of names", f"Write [{names!r}].")
    chosen = tuple(FAMILIES if names is None else names)
    if not chosen:
        raise invalid_input("families", names, "to name at least one family", "Omit it to search all.")
    return tuple(dict.fromkeys(family_by_name(name).name for name in chosen))


def _check_target(
    limits: tuple[Limit, ...], mse_bound: float | None, evidence: str, data_range: tuple[float, float]
) -> None:
    if evidence not in ("measured", "proved"):
        raise invalid_input("evidence", evidence, "to be 'measured' or 'proved'")
    if not limits and mse_bound is None:
        raise InvalidInput("Expected a target, got none. Pass accept='psnr>=20: 5%', or mse_bound=.")
    if mse_bound is not None:
        if evidence == "proved":
            raise invalid_input(
                "mse_bound",
                mse_bound,
                "to be left out with evidence='proved'",
                "Pass accept= instead: the bound is an estimate, not a proof.",
            )
        most = _MARGIN / float(box_prior_information(data_range[1] - data_range[0]))
        if check_positive("mse_bound", mse_bound) > most:
            remedy = f"Pass at most {most:.4g}: without any release, the bound for the smoothest prior on the "
            "data range is 1 % larger."
            raise invalid_input("mse_bound", mse_bound, f"<= {most:.4g}", remedy)
    if evidence == "measured" and any(limit.at_most <= 0 for limit in limits):
        raise invalid_input(
            "accept",
            str(limits[0]),
            "to be above 0%",
            "Pass a share above 0: no number of trials can show that something never happens.",
        )


def _guessed_shares(ensemble: AttackEnsemble, rng: torch.Generator) -> tuple[float, ...]:
    """Return the share of public records that guesses reconstruct, for each limit."""
    public, size = ensemble.public, ensemble.records_per_update
    rows = Population(public, tuple(range(len(public))))
    updates = rows.updates(min(_GUESSED, max(1, len(public) // size)), size, rng)
    subject = replace(ensemble.subject, dataset=public)
    found = replace(ensemble, subject=subject, population=rows, updates=updates).count_guessed(range(len(updates)))
    return tuple(count / (found.updates * size) for count in found.reached)


def _count_fresh_updates(
    limits: tuple[Limit, ...],
    guess: tuple[float, ...],
    available: int,
    batch_size: int,
    confidence: float,
    options: RecommendOptions,
) -> int:
    """Return the number of confirming updates; by default enough to tolerate some successes, if available.

    Guarantee: raises before any attack if no outcome could show the limits, and states the share that could be shown.
    """
    stated = available if options.confirm_trials is None else min(available, options.confirm_trials)
    needed = 0
    for limit, guessed in zip(limits, guess, strict=True):
        if guessed > limit.at_most:
            continue  # guesses exceed the limit, so nothing will be attacked
        trials = trials_above_guessing(
            limit.at_most, guessed, per_trial=batch_size, confidence=confidence, available=stated
        )
        if trials is None:
            raise _too_few_updates_error(limit, stated, batch_size, confidence, options.search_trials)
        needed = max(needed, trials)
    return needed if options.confirm_trials is None else stated


def _allowed_counts(limits: tuple[Limit, ...], trials: int, batch_size: int, confidence: float) -> tuple[int, ...]:
    """Return how many records of the fresh updates may be reconstructed; 0 if nothing will be attacked."""
    if not trials:
        return (0,) * len(limits)
    found = (
        largest_allowed_count(limit.at_most, trials=trials, per_trial=batch_size, confidence=confidence)
        for limit in limits
    )
    return tuple(0 if most is None else most for most in found)


def _too_few_updates_error(limit: Limit, trials: int, batch_size: int, confidence: float, search: int) -> InvalidInput:
    least = trials_needed(limit.at_most, per_trial=batch_size, confidence=confidence)
    nearest = 1.0
    if trials:
        nearest = success_interval(0, trials=trials, per_trial=batch_size, confidence=confidence).high
    return InvalidInput(
        f"Expected at least {least} fresh updates to show {limit}, got {trials}: they can show no less than "
        f"{100 * nearest:.3g}%. Pass {(least + search) * batch_size} private records and confirm_trials >= {least}, "
        f"or accept a larger share."
    )


def _draw_updates(
    dataset: Dataset, rows: tuple[int, ...], batch_size: int, search: int, confirm: int, rng: torch.Generator
) -> tuple[tuple[int, ...], ...]:
    """Draw the updates of the search first; confirming updates use none of their rows."""
    # with few records the search reuses its own rows, so that at least one update is left to confirm
    border = min(search * batch_size, len(rows) - batch_size * (1 if confirm else 0))
    first = Population(dataset, rows[:border]).updates(search, batch_size, rng)
    return (*first, *(Population(dataset, rows[border:]).updates(confirm, batch_size, rng) if confirm else ()))
