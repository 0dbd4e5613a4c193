"""Inversion of networks that begin with a linear layer, whose gradient spans the records of a small batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.first_layer import LayerGradient, read_layer
from reconrisk.attacks.matching.distances import Cosine, SquaredError
from reconrisk.attacks.matching.loop import GradientMatching
from reconrisk.attacks.matching.optimizers import LBFGS, Adam
from reconrisk.attacks.matching.regularizers import Penalty
from reconrisk.attacks.matching.variables import Parametrization, Values
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.validation import check_nonnegative, check_probability, invalid_input

_EXACT = 1e-12  # relative squared error at which the search stops: float32 gradients do not get closer
_PATIENCE = 40  # steps of L-BFGS without a gain
_GAP = 0.1  # ratio of singular values; the angle between the spans of gradient and records is of this order


@dataclass(frozen=True)
class FirstLayerSpan:
    r"""Share of a candidate outside the span of the first linear layer's gradient, averaged over records.

    .. math:: \frac{1}{B} \sum_i \frac{|\tilde x_i - V V^T \tilde x_i|^2}{|\tilde x_i|^2}, \qquad
              \nabla_{(W, b)} = \sum_i \delta_i \tilde x_i^T = U S V^T, \quad \tilde x = (x, 1)

    Here :math:`x_i` is record i of B, W and b are weight and bias of the layer, and :math:`\delta_i` is the derivative
    of the training loss of record i in the outputs of the layer. U, S and V are the singular value decomposition of the
    released gradient. With fewer records than neurons and features, the gradients of the records are independent. The
    rows of the released gradient then span the records, whatever the rest of the network computes.

    Attributes:
        weight: Weight next to a distance.
        prior_weight: Weight next to a likelihood; 0 by default, since noise destroys the span.
        final_share: Share of ``weight`` that is left at the end.

    Assumes: a linear layer that reads the record.
    Guarantee: 0 at the records of an exact release.
    Edge cases: no penalty unless the rank of the gradient is the batch size. With a lower rank some records are outside
    the span; a higher rank comes from noise, weight decay or the like, and the span is then not the span of the
    records.
    Reference: the explicit low rank of gradients, `Dimitrov et al. (2024) <https://arxiv.org/abs/2403.03945>`_.

    >>> from reconrisk.core.threat import HONEST_BUT_CURIOUS
    >>> released = {"weight": torch.tensor([[0.5, 0.0], [1.0, 0.0]]), "bias": torch.tensor([1.0, 2.0])}
    >>> seen = Observation(released, lambda inputs, labels: {}, HONEST_BUT_CURIOUS, (2,), (0.0, 1.0))
    >>> penalty = FirstLayerSpan().bind(seen)
    >>> penalty(torch.tensor([[[0.5, 0.0]], [[0.5, 1.0]]])).round(decimals=3)
    tensor([0.0000, 0.4440])
    """

    weight: float = 1.0
    prior_weight: float = 0.0
    final_share: float = 1.0

    def __post_init__(self) -> None:
        check_nonnegative("weight", self.weight)
        check_nonnegative("prior_weight", self.prior_weight)
        check_probability("final_share", self.final_share)

    def bind(self, observation: Observation) -> Penalty:
        """Return the penalty; raise InvalidInput without a linear layer that reads the record."""
        layer = _first_layer(observation)
        rows = layer.weight if layer.bias is None else torch.cat([layer.weight, layer.bias[:, None]], dim=1)
        _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
        # Singular values of rounding, with a margin.
        rounding = 10 * torch.finfo(observation.released[layer.name].dtype).eps
        if not _has_rank(sizes, observation.batch_size, rounding):
            return lambda inputs: inputs.new_zeros(len(inputs))
        # Leading right singular vectors: the span of the records with a 1 appended.
        basis = directions[: observation.batch_size].to(torch.get_default_dtype())

        def penalty(inputs: Tensor) -> Tensor:
            records = inputs.flatten(2)
            if layer.bias is not None:
                records = torch.cat([records, torch.ones_like(records[..., :1])], dim=-1)
            outside = records - (records @ basis.T) @ basis
            size = records.square().sum(-1).clamp_min(torch.finfo(records.dtype).tiny)
            shares: Tensor = outside.square().sum(-1) / size
            return shares.mean(1)

        return penalty


def span_inversion(
    *,
    steps: int = 1000,
    restarts: int = 1,
    span: float = 3.0,
    smooth: bool = False,
    learning_rate: float = 0.03,
    seconds: float | None = None,
    patience: int | None = None,
    parametrization: Parametrization | None = None,
) -> GradientMatching:
    """Invert the gradient of a network that begins with a linear layer, within the span of that layer's gradient.

    Uses cosine distance and Adam on signs, as :func:`inverting_gradients`, plus :class:`FirstLayerSpan`. Where other
    records have nearly the same gradient, as with close numbers in a table, the span distinguishes them.

    Args:
        steps: Largest number of steps.
        restarts: Number of starts, which move at once.
        span: Weight of :class:`FirstLayerSpan`; 0 leaves it out.
        smooth: True for smooth activations: squared error and L-BFGS, as :func:`idlg`.
        learning_rate: Initial learning rate of Adam, in units of the data range.
        seconds: Time limit in seconds; None for no limit.
        patience: Steps without a gain of one part in a thousand after which the search stops; None is 40 if ``smooth``,
            else no such limit.
        parametrization: Coordinates of the candidates, such as :func:`tabular`; None searches over the values
            themselves.

    Returns:
        The configured attack.

    Raises:
        InvalidInput: If a setting is out of its domain; when the attack is called, if no released layer reads the
            record and ``span`` is positive.

    Assumes: fewer records than neurons; little or no noise.
    Edge cases: as :class:`GradientMatching`; a network without such a layer is refused unless ``span=0``.
    Reference: ours; the rank of the gradient follows `Dimitrov et al. (2024) <https://arxiv.org/abs/2403.03945>`_.

    >>> span_inversion().regularizers
    (FirstLayerSpan(weight=3.0, prior_weight=0.0, final_share=1.0),)
    """
    return GradientMatching(
        name="span_inversion",
        distance=SquaredError() if smooth else Cosine(),
        update=LBFGS() if smooth else Adam(learning_rate, signed=True, schedule="steps"),
        steps=steps,
        regularizers=(FirstLayerSpan(span),),
        parametrization=Values() if parametrization is None else parametrization,
        restarts=restarts,
        seconds=seconds,
        patience=_PATIENCE if smooth and patience is None else patience,
        tolerance=_EXACT if smooth else 0.0,
    )


def _first_layer(observation: Observation) -> LayerGradient:
    """Return the layer that reads the record, or raise InvalidInput with advice for this attack."""
    remedy = "Pass span=0, or use inverting_gradients()."
    try:
        layer = read_layer(observation)
    except InvalidInput as error:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in observation.released.items())
        features = torch.Size(observation.input_shape).numel()
        raise invalid_input("released", shapes, f"to contain a linear layer on {features} features", remedy) from error
    if layer.reads_record is False:
        raise invalid_input("layer", layer.name, "to read the record unchanged", remedy)
    return layer


def _has_rank(sizes: Tensor, rank: int, rounding: float) -> bool:
    """Return True if the singular values show a clear gap after ``rank`` of them."""
    if len(sizes) < rank or bool(sizes[rank - 1] <= rounding * sizes[0]):
        return False
    return len(sizes) == rank or bool(sizes[rank] < _GAP * sizes[rank - 1])
