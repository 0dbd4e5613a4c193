"""Optimal analytic attack of riess2025: a malicious server plants a layer whose gradient is the record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from reconrisk.attacks.analytic.attack import check_estimate, check_single_record, invert_layer, required_knowledge
from reconrisk.attacks.analytic.estimates import LayerEstimate, known_scale
from reconrisk.attacks.first_layer import LayerGradient, Scales, attach_scales, read_layer
from reconrisk.attacks.labels.infer import labels_for
from reconrisk.attacks.malicious_server.planting import SentModel
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending, Reconstruction
from reconrisk.core.threat import MALICIOUS_SERVER, Knows, ThreatModel
from reconrisk.core.validation import check_finite, check_not_empty, check_positive, check_whole
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.observe import find_model

if TYPE_CHECKING:
    from reconrisk.attacks.knowledge import PublicKnowledge

_BINDING = 1 - 1e-6  # scale below which clipping binds; rounding may leave an unclipped scale just below 1
_LARGEST_LAYER = 2**26  # values of the largest planted layer: 256 MB of float32


class PlantedLayer(nn.Module):
    """A linear layer without bias on the flattened record, in parallel to the user's model, if there is one.

    The outputs of the module are the outputs of the layer, followed by the outputs of the model.
    """

    def __init__(self, features: int, neurons: int, model: nn.Module | None) -> None:
        super().__init__()
        like = next(iter([] if model is None else model.parameters()), torch.empty(0))
        # skip_init does not touch the global random state; the gradient is the same for every weight
        self.planted = nn.utils.skip_init(
            nn.Linear, features, neurons, bias=False, dtype=like.dtype, device=like.device
        )
        nn.init.zeros_(self.planted.weight)
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one row of outputs for each record."""
        outputs: Tensor = self.planted(inputs.flatten(1))
        return outputs if self.model is None else torch.cat([outputs, self.model(inputs).flatten(1)], 1)


