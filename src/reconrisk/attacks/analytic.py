"""Inversion of a linear layer that reads the record: exact without noise."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.labels import labels_for
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel

_ROUNDING = 1e-3  # of a relative residual: float32 releases leave 1e-7, noise and wrong layers leave far more


@dataclass(frozen=True)
class Analytic:
    """The configured attack that :func:`analytic` returns; it has no settings."""

    needs: ThreatModel = HONEST_BUT_CURIOUS

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Estimate the one record behind ``observation``; ``rng`` is not used, the attack is deterministic."""
        begun = time.monotonic()
        observation.check_covers(self.needs)
        if observation.batch_size != 1:
            raise InvalidInput(
                f"Expected batch_size={observation.batch_size} to be 1: a layer's gradient mixes the records."
            )
        weight, bias = _first_layer(observation.released, math.prod(observation.input_shape))
        if not bias.any():
            middle = sum(observation.data_range) / 2
            estimate = torch.full((1, *observation.input_shape), middle, dtype=torch.float64)
            status = Status(Ending.NOT_APPLICABLE, "no neuron of the layer is active", "Attack the other layers")
            residual, evaluations = math.inf, 0
        else:
            estimate = (bias @ weight / (bias @ bias)).view(1, *observation.input_shape)
            residual, evaluations = _mismatch(observation, estimate), 1
            layer_residual = float((weight - bias[:, None] * estimate.flatten()).norm() / weight.norm())
            status = _status(residual, layer_residual)
        account = Account("analytic()", status, (residual,), Cost(time.monotonic() - begun, evaluations))
        return Reconstruction(estimate.to(torch.get_default_dtype()), account)


def analytic() -> Analytic:
    r"""Rebuild a record from the gradient of the first linear layer, by least squares over its neurons.

    .. math:: \hat x = \sum_j \ell'_{b_j} \, \nabla_{w_j} \ell \Big/ \sum_j (\ell'_{b_j})^2, \quad
              \ell'_{b_j} = \partial \ell / \partial b_j

    Assumes: a batch of one; a released linear layer with bias whose input is the record.
    Guarantee: exact without noise whenever one neuron of the layer is active; the status says exact only if the release
    of the estimate is the observed one.
    Edge cases: all neurons inactive, or a layer that reads something else than the record, end as not applicable.
    Reference: Proposition 3.1, `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_; Section III, riess2025.

    >>> from reconrisk.releases.gradient import GradientMap
    >>> forward = GradientMap(torch.nn.Linear(2, 3))
    >>> record, label = torch.tensor([[0.25, 0.5]]), torch.tensor([1])
    >>> released = {name: value.detach() for name, value in forward(record, label).items()}
    >>> observation = Observation(released, forward, HONEST_BUT_CURIOUS, (2,), (0.0, 1.0))
    >>> analytic()(observation, rng=torch.Generator()).estimates.round(decimals=4)
    tensor([[0.2500, 0.5000]])
    """
    return Analytic()


def _mismatch(observation: Observation, estimate: Tensor) -> float:
    """Relative distance between the release that the estimate would have caused and the observed one."""
    candidate = observation.forward(estimate, labels_for(observation))
    names = list(observation.released)
    observed = torch.cat([observation.released[name].double().flatten() for name in names])
    caused = torch.cat([candidate[name].double().flatten() for name in names])
    return float((caused - observed).norm() / observed.norm())


def _status(residual: float, layer_residual: float) -> Status:
    if residual < _ROUNDING:
        return Status(Ending.EXACT, "the estimate has the observed release")
    if layer_residual < _ROUNDING:
        cause = f"the layer does not read the record: the estimate's release is off by {residual:.1e}"
        return Status(Ending.NOT_APPLICABLE, cause, "Use an attack that optimises, such as gauss_newton()")
    return Status(Ending.CONVERGED, f"least squares over noisy neurons, relative residual {layer_residual:.1e}")


def _first_layer(released: Mapping[str, Tensor], features: int) -> tuple[Tensor, Tensor]:
    names = list(released)
    for name, following in itertools.pairwise(names):
        weight, bias = released[name], released[following]
        if weight.ndim == 2 and weight.shape[1] == features and bias.shape == weight.shape[:1]:
            return weight.double(), bias.double()
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in released.items())
    raise InvalidInput(
        f"Expected a released linear layer with bias on {features} features, there are: {shapes}. "
        "Use an attack that optimises, such as gauss_newton()."
    )
