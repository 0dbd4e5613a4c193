"""Reconstructors from 500 shadow models of 784-10-10 networks, 100 fixed digits; results are mean squared errors.

Shadow models are trained before the clock starts. Each result is the mean error on 100 other digits. The oracle takes
the nearest record that the adversary has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from reconrisk.attacks.informed.reconstructor.attack import reconstructor
from reconrisk.attacks.informed.reconstructor.settings import ReconstructorSettings, balle2022_reconstructor
from reconrisk.attacks.informed.reconstructor.shadow_knowledge import ShadowKnowledge
from reconrisk.data import load_dataset
from reconrisk.metrics import nearest_neighbour_oracle
from reconrisk.models import balle2022_mlp
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import sgd

FIXED, SHADOWS, TARGETS = 100, 500, 100


@dataclass(frozen=True, eq=False)
class Problem:
    """Shadow models, released models, and the records behind these."""

    knowledge: ShadowKnowledge
    shadow_models: Tensor
    released: Tensor
    targets: Tensor


@cache
def _problem() -> Problem:
    digits, aimed = load_dataset("mnist", split="train"), load_dataset("mnist", split="test")
    shadow = slice(FIXED, FIXED + SHADOWS)
    model = balle2022_mlp(rng=torch.Generator().manual_seed(0))
    training = ShadowTraining(model, digits.inputs[:FIXED], digits.labels[:FIXED], sgd(0.2, 0.9), steps=100)
    knowledge = ShadowKnowledge(training, digits.inputs[shadow], digits.labels[shadow])
    released = training.train(aimed.inputs[:TARGETS], aimed.labels[:TARGETS])
    return Problem(knowledge, knowledge.shadow_models(rng=torch.Generator()), released, aimed.inputs[:TARGETS])


def _attack(settings: ReconstructorSettings) -> Callable[[], object]:
    problem = _problem()

    def work() -> float:
        rng = torch.Generator().manual_seed(0)
        attack = reconstructor(problem.knowledge, settings, shadow_models=problem.shadow_models, rng=rng)
        return float((attack.estimates(problem.released) - problem.targets).square().mean())

    return work


def ours() -> Callable[[], object]:
    """The closed form by class."""
    return _attack(ReconstructorSettings())


def paper() -> Callable[[], object]:
    """The network of balle2022, with 20 of its 100 epochs."""
    return _attack(replace(balle2022_reconstructor(), epochs=20))


def oracle() -> Callable[[], object]:
    """The nearest record that the adversary has."""
    problem = _problem()
    known = torch.cat([problem.knowledge.targets, problem.knowledge.training.fixed_inputs])
    return lambda: float(nearest_neighbour_oracle(problem.targets, known).scores.mean())


CONTENDERS = {"closed form": ours, "network of balle2022": paper, "nearest-neighbour oracle": oracle}