@dataclass(frozen=True)
class PlantedLoss:
    """Sum of the planted neurons, averaged over records, plus the loss of the user's model on the other outputs.

    Attributes:
        neurons: Number of planted neurons, whose outputs come first.
        model_loss: Loss of the user's model, or None without one.
    """

    neurons: int
    model_loss: LossFunction | None = None

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the batch."""
        planted = outputs[:, : self.neurons].sum(1).mean()
        return planted if self.model_loss is None else planted + self.model_loss(outputs[:, self.neurons :], labels)


@dataclass(frozen=True, eq=False)
class PlantedTraining:
    """The module that the malicious server sends, and the loss to train it with.

    Attributes:
        module: The module to train.
        loss_fn: The training loss of the module.
    """

    module: nn.Module
    loss_fn: LossFunction


@dataclass(frozen=True)
class OptimalAnalytic:
    """Attack configured by :func:`optimal_analytic`."""

    neurons: int = 1
    estimate: LayerEstimate = field(default_factory=known_scale)
    scales: Scales | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "neurons", check_whole("neurons", self.neurons))
        check_estimate(self.estimate, self.scales)

    @property
    def needs(self) -> ThreatModel:
        """Weakest threat model: a server that plants the layer, and knows the norm unless scales are stated."""
        knows = required_knowledge(self.estimate, self.scales)
        replayed = self.estimate.uses_scales and self.scales is None
        return MALICIOUS_SERVER.with_knowledge(*knows, *({Knows.RECORD_NORM} if replayed else ()))

    def sent_model(self, model: nn.Module | None, loss_fn: LossFunction, input_shape: Sequence[int]) -> SentModel:
        """Return the planted layer, in parallel to the model if there is one."""
        planted = self.plant(input_shape, model=model, loss_fn=loss_fn)
        return SentModel(planted.module, planted.loss_fn)

    def plant(
        self,
        input_shape: Sequence[int],
        *,
        model: nn.Module | None = None,
        loss_fn: LossFunction = nn.functional.cross_entropy,
    ) -> PlantedTraining:
        """Return the module and loss that a client must train with.

        Args:
            input_shape: Shape of one record.
            model: The user's model, which becomes part of the module; None plants the layer alone.
            loss_fn: Loss of the user's model, which becomes part of the loss.

        Returns:
            The module, whose first outputs come from the planted neurons, and its training loss.

        Edge cases: the gradient of ``model`` takes a share of the clipped norm, so the attack is weaker than without a
        model.

        >>> planted = optimal_analytic(neurons=3).plant((1, 2, 2))
        >>> planted.module(torch.ones(5, 1, 2, 2)).shape
        torch.Size([5, 3])
        """
        check_not_empty("input_shape", input_shape)
        features = math.prod(check_whole("input_shape", side) for side in input_shape)
        module = PlantedLayer(features, self.neurons, model)
        return PlantedTraining(module, PlantedLoss(self.neurons, None if model is None else loss_fn))

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the single record of ``observation``; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        check_single_record(observation)
        layer = read_layer(observation, neurons=self.neurons)
        layer = replace(layer, bias=None, bias_precision=None, planted=layer.weight.new_ones(self.neurons))
        evaluations = 0
        if self.estimate.uses_scales and layer.is_active:
            layer, evaluations = attach_scales(layer, self.scales, observation, _labels), int(self.scales is None)
        reconstruction = invert_layer(
            layer, self.estimate, observation, attack=repr(self), begun=begun, evaluations=evaluations
        )
        return _note_loose_clipping(reconstruction, layer) if self.scales is None else reconstruction


def optimal_analytic(
    *, neurons: int = 1, estimate: LayerEstimate | None = None, scales: Scales | None = None
) -> OptimalAnalytic:
    r"""Reconstruct a record from a planted layer in which every row has the record itself as its gradient.

    .. math:: \ell = 1^\top W x, \quad w_j = \beta x + N(0, (\sigma C)^2 I), \quad \beta = \min(1, C / (\sqrt M |x|)),
              \qquad \hat x = \frac1{M \beta} \sum_j w_j

    Here W are the weights of the M planted neurons, :math:`w_j` is the released gradient of neuron j, x the record, and
    :math:`\ell` the training loss. C is the clip norm, :math:`\sigma` the noise multiplier, and :math:`\beta` the
    factor of clipping. :meth:`OptimalAnalytic.plant` builds the module and the training loss.

    Args:
        neurons: Number M of planted neurons; :func:`neurons_for_clipping` gives the best number.
        estimate: Any estimate that needs no bias. None is :func:`known_scale`, the estimate of riess2025.
        scales: Scale :math:`\beta` of the rows, one for all neurons or one per neuron. None computes the scale from the
            known defense and norm.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is invalid; when the attack is called, if the update has several records or no layer
            of this size was released.

    Assumes: unit loss weights, no gradient of a bias, a batch of one.
    Guarantee: where clipping binds (:func:`neurons_for_clipping`) the error of known_scale() follows
    :func:`reconrisk.bounds.analytic_inversion.analytic_inversion_law`, with variance :math:`\sigma^2 |x|^2`. Where
    clipping does not bind, the variance is :math:`(\sigma C)^2 / M`, which is larger, and the status states this.
    Edge cases: next to a user's model, clipping acts on the whole gradient, of norm G. The computed scale accounts for
    this if the label is known or can be inferred from the model. The estimate stays unbiased up to the effect of noise
    on the computed scale, with variance :math:`(\sigma G)^2 / M`. Next to a network whose G varies fast, such as
    ResNet-101, the direction at the known norm, :func:`known_norm`, is better. riess2025 rescales by the norm of the
    record alone, which causes a bias that is visible where noise is small. The estimate is clipped to the data range;
    the stated distribution holds for wide ranges.
    Reference: Theorem IV.1, riess2025, corrected; equation 16, as printed, lacks the square on the ratio of norms.

    >>> from reconrisk.releases.updates.gradient import GradientRelease
    >>> from reconrisk.releases.observe import observe
    >>> attack = optimal_analytic(neurons=4)
    >>> planted = attack.plant((2,))
    >>> release = GradientRelease(planted.module, planted.loss_fn, torch.tensor([[0.25, 0.5]]), torch.tensor([0]))
    >>> observation = observe(release, threat=attack.needs)
    >>> attack(observation, rng=torch.Generator()).estimates
    tensor([[0.2500, 0.5000]])
    """
    return OptimalAnalytic(neurons, known_scale() if estimate is None else estimate, scales)


def neurons_for_clipping(clip_norm: float, smallest_norm: float) -> int:
    r"""Return the number of planted neurons at which clipping binds for every record of at least the smallest norm.

    .. math:: M = \lceil (C / |x|_{\min})^2 \rceil

    Here :math:`|x|_{\min}` is the smallest norm of a nonzero record.

    The gradient of M neurons has norm :math:`\sqrt M |x|`; equation 16 of riess2025, as printed, lacks the square on
    the ratio.

    Args:
        clip_norm: Clipping norm C of the training.
        smallest_norm: Smallest norm of a nonzero record.

    Returns:
        The number of neurons, at least 1.

    Raises:
        InvalidInput: If an argument is not positive, or the ratio overflows.

    Reference: Theorem IV.1, riess2025, corrected.

    >>> neurons_for_clipping(5.0, smallest_norm=1.0)
    25
    """
    check_positive("clip_norm", clip_norm, "Pass the norm used in training.")
    check_positive("smallest_norm", smallest_norm, "Pass the smallest nonzero norm of a record.")
    # sqrt(M) |x| >= C.
    ratio = clip_norm / smallest_norm
    return max(1, math.ceil(check_finite("(clip_norm / smallest_norm)^2", ratio * ratio)))


def _labels(observation: Observation) -> Tensor:
    """Return known or inferred labels; a layer that is planted alone does not depend on them."""
    model = find_model(observation.forward)
    # The planted loss ignores labels, so that any label replays the same gradient.
    alone = isinstance(model, PlantedLayer) and model.model is None
    if alone and observation.labels is None:
        return torch.zeros(observation.batch_size, dtype=torch.long)
    return labels_for(observation)


def _note_loose_clipping(reconstruction: Reconstruction, layer: LayerGradient) -> Reconstruction:
    """Add to the status that clipping does not bind, where more neurons would help."""
    status = reconstruction.status
    if layer.scales is None or not layer.noisy or status.ending is not Ending.CONVERGED:
        return reconstruction
    # A scale of 1 means that the gradient was not clipped.
    if float(layer.scales.max()) < _BINDING:
        return reconstruction
    cause = f"{status.cause}; clipping does not bind, so the noise is larger than necessary"
    remedy = "Plant neurons_for_clipping(clip_norm, smallest_norm) neurons"
    account = replace(reconstruction.account, status=replace(status, cause=cause, remedy=remedy))
    return replace(reconstruction, account=account)


def settings_from_knowledge(knowledge: PublicKnowledge, given: Mapping[str, object]) -> dict[str, object]:
    """Return the number of neurons at which clipping binds for every public record, where the attack is strongest.

    Args:
        knowledge: Public knowledge with the public records and the clipping norm.
        given: Settings stated by the user.

    Returns:
        The setting ``neurons``; empty if it is stated or cannot be derived.
    """
    if knowledge.public is None or knowledge.clip_norm is None or "neurons" in given:
        return {}
    norms = knowledge.public.inputs.flatten(1).norm(dim=1)
    # No number of neurons makes clipping bind for a zero record.
    norms = norms[norms > 0]
    if not len(norms):
        return {}
    most = max(1, _LARGEST_LAYER // math.prod(knowledge.public.shape))
    return {"neurons": min(most, neurons_for_clipping(knowledge.clip_norm, float(norms.min())))}
