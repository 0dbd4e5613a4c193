"""Inversion of a linear layer that reads the record: exact without noise."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel


@dataclass(frozen=True)
class Analytic:
    """The configured attack that :func:`analytic` returns; it has no settings."""

    needs: ThreatModel = HONEST_BUT_CURIOUS

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the one record behind ``observation``; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        if observation.batch_size != 1:
            raise InvalidInput(
                f"Expected batch_size={observation.batch_size} to be 1: a layer's gradient mixes the records."
            )
        weight, bias = _first_layer(observation.released, math.prod(observation.input_shape))
        weight, bias = weight.double(), bias.double()
        if bias.square().sum() == 0:
            status = Status(
                Ending.NOT_APPLICABLE, "no neuron of the layer is active", "Use an attack on the other layers"
            )
            record = torch.full((weight.shape[1],), sum(observation.data_range) / 2, dtype=weight.dtype)
        else:
            status = Status(Ending.EXACT, "every active neuron gives the record in closed form")
            record = bias @ weight / bias.square().sum()
        residual = float((weight - bias[:, None] * record).norm())
        account = Account("analytic()", status, (residual,), Cost(time.monotonic() - begun, 0))
        return Reconstruction(record.view(1, *observation.input_shape).to(torch.get_default_dtype()), account)


def analytic() -> Analytic:
    r"""Rebuild a record from the gradient of the first linear layer, by least squares over its neurons.

    .. math:: \hat x = \sum_j \ell'_{b_j} \, \nabla_{w_j} \ell \Big/ \sum_j (\ell'_{b_j})^2, \quad
              \ell'_{b_j} = \partial \ell / \partial b_j

    Assumes: a batch of one; a released linear layer with bias whose input is the record.
    Guarantee: exact without noise whenever one neuron of the layer is active.
    Edge cases: all neurons inactive ends as not applicable, with the middle of the data range as estimate.
    Reference: Proposition 3.1, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_; Section III, riess2025.
    """
    return Analytic()


def _first_layer(released: Mapping[str, Tensor], features: int) -> tuple[Tensor, Tensor]:
    names = list(released)
    for name, following in itertools.pairwise(names):
        weight, bias = released[name], released[following]
        if weight.ndim == 2 and weight.shape[1] == features and bias.shape == weight.shape[:1]:
            return weight, bias
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in released.items())
    raise InvalidInput(
        f"Expected a released linear layer with bias on {features} features, there are: {shapes}. "
        "Use an attack that optimises, such as gauss_newton()."
    )
