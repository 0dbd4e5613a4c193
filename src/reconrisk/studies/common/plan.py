"""The plan of an audit: attacks that the threat allows, updates, defenses, and the expected time.

Trials are ordered so that any first part of them is balanced over attacks and defenses. Each generative prior gets a
baseline of its own, the prior alone (:func:`alone`).
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
from reconrisk.attacks.knowledge import PublicKnowledge, attack_from_knowledge, attack_name, find_attack_info
from reconrisk.attacks.plain_function import attack_from_function
from reconrisk.attacks.prior_choice import ResolvedPrior, check_prior_fits, is_prior_name
from reconrisk.attacks.registry import (
    ATTACKS,
    PORTFOLIOS,
    AttackInfo,
    PortfolioEntry,
    attack_settings,
    is_attack_spec,
    settings_from_text,
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

_SEED = 0  # of the draws of a prior, which are shared by all trials
_STEPS = 20  # diffusion steps per draw: enough for the mean of many draws


@dataclass(frozen=True, eq=False)
class CachedPriorGuess:
    """Baseline that guesses the mean of a prior and draws from the prior only once.

    The draws take longer than an attack, so all trials share them.

    Attributes:
        attack: The baseline that draws from the prior.
    """

    attack: PriorAlone

    @property
    def needs(self) -> ThreatModel:
        """Threat model that the baseline needs: one that knows the prior."""
        return self.attack.needs

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Return the same guess for every observation with as many records; ``rng`` is not used."""
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
        """Settings of the baseline that draws."""
        return repr(self.attack)


def alone(prior: Prior) -> CachedPriorGuess:
    """Return the baseline that an attack with a prior has to beat.

    Args:
        prior: Generative prior of the attack.

    Returns:
        The mean of draws from the prior, as an attack.
    """
    return CachedPriorGuess(prior_alone(prior, steps=_STEPS))


def time_prior(prior: Prior, attack: Attack, evaluations: int) -> float:
    """Estimate the time that an attack spends in its prior during one trial.

    Args:
        prior: The generative prior; one forward and backward pass is timed.
        attack: Attack whose ``prior_calls`` states the number of passes, if it has one.
        evaluations: Number of passes of other attacks: one for each evaluation of the release.

    Returns:
        Seconds per trial.
    """
    calls = getattr(attack, "prior_calls", evaluations)
    seconds = min(prior.time_pass() for _ in range(2))  # the first one may warm up
    return seconds * float(calls)


_TYPICAL_EVALUATIONS = 300  # of an attack that states no number of steps
_PROBES, _PROBED = 20, 0.5  # most evaluations that are timed, and seconds after which timing stops
UNDEFENDED = "none"
"""Label of the undefended release."""

AttackChoice = str | Attack | Callable[..., Tensor | Reconstruction] | tuple[str, Mapping[str, object]]


@dataclass(frozen=True, eq=False)
class PlannedAttack:
    """An attack of a plan.

    Attributes:
        label: Unique name, as shown in reports.
        attack: The configured attack.
        is_baseline: True if it ignores the update.
        was_chosen: True if the caller named it. An error that it raises then ends the audit.
        evaluations: Expected evaluations of the release in a trial.
        prior: Generative prior of the attack, if any.
        prior_seconds: Expected time in the prior during a trial.
    """

    label: str
    attack: Attack
    is_baseline: bool
    was_chosen: bool
    evaluations: int
    prior: ResolvedPrior | None = None
    prior_seconds: float = 0.0

    @cached_property
    def settings(self) -> str:
        """Digest of the settings, which distinguishes attacks with the same name."""
        return identify_settings(self.attack)

    @cached_property
    def prior_hash(self) -> str:
        """Fingerprint of the prior; empty if there is none."""
        return "" if self.prior is None else self.prior.value.fingerprint


