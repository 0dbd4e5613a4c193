"""A linear release of records that are jointly normal: the posterior is known in closed form."""

from dataclasses import dataclass
from functools import cached_property

import torch

from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.priors.gaussian import GaussianPrior, gaussian

THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.PRIOR, Knows.DEFENSE)


@dataclass(frozen=True, eq=False)
class GaussianProblem:
    """``equations`` linear measurements of ``records`` records with noise of standard deviation ``noise``."""

    size: int
    equations: int
    noise: float
    records: int = 1
    noise_is_known: bool = True
    spread: float = 0.15

    @cached_property
    def mean(self) -> torch.Tensor:
        return torch.full((self.size,), 0.5, dtype=torch.float64)

    @cached_property
    def covariance(self) -> torch.Tensor:
        root = torch.randn(self.size, self.size, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        return self.spread**2 / self.size * root @ root.T + 1e-5 * torch.eye(self.size, dtype=torch.float64)

    @cached_property
    def prior(self) -> GaussianPrior:
        return gaussian(self.mean, self.covariance)

    @cached_property
    def matrix(self) -> torch.Tensor:
        shape = (self.equations, self.records * self.size)
        return torch.randn(shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)

    def drawn(self, seed: int) -> tuple[torch.Tensor, Observation]:
        """Targets, of one record without the axis of the batch, and what an adversary sees."""
        rng = torch.Generator().manual_seed(seed)
        targets = self.prior.draw(self.records, rng)
        released = self.matrix @ targets.flatten()
        released = released + self.noise * torch.randn(self.equations, generator=rng, dtype=torch.float64)
        known = self.noise_is_known and self.noise > 0
        observation = Observation(
            {"y": released},
            lambda records, labels: {"y": self.matrix.to(records.dtype) @ records.flatten()},
            THREAT,
            (self.size,),
            (0.0, 1.0),
            self.records,
            labels=torch.zeros(self.records, dtype=torch.int64),
            noise_std={"y": torch.full((self.equations,), self.noise)} if known else None,
        )
        return (targets[0] if self.records == 1 else targets), observation

    def posterior_mean(self, observation: Observation) -> torch.Tensor:
        """Of one record."""
        information = self.matrix.T @ self.matrix / self.noise**2
        right = self.matrix.T @ (observation.released["y"] - self.matrix @ self.mean) / self.noise**2
        return self.mean + torch.linalg.solve(information + torch.linalg.inv(self.covariance), right)
