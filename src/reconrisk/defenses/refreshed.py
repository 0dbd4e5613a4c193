"""A global defense that follows the model: its moments are taken again every so many sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.defenses.base import SendingDefense
from reconrisk.defenses.chain import Chain
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.observe import model_of
from reconrisk.releases.release import Release, check_records
from reconrisk.releases.sensitivity.moments import ReferenceMoments, reference_moments


class Refreshed(SendingDefense):
    """The defense that :func:`refreshed` makes. It has a state: take a :meth:`fresh` one for every training run."""

    def __init__(
        self,
        build: Callable[[ReferenceMoments], Defense],
        loss_fn: LossFunction,
        inputs: Tensor,
        labels: Tensor,
        *,
        every: int,
        probes: int,
        by_layer: bool,
    ) -> None:
        self.build, self.loss_fn, self.inputs, self.labels = build, loss_fn, inputs, labels
        self.every, self.probes, self.by_layer = every, probes, by_layer
        self.sends, self.refreshes, self.gradients_spent = 0, 0, 0
        self._current: Defense | None = None

    def fresh(self) -> Refreshed:
        """The same defense before its first send."""
        return Refreshed(
            self.build,
            self.loss_fn,
            self.inputs,
            self.labels,
            every=self.every,
            probes=self.probes,
            by_layer=self.by_layer,
        )

    def for_model(self, model: nn.Module) -> Defense:
        """The defense for what ``model`` sends next; counts as a send."""
        if self._current is None or self.sends % self.every == 0:
            moments = reference_moments(model, self.loss_fn, self.inputs, self.labels, probes=self.probes)
            self.gradients_spent += moments.gradients
            self.refreshes += 1
            self._current = self.build(moments.by_layer() if self.by_layer else moments)
        self.sends += 1
        return self._current

    def for_release(self, release: Release) -> Defense:
        """The defense for a release of the model's; its records are not looked at."""
        model = model_of(release.forward)
        if model is None:
            raise invalid_input("release", type(release).__name__, "to be of a model", "Call for_model(model) instead.")
        return self.for_model(model)

    @property
    def mechanism(self) -> Mechanism | None:
        """That of the present defense; None before the first send."""
        return None if self._current is None else self._current.mechanism

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """What the present defense sends."""
        return self._present()(released, rng=rng)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """That of the present defense."""
        return self._present().replay(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """That of the present defense."""
        return self._present().noise_std(sent)

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """That of the present defense."""
        return self._present().kept(sent)

    def _present(self) -> Defense:
        if self._current is None:
            raise InvalidInput("Expected for_model(model) before the first send, which takes the moments.")
        return self._current

    def __repr__(self) -> str:
        """The same words."""
        return str(self)

    def __str__(self) -> str:
        """The present defense and how often it is chosen anew."""
        inner = "defense" if self._current is None else str(self._current)
        return f"refreshed({inner}, every={self.every}{', by_layer=True' if self.by_layer else ''})"


def defense_at(defense: Defense, model: nn.Module) -> Defense:
    """The defense itself, or what it or its parts are at the present model."""
    if isinstance(defense, Chain):
        return defense.changed(lambda part: defense_at(part, model))
    return defense.for_model(model) if isinstance(defense, Refreshed) else defense


def refreshed(
    build: Callable[[ReferenceMoments], Defense],
    loss_fn: LossFunction,
    inputs: Tensor,
    labels: Tensor,
    *,
    every: int = 1,
    probes: int = 10,
    by_layer: bool = False,
) -> Refreshed:
    """A defense whose moments are taken at the present model from public records, again every ``every`` sends.

    ``build`` makes the defense from the moments, such as ``lambda moments: clip(1.0) >> optimal_noise(moments,
    like=0.1)``. With ``by_layer`` the moments differ between layers only, for which one probe is enough.

    Assumes: public or reference records. The model that they are taken at has been released before.
    Guarantee: that of the defense that ``build`` makes, at every step: it depends on nothing private but what earlier
    steps released. ``gradients_spent`` says what the moments cost, in gradients of one record.
    Reference: Section 5, chen2025, which proposes both ways to cut the cost.

    >>> from reconrisk.defenses.optimal_noise import optimal_noise
    >>> model, inputs, labels = nn.Linear(3, 2), torch.rand(4, 3), torch.zeros(4).long()
    >>> loss_fn = nn.functional.cross_entropy
    >>> defense = refreshed(lambda m: optimal_noise(m, like=0.1), loss_fn, inputs, labels, every=10, probes=2)
    >>> for step in range(20):
    ...     _ = defense.for_model(model)
    >>> defense.refreshes, defense.gradients_spent
    (2, 40)
    """
    if not callable(build) or hasattr(build, "replay"):  # a defense is callable too
        raise invalid_input("build", build, "to be a function from moments to a defense")
    check_records(inputs, labels)
    every, probes = check_whole("every", every), check_whole("probes", probes)
    return Refreshed(build, loss_fn, inputs, labels, every=every, probes=probes, by_layer=by_layer)