@dataclass(frozen=True, eq=False)
class Plan:
    """Trials of an audit, ordered so that any first part of them is balanced over defenses and attacks.

    Baselines come first: they take no time, and scores of attacks are compared with theirs.

    Attributes:
        attacks: Attacks and baselines.
        defenses: Defenses by their name in reports; None for no defense.
        updates: Target rows of every update.
        seconds_per_evaluation: Measured time of one evaluation of the release.
        unit: Kind of release, ``"update"`` or ``"model"``.
        left_out: Attacks with a prior that could not be planned, with the reason.
    """

    attacks: tuple[PlannedAttack, ...]
    defenses: Mapping[str, Defense | None]
    updates: tuple[tuple[int, ...], ...]
    seconds_per_evaluation: float
    unit: str = "update"
    left_out: tuple[str, ...] = ()

    def trials(self) -> Iterator[TrialKey]:
        """Yield the key of every trial."""
        ordered = sorted(self.attacks, key=lambda planned: not planned.is_baseline)  # stable: baselines first
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
        """Expected seconds of all trials: evaluations of the release, and passes through priors."""
        evaluations = sum(planned.evaluations for planned in self.attacks)
        waited = sum(planned.prior_seconds for planned in self.attacks)
        return (self.seconds_per_evaluation * evaluations + waited) * len(self.updates) * len(self.defenses)

    def __str__(self) -> str:
        """Describe the plan in a few lines."""
        count, records = len(self.updates), len(self.updates[0])
        drawn = f"{count} updates of {records} record{'s' if records > 1 else ''}"
        drawn = drawn if self.unit == "update" else f"{count} models with one unknown record each"
        chosen = ", ".join(planned.label for planned in self.attacks if not planned.is_baseline)
        guesses = ", ".join(planned.label for planned in self.attacks if planned.is_baseline)
        return "\n".join(
            (
                f"plan      {self.size} trials: {drawn}, {len(self.defenses)} defenses, {len(self.attacks)} attacks",
                f"defenses  {', '.join(self.defenses)}",
                f"attacks   {chosen}; guesses: {guesses}",
                *(f"left out  {words}" for words in self.left_out),
                f"expected  {_format_duration(self.expected_seconds)}",
            )
        )


def plan_attacks(
    chosen: str | Sequence[AttackChoice], threat: ThreatModel, knowledge: PublicKnowledge, *, any_prior: bool = False
) -> tuple[PlannedAttack, ...]:
    """Plan the attacks of a study and all baselines that the adversary can compute.

    Args:
        chosen: Name of a portfolio, or a list of attacks. Attacks of a portfolio that the threat does not allow are
            left out.
        threat: Abilities of the adversary.
        knowledge: Public facts that attacks are built from.
        any_prior: True if attacks may use public generative priors that ``threat`` does not list.

    Returns:
        The attacks, then the baselines, one of them for each generative prior.

    Raises:
        InvalidInput: If a chosen attack needs more than the threat allows, two attacks are equal, or none is left.
    """
    if isinstance(chosen, str):
        found = [
            each for each in _plan_portfolio(chosen, threat, knowledge, any_prior) if isinstance(each, PlannedAttack)
        ]
    elif not isinstance(chosen, Sequence):
        raise invalid_input(
            "type(attacks)", type(chosen).__name__, "to be a portfolio or a list", "Write [attack] for a single attack."
        )
    else:
        found = _number_duplicates([_plan_choice(choice, threat, knowledge, any_prior) for choice in chosen])
    guesses = []
    for info in reversed(list(ATTACKS.values())):  # the constant guess comes first: reports name it among equals
        if info.guess_for is not None and info.guess_for <= threat.knows and not info.priors:
            with suppress(InvalidInput):  # there are no public records, or no classes
                guess, _ = attack_from_knowledge(info.name, {}, knowledge)
                guesses.append(PlannedAttack(info.name, guess, True, False, 0))
    named = {planned.label for planned in found}
    if not found:
        raise InvalidInput(f"Expected an attack that {threat} can run. Pass a stronger threat, or a list of attacks.")
    if len(named) < len(found):
        raise invalid_input(
            "attacks",
            [each.label for each in found],
            "to differ from each other",
            "Remove one, or pass different settings.",
        )
    return (*found, *(each for each in (*guesses, *_plan_prior_baselines(found)) if each.label not in named))


def omitted_attacks(
    chosen: str | Sequence[AttackChoice], threat: ThreatModel, knowledge: PublicKnowledge, *, any_prior: bool = False
) -> tuple[str, ...]:
    """Return the attacks with a prior that a portfolio lists and that could not be planned.

    Args:
        chosen: Name of a portfolio; a list of attacks omits none.
        threat: Abilities of the adversary.
        knowledge: Public facts that attacks are built from.
        any_prior: True if attacks may use public generative priors that ``threat`` does not list.

    Returns:
        One text for each reason, with the attacks that it applies to.
    """
    if not isinstance(chosen, str) or knowledge.trained_model is not None:
        return ()
    reasons: dict[str, list[str]] = {}
    for entry, each in zip(PORTFOLIOS[chosen], _plan_portfolio(chosen, threat, knowledge, any_prior), strict=True):
        if ATTACKS[entry.name].priors and isinstance(each, str):
            reasons.setdefault(each, []).append(f"{entry.name}(prior={entry.settings['prior']})")
    return tuple(f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items())


