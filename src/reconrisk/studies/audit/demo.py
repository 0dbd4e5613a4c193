"""The demonstration: an audit of a small network on bundled digits, under each kind of defense.

:func:`self_check` is a one-second check of the installation: an attack on a layer with a known result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from reconrisk.attacks.analytic.attack import analytic
from reconrisk.core.observation import Observation
from reconrisk.core.progress import track
from reconrisk.core.threat import HONEST_BUT_CURIOUS
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.data import load_dataset
from reconrisk.defenses import clip_and_noise, prune
from reconrisk.defenses.registry import defense_by_name
from reconrisk.metrics.goals import psnr_at_least, ssim_at_least
from reconrisk.models import lenet
from reconrisk.releases.updates.gradient import GradientMap
from reconrisk.studies.audit.result import AuditResult
from reconrisk.studies.audit.run import AuditOptions, audit


def self_check(*, features: int = 64, seed: int = 0) -> float:
    """Return the largest error of reconstructing a random record from the gradient of a linear layer.

    Args:
        features: Number of values of the record.
        seed: Seed of the record and the weights.

    Returns:
        The largest absolute error; a sound installation is exact up to rounding.

    >>> self_check() < 1e-5
    True
    """
    rng = torch.Generator().manual_seed(seed)
    layer = nn.Linear(features, 10)
    with torch.no_grad():
        for parameter in layer.parameters():
            # Weights of this scale give outputs of order one.
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / features**0.5)
    target = torch.rand(1, features, generator=rng)
    forward = GradientMap(layer)
    observation = Observation(
        released={name: value.detach() for name, value in forward(target, torch.tensor([3])).items()},
        forward=forward,
        threat=HONEST_BUT_CURIOUS,
        input_shape=(features,),
        data_range=(0.0, 1.0),
    )
    return float((analytic()(observation, rng=rng).estimates - target).abs().max())


TRIALS = 4
"""Default number of attacked gradients."""

_SEEDS = 2**63  # torch.Generator takes seeds below this
# A first-order search comes near the digit; Gauss-Newton then converges to it.
_ATTACKS = (("gauss_newton", {"iterations": 20, "warm_start": ("inverting_gradients", {"steps": 100})}),)
_BUDGET = "90s"  # for planning and trials; training the network comes before
_PRIVATE = {"noise_multiplier": 1.0, "clip_norm": 1.0}


@dataclass(frozen=True)
class DemoResult:
    """Result of the demonstration.

    Attributes:
        audit: The audit.
        accuracy: Accuracy of the attacked network on unseen digits.
    """

    audit: AuditResult
    accuracy: float


def run_demo(*, seed: int = 0, trials: int = TRIALS, show_plan: Callable[[str], None] | None = None) -> DemoResult:
    """Train a small network on the bundled digits, release gradients of test digits, and audit them.

    Each gradient is released undefended, clipped with noise, with optimal noise of the same guarantee, and pruned. The
    adversary sees the gradient, the network and the defense, and infers the labels. The training digits are public.

    Args:
        seed: Seed of the training and the audit.
        trials: Number of attacked gradients.
        show_plan: Function that receives the plan as text before the first trial.

    Returns:
        The audit and the accuracy of the network.

    Raises:
        InvalidInput: If ``seed`` or ``trials`` is out of range.
    """
    check_demo(seed=seed, trials=trials)
    rng = torch.Generator().manual_seed(seed)
    with _use_one_thread():
        train, test = (load_dataset("mnist", split=split) for split in ("train", "test"))
        model = lenet(train.shape, 10, activation=nn.Tanh, rng=rng)  # a smooth network suits Gauss-Newton
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for rows in track(torch.randperm(len(train.inputs), generator=rng).split(64), "Training"):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train.inputs[rows]), train.class_labels[rows]).backward()
            optimizer.step()
        model.eval()
        accuracy = float((model(test.inputs).argmax(1) == test.class_labels).float().mean())
        result = audit(
            model,
            test,
            defenses=(None, clip_and_noise(**_PRIVATE), defense_by_name("optimal_noise", **_PRIVATE), prune(0.9)),
            attacks=_ATTACKS,
            goals=(psnr_at_least(20), ssim_at_least(0.5)),
            trials=trials,
            budget=_BUDGET,
            options=AuditOptions(
                seed=seed,
                public=train,
                name="lenet with tanh",
                show_plan=show_plan,
                signature=f"reconrisk demo --seed {seed} --trials {trials}",
            ),
        )
    return DemoResult(result, accuracy)


@contextmanager
def _use_one_thread() -> Iterator[None]:
    """Run the body in one thread: small layers gain nothing from more, and wait for them on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_demo(*, seed: int, trials: int) -> None:
    """Check the arguments of :func:`run_demo` before anything is computed.

    Args:
        seed: Seed of the training and the audit.
        trials: Number of attacked gradients.

    Raises:
        InvalidInput: If a value is out of range.
    """
    check_whole("trials", trials)
    if check_whole("seed", seed, minimum=0) >= _SEEDS:
        raise invalid_input("seed", seed, "< 2^63")
