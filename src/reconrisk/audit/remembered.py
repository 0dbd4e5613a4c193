"""Whether a prior may remember the records that are audited: then attacks with it do better than an outsider would."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from reconrisk.audit.plan import PlannedAttack
from reconrisk.audit.population import Population
from reconrisk.data.shipped import SHIPPED

_TRAIN, _TEST = "train", "test"


def assumptions_of_priors(attacks: Sequence[PlannedAttack], population: Population) -> tuple[str, ...]:
    """What an adversary with a prior has beyond the update, and what nobody can tell of the prior's own training.

    Guarantee: nothing is assumed of records that are seen to be training records, or test records.
    """
    priors = {each.prior.word: each.prior for each in attacks if each.prior is not None}
    found = [f"attacks with the prior {each.value.name} ({each.source}) know it beforehand" for each in priors.values()]
    found += [
        f"audited records are none of the training records of {name}: where they are, attacks with the prior trained "
        "on these do better than an outsider would"
        for name in _trained_on(attacks)
        if _count(population, name, _TRAIN) == 0 and _count(population, name, _TEST) < len(population.rows)
    ]
    return tuple(dict.fromkeys(found))


def warnings_of_priors(attacks: Sequence[PlannedAttack], population: Population) -> tuple[str, ...]:
    """Priors that were trained on audited records, as far as these come with the package."""
    counts = {name: _count(population, name, _TRAIN) for name in _trained_on(attacks)}
    return tuple(
        f"{count} of {len(population.rows)} audited records are training records of {name}, which the prior {name} was "
        "trained on: attacks with it may only remember them, and do better than an outsider would. Audit test records "
        "(--split test)"
        for name, count in counts.items()
        if count
    )


def _trained_on(attacks: Sequence[PlannedAttack]) -> tuple[str, ...]:
    """The data of shipped priors, each once."""
    named = (each.prior.trained_on for each in attacks if each.prior is not None)
    return tuple(dict.fromkeys(name for name in named if name))


def _count(population: Population, name: str, split: str) -> int:
    """How many audited records are in a split that comes with the package."""
    known = _records(name, split)
    if not known:
        return 0
    rows = population.dataset.inputs[list(population.rows)].flatten(1)
    return sum(row.tobytes() in known for row in rows.numpy())


@cache  # reading a data set takes longer than a small audit
def _records(name: str, split: str) -> frozenset[bytes]:
    if name not in SHIPPED:
        return frozenset()
    return frozenset(row.tobytes() for row in SHIPPED[name](split=split).inputs.flatten(1).numpy())
