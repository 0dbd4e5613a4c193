"""Trap weights: a planted layer of random neurons so hard to activate that many respond to a single record."""

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

_SCALES = tuple(number / 100 for number in range(5, 100))  # candidates for calibration
_CONFIDENCE = 0.95  # of the interval around the expected number of recovered records


@dataclass(frozen=True, eq=False, repr=False)
class TrapWeights:
    """Attack configured by :func:`trap_weights`: call ``plant`` first, then the attack itself."""

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
            raise invalid_input(
                "scale", self.scale, "<= 1", "Pass a smaller scale: above 1 most records activate most neurons."
            )

    def sent_model(self, model: nn.Module | None, loss_fn: LossFunction, input_shape: Sequence[int]) -> SentModel:
        """Return the model behind the planted layer."""
        return SentModel(self.plant(check_has_model(model), input_shape), loss_fn)

    def plant(
        self, model: nn.Module, input_shape: Sequence[int], *, rng: torch.Generator | None = None
    ) -> PlantedModel:
        """Return a new model that begins with the trap weights, then runs a copy of ``model``.

        Args:
            model: The model of the user; it is not changed.
            input_shape: Shape of one record.
            rng: Draws the weights, and the direction in which the layer moves records. Without it both are fixed.

        Returns:
            The planted model. It has the precision and device of ``model``, and the same outputs until it is trained.
        """
        shape, rng = check_input_shape(input_shape), directions_rng(rng)
        features = math.prod(shape)
        if features < 2:
            raise invalid_input(
                "input_shape",
                shape,
                "to have at least two values",
                "Pass the shape of a larger record: each neuron needs a weight of each sign.",
            )
        raising, lowering = _halves(self.neurons, features, rng)
        # Divide by sqrt(d), so that activations do not grow with the size of a record.
        weight = (self.scale * raising - lowering) / math.sqrt(features)
        direction = random_direction(features, self.strength, rng)
        bias = weight.new_zeros(self.neurons)
        return PlantedModel(model, shape, weight=weight, bias=bias, direction=direction, isolated=False)

    def expected_recovered(
        self, batch_size: int, public: Tensor, *, trials: int = 20, rng: torch.Generator | None = None
    ) -> Estimate:
        """Estimate the number of records of a batch that have a neuron to themselves.

        Args:
            batch_size: Number of records in a batch.
            public: Records like the attacked ones, more than ``batch_size`` of them.
            trials: Simulated draws of a batch and weights.
            rng: Source of randomness. Without it the draws are fixed.

        Returns:
            Mean number of records over the trials, with a Student t interval between 0 and ``batch_size``.

        Assumes: the rest of the model ignores none of the records.
        """
        check_whole("trials", trials, minimum=2, remedy="Pass at least two trials for an interval.")
        counts = self._simulate_recovered(batch_size, public, [self.scale], trials, directions_rng(rng))[:, 0]
        mean, error = float(counts.mean()), float(counts.std()) / math.sqrt(trials)
        # Half width of the Student t interval.
        reach = float(stdtrit(trials - 1, (1 + _CONFIDENCE) / 2)) * error
        low, high = max(mean - reach, 0.0), min(mean + reach, float(batch_size))
        return Estimate(mean, low, high, _CONFIDENCE, trials, "Student t over batches and weights")

    def calibrate(
        self, batch_size: int, public: Tensor, *, trials: int = 10, rng: torch.Generator | None = None
    ) -> TrapWeights:
        """Return the same attack with the scale that recovers most records of simulated batches.

        Args:
            batch_size: Number of records in a batch.
            public: Records like the attacked ones, at least ``batch_size`` of them.
            trials: Simulated draws of a batch and weights, per scale.
            rng: Source of randomness. Without it the draws are fixed.

        Returns:
            A copy of the attack; only its ``scale`` differs.
        """
        counts = self._simulate_recovered(
            batch_size, public, _SCALES, check_whole("trials", trials), directions_rng(rng)
        )
        return replace(self, scale=_SCALES[int(counts.mean(0).argmax())])

    def _simulate_recovered(
        self, batch_size: int, public: Tensor, scales: Sequence[float], trials: int, rng: torch.Generator
    ) -> Tensor:
        """Count the records alone at some neuron, one row per trial and one column per scale."""
        size = check_whole("batch_size", batch_size)
        if public.ndim < 2 or len(public) < size or public[0].numel() < 2:
            raise invalid_input(
                "public.shape", tuple(public.shape), f"to be at least {size} records of two values or more"
            )
        check_all_finite("public", public)
        counts = torch.zeros(trials, len(scales), dtype=torch.float64)
        for trial in range(trials):
            # New batch and new weights in every trial.
            batch = public[torch.randperm(len(public), generator=rng)[:size]].flatten(1).double()
            raising, lowering = (half @ batch.T for half in _halves(self.neurons, batch.shape[1], rng))
            for column, scale in enumerate(scales):
                active = scale * raising > lowering
                # A neuron that exactly one record activates reveals that record.
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
        """Return the call with every setting."""
        return (
            f"trap_weights(neurons={self.neurons}, scale={self.scale:g}, strength={self.strength:g}, "
            f"tolerance={self.tolerance:g})"
        )