def _plan_prior_baselines(planned: Sequence[PlannedAttack]) -> list[PlannedAttack]:
    """Return a baseline for each prior of the attacks, except for priors whose baseline was chosen."""
    found: list[PlannedAttack] = []
    known = {each.prior_hash for each in planned if each.is_baseline}
    for each in planned:
        if each.prior is None or each.prior_hash in known:
            continue
        guess = alone(each.prior.value)
        found.append(PlannedAttack(f"prior_alone(prior={each.prior.word})", guess, True, False, 0, each.prior))
        known.add(each.prior_hash)
    return _number_duplicates(found)


def _plan_portfolio(
    chosen: str, threat: ThreatModel, knowledge: PublicKnowledge, any_prior: bool
) -> list[PlannedAttack | str]:
    if chosen not in PORTFOLIOS:
        raise invalid_input(
            "attacks", chosen, f"to be one of {', '.join(PORTFOLIOS)}", "Or pass a list of attacks by name."
        )
    return [_plan_entry(entry, threat, knowledge, any_prior) for entry in PORTFOLIOS[chosen]]


def _number_duplicates(planned: Sequence[PlannedAttack]) -> list[PlannedAttack]:
    """Number attacks that have the same name in reports and different settings."""
    found: list[PlannedAttack] = []
    for each in planned:
        alike = [other for other in found if other.label.partition(" #")[0] == each.label]
        # Attacks with equal settings keep equal labels, which the caller refuses.
        if alike and all(identify_settings(other.attack) != identify_settings(each.attack) for other in alike):
            each = replace(each, label=f"{each.label} #{len(alike) + 1}")
        found.append(each)
    return found


def time_evaluation(subject: Subject, release: Release) -> float:
    """Measure the time of one evaluation: a release and its derivative, or one training of a model.

    Args:
        subject: The audited object.
        release: Release to evaluate.

    Returns:
        Median seconds of up to 20 evaluations, after one that is not counted. A slow evaluation is timed once.
    """
    subject.evaluate(release)  # warms up caches and just-in-time compilation
    begun, several = time.monotonic(), list[float]()
    while not several or (len(several) < _PROBES and time.monotonic() - begun < _PROBED):
        start = time.monotonic()
        parts = subject.evaluate(release)
        several.append((time.monotonic() - start) / parts)
    return statistics.median(several)


def _plan_entry(
    entry: PortfolioEntry, threat: ThreatModel, knowledge: PublicKnowledge, any_prior: bool
) -> PlannedAttack | str:
    """Return an attack of a portfolio, or the reason why the threat or the data does not allow it."""
    info = ATTACKS[entry.name]
    if knowledge.batch_size > 1 and not info.whole_update:
        return "it reconstructs one record only"
    if info.reads and knowledge.trained_model not in info.reads:
        return "it needs a trained model"
    if info.priors and not (any_prior or Knows.PRIOR in threat.knows):
        return "the adversary of the stated threat has no prior"
    if not info.knows <= threat.knows or (info.plants_layer and Controls.MODEL_PARAMETERS not in threat.controls):
        return "the threat does not allow it"
    try:
        attack, derived = attack_from_knowledge(entry.name, dict(entry.settings), knowledge)
    except (InvalidInput, MissingExtra) as error:  # it needs other records, labels or images than there are
        return str(error)
    prior = knowledge.prior_used_by(attack)
    if not _allowed_threat(threat, prior, any_prior).covers(_required_threat(info, attack, derived, threat)):
        return "the threat does not allow it"
    evaluations = entry.evaluations
    if knowledge.trained_model is not None and isinstance(attack, BestCandidate):
        # One training for each candidate. The updates of all candidates together cost about two evaluations.
        evaluations = len(attack.candidates)
    named = entry.settings if prior is None else {**entry.settings, "prior": prior.value.name}
    seconds = 0.0 if prior is None else time_prior(prior.value, attack, evaluations)
    return PlannedAttack(_attack_label(entry.name, named), attack, False, False, evaluations, prior, seconds)


def _allowed_threat(threat: ThreatModel, prior: ResolvedPrior | None, any_prior: bool) -> ThreatModel:
    """Return the threat, with the prior added if attacks may use public priors."""
    return threat.with_knowledge(Knows.PRIOR) if any_prior and prior is not None else threat


