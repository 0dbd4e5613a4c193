"""An attack on the updates of records and, with what is known of each record, on the update of another one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Ending, Reconstruction
from reconrisk.core.threat import ThreatModel

_OF_THE_RECORD = ("labels", "record_norms", "batch_statistics")  # all else is of the model, the release or the defense


def pairs_of(updates: int) -> list[Tensor]:
    """Places of updates, two and two; of an odd number the last three are together.

    >>> pairs_of(5)
    [tensor([0, 1]), tensor([2, 3, 4])]
    """
    places, whole = torch.arange(updates), updates - updates % 2
    pairs = list(places[:whole].split(2))
    return pairs if whole == updates else [*pairs[:-1], places[whole - 2 :]]


def with_update_of(another: Observation, own: Observation) -> Observation:
    """What was released of another record, how, and the side information of the record itself.

    Noise, the values that were kept and the forward map come with the release: a defense may choose all three by it.
    """
    return replace(another, **{name: getattr(own, name) for name in _OF_THE_RECORD})


@dataclass(frozen=True, eq=False)
class _Met:
    """An observation, the randomness at its hand, and what the attack made of both."""

    observation: Observation
    device: torch.device
    state: Tensor
    found: Reconstruction

    @property
    def is_known_of(self) -> bool:
        """Whether the attack was told anything of the record beside its update."""
        return any(getattr(self.observation, name) is not None for name in _OF_THE_RECORD)


@dataclass(frozen=True, eq=False)
class AlsoOnAnother:
    """An attack that meets ``updates`` one after the other, and then the pairs of them the other way round.

    ``made`` has, for each update of a whole pair, the estimates from the other one's.

    Guarantee: an attack that does not read the update makes the same of both where anything is known of the record:
    side information and randomness are the same. Where nothing is known, what it made of the other is used again.
    """

    attack: Attack
    updates: int
    made: list[Tensor] = field(default_factory=list)
    _pair: list[_Met] = field(default_factory=list)

    @property
    def needs(self) -> ThreatModel:
        """Those of the attack."""
        return self.attack.needs

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """What the attack makes of ``observation``; the last of a pair is followed by the exchange."""
        state = rng.get_state()
        found = self.attack(observation, rng=rng)
        self._pair.append(_Met(observation, rng.device, state, found))
        if found.status.ending is not Ending.INTERRUPTED and len(self.made) + len(self._pair) in self._ends:
            self.made.extend([self._exchanged(place) for place in range(len(self._pair))])
            self._pair.clear()
        return found

    @property
    def _ends(self) -> set[int]:
        return {int(pair[-1]) + 1 for pair in pairs_of(self.updates)}

    def _exchanged(self, place: int) -> Tensor:
        own, another = self._pair[place], self._pair[place - 1]
        if not own.is_known_of:
            return another.found.estimates
        rng = torch.Generator(own.device).set_state(own.state)
        found = self.attack(with_update_of(another.observation, own.observation), rng=rng)
        if found.status.ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt
        return found.estimates

    def __repr__(self) -> str:
        """The attack."""
        return repr(self.attack)
