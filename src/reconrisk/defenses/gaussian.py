"""What Gaussian noise of any shape has in common: with clipping in the norm that matches it, it is a mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod

from reconrisk.core.mechanism import Gaussian
from reconrisk.defenses.clipping import Clip
from reconrisk.defenses.followed import Followed


class GaussianNoise(Followed, ABC):
    """A defense that adds independent Gaussian noise."""

    @abstractmethod
    def mechanism_after(self, clip: Clip) -> Gaussian:
        """The mechanism that this noise is on what ``clip``, in the norm that matches, bounds."""

    @abstractmethod
    def matching(self, clip: Clip) -> Clip:
        """The clip in the norm in which this noise hides every direction equally well."""
