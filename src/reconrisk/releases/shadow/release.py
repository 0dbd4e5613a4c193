"""A model of private training as a release: what training draws is drawn anew for each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian, Repeated
from reconrisk.core.validation import invalid_input
from reconrisk.releases.release import Linearized, Release, check_records
from reconrisk.releases.shadow.training import ShadowTraining

_NO_NOISE = 1e-12  # a noise multiplier that rounding hides


@dataclass(frozen=True, eq=False)
class PrivateTrainingMap:
    """Records to the model that private training ends with, as it would be without noise; it holds no target."""

    training: ShadowTraining

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The model of one record; clipped, without noise and without a derivative."""
        quiet = self.training
        if quiet.private is not None:
            quiet = replace(quiet, private=Gaussian(_NO_NOISE, quiet.private.clip_norm))
        return quiet.unflatten(quiet.train(inputs.detach(), labels, rng=torch.Generator().manual_seed(0))[0])


@dataclass(frozen=True, eq=False)
class PrivateModelRelease(Release):
    r"""The model that private ``training`` makes of its fixed records and one more.

    .. math:: f(x) = \theta_T(D_- \cup \{x\}; \mathrm{seed})

    ``seed`` stands for the noise of training; an adversary gets ``training`` without it.

    Assumes: nothing but the noise is drawn: order and start are known.
    Guarantee: the same for the same seed. ``mechanism`` is as many Gaussian mechanisms as there are steps, one after
    the other, which holds for any known batches.
    Edge cases: there is no derivative. Training without ``private`` is that of a ``TrainedModelRelease``.
    Reference: sections II and VII, balle2022.

    >>> from reconrisk.releases.training.optimizers import sgd
    >>> fixed = (torch.eye(2), torch.tensor([0, 1]))
    >>> training = ShadowTraining(torch.nn.Linear(2, 2), *fixed, sgd(0.1), steps=3, private=Gaussian(2.0, 1.0))
    >>> PrivateModelRelease(training, torch.ones(1, 2), torch.tensor([0])).mechanism
    Repeated(mechanism=Gaussian(noise_multiplier=2.0, clip_norm=1.0), steps=3)
    """

    training: ShadowTraining
    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    seed: int = 0

    def __post_init__(self) -> None:
        check_records(self.inputs, self.labels)
        if self.training.private is None:
            raise invalid_input(
                "training.private", None, "to be a Gaussian mechanism", "Use rr.releases.TrainedModelRelease."
            )
        self.training.check(self.inputs, self.labels)

    @property
    def forward(self) -> PrivateTrainingMap:
        """Training with the fixed records; it holds neither the record nor the seed."""
        return PrivateTrainingMap(self.training)

    @property
    def mechanism(self) -> Repeated:
        """What private training guarantees."""
        training = self.training
        if training.private is None:
            raise invalid_input("training.private", None, "to be a Gaussian mechanism")
        return Repeated(training.private, training.step_count)

    def drawn(self, rng: torch.Generator) -> PrivateModelRelease:
        """The same training with noise of its own."""
        return replace(self, seed=int(torch.randint(2**62, (), generator=rng)))

    def value(self) -> dict[str, Tensor]:
        """The trained model, by names."""
        rng = torch.Generator().manual_seed(self.seed)
        return self.training.unflatten(self.training.train(self.inputs, self.labels, rng=rng)[0])

    def template(self) -> dict[str, Tensor]:
        """Tensors shaped as the model, without training."""
        return self.training.unflatten(self.training.start(self.inputs.dtype))

    def linearized(self) -> Linearized:
        """Refused: clipped gradients have no derivative where clipping sets in."""
        raise InvalidInput("Expected a release with a derivative: clipped training has none.")
