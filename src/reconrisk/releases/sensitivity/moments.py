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
from reconrisk.releases.updates.gradient import GradientMap

_BUILDING = 3  # a gradient per record, and the two graphs that every probe goes through


@dataclass(frozen=True, eq=False)
class ReferenceMoments:
    """Means over reference records, shaped as the gradient: what optimal noise and pruning need in their global form.

    ``sensitivity`` is the mean of ``|grad_x g_k|^2`` with ``standard_error``, ``square`` the mean of g_k^2 (exact for
    these records), g the gradient of one record's loss.
    """

    sensitivity: Mapping[str, Tensor]
    standard_error: Mapping[str, Tensor]
    square: Mapping[str, Tensor]
    records: int
    probes: int

    @property
    def gradients(self) -> int:
        """What they cost, in gradients of one record: one for each probe, and three for what all probes share."""
        return self.records * (self.probes + _BUILDING)

    def by_layer(self) -> ReferenceMoments:
        """The same means for all values of a tensor: noise and masks chosen by them differ between layers only.

        Means over many values are precise after one probe, so that a layer-wise defense costs a third.
        Reference: Section 5, chen2025, which proposes it.
        """
        # values of a layer share directions, so that their errors may add up
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
    r"""Mean over reference records of each gradient coordinate's square and of its squared sensitivity to the record.

    .. math:: \frac1n \sum_i |\nabla_x g_k(x_i)|^2 \approx
              \frac1{nK} \sum_j \Bigl(\sum_i J_i v_{ij}\Bigr)_k^2, \qquad \frac1n \sum_i g_k(x_i)^2

    Assumes: public or reference records, so that what is chosen by these means tells nothing about private ones.
    Notation: the inner sum is over a ``chunk`` of records, all pushed at once by ``probes`` normal directions; products
    of different records vanish on average. The error falls with n K over the chunk, the cost is n (K + 3) gradients.
    Guarantee: both means are unbiased for the population if the records are drawn from it; the first is unbiased for
    these records too, with its standard error from the fourth moments of the normal law.
    Edge cases: layers that mix the records of a batch are refused; without ``rng`` the same directions are drawn each
    time; a coordinate may have square 0 and sensitivity above 0: noise optimal there needs a cap (appendix B).
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
    for start in track(range(0, n, chunk), "reference records"):
        records, answers = inputs[start : start + chunk], labels[start : start + chunk]
        for name, each in _gradients(alone, records, answers).items():
            _add(square, name, each.double().square().sum(0), 1 / n)
        linear = ForwardRelease(together, records, answers).linearized()
        for _ in range(probes):
            for name, change in linear.push(standard_normal(records, generator)).items():
                squared = change.double().square()  # whose own squares leave the range of floats
                _add(sensitivity, name, squared, 1 / draws)
                # x ~ N(0, s) has Var x^2 = 2 s^2 and E x^4 = 3 s^2: two thirds of the fourth moment is unbiased
                _add(variance, name, squared.square_(), 2 / 3 / draws**2)
    return ReferenceMoments(
        sensitivity={name: value.to(inputs.dtype) for name, value in sensitivity.items()},
        standard_error={name: value.sqrt().to(inputs.dtype) for name, value in variance.items()},
        square={name: value.to(inputs.dtype) for name, value in square.items()},
        records=n,
        probes=probes,
    )


def _gradients(forward: GradientMap, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Each record's gradient."""

    def one(record: Tensor, label: Tensor) -> dict[str, Tensor]:
        return forward(record[None], label[None])

    try:
        gradients: dict[str, Tensor] = torch.func.vmap(one)(inputs, labels)
    except RuntimeError:  # recurrent layers and control flow that depends on data: one record after the other
        single = [one(*record) for record in zip(inputs, labels, strict=True)]
        return {name: torch.stack([part[name] for part in single]) for name in single[0]}
    return gradients


def _add(sums: dict[str, Tensor], name: str, term: Tensor, weight: float) -> None:
    """Add a weighted term to the sum of this name."""
    sums[name] = sums[name].add_(term, alpha=weight) if name in sums else weight * term


def _layer_means(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double().mean().to(value).expand_as(value).clone() for name, value in tensors.items()}
