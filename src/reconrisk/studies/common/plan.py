"""The plan of an audit: attacks that fit the threat, updates, defenses, and the expected time.

Trials are ordered so that any beginning of them is balanced over attacks and defenses. Each generative prior gets its
own baseline, the prior alone (:func:`alone`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from reconrisk.attacks.baselines import PriorAlone, prior_alone
from reconrisk.attacks.best_candidate import BestCandidate
from reconrisk.attacks.knowledge import PublicKnowledge, attack_from_knowledge, info_of, name_of
from reconrisk.attacks.plain_function import attack_from_function
from reconrisk.attacks.prior_choice import StatedPrior, check_prior_fits, is_prior_name
from reconrisk.attacks.registry import (
    ATTACKS,
    PORTFOLIOS,
    AttackInfo,
    PortfolioEntry,
    is_stated_attack,
    settings_from_text,
    settings_of,
)
from reconrisk.core.defense import Defense
from reconrisk.core.digest import identify_settings
from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Cost, Reconstruction
from reconrisk.core.registry import Choice
from reconrisk.core.threat import Controls, Knows, ThreatModel
from reconrisk.core.validation import invalid_input
from reconrisk.priors.prior import Prior
from reconrisk.priors.registry import SHIPPED
from reconrisk.releases.release import Release
from reconrisk.studies.common.runs import TrialKey
from reconrisk.studies.common.subjects.subject import Subject

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
    calls = getattr(attack, "prior_calls", evaluations)
    seconds = min(prior.time_pass() for _ in range(2))  # the first one may warm up
    return seconds * float(calls)


_TYPICAL_EVALUATIONS = 300
_PROBES, _PROBED = 20, 0.5  # evaluations that are timed, and seconds that they may take
UNDEFENDED = "none"
"""The label of the release as it is."""

AttackChoice = str | Attack | Callable[..., Tensor | Reconstruction] | tuple[str, Mapping[str, object]]


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
        return identify_settings(self.attack)

    @cached_property
    def prior_hash(self) -> str:
        """The hash of the prior, empty if there is none."""
        return "" if self.prior is None else self.prior.value.fingerprint


@dataclass(frozen=True, eq=False)
class Plan:
    """Trials of an audit, in an order in which any beginning is balanced: update by update, then defenses, attacks.

    Guesses come first: they take no time, and attack scores mean something only relative to them.

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
    chosen: str | Sequence[AttackChoice], threat: ThreatModel, knowledge: PublicKnowledge, *, any_prior: bool = False
) -> tuple[PlannedAttack, ...]:
    """The attacks of a portfolio that the threat allows, or those chosen, and every guess that can be made.

    With ``any_prior`` attacks may have a generative prior though the threat does not know it, as one that is public.

    Guarantee: a chosen attack that needs more than the threat has is refused. There is a guess for each prior.
    """
    if isinstance(chosen, str):
        found = [
            each for each in _of_portfolio(chosen, threat, knowledge, any_prior) if isinstance(each, PlannedAttack)
        ]
    elif not isinstance(chosen, Sequence):
        raise invalid_input(
            "attacks", type(chosen).__name__, "to be a portfolio or a list", "Write [attack] for a single one."
        )
    else:
        found = _told_apart([_chosen(choice, threat, knowledge, any_prior) for choice in chosen])
    guesses = []
    for info in reversed(list(ATTACKS.values())):  # constant first: of guesses that are equal, reports name it
        if info.guess_for is not None and info.guess_for <= threat.knows and not info.priors:
            with suppress(InvalidInput):  # no public records, or no classes
                guess, _ = attack_from_knowledge(info.name, {}, knowledge)
                guesses.append(PlannedAttack(info.name, guess, True, False, 0))
    named = {planned.label for planned in found}
    if not found:
        raise InvalidInput(f"Expected an attack that {threat} can run. State a stronger threat, or list attacks.")
    if len(named) < len(found):
        raise invalid_input("attacks", [each.label for each in found], "to differ", "Give each its settings.")
    return (*found, *(each for each in (*guesses, *_priors_alone(found)) if each.label not in named))


def left_out(
    chosen: str | Sequence[AttackChoice], threat: ThreatModel, knowledge: PublicKnowledge, *, any_prior: bool = False
) -> tuple[str, ...]:
    """Attacks with a prior that a portfolio lists and that could not be planned, by the reason."""
    if not isinstance(chosen, str) or knowledge.trained_model is not None:
        return ()
    reasons: dict[str, list[str]] = {}
    for entry, each in zip(PORTFOLIOS[chosen], _of_portfolio(chosen, threat, knowledge, any_prior), strict=True):
        if ATTACKS[entry.name].priors and isinstance(each, str):
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


def _of_portfolio(
    chosen: str, threat: ThreatModel, knowledge: PublicKnowledge, any_prior: bool
) -> list[PlannedAttack | str]:
    if chosen not in PORTFOLIOS:
        raise invalid_input("attacks", chosen, f"to be one of {', '.join(PORTFOLIOS)}", "Or list attacks by name.")
    return [_listed(entry, threat, knowledge, any_prior) for entry in PORTFOLIOS[chosen]]


def _told_apart(planned: Sequence[PlannedAttack]) -> list[PlannedAttack]:
    """Configured attacks of one kind with other settings, numbered."""
    found: list[PlannedAttack] = []
    for each in planned:
        alike = [other for other in found if other.label.partition(" #")[0] == each.label]
        if alike and all(identify_settings(other.attack) != identify_settings(each.attack) for other in alike):
            each = replace(each, label=f"{each.label} #{len(alike) + 1}")
        found.append(each)
    return found


