"""What an audit will do: which attacks fit the threat, on which updates, under which defenses, and for how long.

Priors in the plan of an audit: what each achieves alone, and how long it takes to ask it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from reconrisk.attacks.baselines import Prior, PriorAlone, prior_alone
from reconrisk.attacks.best_candidate import BestCandidate
from reconrisk.attacks.informed.invert_training.problem import ShadowProblem, problem_for
from reconrisk.attacks.knowledge import Beliefs, attack_with_beliefs, name_of
from reconrisk.attacks.prior_choice import SHIPPED, StatedPrior, check_prior_fits, is_prior_name
from reconrisk.attacks.registry import (
    AT_ANY_RELEASE,
    BASELINES,
    PORTFOLIOS,
    READS,
    TAKES_PRIOR,
    Listed,
    is_stated_attack,
    settings_from_text,
    settings_of,
)
from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.observation import Attack, ForwardMap, Observation
from reconrisk.core.reconstruction import Cost, Reconstruction
from reconrisk.core.threat import Knows, ThreatModel
from reconrisk.core.validation import refuse
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.gaussian import GaussianPrior
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.releases.linear.estimator_release import EstimatorRelease
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import Release
from reconrisk.releases.shadow.release import PrivateModelRelease
from reconrisk.releases.training.trained_model import TrainedModelRelease
from reconrisk.studies.common.identity import hash_of_model, hash_of_prior, hash_of_tensors, settings_in_full
from reconrisk.studies.common.named_choice import Choice
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.subject import Client, client_for
from reconrisk.studies.common.subject_estimator import Fitted
from reconrisk.studies.common.subject_trained import is_trained_model
from reconrisk.studies.common.trial import TrialKey

_SEED = 0
_STEPS = 20  # of a diffusion: the mean of draws needs no more


@dataclass(frozen=True, eq=False)
class AloneOnce:
    """The mean of a prior as a guess for every trial, of draws that are made once: they take longer than an attack."""

    attack: PriorAlone

    @property
    def needs(self) -> ThreatModel:
        """The prior."""
        return self.attack.needs

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The same for every observation of as many records; ``rng`` is not used."""
        del rng
        begun, key = time.monotonic(), (observation.batch_size, *observation.input_shape)
        if key not in self._made:
            self._made[key] = self.attack(observation, rng=torch.Generator().manual_seed(_SEED))
        made = self._made[key]
        return replace(made, account=replace(made.account, cost=Cost(time.monotonic() - begun, 0)))

    @cached_property
    def _made(self) -> dict[tuple[int, ...], Reconstruction]:
        return {}

    def __repr__(self) -> str:
        """Every setting."""
        return repr(self.attack)


def alone(prior: Prior) -> AloneOnce:
    """The guess that an attack with a prior has to beat."""
    return AloneOnce(prior_alone(prior, steps=_STEPS))


def seconds_of_a_prior(prior: Prior, attack: Attack, evaluations: int) -> float:
    """How long an attack waits for its prior: as often as it says, or once for each evaluation, backward too."""
    asked = prior.diffusion if isinstance(prior, GaussianPrior) else prior
    calls = getattr(attack, "prior_calls", evaluations)
    seconds = min(_seconds_of_a_pass(asked) for _ in range(2))  # the first one may warm up
    return seconds * float(calls)


def _seconds_of_a_pass(prior: DiffusionPrior | GeneratorPrior) -> float:
    begun = time.monotonic()
    if isinstance(prior, DiffusionPrior):
        asked = torch.zeros(1, *prior.shape, requires_grad=True)
        answer = prior.noise(asked, 0)
    else:
        asked = torch.zeros(1, prior.latent_size, requires_grad=True)
        answer = prior.decode(asked)
    if answer.requires_grad:
        torch.autograd.grad(answer.sum(), asked, allow_unused=True)
    return time.monotonic() - begun


_TYPICAL_EVALUATIONS = 300
_PROBES, _PROBED = 20, 0.5  # evaluations that are timed, and seconds that they may take
_TOGETHER = 8  # models trained to see how long one takes
UNDEFENDED = "none"
"""The label of the release as it is."""

AttackChoice = str | Attack | tuple[str, Mapping[str, object]]


@dataclass(frozen=True, eq=False)
class PlannedAttack:
    """An attack with its label; ``was_chosen`` if somebody named it, so that its refusal is an error.

    ``prior`` is the generative one it has, if any, which it waits for ``prior_seconds`` in a trial.
    """

    label: str
    attack: Attack
    is_baseline: bool
    was_chosen: bool
    evaluations: int
    prior: StatedPrior | None = None
    prior_seconds: float = 0.0

    @cached_property
    def settings(self) -> str:
        """What tells the attack from others of its label."""
        return settings_in_full(self.attack)

    @cached_property
    def prior_hash(self) -> str:
        """The hash of the prior, empty if there is none."""
        return "" if self.prior is None else hash_of_prior(self.prior.value)


