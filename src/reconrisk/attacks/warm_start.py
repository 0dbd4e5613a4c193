"""The first estimate of an attack by another one, in the time that is left."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from reconrisk.core.observation import Attack, Observation
from reconrisk.core.reconstruction import Reconstruction

_LEAST = 1e-3  # seconds: an attack has some time, and makes at least one step


def begun_by(
    attack: Attack, observation: Observation, *, seconds_left: float | None, rng: torch.Generator
) -> Reconstruction:
    """What ``attack`` finds in at most so many seconds, if it can be limited.

    Guarantee: an attack with a limit of its own keeps the shorter one.
    """
    has_limit = hasattr(attack, "seconds") and dataclasses.is_dataclass(attack)
    limited: Any = attack
    if seconds_left is not None and has_limit:
        allowed = seconds_left if limited.seconds is None else min(limited.seconds, seconds_left)
        limited = dataclasses.replace(limited, seconds=max(_LEAST, allowed))
    found: Reconstruction = limited(observation, rng=rng)
    return found
