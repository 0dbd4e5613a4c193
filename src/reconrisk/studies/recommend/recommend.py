"""Which defense to use: the cheapest that keeps the risk of a model's updates below what is accepted."""

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
from reconrisk.core.validation import check_finite, check_positive, check_probability, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.registry import FAMILIES, family_by_name
from reconrisk.statistics.intervals import success_interval
from reconrisk.studies.common.arguments import checked_goals, checked_limits, checked_seed, seconds_from_budget
from reconrisk.studies.common.guarantees import GuaranteeFinder
from reconrisk.studies.common.plan import AttackChoice
from reconrisk.studies.common.population import LARGEST, Population
from reconrisk.studies.common.subjects.model_updates import ModelUpdates
from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT, ONE_GRADIENT, Records, UpdateRecipe
from reconrisk.studies.recommend.attacked_share import Attackers, most_allowed, trials_beyond_guesses, trials_that_show
from reconrisk.studies.recommend.public_part import public_part, split_off
from reconrisk.studies.recommend.result import Recommendation
from reconrisk.studies.recommend.search import ATTEMPTS, UNDEFENDED, Case, Choosing, Trained

_GUESSED = 32  # public records, of which guesses are scored
_MARGIN = 0.99  # of the bound without any release: what noise can come near to


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
    search_trials: int = 8,
    confirm_trials: int | None = None,
    finalists: int = 3,
    resolution: float = 1.5,
    training_steps: int = 100,
    learning_rate: float = 0.1,
    training_seeds: int = 3,
    update: UpdateRecipe = ONE_GRADIENT,
    public: Dataset | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    name: str | None = None,
    executor: Executor = IN_PROCESS,
) -> Recommendation:
    r"""The cheapest defense of a model's updates that meets a target, what it costs, and the second best.

    The target is how often records may be rebuilt, ``accept`` such as ``"psnr>=20: 5%"``, or the Bayesian
    ``mse_bound`` on every estimate, or both. A limit counts as met by ``evidence``. *Measured*: the ``attacks`` of an
    adversary who knows the defense do not rebuild more records, by the upper end of an interval. *Proved*: the
    mechanism of the defense bounds the success of everybody. The Bayesian bound is an estimate, never a proof: its
    expected information is averaged over draws.

    For each family (:data:`reconrisk.defenses.registry.FAMILIES`) the smallest strength is searched, up to a factor
    ``resolution``, that meets the target on ``search_trials`` updates. In the order of what they leave of a step, the
    defenses found are attacked on ``confirm_trials`` fresh updates, until ``finalists`` of them pass; one that does
    not is tried again stronger, three times at most. With those that pass the model is trained for
    ``training_steps`` (none if 0) over ``training_seeds``, on what clients send, as ``update`` says: gradients at
    ``learning_rate``, or the changes by local steps, which are added as they are. The most accurate is recommended.
    Half of the ``budget`` is for the search.

    Assumes: ``public`` records are public: noise and masks are chosen by them. Without any, a quarter of ``data``, at
    most 256, is split off to take their place; neither attacked nor trained on, they also test the accuracy.
    Guarantee: noise, masks and clip norms of a family at a strength depend on public records only. Which family and
    which strength does depend on private ones: by attacks if measured, by how far records are apart if proved, and by
    training; no guarantee of a mechanism covers what that choice tells. Records of the search never confirm. Intervals
    of fresh records hold together, for all families, no defense, attempts and limits, with probability ``confidence``;
    what was stopped early or only searched has none. A record is rebuilt if any attack or guess rebuilds it.
    Edge cases: Ctrl-C and the end of the budget return what is found. A target that guessing exceeds, or that no family
    meets, gives a result without a recommendation, which says the nearest.
    Reference: utilities and bound, chen2025; success as in balle2022, Section VII.

    >>> data = Dataset("toy", torch.rand(160, 4, generator=torch.Generator().manual_seed(0)), torch.arange(160) % 2)
    >>> found = recommend_defense(
    ...     nn.Linear(4, 2), data, accept="mse<=0.001: 10%", families=["gaussian_noise"], attacks=["analytic"],
    ...     training_steps=0,
    ... )
    >>> found.best, found.option("none").met.value
    ('gaussian_noise', 'no')
    """
    total = CancelToken(seconds_from_budget(budget))
    if not ModelUpdates.supports(model):
        raise invalid_input(
            "model", type(model).__name__, "to be a torch model", "Pass the model itself, with its weights."
        )
    subject = ModelUpdates.of(model, data, update)
    dataset, limits = subject.dataset, checked_limits(accept)
    checked_goals(None, limits, dataset)
    _check_target(limits, mse_bound, evidence, dataset.data_range)
    chosen = _families(families)
    rng = torch.Generator().manual_seed(checked_seed(seed))
    reference, rows = split_off(dataset, public, rng)
    stated_threat = subject.threat(threat)
    level = _level(confidence, families=len(chosen), limits=len(limits))
    if not check_finite("resolution", resolution) > 1:
        raise invalid_input(
            "resolution", resolution, "> 1", "It is the factor between what is found and what is needed."
        )
    asked = _Asked(
        subject,
        limits,
        mse_bound,
        evidence,
        reference,
        rows,
        stated_threat,
        attacks,
        level,
        resolution,
        check_whole("finalists", finalists),
        seed,
        check_executor(executor),
    )
    steps = check_whole("training_steps", training_steps, minimum=0)
    seeds = check_whole("training_seeds", training_seeds)
    private, rate = dataset.subset(list(rows)), check_positive("learning_rate", learning_rate)
    training = Trained(model, private, reference, steps, seeds, rate, subject.recipe, seed)
    case = asked.case(training, search_trials, confirm_trials, rng)
    found = Choosing(case, chosen, total)
    found.run()
    return _result(asked, found, subject=name or type(model).__name__, confidence=confidence)


