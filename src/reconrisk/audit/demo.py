"""The demonstration: a small network, the gradient of one bundled digit, and what comes back out of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from reconrisk.data import Dataset, load_dataset
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
    rng = torch.Generator().manual_seed(seed)
    with _one_thread():
        return _run(load_dataset("mnist", split="train"), load_dataset("mnist", split="test"), record, rng)


def _run(train: Dataset, test: Dataset, record: int, rng: torch.Generator) -> DemoResult:
    model = _train(lenet(train.shape, 10, activation=nn.Tanh, rng=rng), train.inputs, train.class_labels, rng)
    accuracy = float((model(test.inputs).argmax(1) == test.class_labels).float().mean())
    target, label = test.inputs[record : record + 1], test.class_labels[record : record + 1]
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


@contextmanager
def _one_thread() -> Iterator[None]:
    """Layers this small gain nothing from threads, and lose tenfold to waiting where another program is running."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
