"""Trap weights: a planted layer of random neurons so hard to activate that many answer to a single record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from scipy.special import stdtrit
from torch import Tensor, nn

from reconrisk.attacks.malicious_server.planting import (
    PlantedModel,
    SentModel,
    check_has_model,
    check_input_shape,
    planted_reconstruction,
    planted_rows,
    random_direction,
    read_records,
)
from reconrisk.core.guarantee import Estimate
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.threat import MALICIOUS_SERVER, ThreatModel
from reconrisk.core.validation import check_all_finite, check_positive, check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import directions_rng

if TYPE_CHECKING:
    from reconrisk.attacks.knowledge import PublicKnowledge

_SCALES = tuple(number / 100 for number in range(5, 100))
_CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False, repr=False)
class TrapWeights:
    """The configured attack that :func:`trap_weights` returns: ``plant`` the layer, then call it."""

    neurons: int = 1000
    scale: float = 0.95
    strength: float = 0.1
    tolerance: float = 1e-5
    needs: ThreatModel = MALICIOUS_SERVER

    def __post_init__(self) -> None:
        check_whole("neurons", self.neurons)
        check_positive("strength", self.strength)
        check_positive("tolerance", self.tolerance)
        if check_positive("scale", self.scale) > 1:
            raise invalid_input("scale", self.scale, "<= 1", "Above 1 most records activate most neurons.")

    def sent_model(self, model: nn.Module | None, loss_fn: LossFunction, input_shape: Sequence[int]) -> SentModel:
        """Return the model with the planted layer before it."""
        return SentModel(self.plant(check_has_model(model), input_shape), loss_fn)

    def plant(
        self, model: nn.Module, input_shape: Sequence[int], *, rng: torch.Generator | None = None
    ) -> PlantedModel:
        """A new model that begins with the trap weights and then runs a copy of ``model``, which stays as it is.

        ``rng`` draws the weights and the direction in which the layer moves records; without it they are the same each
        time.
        """
        shape, rng = check_input_shape(input_shape), directions_rng(rng)
        features = math.prod(shape)
        if features < 2:
            raise invalid_input(
                "input_shape", shape, "to hold two values at least", "Trap weights need values of both signs."
            )
        raising, lowering = _halves(self.neurons, features, rng)
        weight = (self.scale * raising - lowering) / math.sqrt(features)
        direction = random_direction(features, self.strength, rng)
        bias = weight.new_zeros(self.neurons)
        return PlantedModel(model, shape, weight=weight, bias=bias, direction=direction, isolated=False)

    def expected_recovered(
        self, batch_size: int, public: Tensor, *, trials: int = 20, rng: torch.Generator | None = None
    ) -> Estimate:
        """How many records of a batch have a neuron to themselves on average, by draws of batches and weights.

        Assumes: ``public`` are records like those attacked, more than ``batch_size`` of them, none of which the rest of
        the model ignores.
        """
        check_whole("trials", trials, minimum=2, remedy="An interval needs two trials.")
        counts = self._simulated(batch_size, public, [self.scale], trials, directions_rng(rng))[:, 0]
        mean, error = float(counts.mean()), float(counts.std()) / math.sqrt(trials)
        reach = float(stdtrit(trials - 1, (1 + _CONFIDENCE) / 2)) * error
        low, high = max(mean - reach, 0.0), min(mean + reach, float(batch_size))
        return Estimate(mean, low, high, _CONFIDENCE, trials, "Student t over batches and weights")

    def calibrated(
        self, batch_size: int, public: Tensor, *, trials: int = 10, rng: torch.Generator | None = None
    ) -> TrapWeights:
        """The same attack with the scale, in steps of 0.01, that recovers most of batches of public records."""
        counts = self._simulated(batch_size, public, _SCALES, check_whole("trials", trials), directions_rng(rng))
        return replace(self, scale=_SCALES[int(counts.mean(0).argmax())])

    def _simulated(
        self, batch_size: int, public: Tensor, scales: Sequence[float], trials: int, rng: torch.Generator
    ) -> Tensor:
        """Records alone at some neuron, one row per trial and one column per scale."""
        size = check_whole("batch_size", batch_size)
        if public.ndim < 2 or len(public) < size or public[0].numel() < 2:
            raise invalid_input(
                "public.shape", tuple(public.shape), f"to hold at least {size} records of two values or more"
            )
        check_all_finite("public", public)
        counts = torch.zeros(trials, len(scales), dtype=torch.float64)
        for trial in range(trials):
            batch = public[torch.randperm(len(public), generator=rng)[:size]].flatten(1).double()
            raising, lowering = (half @ batch.T for half in _halves(self.neurons, batch.shape[1], rng))
            for column, scale in enumerate(scales):
                active = scale * raising > lowering
                alone = active.sum(1, keepdim=True) == 1
                counts[trial, column] = (active & alone).any(0).sum()
        return counts

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Read the records that have a neuron to themselves; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        features = math.prod(observation.input_shape)
        rows, variances = planted_rows(observation.released, features, self.neurons), None
        if observation.noise_std is not None:
            variances = planted_rows(observation.noise_std, features, self.neurons).square()
        return planted_reconstruction(
            observation,
            read_records(observation, rows, tolerance=self.tolerance, variances=variances),
            attack=repr(self),
            expected="",
            remedy="Plant more neurons, or calibrate the scale on public records",
            begun=begun,
        )

    def __repr__(self) -> str:
        """Every setting."""
        return (
            f"trap_weights(neurons={self.neurons}, scale={self.scale:g}, strength={self.strength:g}, "
            f"tolerance={self.tolerance:g})"
        )


def trap_weights(
    *, neurons: int = 1000, scale: float = 0.95, strength: float = 0.1, tolerance: float = 1e-5
) -> TrapWeights:
    r"""Read the records of a batch of any size off a first layer of random weights that a malicious server chose.

    .. math:: w = \text{scale} \cdot |u| \text{ on one half of the values, } -|u'| \text{ on the other}, \qquad
              \hat x = \nabla_w \ell / \partial_b \ell

    where the halves are random and u' is a shuffled u ~ N(0, I). A scale below 1 lets records with values above zero
    activate few neurons. The best one depends on the records: ``attack.calibrated(batch_size, public)`` finds it, and
    ``attack.expected_recovered(batch_size, public)`` says how many records have some neuron to themselves.

    Assumes: the client runs the model it is sent, ``attack.plant(model, input_shape)``, and sends the gradient of the
    planted layer, or the result of plain SGD steps on it. Values are not negative, for the weights to trap.
    Guarantee: labels, loss and the rest of the model do not matter, batch norm in either mode included. A record counts
    as recovered only if what the layer tells of its squares fits it to ``tolerance``, which a mixture does not.
    Edge cases: rows that are not recovered hold the middle of the range, with objective inf. Neurons without gradient
    are skipped; what several of them tell counts once. Noise is allowed for if the threat knows it, and then
    mixtures that it hides pass as records; a larger ``strength`` raises the gradient above it. Pruning is not.
    Reference: the trap weights of `Boenisch et al. (2021) <https://arxiv.org/abs/2112.02918>`_, here with witnesses by
    which the adversary tells single records from mixtures.

    >>> from reconrisk.releases.updates.gradient import GradientRelease
    >>> from reconrisk.releases.observe import observe
    >>> attack = trap_weights(neurons=200, scale=0.8)
    >>> planted = attack.plant(nn.Linear(4, 2), input_shape=(4,))
    >>> records, labels = torch.tensor([[0.1, 0.2, 0.3, 0.2], [0.9, 0.8, 0.6, 0.9]]), torch.tensor([0, 0])
    >>> release = GradientRelease(planted, nn.functional.cross_entropy, records, labels)
    >>> print(attack(observe(release, threat=attack.needs), rng=torch.Generator()).status)
    exact: recovered 2 of 2.
    """
    return TrapWeights(neurons, scale, strength, tolerance)


def _halves(neurons: int, features: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sizes of the weights that raise a neuron and of those that lower it, zero where the other half is."""
    half = features // 2
    keys = torch.rand(neurons, features, generator=rng, device=rng.device, dtype=torch.float64)
    raised = keys <= keys.kthvalue(half, dim=1, keepdim=True).values
    sizes = torch.randn(neurons, half, generator=rng, device=rng.device, dtype=torch.float64).abs()
    # shuffled, for else neighbours would cancel; an odd number of values leaves one of them out
    others = torch.cat([sizes, sizes.new_zeros(neurons, features - 2 * half)], 1)
    others = others[:, torch.randperm(features - half, generator=rng, device=rng.device)]
    nothing = torch.zeros_like(keys)
    return nothing.masked_scatter(raised, sizes), nothing.masked_scatter(~raised, others)


def settings_from_knowledge(knowledge: PublicKnowledge, given: Mapping[str, Any]) -> dict[str, object]:
    """Return the scale that recovers most of batches of public records, if these are enough for a batch."""
    if "scale" in given or knowledge.public is None or len(knowledge.public.inputs) < knowledge.batch_size:
        return {}
    stated = {key: given[key] for key in ("neurons", "strength", "tolerance") if key in given}
    attack = trap_weights(**stated).calibrated(knowledge.batch_size, knowledge.public.inputs)
    return {"scale": attack.scale}
