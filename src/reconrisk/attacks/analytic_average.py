"""Several updates known to hold the same record, as one with less noise."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reconrisk.core.observation import Observation
from reconrisk.core.threat import Sees
from reconrisk.core.validation import check_not_empty, refuse


def average_observations(observations: Sequence[Observation]) -> Observation:
    r"""The mean of several observations of the same records through the same parameters, as one observation.

    .. math:: \bar y = \sum_k y_k / \tau_k^2 \Big/ \sum_k 1 / \tau_k^2, \quad
              \bar\tau^{-2} = \sum_k \tau_k^{-2}

    Assumes: the adversary can tell that the updates hold the same records, and the parameters were the same in each, as
    when a malicious server sends them; neither can be checked here.
    Guarantee: with known equal noise the variance of every value is that of one observation over their number.
    Edge cases: without known noise the plain mean; values that were never sent stay unsent.
    Reference: Proposition IV.10, riess2025.

    >>> from reconrisk.core.threat import ThreatModel
    >>> every = ThreatModel(Sees.EVERY_UPDATE)
    >>> seen = [Observation({"y": torch.tensor([y])}, dict, every, (1,), (0.0, 1.0)) for y in (1.0, 2.0)]
    >>> average_observations(seen).released
    {'y': tensor([1.5000])}
    """
    check_not_empty("observations", observations, "Pass those that hold the record.")
    first = observations[0]
    for other in observations[1:]:
        _check_match(first, other)
    precisions = [{name: _precision(each, name) for name in first.released} for each in observations]
    totals = {name: _added([each[name] for each in precisions]) for name in first.released}
    released = {}
    for name, total in totals.items():
        weighted = [each.released[name] * known[name] for each, known in zip(observations, precisions, strict=True)]
        released[name] = torch.where(total > 0, _added(weighted) / torch.where(total > 0, total, 1.0), 0.0)
    kept = None if first.kept is None else {name: total > 0 for name, total in totals.items()}
    noise_std = None if first.noise_std is None else _noise(first.noise_std, totals)
    return replace(first, released=released, noise_std=noise_std, kept=kept)


def _precision(observation: Observation, name: str) -> Tensor:
    ones = torch.ones_like(observation.released[name])
    if observation.noise_std is not None:
        ones = ones / observation.noise_std[name].square()
    return ones if observation.kept is None else ones * observation.kept[name]


def _noise(one: Mapping[str, Tensor], totals: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The deviation of the means; where nothing was sent that of one observation, since it does not matter."""
    return {
        name: torch.where(total > 0, torch.where(total > 0, total, 1.0).rsqrt(), one[name])
        for name, total in totals.items()
    }


def _added(tensors: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.add, tensors)


def _check_match(first: Observation, other: Observation) -> None:
    if first.threat.sees is not Sees.EVERY_UPDATE:
        raise refuse(
            "threat", first.threat, "to see every update, of which these are several", "Use Sees.EVERY_UPDATE."
        )
    for name in ("threat", "input_shape", "data_range", "batch_size"):
        if getattr(first, name) != getattr(other, name):
            raise refuse(name, getattr(other, name), f"to be {getattr(first, name)} in every observation")
    shapes, expected = ({key: tuple(value.shape) for key, value in each.released.items()} for each in (other, first))
    if shapes != expected:
        raise refuse("released", shapes, f"to have the names and shapes of the first, {expected}")
    for name in ("labels", "record_norms"):
        mine, its = getattr(first, name), getattr(other, name)
        if mine is not None and its is not None and not torch.equal(mine, its):
            raise refuse(name, its.tolist(), f"to be {mine.tolist()}, as for the same records")
    for name in ("noise_std", "kept"):
        if (getattr(first, name) is None) != (getattr(other, name) is None):
            raise refuse(name, "given for some", "to be known of every observation or of none")
