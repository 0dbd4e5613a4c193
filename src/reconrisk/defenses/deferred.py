"""Defenses that are configured later, from a release or public records; before that every use raises an error."""

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
from reconrisk.defenses.base import BaseDefense
from reconrisk.defenses.chain import Chain, chain
from reconrisk.defenses.clipping import clip
from reconrisk.releases.observe import find_loss, find_model
from reconrisk.releases.release import Release, check_records
from reconrisk.releases.sensitivity.moments import ReferenceMoments, reference_moments


class DeferredDefense(BaseDefense):
    """Defense that is not configured yet: every use raises an error that says how to complete it.

    Attributes:
        remedy: Last sentence of the error message.
    """

    remedy: ClassVar[str]

    @property
    def mechanism(self) -> Mechanism | None:
        """None: the mechanism is not known yet."""
        return None

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        self._refuse()

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Raise InvalidInput: the defense is not configured yet."""
        self._refuse()

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Raise InvalidInput: the defense is not configured yet."""
        self._refuse()

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Raise InvalidInput: the defense is not configured yet."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidInput(f"Expected {self} to be configured before its first use. {self.remedy}")


@dataclass(frozen=True, eq=False)
class MomentsDefense(DeferredDefense):
    """Defense with known settings, whose noise or mask follows from moments of public records at the audited model.

    Attributes:
        build: Function of moments and settings that returns the defense, such as ``optimal_noise``.
        settings: Keyword arguments of ``build``. ``noise_multiplier`` together with ``clip_norm`` means a clip first,
            then noise whose ``unit`` (:class:`NoiseBudget`) is their product: a Gaussian mechanism for any moments.
        public: Inputs and labels of public records; None until :meth:`with_public` sets them.
    """

    build: Callable[..., Defense]
    settings: Mapping[str, object]
    public: tuple[Tensor, Tensor] | None = None
    remedy: ClassVar[str] = "Pass public= in the options, or call with_public(inputs, labels) on the defense."

    def __post_init__(self) -> None:
        multiplier, norm = (self.settings.get(key) for key in ("noise_multiplier", "clip_norm"))
        if (multiplier is None) != (norm is None):
            remedy = "Pass both for a clip before the noise, or neither."
            raise invalid_input(
                "(noise_multiplier, clip_norm)", (multiplier, norm), "to be two numbers or none", remedy
            )
        if multiplier is not None:
            check_positive("noise_multiplier", multiplier)
            check_positive("clip_norm", norm)

    def with_public(self, inputs: Tensor, labels: Tensor) -> MomentsDefense:
        """Return a copy that takes its moments from these records.

        Args:
            inputs: Public records.
            labels: Their labels.

        Returns:
            A copy with the same settings, ready to be used at a model.
        """
        check_records(inputs, labels)
        return replace(self, public=(inputs, labels))

    def with_moments(self, moments: ReferenceMoments) -> Defense:
        """Return the configured defense for these moments."""
        if self.mechanism is None:
            return self.build(moments, **self.settings)
        rest = {key: value for key, value in self.settings.items() if key not in ("noise_multiplier", "clip_norm")}
        norm = self.mechanism.clip_norm
        # after clip(C) in the matching norm, noise of unit sigma C is a Gaussian mechanism of multiplier sigma
        noise = self.build(moments, **rest, unit=self.mechanism.noise_multiplier * norm)
        return chain(clip(norm), noise)

    def for_release(self, release: Release) -> Defense:
        """Return the configured defense for the model of ``release``; the private records are not read."""
        if self.public is None:
            self._refuse()
        model, loss_fn = find_model(release.forward), find_loss(release.forward)
        if model is None or loss_fn is None:
            raise invalid_input(
                "type(release)", type(release).__name__, "to be an update of a model", "Call with_moments(moments)."
            )
        # in-place updates of the weights raise their version counters, so that a trained model gets new moments
        key = (id(model), sum(value._version for value in model.parameters()))
        if key not in self._cache:
            copied = copy.deepcopy(model).eval()  # in training mode batch norm mixes records
            self._cache.clear()  # only the current model is needed
            self._cache[key] = model, self.with_moments(reference_moments(copied, loss_fn, *self.public))
        return self._cache[key][1]

    @cached_property
    def _cache(self) -> dict[tuple[int, int], tuple[nn.Module, Defense]]:
        """Defense for the last model. It holds the model too, so that the id in the key cannot be reused."""
        return {}

    @property
    def exact_noise(self) -> bool:
        """True with a mechanism: the noise that :meth:`with_moments` builds is rounded exactly."""
        return self.mechanism is not None

    @property
    def mechanism(self) -> Gaussian | None:
        """Gaussian mechanism stated by ``noise_multiplier`` and ``clip_norm``; None without them."""
        multiplier, norm = (self.settings.get(key) for key in ("noise_multiplier", "clip_norm"))
        if not isinstance(multiplier, (int, float)) or not isinstance(norm, (int, float)):
            return None
        return Gaussian(float(multiplier), float(norm))

    def __repr__(self) -> str:
        """Show name, settings and the number of public records."""
        return f"{self}" if self.public is None else f"{self} by {len(self.public[0])} public records"

    def __str__(self) -> str:
        """Return the name with its settings."""
        numbers = {key: f"{value:g}" for key, value in self.settings.items() if isinstance(value, (int, float))}
        written = (f"{key}={value}" for key, value in {**self.settings, **numbers}.items())
        return f"{self.build.__name__}({', '.join(written)})"


def needs_public_records(defense: Defense | None) -> bool:
    """Return True if a defense, or a part of it, still needs public records.

    Args:
        defense: A defense, a chain, or None for no defense.

    Returns:
        True if a part takes its moments from public records that it has not received.
    """
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    return any(isinstance(part, MomentsDefense) and part.public is None for part in parts)


def set_public_records(defense: Defense, inputs: Tensor, labels: Tensor) -> Defense:
    """Return the defense with public records set on every part that needs them.

    Args:
        defense: A defense or a chain.
        inputs: Public records.
        labels: Their labels.

    Returns:
        The completed defense; the same object if no part needs public records.
    """
    if isinstance(defense, Chain):
        return defense.map_parts(lambda part: set_public_records(part, inputs, labels))
    if isinstance(defense, MomentsDefense) and defense.public is None:
        return defense.with_public(inputs, labels)
    return defense
