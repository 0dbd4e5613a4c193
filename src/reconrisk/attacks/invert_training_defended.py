"""Training followed by what a known defense does without chance, such as clipping what is released."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reconrisk.attacks.invert_training_problem import Problem, Wrapped
from reconrisk.core.defense import Defense

_FAR = 1e6  # times what was sent: a norm that any clipping changes


def adds_noise_alone(defense: Defense, sent: Mapping[str, Tensor]) -> bool:
    """Whether a defense leaves the values that it sends as they are but for its noise, also far larger ones.

    >>> from reconrisk.defenses.noise import clip_and_noise, gaussian_noise
    >>> clipping = clip_and_noise(noise_multiplier=1.0, clip_norm=9.0)
    >>> [adds_noise_alone(defense, {"w": torch.ones(2)}) for defense in (gaussian_noise(0.1), clipping)]
    [True, False]
    """
    for scale in (1.0, _FAR):
        values = {name: scale * value for name, value in sent.items()}
        replayed = defense.replay(values)
        if any(not torch.equal(replayed[name], value) for name, value in values.items()):
            return False
    return True


class Defended(Wrapped):
    """Another problem whose released values pass through the part of a defense that is no chance."""

    def __init__(self, inner: Problem, defense: Defense, released: Mapping[str, Tensor]) -> None:
        super().__init__(inner)
        self._defense = defense
        self._shapes = {name: tuple(value.shape) for name, value in released.items()}
        places = torch.arange(inner.size, dtype=torch.float64).split([value.numel() for value in released.values()])
        numbered = {
            name: place.view(value.shape) for (name, value), place in zip(released.items(), places, strict=True)
        }
        self._order = inner.flatten(numbered).long()

    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """What is sent for each record, but for the noise."""
        return torch.stack([self._replayed(row) for row in self._inner.values(records, labels)])

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """The derivative of training, and along it that of the defense."""
        row = self._inner.values(record[None], label[None])[0]
        pushed = self._inner.push(record, label, directions)
        return torch.stack([torch.func.jvp(self._replayed, (row,), (tangent,))[1] for tangent in pushed])

    def _replayed(self, row: Tensor) -> Tensor:
        """A row through the defense: by names, and back."""
        apart = torch.empty_like(row).index_copy(0, self._order, row)
        sizes = [torch.Size(shape).numel() for shape in self._shapes.values()]
        parts = zip(self._shapes.items(), apart.split(sizes), strict=True)
        replayed = self._defense.replay({name: part.view(shape) for (name, shape), part in parts})
        whole = torch.cat([replayed[name].reshape(-1) for name in self._shapes])
        return whole[self._order]
