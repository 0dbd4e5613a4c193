"""A hundred steps of Inverting Gradients on a 28x28 tanh network: one start, eight starts, eight records.

Eight starts at once must cost at most six times one, and the time must grow at most linearly in records.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from reconrisk.attacks.matching.published import inverting_gradients
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data import load_dataset
from reconrisk.models import lenet
from reconrisk.releases.observe import observe
from reconrisk.releases.updates.gradient import GradientRelease

STEPS = 100


def stepping(*, restarts: int, records: int) -> Callable[[], None]:
    """A hundred steps for so many starts and records."""
    data = load_dataset("mnist", split="test").subset(range(records))
    model = lenet((1, 28, 28), 10, activation=nn.Tanh, rng=torch.Generator().manual_seed(0))
    release = GradientRelease(model, nn.functional.cross_entropy, data.inputs, data.class_labels)
    observation = observe(release, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS))
    attack = inverting_gradients(steps=STEPS, restarts=restarts)

    def run() -> None:
        attack(observation, rng=torch.Generator().manual_seed(0))

    return run


def one() -> Callable[[], None]:
    """One start, one record."""
    return stepping(restarts=1, records=1)


def two_starts() -> Callable[[], None]:
    """Two starts at once."""
    return stepping(restarts=2, records=1)


def eight_starts() -> Callable[[], None]:
    """Eight starts at once."""
    return stepping(restarts=8, records=1)


def sixteen_starts() -> Callable[[], None]:
    """Sixteen starts at once."""
    return stepping(restarts=16, records=1)


def eight_records() -> Callable[[], None]:
    """A batch of eight records."""
    return stepping(restarts=1, records=8)


def sixteen_records() -> Callable[[], None]:
    """A batch of sixteen records."""
    return stepping(restarts=1, records=16)


CONTENDERS = {
    "1 start, 1 record": one,
    "2 starts": two_starts,
    "8 starts": eight_starts,
    "16 starts": sixteen_starts,
    "8 records": eight_records,
    "16 records": sixteen_records,
}
