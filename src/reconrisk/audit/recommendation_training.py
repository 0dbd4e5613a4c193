"""What training costs under the defenses that a search has found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import nn

from reconrisk.audit.defended_training import train_defended
from reconrisk.audit.recommendation_result import TrainingCost
from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import Estimate
from reconrisk.data.dataset import Dataset
from reconrisk.releases.state import LossFunction

_CLIENTS = 16  # records of a training step


@dataclass(frozen=True, eq=False)
class Trained:
    """How models are trained under the defenses that pass: with public records as a test."""

    model: nn.Module
    private: Dataset
    public: Dataset
    steps: int
    seeds: int
    learning_rate: float
    batch_size: int
    loss_fn: LossFunction | None
    seed: int
    local_steps: int | None = None
    local_learning_rate: float | None = None

    def cost(self, defense: Defense | None) -> TrainingCost:
        """Accuracy and loss of public records after training, over seeds that are the same for every defense."""
        clients = max(1, min(_CLIENTS, len(self.private)) // self.batch_size)
        runs = [
            train_defended(
                self.model,
                self.private,
                defense,
                steps=self.steps,
                test=self.public,
                clients=clients,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate if self.local_steps is None else 1.0,  # changes are added as they are
                loss_fn=self.loss_fn,
                local_steps=self.local_steps,
                local_learning_rate=self.local_learning_rate,
                rng=torch.Generator().manual_seed(self.seed + run),
            )
            for run in range(self.seeds)
        ]
        accuracy = [run.test_accuracy for run in runs if run.test_accuracy is not None]
        losses = [run.test_loss for run in runs if run.test_loss is not None]
        return TrainingCost(_mean(accuracy), _mean(losses), self.steps, self.seeds)


def _mean(values: Sequence[float]) -> Estimate | None:
    """Mean over seeds with a 95% t interval; None where there is nothing finite."""
    if not values or not all(math.isfinite(value) for value in values):
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, mean, mean, 0.0, 1, "one seed")
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return Estimate(mean, mean - half, mean + half, 0.95, len(values), "t over seeds")