def _plan_choice(
    choice: AttackChoice, threat: ThreatModel, knowledge: PublicKnowledge, any_prior: bool
) -> PlannedAttack:
    """Plan an attack that the caller chose; refuse one that needs more than the threat allows."""
    words = None
    if isinstance(choice, tuple) and not is_attack_spec(choice):
        raise invalid_input(
            "attacks", choice, "to be a name and its settings", "Write ('dlg', {'steps': 100}), for instance."
        )
    if isinstance(choice, (str, tuple)):
        stated = (
            Choice.read("attacks", choice) if isinstance(choice, str) else Choice(choice[0], tuple(choice[1].items()))
        )
        words = read_attack_settings(stated)
        attack, derived = attack_from_knowledge(*words, knowledge)
        info: AttackInfo | None = ATTACKS[stated.name]
        label = _attack_label(stated.name, _name_prior(stated, knowledge.prior_used_by(attack)))
    else:
        attack, derived = attack_from_function(choice), frozenset()
        label = attack_name(attack)
        info = find_attack_info(attack)
    prior = knowledge.prior_used_by(attack)
    if prior is not None:
        check_prior_fits(prior.value, knowledge.shape, knowledge.data_range)
    if isinstance(attack, PriorAlone) and attack.guess == "mean":  # a mean is the same in every trial
        attack = CachedPriorGuess(attack)
    needed = _required_threat(info, attack, derived, threat)
    is_baseline = info is not None and info.guess_for is not None and info.guess_for <= threat.knows
    if not is_baseline and not _allowed_threat(threat, prior, any_prior).covers(needed):
        raise invalid_input("threat", threat, f"to allow everything that {label} needs, {needed}", _stronger(needed))
    count = _count_evaluations(attack, info, words)
    seconds = 0.0 if prior is None or is_baseline else time_prior(prior.value, attack, count)
    return PlannedAttack(label, attack, is_baseline, True, count, prior, seconds)


def _name_prior(choice: Choice, prior: ResolvedPrior | None) -> dict[str, object]:
    """Return the settings with the name of the prior in place of its folder, which may reveal local paths."""
    settings: dict[str, object] = dict(choice.settings)
    word = settings.get("prior")
    if prior is not None and isinstance(word, str) and (word == SHIPPED or not is_prior_name(word)):
        settings["prior"] = prior.value.name
    return settings


def read_attack_settings(choice: Choice) -> tuple[str, dict[str, object]]:
    """Return the name and the settings of a stated attack, with settings in text form converted to values.

    Args:
        choice: Name of an attack and its settings.

    Returns:
        The name and the settings.

    Raises:
        InvalidInput: If the name or a setting is unknown.
    """
    attack_settings(choice.name)
    words = [f"{key}={value}" for key, value in choice.settings if isinstance(value, str)]
    return choice.name, {**dict(choice.settings), **settings_from_text(choice.name, words)}


def _count_evaluations(attack: Attack, info: AttackInfo | None, words: tuple[str, Mapping[str, object]] | None) -> int:
    """Estimate the evaluations of an attack from its portfolio entry, its steps, or the usual number."""
    listed = (entry for entries in PORTFOLIOS.values() for entry in entries)
    found = next((entry.evaluations for entry in listed if (entry.name, entry.settings) == words), None)
    if found is not None:
        return found
    steps = getattr(attack, "steps", None)  # iterative attacks evaluate the release about once per step
    if isinstance(steps, int):
        return steps
    counts = [count for entries in (info.portfolios if info else {}).values() for count, _ in entries]
    return max(counts, default=_TYPICAL_EVALUATIONS)


def _required_threat(
    info: AttackInfo | None, attack: Attack, derived: Iterable[Knows], threat: ThreatModel
) -> ThreatModel:
    """Return the weakest adversary who could run an attack on the release that this threat sees."""
    needed = attack.needs.with_knowledge(*derived)
    return replace(needed, sees=threat.sees) if info is not None and info.any_release else needed


def _attack_label(name: str, settings: Mapping[str, object]) -> str:
    """Return the name of an attack with its settings; a setting that is an attack is shown by its name."""
    words = {key: value[0] if is_attack_spec(value) else value for key, value in settings.items()}
    written = ", ".join(f"{key}={value}" for key, value in words.items())
    return f"{name}({written})" if settings else name


def _format_duration(seconds: float) -> str:
    if seconds < 90:  # up to 90 s in seconds, up to 90 min in minutes
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _stronger(needed: ThreatModel) -> str:
    """Return the argument that states a threat."""
    knows = sorted(str(power.value) for power in needed.knows)
    controls = f", controls={sorted(str(power.value) for power in needed.controls)}" if needed.controls else ""
    return f"Pass threat=rr.ThreatModel(sees='{needed.sees.value}', knows={knows}{controls}), or remove the attack."
