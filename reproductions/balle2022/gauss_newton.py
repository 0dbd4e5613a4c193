"""Where inverting the training map stops working: the setting of balle2022 Table II, one condition changed at a time.

Every record but one, the initialisation and the order are known unless said otherwise; victims are trained in float32.
The small scale has digits of 14 x 14 pixels and 300 fixed records, that of the paper 28 x 28 and 1,000.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from reconrisk.attacks.informed.invert_training.attack import invert_training
from reconrisk.attacks.informed.invert_training.problem import problem_for
from reconrisk.data import load_dataset
from reconrisk.metrics import nearest_neighbour_oracle
from reconrisk.models import balle2022_mlp
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import sgd
from reproductions.frame import Finding, Scale, need_data, reproduce

NOT_IN_PAPER = "not in the paper"
BATCH = 50


@dataclass(frozen=True)
class Setting:
    """Fixed records, targets and what the attack may spend."""

    fixed: Tensor = field(repr=False)
    fixed_labels: Tensor = field(repr=False)
    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    directions: int

    def training(self, steps: int = 100, **given: Any) -> ShadowTraining:
        """The training of the paper, or with something changed."""
        shape = tuple(self.fixed.shape[1:])
        model = given.pop("model", None) or balle2022_mlp(
            shape, activation=given.pop("activation", nn.ELU), rng=torch.Generator().manual_seed(0)
        )
        steps_or_batches = {} if "batches" in given else {"steps": steps}
        return ShadowTraining(model, self.fixed, self.fixed_labels, sgd(0.2, 0.9), **steps_or_batches, **given)


def run(scale: Scale) -> Sequence[Finding]:
    """One row for each condition, errors along it."""
    need_data()
    torch.set_num_threads(1)
    setting = _setting(scale)
    lengths = (30, 100, 300) if scale == "small" else (30, 100, 300, 1000)
    return [
        _default(setting),
        _curve("training longer", {f"{n} steps": _error(setting, setting.training(n)) for n in lengths}),
        _curve("ReLU in place of ELU", {"100 steps": _error(setting, setting.training(activation=nn.ReLU))}),
        _curve("released weights rounded", _rounded(setting)),
        _curve("initialisation known up to a relative error", _initialisations(setting), "unknown: 0.0695"),
        _curve(f"batches of {BATCH}", _batches(setting)),
        _curve("Gaussian noise of known std on the weights, half digits", _noise(setting)),
    ]


def _setting(scale: Scale) -> Setting:
    data = load_dataset("mnist-full", split="train")
    fixed, targets, directions = (300, 4, 40) if scale == "small" else (1_000, 20, 64)
    order = torch.randperm(len(data.inputs), generator=torch.Generator().manual_seed(0))[: fixed + targets]
    inputs, labels = data.inputs[order], data.class_labels[order]
    inputs = avg_pool2d(inputs, 2) if scale == "small" else inputs
    return Setting(inputs[:fixed], labels[:fixed], inputs[fixed:], labels[fixed:], directions)


def _curve(what: str, points: Mapping[str, str], paper: str = NOT_IN_PAPER) -> Finding:
    shown = "; ".join(f"{place}: {error}" for place, error in points.items())
    return Finding(f"inverting the training map, {what}: median MSE (largest), models explained", paper, shown)


def _default(setting: Setting) -> Finding:
    training = setting.training()
    found = invert_training(training, directions=setting.directions).rebuild(
        training.train(setting.inputs, setting.labels)
    )
    right = sum(a == b for a, b in zip(found.labels or (), setting.labels.tolist(), strict=True))
    oracle = nearest_neighbour_oracle(setting.inputs, setting.fixed).scores.mean()
    ours = f"{_shown(found.estimates, setting.inputs)}; {right} of {len(setting.labels)} labels right"
    shape = " x ".join(str(side) for side in setting.fixed.shape[2:])
    remark = f"{shape} pixels, {len(setting.fixed)} fixed, nearest fixed record {oracle:.3f}; the paper's is a network"
    return Finding("inverting the training map, label unknown: median MSE (largest)", "0.0089", ours, remark)


def _error(setting: Setting, training: ShadowTraining, victims: Tensor | None = None) -> str:
    """Median and largest error, and how many models were explained, with labels known."""
    victims = training.train(setting.inputs, setting.labels) if victims is None else victims
    attack = invert_training(training, directions=setting.directions, iterations=24, refreshes=2)
    found = attack.rebuild(victims, labels=setting.labels)
    explained = sum(objective <= 3 for objective in found.account.objective)
    return f"{_shown(found.estimates, setting.inputs)}, {explained} of {len(victims)}"


def _shown(estimates: Tensor, inputs: Tensor) -> str:
    errors = (estimates - inputs).square().flatten(1).mean(1)
    return f"{errors.median():.1e} ({errors.max():.1e})"


def _rounded(setting: Setting) -> dict[str, str]:
    training = setting.training()
    victims = training.train(setting.inputs.double(), setting.labels)
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return {str(kind).removeprefix("torch."): _error(setting, training, victims.to(kind)) for kind in kinds}


def _initialisations(setting: Setting) -> dict[str, str]:
    victims = setting.training().train(setting.inputs, setting.labels)
    found = {}
    for relative in (1e-6, 1e-4, 1e-2):
        model, rng = copy.deepcopy(setting.training().model), torch.Generator().manual_seed(1)
        for value in model.parameters():
            value.data.add_(relative * value.data.std() * torch.randn(value.shape, generator=rng))
        found[f"{relative:g}"] = _error(setting, setting.training(model=model), victims)
    other = balle2022_mlp(tuple(setting.fixed.shape[1:]), rng=torch.Generator().manual_seed(1))
    return found | {"unknown": _error(setting, setting.training(model=other), victims)}


def _batches(setting: Setting) -> dict[str, str]:
    def order(seed: int) -> list[Tensor]:
        rng, count = torch.Generator().manual_seed(seed), len(setting.fixed) + 1
        epochs = [torch.randperm(count, generator=rng) for _ in range(-(-100 * BATCH // count))]
        return list(torch.cat(epochs).split(BATCH)[:100])

    known, guessed = setting.training(batches=order(0)), setting.training(batches=order(1))
    victims = known.train(setting.inputs, setting.labels)
    return {"order known": _error(setting, known), "order guessed": _error(setting, guessed, victims)}


def _noise(setting: Setting) -> dict[str, str]:
    """Errors of two records beside the Cramer-Rao bound, which is for unbiased estimators: the range helps beyond."""
    few = replace(setting, inputs=0.25 + 0.5 * setting.inputs[:2], labels=setting.labels[:2])
    training, found = few.training(), {}
    problem = problem_for(training)
    records = few.inputs.flatten(1).double()
    victims = training.train(few.inputs.double(), few.labels)
    jacobians = [problem.jacobian(record, label) for record, label in zip(records, few.labels, strict=True)]
    unit = sum(float(torch.linalg.inv(one @ one.T).diagonal().mean()) for one in jacobians) / len(jacobians)
    rng = torch.Generator().manual_seed(0)
    for std in (1e-6, 1e-5, 1e-4, 1e-3):
        noisy = victims + std * torch.randn(victims.shape, generator=rng, dtype=victims.dtype)
        attack = invert_training(training, directions=few.directions, iterations=24, refreshes=2)
        estimates = attack.rebuild(noisy, labels=few.labels, noise_std=std).estimates.flatten(1)
        error = float((estimates - few.inputs.flatten(1)).square().mean())
        found[f"std {std:g}"] = f"{error:.1e}, bound {std**2 * unit:.1e}"
    return found


if __name__ == "__main__":
    sys.exit(reproduce(run))
