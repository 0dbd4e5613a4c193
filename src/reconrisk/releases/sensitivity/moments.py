"""Means over reference records that optimal noise and pruning need: of squared gradients and of their sensitivity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from reconrisk.core.progress import track
from reconrisk.core.validation import check_whole
from reconrisk.releases.model_state import LossFunction, check_mode
from reconrisk.releases.release import ForwardRelease, check_records, directions_rng, standard_normal
from reconrisk.releases.updates.gradient import GradientMap, GradientRelease

_BUILDING = 3  # gradients per record besides the probes: its own, and the two graphs that all probes share


@dataclass(frozen=True, eq=False)
class ReferenceMoments:
    """Means over reference records x, in the shapes of the gradient g of one record's training loss.

    Optimal noise and pruning from public records are computed from these means.

    Attributes:
        sensitivity: Mean of ``|grad_x g_k|^2`` for each value k of the gradient.
        standard_error: Standard error of ``sensitivity``.
        square: Mean of ``g_k^2`` for each value k of the gradient, exact for these records.
        records: Number of records.
        probes: Number of random directions per record.
    """

    sensitivity: Mapping[str, Tensor]
    standard_error: Mapping[str, Tensor]
    square: Mapping[str, Tensor]
    records: int
    probes: int

    @property
    def gradients(self) -> int:
        """Cost of the means, in gradients of one record: one for each probe, and three that all probes share."""
        return self.records * (self.probes + _BUILDING)

    def by_layer(self) -> ReferenceMoments:
        """Return the means with all values of a tensor averaged; noise and masks then differ between layers only.

        Means over many values are precise after one probe, so a layer-wise defense costs a third.
        Reference: Section 5, chen2025, which proposes it.
        """
        # Values of a layer share directions, so their errors may be fully correlated: the mean error is the safe one.
        error = _layer_means(self.standard_error)
        return replace(
            self, sensitivity=_layer_means(self.sensitivity), standard_error=error, square=_layer_means(self.square)
        )


def reference_moments(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Tensor,
    labels: Tensor,
    *,
    probes: int = 10,
    chunk: int = 16,
    rng: torch.Generator | None = None,
) -> ReferenceMoments:
    r"""Estimate the mean squared sensitivity and the mean square of each gradient coordinate over reference records.

    .. math:: \frac1n \sum_i |\nabla_x g_k(x_i)|^2 \approx
              \frac1{nK} \sum_j \Bigl(\sum_i J_i v_{ij}\Bigr)_k^2, \qquad \frac1n \sum_i g_k(x_i)^2

    Here :math:`g_k(x_i)` is value k of the gradient of record i, :math:`J_i` its derivative with respect to the record,
    and :math:`v_{ij}` random normal directions. The inner sum is over a ``chunk`` of records, whose products with J are
    computed together; products of different records vanish on
    average. The error decreases with n K divided by the chunk; the cost is n (K + 3) gradients.

    Args:
        model: The network.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Reference records, ``(n, *shape)``.
        labels: One label per record.
        probes: Number K of normal directions per record.
        chunk: Number of records whose products are computed together.
        rng: Generator of the directions; by default the same are drawn each time.

    Returns:
        Both means; the sensitivity with its standard error.

    Raises:
        InvalidInput: If records or settings are invalid, or a layer mixes the records of a batch.

    Assumes: the records are public, so noise or masks computed from these means reveal nothing about private records.
    Guarantee: both means are unbiased for the population if the records are drawn from it. The sensitivity is unbiased
    for these records too, with its standard error from the fourth moments of the normal law.
    Edge cases: layers that mix the records of a batch are refused; without ``rng`` the same directions are drawn each
    time. A coordinate may have square 0 and sensitivity above 0; optimal noise needs an upper limit there (appendix B).
    Reference: Theorem 3.5 and Lemma 3.8, chen2025.

    >>> rng = torch.Generator().manual_seed(0)
    >>> model = nn.Linear(3, 2)
    >>> found = reference_moments(model, nn.functional.cross_entropy, torch.rand(5, 3), torch.zeros(5).long(), rng=rng)
    >>> found.square["weight"].shape, found.records, found.gradients
    (torch.Size([2, 3]), 5, 65)
    """
    check_records(inputs, labels)
    check_mode(model)
    probes, chunk, n = check_whole("probes", probes), check_whole("chunk", chunk), len(inputs)
    generator, draws = directions_rng(rng), n * probes
    together, alone = GradientMap(model, loss_fn, reduction="sum"), GradientMap(model, loss_fn)
    square: dict[str, Tensor] = {}
    sensitivity: dict[str, Tensor] = {}
    variance: dict[str, Tensor] = {}
    GradientRelease(model, loss_fn, inputs, labels, reduction="sum").check_derivative()  # once for all chunks
    for start in track(range(0, n, chunk), "reference records"):
        records, answers = inputs[start : start + chunk], labels[start : start + chunk]
        for name, each in _gradients(alone, records, answers).items():
            _add(square, name, each.double().square().sum(0), 1 / n)
        linear = ForwardRelease(together, records, answers)._linearize()
        for _ in range(probes):
            for name, change in linear.push(standard_normal(records, generator)).items():
                squared = change.double().square()  # its square, below, would leave the range of single precision
                _add(sensitivity, name, squared, 1 / draws)
                # x ~ N(0, s) has Var x^2 = 2 s^2 and E x^4 = 3 s^2, so (2/3) x^4 is unbiased for the variance.
                _add(variance, name, squared.square_(), 2 / 3 / draws**2)
    return ReferenceMoments(
        sensitivity={name: value.to(inputs.dtype) for name, value in sensitivity.items()},
        standard_error={name: value.sqrt().to(inputs.dtype) for name, value in variance.items()},
        square={name: value.to(inputs.dtype) for name, value in square.items()},
        records=n,
        probes=probes,
    )


def _gradients(forward: GradientMap, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return each record's gradient, stacked by parameter name."""

    def one(record: Tensor, label: Tensor) -> dict[str, Tensor]:
        return forward(record[None], label[None])

    try:
        gradients: dict[str, Tensor] = torch.func.vmap(one)(inputs, labels)
    except RuntimeError:  # vmap cannot trace recurrent layers and data-dependent control flow
        single = [one(*record) for record in zip(inputs, labels, strict=True)]
        return {name: torch.stack([part[name] for part in single]) for name in single[0]}
    return gradients


def _add(sums: dict[str, Tensor], name: str, term: Tensor, weight: float) -> None:
    """Add a weighted term to the sum of this name."""
    sums[name] = sums[name].add_(term, alpha=weight) if name in sums else weight * term


def _layer_means(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each tensor with every value replaced by the tensor's mean."""
    return {name: value.double().mean().to(value).expand_as(value).clone() for name, value in tensors.items()}
