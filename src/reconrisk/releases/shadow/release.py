"""A privately trained model as a release; the randomness of training is drawn anew for each release."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian, Repeated
from reconrisk.core.validation import invalid_input
from reconrisk.releases.release import Linearized, Release, check_records
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.training import ShadowTraining

_NO_NOISE = 1e-12  # a noise multiplier below rounding: a Gaussian mechanism must have one above zero


@dataclass(frozen=True, eq=False)
class PrivateTrainingMap:
    """Forward map from a record to the privately trained model, without its noise.

    Attributes:
        training: The training; it holds no target.
    """

    training: ShadowTraining

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the model of one record, trained with clipping but without noise; it has no derivative."""
        quiet = self.training
        if quiet.private is not None:
            quiet = replace(quiet, private=Gaussian(_NO_NOISE, quiet.private.clip_norm))
        return quiet.unflatten(quiet.train(inputs.detach(), labels, rng=torch.Generator().manual_seed(0))[0])


@dataclass(frozen=True, eq=False)
class PrivateModelRelease(Release):
    r"""The model of a private training on its fixed records and one more.

    .. math:: f(x) = \theta_T(D_- \cup \{x\}; \mathrm{seed})

    Here :math:`\theta_T` are the parameters after T steps, :math:`D_-` the fixed records and x the private one.

    Attributes:
        training: The private training, which the adversary knows.
        inputs: The private record, ``(1, *shape)``.
        labels: Its label.
        seed: Seed of the noise of training, which the adversary does not know.

    Assumes: only the noise is random; order and start are known.
    Guarantee: the same for the same seed. ``mechanism`` composes one Gaussian mechanism per step, which is valid for
    any known batches. Training is in float64 with exactly rounded noise, whatever the precision of the record.
    Edge cases: there is no derivative. For training without ``private`` use ``TrainedModelRelease``.
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
                "training.private",
                None,
                "to be a Gaussian mechanism",
                "Use rr.releases.TrainedModelRelease for training without noise.",
            )
        self.training.check(self.inputs, self.labels)
        self._check_batches()

    def _check_batches(self) -> None:
        """Raise InvalidInput if a batch holds the record twice: its contribution is then twice the clipping norm."""
        batches, target = self.training.batches, len(self.training.fixed_inputs)
        if batches is None or isinstance(batches, RandomBatches):
            return
        for step, rows in enumerate(batches):
            times = int((torch.as_tensor(rows) == target).sum())
            if times > 1:
                remedy = f"Keep row {target} at most once in each batch: the mechanism counts it once."
                raise invalid_input(f"batches[{step}]", rows, f"to hold the record once, not {times} times", remedy)

    @property
    def forward(self) -> PrivateTrainingMap:
        """Training with the fixed records; it holds neither the record nor the seed."""
        return PrivateTrainingMap(self.training)

    @property
    def mechanism(self) -> Repeated:
        """The mechanism of the whole training: one Gaussian mechanism per step."""
        training = self.training
        if training.private is None:
            raise invalid_input(
                "training.private",
                None,
                "to be a Gaussian mechanism",
                "Use rr.releases.TrainedModelRelease for training without noise.",
            )
        return Repeated(training.private, training.step_count)

    def redraw(self, rng: torch.Generator) -> PrivateModelRelease:
        """Return the same training with new noise."""
        return replace(self, seed=int(torch.randint(2**62, (), generator=rng)))

    def value(self) -> dict[str, Tensor]:
        """Return the trained model by parameter name."""
        rng = torch.Generator().manual_seed(self.seed)
        trained = self.training.train(self.inputs.double(), self.labels, rng=rng)[0]
        return self.training.unflatten(trained.to(self.inputs.dtype))

    def template(self) -> dict[str, Tensor]:
        """Return tensors in the shapes of the model, without training."""
        return self.training.unflatten(self.training.start(self.inputs.dtype))

    def _linearize(self) -> Linearized:
        """Raise InvalidInput: clipped gradients have no derivative at the clipping norm."""
        raise InvalidInput(
            "Clipped training has no derivative. Use rr.releases.TrainedModelRelease for training without clipping."
        )
