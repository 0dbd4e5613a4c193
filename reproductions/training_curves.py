"""What the training curves of chen2025 share: four clients, Adam, the same records for every defense of a seed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.data import load_dataset
from reconrisk.data.dataset import Dataset
from reconrisk.models import chen2025_mnist
from reconrisk.studies.common.defended_training import DefendedTraining, train_defended
from reconrisk.studies.common.subjects.subject import UpdateRecipe
from reproductions.frame import Drawing, Scale
from reproductions.gradient_inversion import mean_over

CLIENTS = 4
BATCH = 16
WINDOW = 8
"""Steps over which the paper smooths its curves."""


@dataclass(frozen=True, eq=False)
class Course:
    """What is trained on, and for how long; ``public`` records are neither trained on nor tested."""

    training: Dataset
    public: Dataset
    test: Dataset
    epochs: int
    seeds: int
    learning_rate: float

    @property
    def remark(self) -> str:
        """The course in words."""
        return (
            f"{len(self.training)} digits, {CLIENTS} clients x {BATCH}, {self.epochs} epochs (the paper does not say), "
            f"Adam {self.learning_rate:g}, {self.seeds} seeds: networks, orders, noise; {len(self.test)} test digits"
        )


def mnist_course(scale: Scale, *, learning_rate: float) -> Course:
    """The paper's 4096 digits; how long it trains it does not say."""
    digits = load_dataset("mnist-full", split="train")
    small = scale == "small"
    return Course(
        training=digits.subset(range(4096)),
        public=digits.subset(range(4096, 4096 + (64 if small else 512))),
        test=load_dataset("mnist-full", split="test"),
        epochs=1 if small else 10,
        seeds=3 if small else 10,
        learning_rate=learning_rate,
    )


def trained(
    course: Course, defenses: Mapping[str, Callable[[], Defense | None]]
) -> dict[str, tuple[DefendedTraining, ...]]:
    """Each defense's training for every seed."""
    found: dict[str, list[DefendedTraining]] = {name: [] for name in defenses}
    for seed in range(course.seeds):
        model = chen2025_mnist(rng=torch.Generator().manual_seed(seed))
        for name, defense in defenses.items():
            done = train_defended(
                model,
                course.training,
                defense(),
                epochs=course.epochs,
                test=course.test,
                clients=CLIENTS,
                update=UpdateRecipe(BATCH, nn.functional.cross_entropy),
                optimizer="adam",
                learning_rate=course.learning_rate,
                rng=torch.Generator().manual_seed(seed),
            )
            found[name].append(done)
            print(f"seed {seed} {name}: {done}, {done.seconds:.0f} s", file=sys.stderr, flush=True)
    return {name: tuple(runs) for name, runs in found.items()}


def smoothed(runs: Sequence[DefendedTraining]) -> Tensor:
    """Training losses of each run as means of ``WINDOW`` steps, ``(runs, steps - WINDOW + 1)``."""
    return torch.tensor([run.losses for run in runs]).unfold(1, WINDOW, 1).mean(2)


def curve_in_words(runs: Sequence[DefendedTraining]) -> str:
    """The smoothed training loss after a quarter, a half and all of the steps."""
    curves = smoothed(runs)
    last = curves.shape[1] - 1
    means = [f"{float(curves[:, place].mean()):.3f}" for place in (last // 4, last // 2)]
    return f"{', '.join(means)}, {mean_over(curves[:, last], 'seeds')}"


def loss_difference(runs: Sequence[DefendedTraining], others: Sequence[DefendedTraining]) -> str:
    """Mean training loss over all steps, one defense minus another, with what it says."""
    difference = mean_over(smoothed(runs).mean(1) - smoothed(others).mean(1), "seeds")
    word = "faster" if difference.high < 0 else "slower" if difference.low > 0 else "no difference shown"
    return f"{word}: {difference}"


def curve_plot(name: str, runs: Mapping[str, Sequence[DefendedTraining]]) -> Drawing:
    """The smoothed curves, means over seeds."""

    def write(path: Path) -> None:
        import matplotlib.pyplot as plt

        figure, axis = plt.subplots(figsize=(6, 4))
        for label, each in runs.items():
            axis.plot(smoothed(each).mean(0), label=label)
        axis.set(xlabel="step", ylabel=f"training loss, mean of {WINDOW} steps")
        axis.legend()
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)

    return Drawing(name, write)
