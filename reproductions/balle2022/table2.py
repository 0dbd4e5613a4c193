"""Table II of balle2022 on MNIST: the default setting, read whole, by its second layer, and as a black box.

The paper has 10,000 fixed records and 59,000 shadow models. The small scale has few of both and runs the paper's
network as well; the other scale has 1,000 fixed records (the paper's row "fixed set size") and 10,000 shadow models.
All of these share their shadow models; ``table2_factors`` has the rows that train anew, ``table2_cifar`` those of
CIFAR-10.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reconrisk.attacks.informed.reconstructor.attack import reconstructor
from reconrisk.attacks.informed.reconstructor.features import extract_features
from reconrisk.attacks.informed.reconstructor.settings import (
    Perceptual,
    ReconstructorSettings,
    balle2022_reconstructor,
    residual_reconstructor,
)
from reconrisk.attacks.informed.reconstructor.shadow_knowledge import ShadowKnowledge
from reconrisk.core.guarantee import Estimate
from reconrisk.core.mechanism import Gaussian
from reconrisk.data import data_folders, load_dataset
from reconrisk.metrics import judge_kl, lpips, mse, nearest_neighbour_oracle
from reconrisk.models import balle2022_mlp, judge_lenet
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import sgd
from reproductions.frame import Finding, Scale, need_data, reproduce

JUDGE = "weights/mnist_lenet_csinva.pth"
BACKBONE = "weights/alexnet_imagenet_features_fp32.npz"


@dataclass(frozen=True)
class Setting:
    """How models are trained and attacked; the defaults are those of the paper but for the sizes."""

    fixed: int = 300
    shadows: int = 2_000
    targets: int = 200
    hidden: int = 10
    activation: Callable[[], nn.Module] = nn.ELU
    steps: int = 100
    learning_rate: float = 0.2
    momentum: float = 0.9
    known_start: bool = True
    batch_size: int | None = None
    known_order: bool = True
    private: Gaussian | None = None
    parameters: tuple[str, ...] | None = None
    queries: int = 0
    attack: ReconstructorSettings | None = None
    learned_from: int | None = None

    @property
    def sizes(self) -> str:
        """How much of the data is used, in words."""
        shadows = self.shadows if self.learned_from is None else self.learned_from
        return f"{self.fixed:,} fixed, {shadows:,} shadow models, {self.targets:,} targets"

    @property
    def trained(self) -> Setting:
        """What of it shadow models depend on: the rest is how they are read and learned from."""
        return replace(self, parameters=None, queries=0, attack=None, learned_from=None)


@dataclass(frozen=True, eq=False)
class Models:
    """Shadow models, released ones, and the records behind these."""

    knowledge: ShadowKnowledge
    shadows: Tensor
    released: Tensor
    targets: Tensor
    labels: Tensor
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Targets, what they were taken for, what was known, and seconds of training shadow models and of the attack."""

    targets: Tensor
    estimates: Tensor
    known: Tensor
    shadow_seconds: float
    attack_seconds: float


DEFAULT = Setting()
QUICK = replace(DEFAULT, fixed=100, shadows=1_000)
"""For figures of many settings."""
LARGE = replace(DEFAULT, fixed=1_000, shadows=10_000, targets=1_000)
SEED = {"small": 0, "paper": 2022}
"""Of the records that are drawn; the second is used for nothing else."""

WAYS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("default", "0.0089", {}),
    ("default, closed form and a network behind it", "0.0089", {"attack": residual_reconstructor()}),
    ("released layers, the second", "0.0124", {"parameters": ("layers.2",)}),
    ("black box, 200 queries", "0.0110", {"queries": 200}),
)
NETWORK = ("default, network of the paper", "0.0089", {"attack": balle2022_reconstructor()})


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error of reconstructors on MNIST in the default setting, by what is read and how it is learned."""
    need_data()
    small = scale == "small"
    sizes = DEFAULT if small else LARGE
    findings: list[Finding] = []
    for what, paper, changed in (*WAYS, NETWORK) if small else WAYS:
        setting = replace(sizes, **changed)
        outcome = attacked(setting, SEED[scale])
        findings += [] if findings else [oracle(outcome, setting)]
        number = paper if small or changed else "0.0094 (59,000 shadow models)"
        findings.append(finding(what, number, outcome, setting))
        print(f"{what}: {findings[-1].ours}, {findings[-1].remark}", file=sys.stderr)
        papers = {"KL": "0.0414 (10,000 fixed)", "LPIPS": "0.0382 (10,000 fixed)"}
        for name, ours in {} if changed else other_scores(outcome).items():
            findings.append(Finding(f"reconstructor, MNIST, {what}, mean {name}", papers[name], ours, setting.sizes))
    return findings


def attacked(setting: Setting, seed: int = 0) -> Outcome:
    """Train shadow models, learn from them, and attack released ones."""
    return rebuilt(trained(setting.trained, seed), setting, seed)


def rebuilt(models: Models, setting: Setting, seed: int = 0) -> Outcome:
    """Learn from shadow models, and attack released ones."""
    knowledge, some = models.knowledge, slice(setting.learned_from)
    knowledge = replace(knowledge, targets=knowledge.targets[some], labels=knowledge.labels[some])
    begun = time.monotonic()
    queries = models.knowledge.targets[: setting.queries] if setting.queries else None
    attack = reconstructor(
        knowledge,
        setting.attack,
        parameters=None if setting.parameters is None else list(setting.parameters),
        queries=queries,
        shadow_models=models.shadows[some],
        perceptual=_perceptual(setting.attack),
        rng=torch.Generator().manual_seed(seed + 1),
    )
    learned = time.monotonic()
    read = extract_features(knowledge.training, models.released, attack.reading, queries)
    known = torch.cat([knowledge.targets, knowledge.training.fixed_inputs])
    return Outcome(models.targets, attack.estimates(read), known, models.seconds, learned - begun)


@lru_cache(maxsize=1)
def trained(setting: Setting, seed: int) -> Models:
    """Shadow models and released ones on disjoint records; kept for settings that share them."""
    inputs, labels = pool()
    targets, fixed, shadows = rows_of(setting, seed)
    knowledge = ShadowKnowledge(training(setting, inputs[fixed], labels[fixed]), inputs[shadows], labels[shadows])
    return models_of(knowledge, inputs[targets], labels[targets], seed)


def rows_of(setting: Setting, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which digits are targets, which fixed records, which shadow targets: no digit is two of these."""
    count = len(pool()[0])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    sizes = [setting.targets, setting.fixed, setting.shadows]
    targets, fixed, shadows = order[: sum(sizes)].split(sizes)
    return targets, fixed, shadows


