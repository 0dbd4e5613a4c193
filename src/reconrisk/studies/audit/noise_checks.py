"""Checks of the noise behind the guarantees of an audit, on the releases that the attacks see.

:func:`check_noise` runs three checks for each defense with a mechanism. An adversary with a list of candidates names
the record, by the likelihood and, if other code added the noise, by the last bits. Its bound has the prior success of a
guess from the list. The audit itself knows the update before the noise, so it also tests the scale of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from reconrisk.accounting.phases import has_phases, phases_of
from reconrisk.attacks.float_noise import count_infeasible
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.defense import Defense
from reconrisk.core.observation import GAUSSIAN
from reconrisk.core.threat import Knows
from reconrisk.releases.observe import resolve_defense
from reconrisk.statistics.intervals import success_interval
from reconrisk.statistics.noise_scale import log_evidence_of_less_noise, scale_limits
from reconrisk.studies.audit.result import IdentificationCheck, NoiseChecks, NoiseScaleCheck
from reconrisk.studies.common.experiment import Experiment
from reconrisk.studies.common.runs import TrialKey

CHECKS_PER_DEFENSE = 3
"""Checks of each defense with a mechanism, among which the error probability of contradictions is divided."""

_MOST_CANDIDATES = 100
_FEWEST_CANDIDATES = 16  # fewer make a bound too weak to contradict in an audit of few releases
_SHARE = 20  # one evaluation of a candidate for so many evaluations of the attacks
_MOST_RELEASES = 64  # releases that the checks use
_MOST_VALUES = 2**26  # values of all checked releases together: half a gigabyte in double precision
_MOST_BITS = 2**16  # values of a release whose last bits are compared


def defenses_to_check(experiment: Experiment) -> tuple[str, ...]:
    """Return the labels of the defenses whose mechanism gives a guarantee for the attacked updates.

    Args:
        experiment: Plan and subject of the audit.

    Returns:
        The labels; empty for a trained model, and for mechanisms that rely on the sampling of records.
    """
    subject = experiment.subject
    if subject.trained_model is not None or not subject.has_candidates or subject.guarantee_scope.of_defenses:
        return ()
    if len(experiment.population.rows) <= subject.recipe.batch_size:
        return ()
    return tuple(label for label, defense in experiment.plan.defenses.items() if _protects_updates(defense))


def check_noise(experiment: Experiment, labels: Sequence[str], level: float) -> NoiseChecks:
    """Check the noise of defenses on the releases of an audit.

    Args:
        experiment: Plan, subject and population of the audit.
        labels: Defenses to check, as :func:`defenses_to_check` returns them.
        level: Probability with which one check of sound noise reports a contradiction.

    Returns:
        The results of the checks.

    Assumes: the forward map is deterministic; otherwise the attacks are weaker.
    Guarantee: sound noise is contradicted with a probability of at most ``level`` by each check. The target is a
    uniform choice among the candidates, so that the prior success of the bound is exact.
    """
    lists = _candidate_batches(experiment)
    seen = {label: [_Seen(experiment, label, draw, batches) for draw, batches in enumerate(lists)] for label in labels}
    places: dict[tuple[int, ...], list[tuple[int, int]]] = {}  # single records are candidates of every release
    for draw, batches in enumerate(lists):
        for place, batch in enumerate(batches):
            places.setdefault(batch, []).append((draw, place))
    for batch, where in places.items():
        # One batch at a time, as the owner of the records computes it: the last bits must agree.
        update = experiment.subject.release(batch, experiment.plan.attacks[-1].attack).value()
        means: dict[int, Mapping[str, Tensor]] = {}  # by defense: most defenses are the same for every release
        for label in labels:
            for draw, place in where:
                one = seen[label][draw]
                if id(one.defense) not in means:
                    means[id(one.defense)] = one.defense.replay(update)
                one.compare(place, means[id(one.defense)])
    found, scales = list[IdentificationCheck](), list[NoiseScaleCheck]()
    for label in labels:
        found += _identify(label, seen[label], level)
        scales += _compare_scale(label, seen[label], level)
    return NoiseChecks(tuple(found), tuple(scales))


class _Seen:
    """A release, and its differences from the releases of all candidate batches."""

    def __init__(self, experiment: Experiment, label: str, draw: int, batches: Sequence[tuple[int, ...]]) -> None:
        knows = {Knows.PRIOR, Knows.DEFENSE} | ({Knows.OTHER_RECORDS} if len(batches[0]) > 1 else set())
        key = TrialKey(label, experiment.plan.attacks[-1].label, draw)
        release, self.observation = experiment.observe(key, experiment.threat.with_knowledge(*knows))
        self.defense = resolve_defense(_defense(experiment, label), release)
        self.target = batches.index(experiment.plan.updates[draw])
        self.distances, self.infeasible = torch.zeros(2, len(batches), dtype=torch.float64)

    def compare(self, place: int, mean: Mapping[str, Tensor]) -> None:
        """Compare the release with that of the candidate batch at ``place`` without noise."""
        released, std, kept = self.observation.released, self.observation.noise_std, self.observation.kept
        for name, value in released.items():
            residual = value.double() - mean[name]
            residual = residual if std is None else residual / std[name]
            residual = residual if kept is None else residual * kept[name]
            self.distances[place] += residual.square().sum()
        if not _is_exact(self.defense):
            masks = None if kept is None else _first_values(kept)
            self.infeasible[place] = count_infeasible(_first_values(mean), _first_values(released), kept=masks)

    def is_named(self, *, by_bits: bool) -> bool:
        """Return True if the target is the nearest candidate, among all or among those with the fewest bad values."""
        left = self.infeasible == self.infeasible.min() if by_bits else torch.ones_like(self.infeasible).bool()
        return int(self.distances.masked_fill(~left, math.inf).argmin()) == self.target

    @property
    def size(self) -> int:
        """Number of released values."""
        return sum(value.numel() for value in self.observation.released.values())


def _identify(label: str, seen: Sequence[_Seen], level: float) -> Iterator[IdentificationCheck]:
    """Yield the success of naming the record, by the likelihood and, unless the noise is exact, by the last bits."""
    defense, count = seen[0].defense, len(seen[0].distances)
    if defense.mechanism is None:
        return
    guarantee = success_upper_bound(defense.mechanism, prior_success=1 / count)
    for name in ("best_candidate", *(() if _is_exact(defense) else ("low_bits",))):
        named = sum(each.is_named(by_bits=name == "low_bits") for each in seen)
        # Twice the level: only the lower end of the two-sided interval can contradict an upper bound.
        success = success_interval(named, trials=len(seen), confidence=1 - 2 * level)
        is_contradicted = guarantee.is_contradicted_by(success)
        threat = seen[0].observation.threat
        yield IdentificationCheck(label, name, threat, count, success, guarantee, is_contradicted)


def _compare_scale(label: str, seen: Sequence[_Seen], level: float) -> Iterator[NoiseScaleCheck]:
    """Yield the scale of the noise relative to the claimed one, if every value has Gaussian noise and nothing else."""
    observation = seen[0].observation
    if observation.noise_std is None or observation.noise_law != GAUSSIAN or observation.kept is not None:
        return
    if _is_noise_changed(seen[0].defense, observation.released):
        return
    squares = sum(float(each.distances[each.target]) for each in seen)
    values = sum(each.size for each in seen)
    evidence = log_evidence_of_less_noise(squares, values)
    limits = scale_limits(squares, values, alpha=2 * level)
    is_contradicted = evidence >= -math.log(level)
    yield NoiseScaleCheck(label, len(seen), values, math.sqrt(squares / values), *limits, evidence, is_contradicted)


def _candidate_batches(experiment: Experiment) -> list[list[tuple[int, ...]]]:
    """Return for each checked release the batches that it may be of, in an order that does not depend on the target.

    Single records are candidates of all releases. In a larger batch the first record is unknown and the others are
    known.
    """
    plan, rows = experiment.plan, experiment.population.rows
    first = experiment.subject.release(plan.updates[0], plan.attacks[-1].attack).template()
    size = sum(value.numel() for value in first.values())
    updates = plan.updates[: min(_MOST_RELEASES, max(1, _MOST_VALUES // size))]
    rng = torch.Generator().manual_seed(experiment.seed)
    shuffled = [rows[place] for place in torch.randperm(len(rows), generator=rng).tolist()]
    evaluations = sum(planned.evaluations for planned in plan.attacks) * len(plan.updates) * len(plan.defenses)
    count = min(_MOST_CANDIDATES, max(_FEWEST_CANDIDATES, evaluations // _SHARE))
    if len(updates[0]) == 1:
        # All targets together are a uniform choice, so each of them is uniform in the list.
        targets = dict.fromkeys(row for (row,) in updates)
        chosen = sorted(list(dict.fromkeys([*targets, *shuffled]))[: max(count, len(targets))])
        return [[(row,) for row in chosen]] * len(updates)
    # Here every release has candidates of its own, so that each costs an evaluation.
    count = min(_FEWEST_CANDIDATES, max(_FEWEST_CANDIDATES // 2, count // len(updates)))
    found = []
    for target, *others in updates:
        free = [row for row in shuffled if row not in {target, *others}][: count - 1]
        found.append([(row, *others) for row in sorted([target, *free])])
    return found


def _protects_updates(defense: Defense | None) -> bool:
    """Return True if the mechanism of a defense gives a guarantee for an update that always contains the target."""
    if defense is None or defense.mechanism is None:
        return False
    mechanism = defense.mechanism
    return not has_phases(mechanism) or all(phase.is_full_batch for phase in phases_of(mechanism))


def _is_noise_changed(defense: Defense, released: Mapping[str, Tensor]) -> bool:
    """Return True if a chain of defenses changes values after their noise, so that their scale is unknown."""
    parts: Sequence[Defense] = getattr(defense, "parts", ())
    noisy = [part.noise_std(released) is not None for part in parts]
    return sum(noisy) > 1 or True in noisy[:-1]


def _is_exact(defense: Defense) -> bool:
    """Return True if our own code adds the noise, exactly rounded."""
    return bool(getattr(defense, "exact_noise", False))


def _defense(experiment: Experiment, label: str) -> Defense:
    defense = experiment.plan.defenses[label]
    if defense is None:  # defenses_to_check lists none of these
        raise LookupError(label)
    return defense


def _first_values(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the first values of a release: the last bits of some coordinates suffice."""
    found, left = dict[str, Tensor](), _MOST_BITS
    for name, value in tensors.items():
        found[name] = value.flatten()[:left]
        left -= len(found[name])
    return found
