"""Gauss-Newton under Laplacian noise: least absolute values as a sequence of weighted least squares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel

_ROUNDS = 8  # most reweighted solves; they usually settle earlier
_SMALLEST = 0.02  # residuals below this share of the standard deviation weigh as if they were that large
_SETTLED = 1e-3  # relative decrease of the objective below which the rounds end


@dataclass(frozen=True, eq=False)
class FixedStart:
    """Attack that returns given estimates, as the warm start of a further round."""

    estimates: Tensor

    @property
    def needs(self) -> ThreatModel:
        """Weakest threat model: an honest server, since nothing is read."""
        return HONEST_BUT_CURIOUS

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Return the estimates."""
        del rng
        status = Status(Ending.CONVERGED, "estimates of an earlier round")
        account = AttackReport("given", status, (math.inf,) * observation.batch_size, Cost(0.0, 0))
        return Reconstruction(self.estimates, account)


def refine_laplace(
    observation: Observation, labels: Tensor, start: Tensor, solve: Callable[[Observation, FixedStart], Tensor]
) -> tuple[Tensor, float]:
    r"""Refine least-squares estimates to maximum likelihood under Laplacian noise.

    .. math:: \sqrt2 \sum_i |r_i| / \sigma_i \le \sum_i \frac{r_i^2}{2 s_i^2} + \mathrm{const}, \qquad
              s_i^2 = \sigma_i |r_i^0| / \sqrt2

    Here :math:`r_i` is the residual of value i, :math:`\sigma_i` the standard deviation of its noise, and :math:`r_i^0`
    its residual in the round before.

    Each round minimises the right side. It equals the left side at the residuals of the round before, so no round
    raises the left side.

    Args:
        observation: The observation with known Laplacian noise.
        labels: Labels of the records.
        start: Estimates of least squares.
        solve: Solves a weighted least-squares problem from a start.

    Returns:
        The refined estimates, and their negative log-likelihood up to a constant.

    Reference: iteratively reweighted least squares as majorisation, `Hunter and Lange (2004)
    <https://doi.org/10.1198/0003130042836>`_.
    """
    best, objective = start, _objective(observation, labels, start)
    for _ in range(_ROUNDS):
        found = solve(reweight_laplace(observation, labels, best), FixedStart(best))
        value = _objective(observation, labels, found)
        # Also ends the rounds if the objective is NaN.
        if not value < objective:
            break
        settled = objective - value < _SETTLED * objective
        best, objective = found, value
        if settled:
            break
    return best, objective


def reweight_laplace(observation: Observation, labels: Tensor, at: Tensor) -> Observation:
    """Return the observation with Gaussian noise and the variances of the upper bound in :func:`refine_laplace`.

    Args:
        observation: The observation with known Laplacian noise.
        labels: Labels of the records.
        at: Records at which the majorant is tight.

    Returns:
        The observation with replaced noise.
    """
    residuals, known = _residuals(observation, labels, at), observation.noise_std or {}
    stds = {
        name: (std.double() * residuals[name].abs().maximum(_SMALLEST * std.double()) / 2**0.5).sqrt().to(std)
        for name, std in known.items()
    }
    return replace(observation, noise_std=stds, noise_law="gaussian")


def _objective(observation: Observation, labels: Tensor, at: Tensor) -> float:
    """Return the negative log-likelihood up to a constant; inf if it is not finite."""
    residuals, known = _residuals(observation, labels, at), observation.noise_std or {}
    kept = observation.kept or {name: torch.ones_like(value, dtype=torch.bool) for name, value in residuals.items()}
    total = sum(float((residuals[name].abs() / std.double())[kept[name]].sum()) for name, std in known.items())
    return 2**0.5 * total if math.isfinite(total) else math.inf


def _residuals(observation: Observation, labels: Tensor, at: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        caused = observation.forward(at.to(torch.get_default_dtype()), labels)
    return {name: value.double() - caused[name].double() for name, value in observation.released.items()}
