"""Gauss-Newton under Laplacian noise: least absolute values as a sequence of weighted least squares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, ThreatModel

_ROUNDS = 8
_SMALLEST = 0.02  # of the standard deviation: residuals below weigh as if they were so large
_SETTLED = 1e-3  # relative fall of the objective below which more rounds gain nothing


@dataclass(frozen=True, eq=False)
class GivenStart:
    """An attack that answers with estimates found before: the warm start of a further round."""

    estimates: Tensor

    @property
    def needs(self) -> ThreatModel:
        """Nothing."""
        return HONEST_BUT_CURIOUS

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The estimates."""
        del rng
        status = Status(Ending.CONVERGED, "found before")
        account = Account("given", status, (math.inf,) * observation.batch_size, Cost(0.0, 0))
        return Reconstruction(self.estimates, account)


def refined(
    observation: Observation, labels: Tensor, start: Tensor, solve: Callable[[Observation, GivenStart], Tensor]
) -> tuple[Tensor, float]:
    r"""Estimates of maximum likelihood under Laplacian noise, from those of least squares, and their objective.

    .. math:: \sqrt2 \sum_i |r_i| / \sigma_i \le \sum_i \frac{r_i^2}{2 s_i^2} + \mathrm{const}, \qquad
              s_i^2 = \sigma_i |r_i^0| / \sqrt2

    Each round solves the right side, with equality at the residuals r0 of the round before: no round raises the sum.

    Reference: iteratively reweighted least squares as majorisation, `Hunter and Lange (2004)
    <https://doi.org/10.1198/0003130042836>`_.
    """
    best, objective = start, _objective(observation, labels, start)
    for _ in range(_ROUNDS):
        found = solve(reweighted(observation, labels, best), GivenStart(best))
        value = _objective(observation, labels, found)
        if not value < objective:
            break
        settled = objective - value < _SETTLED * objective
        best, objective = found, value
        if settled:
            break
    return best, objective


def reweighted(observation: Observation, labels: Tensor, at: Tensor) -> Observation:
    """The observation as if its noise were normal with the variances of the majorant."""
    residuals, known = _residuals(observation, labels, at), observation.noise_std or {}
    stds = {
        name: (std.double() * residuals[name].abs().maximum(_SMALLEST * std.double()) / 2**0.5).sqrt().to(std)
        for name, std in known.items()
    }
    return replace(observation, noise_std=stds, noise_law="gaussian")


def _objective(observation: Observation, labels: Tensor, at: Tensor) -> float:
    """Minus the logarithm of the likelihood, up to a constant; infinite where it is not finite."""
    residuals, known = _residuals(observation, labels, at), observation.noise_std or {}
    kept = observation.kept or {name: torch.ones_like(value, dtype=torch.bool) for name, value in residuals.items()}
    total = sum(float((residuals[name].abs() / std.double())[kept[name]].sum()) for name, std in known.items())
    return 2**0.5 * total if math.isfinite(total) else math.inf


def _residuals(observation: Observation, labels: Tensor, at: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        caused = observation.forward(at.to(torch.get_default_dtype()), labels)
    return {name: value.double() - caused[name].double() for name, value in observation.released.items()}
