"""Labels read off a gradient before any optimisation."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation


def infer_label(released: Mapping[str, Tensor]) -> Tensor:
    r"""The label of a single record from the gradient of the last layer.

    .. math:: \partial \ell / \partial b_c = p_c - 1[c = y]

    Assumes: cross-entropy, batch of one, the last released bias (or else weight) belongs to the output layer.
    Guarantee: exact without noise, since only the true class has a negative entry.
    Edge cases: without a bias, the rows of the weight are used, summed; exact if the features share one sign.
    Reference: Section 3.2, `Zhao et al. (2020) <https://arxiv.org/abs/2001.02610>`_.

    >>> import torch
    >>> infer_label({"weight": torch.zeros(3, 2), "bias": torch.tensor([0.2, -0.5, 0.3])})
    tensor([1])
    """
    tensors = [tensor for tensor in released.values() if tensor.ndim in (1, 2)]
    if not tensors:
        raise InvalidInput(
            "Expected a released bias or weight of the output layer. Declare the labels as known instead."
        )
    last = tensors[-1]
    scores = last if last.ndim == 1 else last.sum(1)
    return scores.argmin().view(1)


def labels_for(observation: Observation) -> Tensor:
    """The labels the adversary works with: known ones, or inferred for a single record."""
    if observation.labels is not None:
        return observation.labels
    if observation.batch_size != 1:
        raise InvalidInput(
            f"Expected known labels for a batch of {observation.batch_size} records. "
            "Only single records have their label inferred: add Knows.LABELS to the threat and pass labels."
        )
    return infer_label(observation.released)
