"""The update that a client of federated averaging sends after several local steps on its own records."""

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


@dataclass(frozen=True)
class LocalTraining:
    """Local training of a client: optimizer, duration and mini-batches.

    Attributes:
        learning_rate: Learning rate of plain SGD; state this or ``optimizer``.
        optimizer: Update rule such as ``rr.releases.adam(0.01)``; state this or ``learning_rate``.
        steps: Number of local steps; one if neither ``steps`` nor ``epochs`` is stated.
        epochs: Number of passes over the client's records, instead of ``steps``.
        batch_size: Consecutive records in each step, the last batch of a pass possibly smaller; by default all.

    Raises:
        InvalidInput: If not exactly one of ``learning_rate`` and ``optimizer`` is stated, if both ``steps`` and
            ``epochs`` are, or if a number is out of range.

    >>> [rows.tolist() for rows in LocalTraining(learning_rate=0.1, epochs=1, batch_size=2).batches(3)]
    [[0, 1], [2]]
    """

    learning_rate: float | None = None
    optimizer: UpdateRule | None = None
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        update_rule(self.optimizer, self.learning_rate)
        self.batches(1)  # refuses numbers that are out of range

    @property
    def rule(self) -> UpdateRule:
        """The update rule of each step."""
        return update_rule(self.optimizer, self.learning_rate)

    def batches(self, records: int) -> list[Tensor]:
        """Return the row numbers of each step for a client with this many records."""
        steps = 1 if self.steps is None and self.epochs is None else self.steps
        return consecutive_batches(records, self.batch_size, steps=steps, epochs=self.epochs)


@dataclass(frozen=True, eq=False)
class LocalUpdateMap:
    r"""Forward map from records and labels to the weight change of training on them.

    .. math:: (x, y) \mapsto \theta_T(x, y) - \theta_0

    Here :math:`\theta_t` are the weights after t steps of training on records x with labels y.

    Attributes:
        training: Training as a function of the records.
        records: Number of records that the batches index; None accepts any number.

    Edge cases: the derivative equals that of ``training``, because the start is known.

    >>> training = TrainingMap(nn.Linear(2, 2), nn.functional.cross_entropy, sgd(0.1), steps=3)
    >>> LocalUpdateMap(training)(torch.ones(4, 2), torch.tensor([0, 1, 1, 0]))["bias"].shape
    torch.Size([2])
    """

    training: TrainingMap
    records: int | None = None

    def __call__(self, inputs: Tensor, labels: Tensor) -> Named:
        """Return the weights after training minus those before, differentiable with respect to ``inputs``."""
        self._check(inputs)
        start = self.training.start(inputs.dtype)
        return {name: value - start[name] for name, value in self.training(inputs, labels).items()}

    def linearize(self, inputs: Tensor, labels: Tensor) -> Linearized:
        """Return the derivative at ``inputs``; see :meth:`TrainingMap.linearize`."""
        self._check(inputs)
        return self.training.linearize(inputs, labels)

    def _check(self, inputs: Tensor) -> None:
        if self.records is not None and len(inputs) != self.records:
            raise invalid_input(
                "len(inputs)", len(inputs), f"to be {self.records}, the number of records that the batches index"
            )


@dataclass(frozen=True, eq=False)
class LocalUpdateRelease(Release):
    r"""The update of one client of federated averaging: weights after minus weights before its local steps.

    .. math:: f(x) = \theta_T - \theta_0, \qquad B_t \text{ the next } b \text{ records in their order}

    Here :math:`\theta_t` are the weights after t local steps, and b is ``batch_size``. Batches :math:`B_t` are
    consecutive records, the same in each pass; the last one of a pass may be smaller.

    Attributes:
        model: Network that the client trains, with the weights that the server sent.
        loss_fn: Loss of the outputs and labels of a batch; it averages or sums over records as the loss of the client
            does.
        inputs: Private records, ``(n, *shape)``.
        labels: Private labels, one per record.
        optimizer: Update rule of the client; state this or ``learning_rate``.
        learning_rate: Short for ``optimizer=sgd(learning_rate)``.
        steps: Number of local steps; state this, ``epochs`` or ``batches``.
        epochs: Number of passes over the records.
        batch_size: Records in each step; by default all.
        batches: Row numbers of each step, in the client's own order, instead of the three settings above.
        parameters: Names of the released parameters or layers; by default all that training changes.
        checkpoint_every: Steps between the states that reverse mode keeps; by default the whole graph is kept.

    Assumes: the server knows start, optimizer and order. Otherwise as :class:`TrainingMap`, running statistics of
    batch norm included.
    Edge cases: one step of plain SGD is the gradient times minus the learning rate. Records that come after the last
    of the ``steps`` do not enter.
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
            remedy = "Remove them: the batches determine the number of steps."
            raise invalid_input("(steps, epochs, batch_size)", stated, "to be left out if batches are given", remedy)
        batches = self.batches
        if batches is None:
            batches = consecutive_batches(len(self.inputs), self.batch_size, steps=self.steps, epochs=self.epochs)
        # Full batches need no row numbers, and the map then accepts any number of candidate records.
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
        """Return the update, by plain training without a graph."""
        with torch.no_grad():
            return self.forward(self.inputs, self.labels)

    def template(self) -> Named:
        """Return tensors of the update's shapes, without training."""
        return self.forward.training.start(self.inputs.dtype)

    def _linearize(self) -> Linearized:
        """Return the derivative at the records; see :meth:`TrainingMap.linearize`."""
        return self.forward.linearize(self.inputs, self.labels)


def consecutive_batches(
    records: int, batch_size: int | None, *, steps: int | None = None, epochs: int | None = None
) -> list[Tensor]:
    """Return the row numbers of each step, in order, starting again with each pass over the records.

    Args:
        records: Number of records.
        batch_size: Records in each step; None takes all.
        steps: Number of steps; state this or ``epochs``.
        epochs: Number of passes over the records.

    Returns:
        One tensor of row numbers per step.

    Raises:
        InvalidInput: If not exactly one of ``steps`` and ``epochs`` is stated, or a number is below 1.

    >>> [rows.tolist() for rows in consecutive_batches(3, 2, steps=3)]
    [[0, 1], [2], [0, 1]]
    """
    if (steps is None) == (epochs is None):
        raise invalid_input(
            "(steps, epochs)", (steps, epochs), "to have exactly one number", "Pass either steps or epochs."
        )
    size = records if batch_size is None else check_whole("batch_size", batch_size)
    one_pass = torch.arange(records).split(size)
    if epochs is not None:
        return list(one_pass) * check_whole("epochs", epochs)
    return [one_pass[number % len(one_pass)] for number in range(check_whole("steps", steps))]


def update_rule(optimizer: UpdateRule | None, learning_rate: float | None) -> UpdateRule:
    """Return the update rule of a client, from exactly one of two settings.

    Args:
        optimizer: The rule itself.
        learning_rate: Learning rate of plain SGD.

    Returns:
        ``optimizer``, or ``sgd(learning_rate)``.

    Raises:
        InvalidInput: If both or neither are stated.
    """
    if optimizer is not None and learning_rate is None:
        return optimizer
    if optimizer is None and learning_rate is not None:
        return sgd(learning_rate)
    given = (optimizer, learning_rate)
    raise invalid_input(
        "(optimizer, learning_rate)", given, "to have exactly one value", "Pass either optimizer or learning_rate."
    )
