"""What lets a defense be followed by another."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.defenses.chain import Chain


class Followed:
    """A defense that can be written before another: ``clip(1.0) >> gaussian_noise(0.5)``."""

    def __rshift__(self, other: Defense) -> Chain:
        """One defense first, then ``other`` on what it sends."""
        from reconrisk.defenses.chain import chain  # it knows the defenses that extend this class

        return chain(cast("Defense", self), other)  # every class that extends this one is a defense