@dataclass(frozen=True, eq=False)
class _Asked:
    """What was asked, checked; ``level`` is the confidence of each interval that confirms."""

    subject: ModelUpdates
    limits: tuple[Limit, ...]
    mse_bound: float | None
    evidence: str
    reference: Dataset
    rows: tuple[int, ...]
    threat: ThreatModel
    attacks: str | Sequence[AttackChoice]
    level: float
    resolution: float
    finalists: int
    seed: int
    executor: Executor

    @property
    def measured(self) -> tuple[Limit, ...]:
        """Limits that attacks judge."""
        return self.limits if self.evidence == "measured" else ()

    def case(self, training: Trained, search: int, confirm: int | None, rng: torch.Generator) -> Case:
        """Everything that answers are found with."""
        known = public_part(replace(self.subject, dataset=self.reference), seed=self.seed)
        if self.mse_bound is not None and not known.is_smooth:
            words = "to be left out for a model that is not known to be smooth, such as one with ReLU or max-pooling"
            raise invalid_input("mse_bound", self.mse_bound, words, "Its gradient may jump. State accept= instead.")
        population, size = Population(self.subject.dataset, self.rows[:LARGEST]), self.subject.recipe.batch_size
        first = Attackers(
            self.subject,
            population,
            self.reference,
            self.threat,
            self.attacks,
            (self.rows[:size],),
            self.limits,
            self.seed,
            self.executor,
        )
        guess = _guessed(first, rng) if self.measured else ()
        tried, fresh = _trials(self.measured, guess, self.rows, size, search, confirm, self.level)
        return Case(
            public=known,
            attackers=replace(first, updates=_updates(population.dataset, self.rows, size, tried, fresh, rng)),
            guarantees=GuaranteeFinder.of(self.subject, population, self.threat),
            limits=self.limits,
            mse_bound=self.mse_bound,
            evidence=self.evidence,
            guess=guess,
            search=range(tried),
            confirm=range(tried, tried + fresh),
            allowed=_allowed(self.measured, fresh, size, self.level),
            level=self.level,
            resolution=self.resolution,
            finalists=self.finalists,
            training=training,
        )


def _result(asked: _Asked, found: Choosing, *, subject: str, confidence: float) -> Recommendation:
    case, low, high = found.case, *asked.subject.dataset.data_range
    ranked = (*found.ranked, None, None)
    return Recommendation(
        subject=subject,
        data=asked.subject.dataset.name,
        accept=asked.limits,
        mse_bound=asked.mse_bound,
        evidence=asked.evidence,
        threat=asked.threat,
        attacks=case.attackers.labels if asked.measured else (),
        options=found.options(),
        best=ranked[0],
        runner_up=ranked[1],
        undefended=found.costs.get(UNDEFENDED),
        guess=case.guess,
        is_smooth=case.public.is_smooth,
        prior_information=float(box_prior_information(high - low)),
        data_range=(low, high),
        reference_records=len(asked.reference),
        search_trials=len(case.search),
        confirm_trials=len(case.confirm),
        confidence=confidence,
        seed=asked.seed,
        seconds=time.monotonic() - found.total.begun,
        ended=found.ended,
        defenses={family: candidate.defense for family, candidate in found.found.items()},
    )


def _level(confidence: float, *, families: int, limits: int) -> float:
    """The confidence of each interval such that all that might be shown hold together, by the union bound."""
    if not 0 < check_probability("confidence", confidence) < 1:
        raise invalid_input("confidence", confidence, "in (0, 1)", "0.95 is usual.")
    return 1 - (1 - confidence) / ((families + 1) * ATTEMPTS * max(1, limits))