@dataclass(frozen=True, eq=False)
class Sender:
    """What is audited: a release made again for other records, a client that trains a model, a fitted estimator."""

    release: Release | None = None
    model: nn.Module | None = None
    loss_fn: LossFunction | None = None
    steps: int | None = None
    learning_rate: float | None = None
    fitted: Fitted | None = None

    @property
    def is_trained_model(self) -> bool:
        """Whether a model after its training is audited, not an update on the way."""
        return self.fitted is not None or is_trained_model(self.release)

    def training(self, population: Population) -> ForwardMap | None:
        """The map from a record to the trained model; None where updates are audited."""
        if self.fitted is not None:
            return self.fitted.release(population.rows[:1]).forward
        return self.release.forward if self.release is not None and self.is_trained_model else None

    @cached_property
    def fingerprint(self) -> str:
        """The hash of what is audited; of a release by what it is at its own records."""
        if self.fitted is not None:
            return self.fitted.fingerprint
        if self.release is not None:
            return hash_of_tensors(sorted(self.release.value().items()), extra=repr(type(self.release)))
        if self.model is None:
            raise refuse("subject", None, "to be a model or a release")
        return hash_of_model(self.model)

    def client(self, attack: Attack, population: Population) -> Client:
        """The client that trains the model."""
        return client_for(
            attack,
            self.model,
            population.dataset,
            loss_fn=self.loss_fn,
            steps=self.steps,
            learning_rate=self.learning_rate,
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """Trials of an audit, in an order in which any beginning is balanced: update by update, then defenses, attacks.

    Guesses come first: they take no time, and no attack says anything without them.

    ``left_out`` says which attacks with a prior could not be planned, and why.
    """

    attacks: tuple[PlannedAttack, ...]
    defenses: Mapping[str, Defense | None]
    updates: tuple[tuple[int, ...], ...]
    seconds_per_evaluation: float
    unit: str = "update"
    left_out: tuple[str, ...] = ()

    def trials(self) -> Iterator[TrialKey]:
        """Every trial."""
        ordered = sorted(self.attacks, key=lambda planned: not planned.is_baseline)
        for draw in range(len(self.updates)):
            for defense in self.defenses:
                for planned in ordered:
                    yield TrialKey(defense, planned.label, draw)

    @property
    def size(self) -> int:
        """Number of trials."""
        return len(self.updates) * len(self.defenses) * len(self.attacks)

    @property
    def expected_seconds(self) -> float:
        """Evaluations of the release that the attacks take, at the cost of one, and what they wait for priors."""
        evaluations = sum(planned.evaluations for planned in self.attacks)
        waited = sum(planned.prior_seconds for planned in self.attacks)
        return (self.seconds_per_evaluation * evaluations + waited) * len(self.updates) * len(self.defenses)

    def __str__(self) -> str:
        """The plan in a few lines."""
        count, records = len(self.updates), len(self.updates[0])
        drawn = f"{count} updates of {records} record{'s' if records > 1 else ''}"
        drawn = drawn if self.unit == "update" else f"{count} models, of each one record unknown"
        chosen = ", ".join(planned.label for planned in self.attacks if not planned.is_baseline)
        guesses = ", ".join(planned.label for planned in self.attacks if planned.is_baseline)
        return "\n".join(
            (
                f"plan      {self.size} trials: {drawn}, {len(self.defenses)} defenses, {len(self.attacks)} attacks",
                f"defenses  {', '.join(self.defenses)}",
                f"attacks   {chosen}; guesses: {guesses}",
                *(f"left out  {words}" for words in self.left_out),
                f"expected  {_duration(self.expected_seconds)}",
            )
        )


def planned_attacks(
    chosen: str | Sequence[AttackChoice], threat: ThreatModel, beliefs: Beliefs, *, any_prior: bool = False
) -> tuple[PlannedAttack, ...]:
    """The attacks of a portfolio that the threat allows, or those chosen, and every guess that can be made.

    With ``any_prior`` attacks may have a generative prior though the threat does not know it, as one that is public.

    Guarantee: a chosen attack that needs more than the threat has is refused. There is a guess for each prior.
    """
    if isinstance(chosen, str):
        found = [each for each in _of_portfolio(chosen, threat, beliefs, any_prior) if isinstance(each, PlannedAttack)]
    else:
        found = _told_apart([_chosen(choice, threat, beliefs, any_prior) for choice in chosen])
    possible = [name for name, known in BASELINES.items() if known <= threat.knows and name not in TAKES_PRIOR]
    guesses = [each for each in (_guess(name, beliefs) for name in possible) if each is not None]
    named = {planned.label for planned in found}
    if not found:
        raise InvalidInput(f"Expected an attack that {threat} can run. State a stronger threat, or list attacks.")
    if len(named) < len(found):
        raise refuse("attacks", [each.label for each in found], "to differ", "Give each its settings.")
    return (*found, *(guess for guess in (*guesses, *_priors_alone(found)) if guess.label not in named))


def left_out(
    chosen: str | Sequence[AttackChoice], threat: ThreatModel, beliefs: Beliefs, *, any_prior: bool = False
) -> tuple[str, ...]:
    """Attacks with a prior that a portfolio lists and that could not be planned, by the reason."""
    if not isinstance(chosen, str) or beliefs.training is not None:
        return ()
    reasons: dict[str, list[str]] = {}
    for entry, each in zip(PORTFOLIOS[chosen], _of_portfolio(chosen, threat, beliefs, any_prior), strict=True):
        if entry.name in TAKES_PRIOR and isinstance(each, str):
            reasons.setdefault(each, []).append(f"{entry.name}(prior={entry.settings['prior']})")
    return tuple(f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items())


def _priors_alone(planned: Sequence[PlannedAttack]) -> list[PlannedAttack]:
    """A guess for each prior that attacks have, and that was not chosen itself."""
    found: list[PlannedAttack] = []
    known = {each.prior_hash for each in planned if each.is_baseline}
    for each in planned:
        if each.prior is None or each.prior_hash in known:
            continue
        guess = alone(each.prior.value)
        found.append(PlannedAttack(f"prior_alone(prior={each.prior.word})", guess, True, False, 0, each.prior))
        known.add(each.prior_hash)
    return _told_apart(found)


def _of_portfolio(chosen: str, threat: ThreatModel, beliefs: Beliefs, any_prior: bool) -> list[PlannedAttack | str]:
    if chosen not in PORTFOLIOS:
        raise refuse("attacks", chosen, f"to be one of {', '.join(PORTFOLIOS)}", "Or list attacks by name.")
    return [_listed(entry, threat, beliefs, any_prior) for entry in PORTFOLIOS[chosen]]


def _told_apart(planned: Sequence[PlannedAttack]) -> list[PlannedAttack]:
    """Configured attacks of one kind with other settings, numbered."""
    found: list[PlannedAttack] = []
    for each in planned:
        alike = [other for other in found if other.label.partition(" #")[0] == each.label]
        if alike and all(settings_in_full(other.attack) != settings_in_full(each.attack) for other in alike):
            each = replace(each, label=f"{each.label} #{len(alike) + 1}")
        found.append(each)
    return found


def seconds_of_an_evaluation(release: Release) -> float:
    """How long it takes to compute a release and its derivative once, or to train a model once.

    The median of several, after a first one that may warm up; where one takes long, of one.
    """
    _evaluated(release)
    begun, several = time.monotonic(), list[float]()
    while not several or (len(several) < _PROBES and time.monotonic() - begun < _PROBED):
        several.append(_seconds_of_one(release))
    return statistics.median(several)


def _seconds_of_one(release: Release) -> float:
    begun = time.monotonic()
    parts = _evaluated(release)
    return (time.monotonic() - begun) / parts


def _evaluated(release: Release) -> int:
    """Evaluate a release as attacks do, and say how many evaluations that was: models are trained together."""
    if isinstance(release, EstimatorRelease):
        release.evaluated()
        return 1
    if isinstance(release, (TrainedModelRelease, PrivateModelRelease)):
        inner = release.training if isinstance(release, PrivateModelRelease) else release.forward
        problem = problem_for(inner, tuple(release.inputs.shape[1:]))
        count = _TOGETHER if isinstance(problem, ShadowProblem) else 1
        problem.values(
            release.inputs.flatten(1).expand(count, -1), release.labels.expand(count, *release.labels[0].shape)
        )
        return count
    derivative = release.linearized()
    derivative.pull({name: torch.ones_like(value) for name, value in release.template().items()})
    return 1


def _listed(entry: Listed, threat: ThreatModel, beliefs: Beliefs, any_prior: bool) -> PlannedAttack | str:
    """An attack of a portfolio, or why the threat or the data does not allow it."""
    if beliefs.batch_size > 1 and not entry.whole_update:
        return "it rebuilds one record"
    if entry.name in READS and not isinstance(beliefs.training, READS[entry.name]):
        return "it reads a trained model"
    if entry.name in TAKES_PRIOR and not (any_prior or Knows.PRIOR in threat.knows):
        return "the stated threat does not know the prior"
    try:
        attack, believed = attack_with_beliefs(entry.name, dict(entry.settings), beliefs)
    except (InvalidInput, MissingExtra) as error:  # it needs other records, labels or images than there are
        return str(error)
    prior = beliefs.prior_of(attack)
    if not _allowed(threat, prior, any_prior).covers(_needed(entry.name, attack, believed, threat)):
        return "the threat does not allow it"
    evaluations = entry.evaluations
    if beliefs.training is not None and isinstance(attack, BestCandidate):
        evaluations = len(attack.candidates)  # each is trained on; of updates, all take about as long as two
    named = entry.settings if prior is None else {**entry.settings, "prior": prior.value.name}
    seconds = 0.0 if prior is None else seconds_of_a_prior(prior.value, attack, evaluations)
    return PlannedAttack(_label(entry.name, named), attack, False, False, evaluations, prior, seconds)


def _allowed(threat: ThreatModel, prior: StatedPrior | None, any_prior: bool) -> ThreatModel:
    """The threat, with the prior where that may be anybody's."""
    return threat.knowing(Knows.PRIOR) if any_prior and prior is not None else threat


def _chosen(choice: AttackChoice, threat: ThreatModel, beliefs: Beliefs, any_prior: bool) -> PlannedAttack:
    evaluations = None
    if isinstance(choice, (str, tuple)):
        stated = (
            Choice.read("attacks", choice) if isinstance(choice, str) else Choice(choice[0], tuple(choice[1].items()))
        )
        name, settings = attack_in_words(stated)
        attack, believed = attack_with_beliefs(name, settings, beliefs)
        label, evaluations = _label(name, _named(stated, beliefs.prior_of(attack))), _as_listed(name, settings)
    else:
        attack, believed, label = choice, frozenset(), name_of(choice)
    prior = beliefs.prior_of(attack)
    if prior is not None:
        check_prior_fits(prior.value, beliefs.shape, beliefs.data_range)
    if isinstance(attack, PriorAlone) and attack.guess == "mean":
        attack = AloneOnce(attack)
    needed = _needed(label.partition("(")[0], attack, believed, threat)
    is_baseline = BASELINES.get(label.partition("(")[0], frozenset(Knows)) <= threat.knows
    if not is_baseline and not _allowed(threat, prior, any_prior).covers(needed):
        raise refuse("threat", threat, f"to cover what {label} needs, {needed}", "State a stronger threat.")
    steps = getattr(attack, "steps", None)
    usual = steps if isinstance(steps, int) else _usual(label.partition("(")[0])
    count = usual if evaluations is None else evaluations
    seconds = 0.0 if prior is None or is_baseline else seconds_of_a_prior(prior.value, attack, count)
    return PlannedAttack(label, attack, is_baseline, True, count, prior, seconds)


def _named(choice: Choice, prior: StatedPrior | None) -> dict[str, object]:
    """Settings with the prior by its name: a folder may say where a machine keeps its files."""
    settings: dict[str, object] = dict(choice.settings)
    word = settings.get("prior")
    if prior is not None and isinstance(word, str) and (word == SHIPPED or not is_prior_name(word)):
        settings["prior"] = prior.value.name
    return settings


def attack_in_words(choice: Choice) -> tuple[str, dict[str, object]]:
    """Name and settings of an attack; settings that are words are read as what they stand for."""
    settings_of(choice.name)
    words = [f"{key}={value}" for key, value in choice.settings if isinstance(value, str)]
    return choice.name, {**dict(choice.settings), **settings_from_text(choice.name, words)}


def _as_listed(name: str, settings: Mapping[str, object]) -> int | None:
    """The evaluations of an attack that a portfolio lists with these settings."""
    listed = (entry for entries in PORTFOLIOS.values() for entry in entries)
    return next((entry.evaluations for entry in listed if (entry.name, entry.settings) == (name, settings)), None)


def _usual(name: str) -> int:
    """About how many evaluations an attack takes with settings that no portfolio has."""
    listed = [entry.evaluations for entries in PORTFOLIOS.values() for entry in entries if entry.name == name]
    return max(listed, default=_TYPICAL_EVALUATIONS)


def _needed(name: str, attack: Attack, believed: Iterable[Knows], threat: ThreatModel) -> ThreatModel:
    """The weakest adversary who could run an attack on what this threat sees."""
    needed = attack.needs.knowing(*believed)
    return replace(needed, sees=threat.sees) if name in AT_ANY_RELEASE else needed


def _label(name: str, settings: Mapping[str, object]) -> str:
    written = ", ".join(f"{key}={_written(value)}" for key, value in settings.items())
    return f"{name}({written})" if settings else name


def _written(value: object) -> str:
    """A setting in words: an attack by its name."""
    return value[0] if is_stated_attack(value) else str(value)


def _guess(name: str, beliefs: Beliefs) -> PlannedAttack | None:
    try:
        attack, _ = attack_with_beliefs(name, {}, beliefs)
    except InvalidInput:  # no public records, or no classes
        return None
    return PlannedAttack(name, attack, True, False, 0)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
