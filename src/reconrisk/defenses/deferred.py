"""Defenses that are chosen when a release or public records are at hand, and refuse to send before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NoReturn

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian, Mechanism
from reconrisk.core.validation import check_positive, invalid_input
from reconrisk.defenses.base import SendingDefense
from reconrisk.defenses.chain import Chain, chain
from reconrisk.defenses.clipping import clip
from reconrisk.releases.observe import loss_of, model_of
from reconrisk.releases.release import Release, check_records
from reconrisk.releases.sensitivity.moments import ReferenceMoments, reference_moments


class UnchosenDefense(SendingDefense):
    """A defense that is not settled yet: everything it is asked for is refused with what to do."""

    remedy: ClassVar[str]

    @property
    def mechanism(self) -> Mechanism | None:
        """None: what it will be is not known."""
        return None

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        self._refuse()

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Refused, as sending is."""
        self._refuse()

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Refused, as sending is."""
        self._refuse()

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Refused, as sending is."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidInput(f"Expected {self} to be chosen before it sends. {self.remedy}")


@dataclass(frozen=True, eq=False)
class FromMoments(UnchosenDefense):
    """A defense by its name and settings that moments of public records choose, at the model that is sent.

    A ``noise_multiplier`` with a ``clip_norm`` among the settings stand for a clip before it, and for noise whose unit
    is their product: the Gaussian mechanism, whatever the moments are.
    """

    build: Callable[..., Defense]
    settings: Mapping[str, object]
    public: tuple[Tensor, Tensor] | None = None
    remedy: ClassVar[str] = "Name it to rr.audit with public=, or call with_public(inputs, labels)."

    def __post_init__(self) -> None:
        given = [self.settings.get(key) for key in ("noise_multiplier", "clip_norm")]
        if (given[0] is None) != (given[1] is None):
            raise invalid_input("(noise_multiplier, clip_norm)", tuple(given), "to be two numbers or none")
        if given[0] is not None:
            check_positive("noise_multiplier", given[0])
            check_positive("clip_norm", given[1])

    def with_public(self, inputs: Tensor, labels: Tensor) -> FromMoments:
        """The same, chosen by these records."""
        check_records(inputs, labels)
        return replace(self, public=(inputs, labels))

    def with_moments(self, moments: ReferenceMoments) -> Defense:
        """The defense that these moments choose."""
        if self.mechanism is None:
            return self.build(moments, **self.settings)
        rest = {key: value for key, value in self.settings.items() if key not in ("noise_multiplier", "clip_norm")}
        norm = self.mechanism.clip_norm
        noise = self.build(moments, **rest, unit=self.mechanism.noise_multiplier * norm)
        return chain(clip(norm), noise)

    def for_release(self, release: Release) -> Defense:
        """The defense for a release of this model; its records are not looked at."""
        if self.public is None:
            self._refuse()
        model, loss_fn = model_of(release.forward), loss_of(release.forward)
        if model is None or loss_fn is None:
            raise invalid_input(
                "release", type(release).__name__, "to be an update of a model", "Use with_moments(moments)."
            )
        # weights that a step of training changed have a new version
        key = (id(model), sum(value._version for value in model.parameters()))
        if key not in self._chosen:
            copied = copy.deepcopy(model).eval()  # layers that mix the records of a batch in training have no moments
            self._chosen.clear()
            self._chosen[key] = model, self.with_moments(reference_moments(copied, loss_fn, *self.public))
        return self._chosen[key][1]

    @cached_property
    def _chosen(self) -> dict[tuple[int, int], tuple[nn.Module, Defense]]:
        """What the last model chose; with the model, so that nothing else gets its number meanwhile."""
        return {}

    @property
    def mechanism(self) -> Gaussian | None:
        """The Gaussian mechanism that noise multiplier and clip norm state; None without them."""
        multiplier, norm = (self.settings.get(key) for key in ("noise_multiplier", "clip_norm"))
        if not isinstance(multiplier, (int, float)) or not isinstance(norm, (int, float)):
            return None
        return Gaussian(float(multiplier), float(norm))

    def __repr__(self) -> str:
        """The words, and how many records choose."""
        return f"{self}" if self.public is None else f"{self} by {len(self.public[0])} public records"

    def __str__(self) -> str:
        """The name with its settings."""
        numbers = {key: f"{value:g}" for key, value in self.settings.items() if isinstance(value, (int, float))}
        written = (f"{key}={value}" for key, value in {**self.settings, **numbers}.items())
        return f"{self.build.__name__}({', '.join(written)})"


def waits_for_public(defense: Defense | None) -> bool:
    """Whether a defense, or a part of it, is to be chosen by public records that it does not have yet."""
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    return any(isinstance(part, FromMoments) and part.public is None for part in parts)


def chosen_by_public(defense: Defense, inputs: Tensor, labels: Tensor) -> Defense:
    """The defense, its parts that wait for public records with these."""
    if isinstance(defense, Chain):
        return defense.changed(lambda part: chosen_by_public(part, inputs, labels))
    if isinstance(defense, FromMoments) and defense.public is None:
        return defense.with_public(inputs, labels)
    return defense