def seconds_of_an_evaluation(subject: Subject, release: Release) -> float:
    """Return how long it takes to compute a release and its derivative once, or to train a model once.

    The median of several, after a first one that may warm up; where one takes long, of one.
    """
    subject.evaluate(release)
    begun, several = time.monotonic(), list[float]()
    while not several or (len(several) < _PROBES and time.monotonic() - begun < _PROBED):
        start = time.monotonic()
        parts = subject.evaluate(release)
        several.append((time.monotonic() - start) / parts)
    return statistics.median(several)


def _listed(
    entry: PortfolioEntry, threat: ThreatModel, knowledge: PublicKnowledge, any_prior: bool
) -> PlannedAttack | str:
    """An attack of a portfolio, or why the threat or the data does not allow it."""
    info = ATTACKS[entry.name]
    if knowledge.batch_size > 1 and not info.whole_update:
        return "it rebuilds one record"
    if info.reads and knowledge.trained_model not in info.reads:
        return "it reads a trained model"
    if info.priors and not (any_prior or Knows.PRIOR in threat.knows):
        return "the stated threat does not know the prior"
    if not info.knows <= threat.knows or (info.plants_layer and Controls.MODEL_PARAMETERS not in threat.controls):
        return "the threat does not allow it"
    try:
        attack, derived = attack_from_knowledge(entry.name, dict(entry.settings), knowledge)
    except (InvalidInput, MissingExtra) as error:  # it needs other records, labels or images than there are
        return str(error)
    prior = knowledge.prior_of(attack)
    if not _allowed(threat, prior, any_prior).covers(_needed(info, attack, derived, threat)):
        return "the threat does not allow it"
    evaluations = entry.evaluations
    if knowledge.trained_model is not None and isinstance(attack, BestCandidate):
        evaluations = len(attack.candidates)  # each is trained on; of updates, all take about as long as two
    named = entry.settings if prior is None else {**entry.settings, "prior": prior.value.name}
    seconds = 0.0 if prior is None else seconds_of_a_prior(prior.value, attack, evaluations)
    return PlannedAttack(_label(entry.name, named), attack, False, False, evaluations, prior, seconds)


def _allowed(threat: ThreatModel, prior: StatedPrior | None, any_prior: bool) -> ThreatModel:
    """The threat, with the prior where that may be anybody's."""
    return threat.knowing(Knows.PRIOR) if any_prior and prior is not None else threat


def _chosen(choice: AttackChoice, threat: ThreatModel, knowledge: PublicKnowledge, any_prior: bool) -> PlannedAttack:
    """Plan an attack that somebody chose; one that needs more than the threat has is refused."""
    words = None
    if isinstance(choice, tuple) and not is_stated_attack(choice):
        raise invalid_input(
            "attacks", choice, "to be a name and its settings", "Write ('dlg', {'steps': 100}), for instance."
        )
    if isinstance(choice, (str, tuple)):
        stated = (
            Choice.read("attacks", choice) if isinstance(choice, str) else Choice(choice[0], tuple(choice[1].items()))
        )
        words = attack_in_words(stated)
        attack, derived = attack_from_knowledge(*words, knowledge)
        info: AttackInfo | None = ATTACKS[stated.name]
        label = _label(stated.name, _named(stated, knowledge.prior_of(attack)))
    else:
        attack, derived = attack_from_function(choice), frozenset()
        label = name_of(attack)
        info = info_of(attack)
    prior = knowledge.prior_of(attack)
    if prior is not None:
        check_prior_fits(prior.value, knowledge.shape, knowledge.data_range)
    if isinstance(attack, PriorAlone) and attack.guess == "mean":
        attack = AloneOnce(attack)
    needed = _needed(info, attack, derived, threat)
    is_baseline = info is not None and info.guess_for is not None and info.guess_for <= threat.knows
    if not is_baseline and not _allowed(threat, prior, any_prior).covers(needed):
        raise invalid_input("threat", threat, f"to cover what {label} needs, {needed}", "State a stronger threat.")
    count = _count_evaluations(attack, info, words)
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


def _count_evaluations(attack: Attack, info: AttackInfo | None, words: tuple[str, Mapping[str, object]] | None) -> int:
    """Return about how many evaluations an attack takes: as a portfolio lists it, its steps, or the usual number."""
    listed = (entry for entries in PORTFOLIOS.values() for entry in entries)
    found = next((entry.evaluations for entry in listed if (entry.name, entry.settings) == words), None)
    if found is not None:
        return found
    steps = getattr(attack, "steps", None)
    if isinstance(steps, int):
        return steps
    counts = [count for entries in (info.portfolios if info else {}).values() for count, _ in entries]
    return max(counts, default=_TYPICAL_EVALUATIONS)


def _needed(info: AttackInfo | None, attack: Attack, derived: Iterable[Knows], threat: ThreatModel) -> ThreatModel:
    """Return the weakest adversary who could run an attack on what this threat sees."""
    needed = attack.needs.knowing(*derived)
    return replace(needed, sees=threat.sees) if info is not None and info.any_release else needed


def _label(name: str, settings: Mapping[str, object]) -> str:
    """The attack with its settings in words: a setting that is an attack by its name."""
    words = {key: value[0] if is_stated_attack(value) else value for key, value in settings.items()}
    written = ", ".join(f"{key}={value}" for key, value in words.items())
    return f"{name}({written})" if settings else name


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
