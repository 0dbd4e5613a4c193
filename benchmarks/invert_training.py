"""The training map inverted: records of MNIST from the models trained on them, labels unknown, victims in float32.

784-10-10 with ELU, 1,000 fixed records, 100 full-batch steps, as balle2022. The result is the error of the records, the
share below 1e-4, and the seconds of processor and clock for each target. It uses one core. A reconstructor network
reports 0.009 in this setting, the nearest neighbour about 0.04.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from reconrisk.attacks.informed.invert_training.attack import invert_training
from reconrisk.data import load_dataset
from reconrisk.data.data_folders import data_folders
from reconrisk.data.dataset import Dataset
from reconrisk.models import balle2022_mlp
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import sgd

FIXED, STEPS = 1_000, 100


def digits() -> Dataset:
    """MNIST whole where a data folder holds it, else the part that is shipped."""
    whole = any(folder.exists for folder in data_folders())
    return load_dataset("mnist-full" if whole else "mnist", split="train")


def together(targets: int) -> Callable[[], str]:
    """Invert the models of so many targets together."""
    torch.set_num_threads(1)
    data = digits()
    order = torch.randperm(len(data.inputs), generator=torch.Generator().manual_seed(0))[: FIXED + targets]
    inputs, labels = data.inputs[order], data.class_labels[order]
    model = balle2022_mlp(rng=torch.Generator().manual_seed(0))
    training = ShadowTraining(model, inputs[:FIXED], labels[:FIXED], sgd(0.2, 0.9), steps=STEPS)
    victims = training.train(inputs[FIXED:], labels[FIXED:])

    def work() -> str:
        begun, spent = time.monotonic(), time.process_time()
        found = invert_training(training).rebuild(victims)
        wall, processor = time.monotonic() - begun, time.process_time() - spent
        errors = (found.estimates - inputs[FIXED:]).square().flatten(1).mean(1)
        right = sum(int(a) == int(b) for a, b in zip(found.labels or (), labels[FIXED:], strict=True))
        return (
            f"median MSE {errors.median():.1e}, largest {errors.max():.1e}, below 1e-4: {(errors < 1e-4).sum()} of "
            f"{targets}, labels right: {right}; a target {processor / targets:.1f} s of processor, "
            f"{wall / targets:.1f} s of clock, {found.account.cost.evaluations / targets:.0f} trainings; {found.status}"
        )

    return work


def fifty() -> Callable[[], str]:
    """Enough for the derivatives that a class shares to cost little."""
    return together(50)


def eight() -> Callable[[], str]:
    """Less than a class each."""
    return together(8)


def single() -> Callable[[], str]:
    """One model, for which all classes are tried as well."""
    return together(1)


CONTENDERS = {"50 models together": fifty, "8 models together": eight, "one model": single}
