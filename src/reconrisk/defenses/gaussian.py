"""What Gaussian noise of any shape has in common: with clipping in the norm that matches it, it is a mechanism."""

from __future__ import annotations

from abc import abstractmethod

from reconrisk.core.mechanism import Gaussian
from reconrisk.defenses.clipping import Clip
from reconrisk.defenses.sending import SendingDefense


class GaussianNoise(SendingDefense):
    """A defense that adds independent Gaussian noise."""

    @abstractmethod
    def mechanism_after(self, clip: Clip) -> Gaussian | None:
        """The mechanism that this noise is on what ``clip``, in the norm that matches, bounds; None if it is none."""

    @abstractmethod
    def matching(self, clip: Clip) -> Clip:
        """The clip in the norm in which this noise hides every direction equally well."""
