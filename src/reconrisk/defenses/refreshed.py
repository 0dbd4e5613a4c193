"""Defense that follows the model: its moments are recomputed from public records at a fixed interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.defenses.base import BaseDefense
from reconrisk.defenses.chain import Chain
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.observe import find_model
from reconrisk.releases.release import Release, check_records
from reconrisk.releases.sensitivity.moments import ReferenceMoments, reference_moments


class RefreshedDefense(BaseDefense):
    """Stateful defense, as returned by :func:`refreshed`. Call :meth:`fresh` for every training run.

    Args:
        build: Function from moments to the current defense.
        loss_fn: Loss of the model.
        inputs: Public records.
        labels: Their labels.
        every: Number of updates from one computation of the moments to the next.
        probes: Number of random directions per record for the moments.
        by_layer: True to average moments over each layer.

    Attributes:
        build: Function from moments to the current defense.
        loss_fn: Loss of the model.
        inputs: Public records.
        labels: Their labels.
        every: Number of updates from one computation of the moments to the next.
        probes: Number of random directions per record for the moments.
        by_layer: True if moments are averaged over each layer.
        sends: Number of updates that the defense was configured for so far.
        refreshes: Number of computations of the moments so far.
        gradients_spent: Cost of these computations so far, in gradients of one record.
    """

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

    def fresh(self) -> RefreshedDefense:
        """Return a copy in the state before the first update."""
        return RefreshedDefense(
            self.build,
            self.loss_fn,
            self.inputs,
            self.labels,
            every=self.every,
            probes=self.probes,
            by_layer=self.by_layer,
        )

    def for_model(self, model: nn.Module) -> Defense:
        """Return the defense for the next update of ``model`` and count that update."""
        if self._current is None or self.sends % self.every == 0:
            moments = reference_moments(model, self.loss_fn, self.inputs, self.labels, probes=self.probes)
            self.gradients_spent += moments.gradients
            self.refreshes += 1
            self._current = self.build(moments.by_layer() if self.by_layer else moments)
        self.sends += 1  # after the refresh: sends 0, every, 2 every, ... recompute the moments
        return self._current

    def for_release(self, release: Release) -> Defense:
        """Return the defense for a release of a model; its records are not read."""
        model = find_model(release.forward)
        if model is None:
            raise invalid_input(
                "type(release)", type(release).__name__, "to be a release of a model", "Call for_model(model) instead."
            )
        return self.for_model(model)

    @property
    def mechanism(self) -> Mechanism | None:
        """Mechanism of the current defense; None before the first update."""
        return None if self._current is None else self._current.mechanism

    @property
    def clips(self) -> bool:
        """True if the current defense bounds the norm of the release."""
        return getattr(self._current, "clips", False)

    @property
    def exact_noise(self) -> bool:
        """True if the current defense adds exact noise."""
        return getattr(self._current, "exact_noise", False)

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Apply the current defense."""
        return self._current_defense()(released, rng=rng)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the deterministic part of the current defense."""
        return self._current_defense().replay(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the noise of the current defense."""
        return self._current_defense().noise_std(sent)

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the mask of the current defense."""
        return self._current_defense().kept(sent)

    def _current_defense(self) -> Defense:
        """Return the current defense, or raise InvalidInput before the first update."""
        if self._current is None:
            raise InvalidInput(
                "Expected a call of for_model(model) before the first use. Call it before each update: it "
                "computes the moments."
            )
        return self._current

    def __repr__(self) -> str:
        """Return the same text as ``str``."""
        return str(self)

    def __str__(self) -> str:
        """Return the current defense and its interval."""
        inner = "defense" if self._current is None else str(self._current)
        return f"refreshed({inner}, every={self.every}{', by_layer=True' if self.by_layer else ''})"


def defense_for_model(defense: Defense, model: nn.Module) -> Defense:
    """Return the defense with every part made by :func:`refreshed` configured for the current model.

    Args:
        defense: A defense or a chain.
        model: The model whose update is sent next.

    Returns:
        The configured defense. Each part made by :func:`refreshed` counts one more update.
    """
    if isinstance(defense, Chain):
        return defense.map_parts(lambda part: defense_for_model(part, model))
    return defense.for_model(model) if isinstance(defense, RefreshedDefense) else defense


def refreshed(
    build: Callable[[ReferenceMoments], Defense],
    loss_fn: LossFunction,
    inputs: Tensor,
    labels: Tensor,
    *,
    every: int = 1,
    probes: int = 10,
    by_layer: bool = False,
) -> RefreshedDefense:
    """Defense that recomputes its moments from public records at the current model, every few updates.

    Args:
        build: Function from moments to a defense, such as
            ``lambda moments: clip(1.0) >> optimal_noise(moments, like=0.1)``.
        loss_fn: Loss of the model, used for the moments.
        inputs: Public records.
        labels: Their labels.
        every: Number of updates from one computation of the moments to the next.
        probes: Number of random directions per record for the moments.
        by_layer: True to average the moments over each layer; one probe is enough for that.

    Returns:
        The stateful defense. ``gradients_spent`` holds the cost of its moments, in gradients of one record.

    Raises:
        InvalidInput: If ``build`` is not a function, records and labels do not match, or a number is below 1.

    Assumes: public or reference records. The model at which moments are computed has been released before.
    Guarantee: at every step, the guarantee of the defense that ``build`` returns. The defense depends on private data
    only through earlier releases.
    Edge cases: each call of ``for_model`` counts as one update; the first one computes the moments.
    Reference: Section 5, chen2025, which proposes ``every`` and ``by_layer`` to reduce the cost.

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
        remedy = "Pass lambda moments: optimal_noise(moments, like=0.1), for instance."
        raise invalid_input("build", build, "to be a function from moments to a defense", remedy)
    check_records(inputs, labels)
    every, probes = check_whole("every", every), check_whole("probes", probes)
    return RefreshedDefense(build, loss_fn, inputs, labels, every=every, probes=probes, by_layer=by_layer)
