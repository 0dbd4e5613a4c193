"""A release that the caller passes; it is recomputed for other records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from reconrisk.core.digest import short_digest
from reconrisk.core.observation import Attack
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import Release
from reconrisk.studies.common.subjects.subject import ONE_GRADIENT, Subject, UpdateRecipe, as_dataset


@dataclass(frozen=True, eq=False)
class GivenRelease(Subject):
    """A release that is recomputed for each target.

    Attributes:
        given: Release that the caller passed.
        dataset: Records that take the place of its own.
        recipe: Training of a client; only its batch size is used.
    """

    given: Release
    dataset: Dataset
    recipe: UpdateRecipe = ONE_GRADIENT

    @classmethod
    def supports(cls, subject: object) -> bool:
        """Return True for any release."""
        return isinstance(subject, Release)

    @classmethod
    def of(cls, subject: Any, data: Any, recipe: UpdateRecipe) -> GivenRelease:
        """Build the subject from a release and records; without records, use those of the release."""
        return cls(subject, as_dataset(data, subject), recipe)

    @property
    def name(self) -> str:
        """Class of the release."""
        return type(self.given).__name__

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the release at its own records."""
        return short_digest((type(self.given).__qualname__, sorted(self.given.value().items())))

    def describe(self, attack: Attack) -> str:
        """Describe the release by its class."""
        del attack
        return type(self.given).__name__

    def release(self, rows: tuple[int, ...], attack: Attack, rng: torch.Generator | None = None) -> Release:
        """Return the release of these rows."""
        del attack, rng
        inputs, labels = self.batch(rows)
        return replace(self.given, inputs=inputs, labels=labels)  # type: ignore[type-var]  # is a dataclass
