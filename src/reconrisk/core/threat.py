"""Threat models: the release an adversary sees, its side information, and the choices it controls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import invalid_input

E = TypeVar("E", bound=Enum)


class Sees(Enum):
    """Release that reaches the adversary."""

    FINAL_MODEL = "final-model"
    ONE_UPDATE = "one-update"
    EVERY_UPDATE = "every-update"


class Knows(Enum):
    """Side information of the adversary about the target and the training."""

    LABELS = "labels"
    RECORD_NORM = "record-norm"
    OTHER_RECORDS = "other-records"
    INITIALISATION = "initialisation"
    PRIOR = "prior"
    BATCH_STATISTICS = "batch-statistics"
    DEFENSE = "defense"


class Controls(Enum):
    """Parts of the protocol that the adversary may choose."""

    MODEL_PARAMETERS = "model-parameters"


# Releases that an adversary with the key can derive. The final model is the initialisation plus every update.
_SEEN_BY = {
    Sees.FINAL_MODEL: frozenset({Sees.FINAL_MODEL}),
    Sees.ONE_UPDATE: frozenset({Sees.ONE_UPDATE}),
    Sees.EVERY_UPDATE: frozenset(Sees),
}


@serializable("threat-model")
@dataclass(frozen=True)
class ThreatModel:
    """Powers of an adversary; :meth:`covers` is the partial order of threat models.

    Attributes:
        sees: Release that reaches the adversary.
        knows: Side information of the adversary.
        controls: Parts of the protocol that the adversary may choose.

    >>> curious = ThreatModel(sees=Sees.ONE_UPDATE)
    >>> informed = ThreatModel(sees=Sees.EVERY_UPDATE, knows={Knows.OTHER_RECORDS, Knows.LABELS})
    >>> informed.covers(curious), curious.covers(informed)
    (True, False)
    """

    sees: Sees
    knows: frozenset[Knows] = frozenset()
    controls: frozenset[Controls] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sees", _parse_power("sees", self.sees, Sees))
        object.__setattr__(self, "knows", _parse_powers("knows", self.knows, Knows))
        object.__setattr__(self, "controls", _parse_powers("controls", self.controls, Controls))

    def covers(self, other: ThreatModel) -> bool:
        """Return True if this adversary has every power of ``other``.

        A guarantee against this adversary then also holds against ``other``.

        Guarantee: reflexive, transitive and antisymmetric. ``EVERY_UPDATE`` includes ``ONE_UPDATE``, and
        ``FINAL_MODEL`` as well, because the updates are all that training adds to the initialisation.
        """
        return other.sees in _SEEN_BY[self.sees] and other.knows <= self.knows and other.controls <= self.controls

    def with_knowledge(self, *items: Knows) -> ThreatModel:
        """Return the same adversary with additional side information."""
        return replace(self, knows=self.knows | frozenset(items))

    def __repr__(self) -> str:
        """Return the powers in sorted order; equal threat models have equal texts."""
        knows, controls = _join_values(self.knows), _join_values(self.controls)
        return f"ThreatModel(sees={self.sees.value}, knows={knows}, controls={controls})"


def _parse_power(name: str, item: object, kind: type[E]) -> E:
    try:
        return kind(item)
    except ValueError as error:
        raise invalid_input(name, item, f"to be one of {', '.join(str(each.value) for each in kind)}") from error


def _parse_powers(name: str, items: object, kind: type[E]) -> frozenset[E]:
    several = items if isinstance(items, (set, frozenset, tuple, list)) else (items,)
    return frozenset(_parse_power(name, item, kind) for item in several)


def _join_values(items: Iterable[Enum]) -> str:
    return "+".join(sorted(str(item.value) for item in items)) or "nothing"


HONEST_BUT_CURIOUS = ThreatModel(sees=Sees.ONE_UPDATE)
"""A server that reads one update and follows the protocol."""

MALICIOUS_SERVER = ThreatModel(sees=Sees.ONE_UPDATE, controls=frozenset(Controls))
"""A server that chooses the model parameters on which the update is computed."""

INFORMED = ThreatModel(sees=Sees.FINAL_MODEL, knows=frozenset({Knows.OTHER_RECORDS, Knows.INITIALISATION, Knows.PRIOR}))
"""The informed adversary of balle2022, who knows every record but one and sees the trained model."""

STRONGEST = ThreatModel(sees=Sees.EVERY_UPDATE, knows=frozenset(Knows), controls=frozenset(Controls))
"""Every power at once; a differential privacy guarantee covers this adversary."""
