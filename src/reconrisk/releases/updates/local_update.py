"""The update a client of federated averaging sends: several local steps on its own records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import Linearized, Release, check_records
from reconrisk.releases.training.optimizers import UpdateRule, sgd
from reconrisk.releases.training.trained_model import Rows, TrainingMap, check_tensor
from reconrisk.releases.training.unrolled import Named


@dataclass(frozen=True, eq=False)
class LocalUpdateMap:
    r"""Records and labels to the change that training on them makes.

    .. math:: (x, y) \mapsto \theta_T(x, y) - \theta_0

    ``records`` is the number of records the batches were cut for; ``None`` takes any number.

    Edge cases: its derivative is that of ``training``, because the start is known.

    >>> training = TrainingMap(nn.Linear(2, 2), nn.functional.cross_entropy, sgd(0.1), steps=3)
    >>> LocalUpdateMap(training)(torch.ones(4, 2), torch.tensor([0, 1, 1, 0]))["bias"].shape
    torch.Size([2])
    """

    training: TrainingMap
    records: int | None = None

    def __call__(self, inputs: Tensor, labels: Tensor) -> Named:
        """Values after minus values before, differentiable with respect to ``inputs``."""
        self._check(inputs)
        start = self.training.start(inputs.dtype)
        return {name: value - start[name] for name, value in self.training(inputs, labels).items()}

    def linearized(self, inputs: Tensor, labels: Tensor) -> Linearized:
        """The derivative at ``inputs``, as :meth:`TrainingMap.linearized`."""
        self._check(inputs)
        return self.training.linearized(inputs, labels)

    def _check(self, inputs: Tensor) -> None:
        if self.records is not None and len(inputs) != self.records:
            raise invalid_input(
                "len(inputs)", len(inputs), f"to be {self.records}, the records its batches are cut from"
            )


@dataclass(frozen=True, eq=False)
class LocalUpdateRelease(Release):
    r"""What one client of federated averaging sends: weights after minus weights before its local steps.

    .. math:: f(x) = \theta_T - \theta_0, \qquad B_t \text{ the next } b \text{ records in their order}

    Training lasts ``steps`` batches or ``epochs`` passes over the records; ``learning_rate`` stands for
    ``optimizer=sgd(learning_rate)``. Batches are consecutive records, the same in each pass, the last of a pass
    possibly smaller; without ``batch_size`` every step takes all. Or ``batches`` lists the record numbers of each step,
    the client's own order.

    Assumes: the server knows start, optimizer and order, and ``loss_fn`` averages or sums as the client's does. Else as
    :class:`TrainingMap`, running statistics of batch norm included.
    Edge cases: one step of plain SGD is the gradient times minus the learning rate. Records after the last batch of
    ``steps`` do not enter.
    Reference: FederatedAveraging, `McMahan et al. (2017) <https://arxiv.org/abs/1602.05629>`_, Algorithm 1.

    >>> release = LocalUpdateRelease(
    ...     nn.Linear(2, 2), nn.functional.cross_entropy, torch.ones(5, 2), torch.tensor([0, 1, 1, 0, 1]),
    ...     learning_rate=0.1, epochs=2, batch_size=2,
    ... )
    >>> len(release.forward.training.batches)
    6
    """

    model: nn.Module
    loss_fn: LossFunction
    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    optimizer: UpdateRule | None = field(default=None, kw_only=True)
    learning_rate: float | None = field(default=None, kw_only=True)
    steps: int | None = field(default=None, kw_only=True)
    epochs: int | None = field(default=None, kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)
    batches: Sequence[Rows] | None = field(default=None, repr=False, kw_only=True)
    parameters: Sequence[str] | None = field(default=None, kw_only=True)
    checkpoint_every: int | None = field(default=None, kw_only=True)
    _map: LocalUpdateMap = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_tensor("inputs", self.inputs)
        check_tensor("labels", self.labels)
        check_records(self.inputs, self.labels)
        stated = (self.steps, self.epochs, self.batch_size)
        if self.batches is not None and stated != (None, None, None):
            remedy = "They say already how long training lasts."
            raise invalid_input("(steps, epochs, batch_size)", stated, "to be left out with batches", remedy)
        batches = self.batches
        if batches is None:
            batches = consecutive_batches(len(self.inputs), self.batch_size, steps=self.steps, epochs=self.epochs)
        everything = self.batches is None and self.batch_size is None
        training = TrainingMap(
            self.model,
            self.loss_fn,
            update_rule(self.optimizer, self.learning_rate),
            steps=len(batches),
            batches=None if everything else batches,
            parameters=self.parameters,
            checkpoint_every=self.checkpoint_every,
        )
        training.check(self.inputs, self.labels)
        object.__setattr__(self, "_map", LocalUpdateMap(training, None if everything else len(self.inputs)))

    @property
    def forward(self) -> LocalUpdateMap:
        """The local steps as a function of the records."""
        return self._map

    def value(self) -> Named:
        """The update, by plain training: no graph is kept."""
        with torch.no_grad():
            return self.forward(self.inputs, self.labels)

    def template(self) -> Named:
        """Tensors shaped as the update, without training."""
        return self.forward.training.start(self.inputs.dtype)

    def linearized(self) -> Linearized:
        """The derivative at the records, as :meth:`TrainingMap.linearized`."""
        return self.forward.linearized(self.inputs, self.labels)


def consecutive_batches(
    records: int, batch_size: int | None, *, steps: int | None = None, epochs: int | None = None
) -> list[Tensor]:
    """Record numbers of each step, in order, beginning anew with each pass.

    >>> [rows.tolist() for rows in consecutive_batches(3, 2, steps=3)]
    [[0, 1], [2], [0, 1]]
    """
    if (steps is None) == (epochs is None):
        raise invalid_input(
            "(steps, epochs)", (steps, epochs), "to have exactly one number", "Say how long training lasts."
        )
    size = records if batch_size is None else check_whole("batch_size", batch_size)
    one_pass = torch.arange(records).split(size)
    if epochs is not None:
        return list(one_pass) * check_whole("epochs", epochs)
    return [one_pass[number % len(one_pass)] for number in range(check_whole("steps", steps))]


def update_rule(optimizer: UpdateRule | None, learning_rate: float | None) -> UpdateRule:
    """The stated rule, or plain SGD of this learning rate; exactly one must be given."""
    if optimizer is not None and learning_rate is None:
        return optimizer
    if optimizer is None and learning_rate is not None:
        return sgd(learning_rate)
    given = (optimizer, learning_rate)
    raise invalid_input("(optimizer, learning_rate)", given, "to have exactly one value", "Pass one of them.")