def trap_weights(
    *, neurons: int = 1000, scale: float = 0.95, strength: float = 0.1, tolerance: float = 1e-5
) -> TrapWeights:
    r"""Read the records of a batch of any size off a planted first layer of random weights.

    .. math:: w = \text{scale} \cdot |u| \text{ on one half of the values, } -|u'| \text{ on the other}, \qquad
              \hat x = \nabla_w \ell / \partial_b \ell

    Here w and b are weight and bias of a planted neuron, :math:`\ell` is the training loss, the halves are random, and
    u' is a shuffled u ~ N(0, I). A scale below 1 lets records with nonnegative values activate few neurons. The best
    scale depends on the records: ``attack.calibrate(batch_size, public)`` finds it, and
    ``attack.expected_recovered(batch_size, public)`` estimates the number of records with a neuron to themselves.

    Args:
        neurons: Number of planted neurons.
        scale: Size of the positive weights relative to the negative ones, at most 1.
        strength: Size of the move that an active neuron makes to each value of a record. Larger values raise the
            gradient above noise.
        tolerance: Largest relative mismatch of the witnesses at which a row of the layer counts as a single record.
            Witnesses are means of squared values of a record, which the planted layer also reveals.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is invalid; when the attack is called, if the planted layer was not released.

    Assumes: the client trains the model it is sent, ``attack.plant(model, input_shape)``, and sends the gradient of the
    planted layer, or the result of plain SGD steps on it. Values are nonnegative, for the weights to trap.
    Guarantee: labels, loss and the rest of the model do not matter, including batch norm in either mode. A record
    counts as recovered only if its witnesses, which the layer reveals, agree with the record to ``tolerance``; the
    witnesses of a mixture of records do not agree.
    Edge cases: rows that are not recovered hold the middle of the range, with objective inf. Neurons without gradient
    are skipped; a record found by several neurons counts once. If the threat model knows the noise, the attack accepts
    a mismatch that the noise can cause; mixtures hidden by the noise then count as records. The attack does not account
    for pruning.
    Reference: the trap weights of `Boenisch et al. (2021) <https://arxiv.org/abs/2112.02918>`_, here with witnesses
    that distinguish single records from mixtures.

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
    """Return the sizes of the raising and of the lowering weights, each zero on the other half of the values."""
    half = features // 2
    keys = torch.rand(neurons, features, generator=rng, device=rng.device, dtype=torch.float64)
    # A random half of the values of each neuron.
    raised = keys <= keys.kthvalue(half, dim=1, keepdim=True).values
    sizes = torch.randn(neurons, half, generator=rng, device=rng.device, dtype=torch.float64).abs()
    # Shuffled, since weights of neighbouring values would cancel otherwise. An odd number of values leaves one out.
    others = torch.cat([sizes, sizes.new_zeros(neurons, features - 2 * half)], 1)
    others = others[:, torch.randperm(features - half, generator=rng, device=rng.device)]
    nothing = torch.zeros_like(keys)
    return nothing.masked_scatter(raised, sizes), nothing.masked_scatter(~raised, others)


def settings_from_knowledge(knowledge: PublicKnowledge, given: Mapping[str, Any]) -> dict[str, object]:
    """Return the scale that recovers most records of simulated batches of public records.

    Args:
        knowledge: Public knowledge with the public records.
        given: Settings stated by the user.

    Returns:
        The setting ``scale``; empty if it is stated or there are too few public records.
    """
    if "scale" in given or knowledge.public is None or len(knowledge.public.inputs) < knowledge.batch_size:
        return {}
    stated = {key: given[key] for key in ("neurons", "strength", "tolerance") if key in given}
    attack = trap_weights(**stated).calibrate(knowledge.batch_size, knowledge.public.inputs)
    return {"scale": attack.scale}