def models_of(knowledge: ShadowKnowledge, targets: Tensor, labels: Tensor, seed: int) -> Models:
    """Train the shadow models that follow from what is known, and the released ones."""
    rng = torch.Generator().manual_seed(seed)
    begun = time.monotonic()
    shadows = knowledge.shadow_models(rng=rng)
    seconds = time.monotonic() - begun
    return Models(knowledge, shadows, knowledge.training.train(targets, labels, rng=rng), targets, labels, seconds)


def training(setting: Setting, fixed_inputs: Tensor, fixed_labels: Tensor) -> ShadowTraining:
    """How the released model is trained, as far as the adversary knows."""

    def draw(rng: torch.Generator) -> nn.Module:
        return balle2022_mlp(hidden=setting.hidden, activation=setting.activation, rng=rng)

    batches: RandomBatches | list[Tensor] | None = None
    if setting.batch_size is not None:
        batches = RandomBatches(setting.batch_size)
        if setting.known_order:
            orders = batches.orders(len(fixed_inputs) + 1, [torch.Generator().manual_seed(0)])
            batches = [next(orders)[0] for _ in range(setting.steps)]
    return ShadowTraining(
        draw(torch.Generator().manual_seed(0)),
        fixed_inputs,
        fixed_labels,
        sgd(setting.learning_rate, setting.momentum),
        setting.steps,
        batches=batches,
        private=setting.private,
        draw_start=None if setting.known_start else draw,
    )


@lru_cache(maxsize=1)
def pool() -> tuple[Tensor, Tensor]:
    """All digits of MNIST."""
    parts = [load_dataset("mnist-full", split=split) for split in ("train", "test")]
    return torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts])


def estimate(scores: Tensor) -> Estimate:
    """A mean over targets with its interval."""
    mean, half = float(scores.mean()), 1.96 * float(scores.std()) / np.sqrt(len(scores))
    return Estimate(mean, mean - half, mean + half, 0.95, len(scores), "normal interval of the mean")


def finding(what: str, paper: str, outcome: Outcome, setting: Setting) -> Finding:
    """The mean squared error of one setting beside the paper's."""
    seconds = f"shadow models {outcome.shadow_seconds:.0f} s, attack {outcome.attack_seconds:.0f} s"
    ours = estimate(mse()(outcome.estimates, outcome.targets))
    return Finding(f"reconstructor, MNIST, {what}, mean MSE", paper, ours, f"{setting.sizes}; {seconds}")


def oracle(outcome: Outcome, setting: Setting) -> Finding:
    """What guessing the nearest record that the adversary has would reach."""
    scores = nearest_neighbour_oracle(outcome.targets, outcome.known).scores
    return Finding("nearest-neighbour oracle, MNIST, mean MSE", "0.0232", estimate(scores), setting.sizes)


def other_scores(outcome: Outcome) -> dict[str, Estimate]:
    """KL by a LeNet and LPIPS, where the data folder holds the weights of both networks."""
    metrics = {}
    judge, backbone = (_weights(name) for name in (JUDGE, BACKBONE))
    if judge is not None:
        metrics["KL"] = judge_kl(judge_lenet(judge).eval())
    if backbone is not None:
        metrics["LPIPS"] = lpips(backbone, data_range=(0.0, 1.0))
    return {name: estimate(metric(outcome.estimates, outcome.targets)) for name, metric in metrics.items()}


def _perceptual(attack: ReconstructorSettings | None) -> Perceptual | None:
    """LPIPS for a loss that has it, where the data folder holds its weights."""
    backbone = _weights(BACKBONE) if attack is not None and attack.perceptual else None
    return None if backbone is None else lpips(backbone, data_range=(0.0, 1.0))


def _weights(name: str) -> Path | None:
    found = (folder.path / name for folder in data_folders())
    return next((path for path in found if path.is_file()), None)


if __name__ == "__main__":
    sys.exit(reproduce(run))
