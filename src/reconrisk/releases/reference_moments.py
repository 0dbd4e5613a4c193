"""Means over reference records that optimal noise and pruning need: of squared gradients and of their sensitivity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.core.progress import track
from reconrisk.core.validation import check_whole
from reconrisk.releases.gradient import GradientMap
from reconrisk.releases.noise import directions_rng, standard_normal
from reconrisk.releases.release import check_records
from reconrisk.releases.state import LossFunction, check_mode


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

    .. math:: \frac1n \sum_i |\nabla_x g_k(x_i)|^2 \approx \frac1{nK} \sum_{i,j} (J_i v_{ij})_k^2, \qquad
              \frac1n \sum_i g_k(x_i)^2

    Assumes: public or reference records, so that what is chosen by these means tells nothing about private ones.
    Notation: every record has ``probes`` directions of its own, so the error falls with n K; ``chunk`` records are
    held at a time, with one gradient each.
    Guarantee: both means are unbiased for the population if the records are drawn from it; the first is unbiased for
    these records too, with its standard error from the fourth moments of the normal law.
    Edge cases: layers that mix the records of a batch are refused; without ``rng`` the same directions are drawn each
    time; a coordinate may have square 0 and sensitivity above 0: noise optimal there needs a cap (appendix B).
    Reference: Theorem 3.5 and Lemma 3.8, chen2025.

    >>> rng = torch.Generator().manual_seed(0)
    >>> model = nn.Linear(3, 2)
    >>> found = reference_moments(model, nn.functional.cross_entropy, torch.rand(5, 3), torch.zeros(5).long(), rng=rng)
    >>> found.square["weight"].shape, found.records
    (torch.Size([2, 3]), 5)
    """
    check_records(inputs, labels)
    check_mode(model)
    probes, chunk, n = check_whole("probes", probes), check_whole("chunk", chunk), len(inputs)
    forward, draws, generator = GradientMap(model, loss_fn), n * probes, directions_rng(rng)
    square: dict[str, Tensor] = {}
    sensitivity: dict[str, Tensor] = {}
    variance: dict[str, Tensor] = {}
    for start in track(range(0, n, chunk), "reference records"):
        records, answers = inputs[start : start + chunk], labels[start : start + chunk]
        for _ in range(probes):
            gradients, changes = _gradients_and_changes(forward, records, answers, standard_normal(records, generator))
            _add(square, gradients, 2, 1 / draws)
            _add(sensitivity, changes, 2, 1 / draws)
            # x ~ N(0, s) has Var x^2 = 2 s^2 and E x^4 = 3 s^2: two thirds of the fourth moment is unbiased
            _add(variance, changes, 4, 2 / 3 / draws**2)
    error = {name: value.sqrt() for name, value in variance.items()}
    dtype = inputs.dtype
    return ReferenceMoments(_cast(sensitivity, dtype), _cast(error, dtype), _cast(square, dtype), n, probes)


def _gradients_and_changes(
    forward: GradientMap, inputs: Tensor, labels: Tensor, directions: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Each record's gradient and its derivative along the record's own direction."""

    def one(record: Tensor, label: Tensor, direction: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        def gradient(moved: Tensor) -> dict[str, Tensor]:
            return forward(moved[None], label[None])

        value: dict[str, Tensor]
        change: dict[str, Tensor]
        value, change = torch.func.jvp(gradient, (record,), (direction,))  # type: ignore[misc]  # three only with aux
        return value, change

    gradients: dict[str, Tensor]
    changes: dict[str, Tensor]
    try:
        gradients, changes = torch.func.vmap(one)(inputs, labels, directions)
    except RuntimeError:  # recurrent layers and control flow that depends on data: one record after the other
        single = [one(*record) for record in zip(inputs, labels, directions, strict=True)]
        gradients, changes = (
            {name: torch.stack([part[side][name] for part in single]) for name in single[0][side]} for side in (0, 1)
        )
    return gradients, changes


def _add(sums: dict[str, Tensor], terms: Mapping[str, Tensor], power: int, weight: float) -> None:
    """Add the weighted sum over records of a power; in double precision, since fourth powers leave that of floats."""
    for name, term in terms.items():
        summed = weight * term.double().pow(power).sum(0)
        sums[name] = sums[name] + summed if name in sums else summed


def _cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}
