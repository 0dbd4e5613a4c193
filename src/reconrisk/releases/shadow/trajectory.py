"""All steps of a private training as a release; an adversary who sees every update sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.release import PrivateModelRelease
from reconrisk.releases.shadow.training import ShadowTraining

_NO_NOISE = 1e-12  # a noise multiplier below rounding: a Gaussian mechanism must have one above zero


@dataclass(frozen=True, eq=False)
class TrajectoryMap:
    """Forward map from a record to the change of the parameters in each step, without noise.

    Each step starts at the released parameters, so that the differences of all steps are the noise of the steps.

    Attributes:
        training: The training; it holds no target.
        iterates: Released parameters before each step, one row for each.
    """

    training: ShadowTraining
    iterates: Tensor

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the changes of one record; they have no derivative."""
        private = self.training.private
        quiet = private if private is None else Gaussian(_NO_NOISE, private.clip_norm)
        training, count = replace(self.training, private=quiet), len(self.iterates)
        if training.batches is None:  # equal steps from different parameters are trained together
            copies = (
                inputs.detach().double().expand(count, *inputs.shape[1:]),
                labels.expand(count, *labels.shape[1:]),
            )
            rng = torch.Generator().manual_seed(0)
            after = replace(training, steps=1).train(*copies, starts=self.iterates, rng=rng)
        else:
            rows = enumerate(self.iterates)
            after = torch.stack([_train_step(training, place, inputs, labels, row, seed=0) for place, row in rows])
        found: dict[str, Tensor] = {}
        for place, change in enumerate(after - self.iterates):
            found |= _name_step(self.training, place, change, inputs.dtype)
        return found


@dataclass(frozen=True, eq=False)
class PrivateTrajectoryRelease(PrivateModelRelease):
    """Change of the parameters in each step of a private training on its fixed records and one more.

    Attributes:
        training: The private training, which the adversary knows; without momentum, so that a step depends on the
            parameters before it alone.
        inputs: The private record, ``(1, *shape)``.
        labels: Its label.
        seed: Seed of the noise of training, which the adversary does not know.

    Guarantee: the parameters after the last step have the law of
    :class:`~reconrisk.releases.shadow.release.PrivateModelRelease`.
    """

    @property
    def forward(self) -> TrajectoryMap:  # type: ignore[override]  # another map to released tensors
        """Steps from the released parameters; it holds neither the record nor the seed."""
        return TrajectoryMap(self.training, self._iterates[:-1])

    def value(self) -> dict[str, Tensor]:
        """Return the change in each step by step and parameter."""
        found: dict[str, Tensor] = {}
        for place, change in enumerate(self._iterates.diff(dim=0)):
            found |= _name_step(self.training, place, change, self.inputs.dtype)
        return found

    def template(self) -> dict[str, Tensor]:
        """Return tensors in the shapes of the release."""
        return self.value()

    @cached_property
    def _iterates(self) -> Tensor:
        """Parameters before the first step and after each step, in double precision."""
        rows = [self.training.start(torch.float64)]
        seeds = torch.randint(2**62, (self.training.step_count,), generator=torch.Generator().manual_seed(self.seed))
        for place, seed in enumerate(seeds.tolist()):
            rows.append(_train_step(self.training, place, self.inputs, self.labels, rows[-1], seed=seed))
        return torch.stack(rows)


def _train_step(
    training: ShadowTraining, place: int, inputs: Tensor, labels: Tensor, before: Tensor, *, seed: int
) -> Tensor:
    """Return the parameters after one step from given ones."""
    batches: Sequence[object] | None = None
    if training.batches is not None and not isinstance(training.batches, RandomBatches):
        batches = [training.batches[place]]
    one = replace(training, steps=None if batches is not None else 1, batches=batches)  # type: ignore[arg-type]
    rng = torch.Generator().manual_seed(seed)
    return one.train(inputs.detach().double(), labels, starts=before[None], rng=rng)[0]


def _name_step(training: ShadowTraining, place: int, change: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    named = training.unflatten(change.to(dtype))
    return {f"step {place + 1}: {name}": value for name, value in named.items()}