def _families(names: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(names, str):
        raise invalid_input("families", names, "to be a list of names", f"Write [{names!r}].")
    chosen = tuple(FAMILIES if names is None else names)
    if not chosen:
        raise invalid_input("families", names, "to hold at least one", "Leave them out for all.")
    return tuple(dict.fromkeys(family_by_name(name).name for name in chosen))


def _check_target(
    limits: tuple[Limit, ...], mse_bound: float | None, evidence: str, data_range: tuple[float, float]
) -> None:
    if evidence not in ("measured", "proved"):
        raise invalid_input("evidence", evidence, "to be measured or proved")
    if not limits and mse_bound is None:
        raise InvalidInput("Expected a target. Pass accept='psnr>=20: 5%', or mse_bound=.")
    if mse_bound is not None:
        if evidence == "proved":
            raise invalid_input(
                "mse_bound", mse_bound, "to be left out if proofs are asked for", "The bound is an estimate."
            )
        most = _MARGIN / float(box_prior_information(data_range[1] - data_range[0]))
        if check_positive("mse_bound", mse_bound) > most:
            remedy = "Without any release the bound is little larger, for the smoothest prior on the range of the data."
            raise invalid_input("mse_bound", mse_bound, f"<= {most:.4g}", remedy)
    if evidence == "measured" and any(limit.at_most <= 0 for limit in limits):
        raise invalid_input(
            "accept", str(limits[0]), "above 0%", "No number of trials shows that something never happens."
        )


def _guessed(attackers: Attackers, rng: torch.Generator) -> tuple[float, ...]:
    """The share of public records that guesses rebuild."""
    public, size = attackers.public, attackers.records_per_update
    rows = Population(public, tuple(range(len(public))))
    updates = rows.updates(min(_GUESSED, max(1, len(public) // size)), size, rng)
    subject = replace(attackers.subject, dataset=public)
    found = replace(attackers, subject=subject, population=rows, updates=updates).guessed(range(len(updates)))
    return tuple(count / (found.updates * size) for count in found.reached)


def _trials(
    limits: tuple[Limit, ...],
    guess: tuple[float, ...],
    rows: tuple[int, ...],
    batch_size: int,
    search: int,
    confirm: int | None,
    level: float,
) -> tuple[int, int]:
    """Updates of the search, and those that confirm: enough that some successes are forgiven, if there are records.

    Guarantee: refused where no outcome could show the limits, with the nearest that could be.
    """
    count = check_whole("search_trials", search)
    if not limits:
        return count, 0
    fresh = max(0, len(rows) // batch_size - count)
    stated = fresh if confirm is None else min(fresh, check_whole("confirm_trials", confirm))
    needed = 0
    for limit, guessed in zip(limits, guess, strict=True):
        if guessed > limit.at_most:
            continue  # nothing will be attacked
        trials = trials_beyond_guesses(limit.at_most, guessed, per_trial=batch_size, confidence=level, available=stated)
        if trials is None:
            raise _too_few(limit, stated, batch_size, level, count)
        needed = max(needed, trials)
    return count, needed if confirm is None else stated


def _allowed(limits: tuple[Limit, ...], trials: int, batch_size: int, level: float) -> tuple[int, ...]:
    """How many records of so many fresh updates may be rebuilt; none, where nothing will be attacked."""
    if not trials:
        return (0,) * len(limits)
    found = (most_allowed(limit.at_most, trials=trials, per_trial=batch_size, confidence=level) for limit in limits)
    return tuple(0 if most is None else most for most in found)


def _too_few(limit: Limit, trials: int, batch_size: int, level: float, search: int) -> InvalidInput:
    least = trials_that_show(limit.at_most, per_trial=batch_size, confidence=level)
    nearest = 1.0
    if trials:
        nearest = success_interval(0, trials=trials, per_trial=batch_size, confidence=level).high
    return InvalidInput(
        f"Expected at least {least} fresh updates to show {limit}, there are {trials}: they show no less than "
        f"{100 * nearest:.3g}%. Pass {(least + search) * batch_size} private records and confirm_trials >= {least}, "
        f"or accept more."
    )


def _updates(
    dataset: Dataset, rows: tuple[int, ...], batch_size: int, search: int, confirm: int, rng: torch.Generator
) -> tuple[tuple[int, ...], ...]:
    """Updates of the search first, of rows that no later update has."""
    border = min(search * batch_size, len(rows) - batch_size * (1 if confirm else 0))
    first = Population(dataset, rows[:border]).updates(search, batch_size, rng)
    return (*first, *(Population(dataset, rows[border:]).updates(confirm, batch_size, rng) if confirm else ()))
