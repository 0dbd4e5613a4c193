"""The demonstration: a small network, the gradient of one bundled digit, and what comes back out of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.attacks.gauss_newton import gauss_newton
from reconrisk.core.metric import Metric
from reconrisk.core.observation import Observation
from reconrisk.core.progress import track
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.threat import HONEST_BUT_CURIOUS
from reconrisk.core.validation import check_whole, refuse
from reconrisk.data import load_dataset
from reconrisk.metrics import mse, ncc, psnr, score, ssim
from reconrisk.models import lenet
from reconrisk.releases.gradient import GradientMap

_SEEDS = 2**63


@dataclass(frozen=True, eq=False)
class DemoResult:
    """Target, estimate and scores of the demonstration, and the accuracy of the attacked network on unseen digits."""

    target: Tensor
    label: int
    reconstruction: Reconstruction
    scores: dict[str, float]
    accuracy: float


def run_demo(*, record: int = 0, seed: int = 0) -> DemoResult:
    """Train a small network on the bundled digits, release the gradient of test digit ``record``, and rebuild it.

    Edge cases: the attack sees the gradient, the network and nothing else; the label is inferred.
    """
    check_demo(record=record, seed=seed)
    train, test = load_dataset("mnist", split="train"), load_dataset("mnist", split="test")
    train_labels, test_labels = train.class_labels, test.class_labels
    rng = torch.Generator().manual_seed(seed)
    model = _train(lenet(train.shape, 10, activation=nn.Tanh, rng=rng), train.inputs, train_labels, rng)
    accuracy = float((model(test.inputs).argmax(1) == test_labels).float().mean())
    target, label = test.inputs[record : record + 1], test_labels[record : record + 1]
    forward = GradientMap(model)
    observation = Observation(
        released={name: value.detach() for name, value in forward(target, label).items()},
        forward=forward,
        threat=HONEST_BUT_CURIOUS,
        input_shape=test.shape,
        data_range=test.data_range,
    )
    reconstruction = gauss_newton()(observation, rng=rng)
    metrics: list[Metric] = [mse(), psnr(data_range=test.data_range), ssim(data_range=test.data_range), ncc()]
    scores = score(reconstruction, target, metrics)
    return DemoResult(target[0], int(label), reconstruction, {k: float(v) for k, v in scores.items()}, accuracy)


def check_demo(*, record: int, seed: int) -> None:
    """Refuse settings that :func:`run_demo` would refuse, before anything is computed."""
    count = len(load_dataset("mnist", split="test"))
    if check_whole("record", record, minimum=0) >= count:
        raise refuse("record", record, f"< {count}, the number of bundled test digits")
    if check_whole("seed", seed, minimum=0) >= _SEEDS:
        raise refuse("seed", seed, "< 2^63")


def _train(model: nn.Module, inputs: Tensor, labels: Tensor, rng: torch.Generator) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for rows in track(torch.randperm(len(inputs), generator=rng).split(64), "Training"):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return model.eval()
