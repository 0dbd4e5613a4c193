"""Training under a defense: clients send defended gradients, a server averages them and steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.core.defense import Defense
from reconrisk.core.progress import track
from reconrisk.core.validation import check_positive, check_whole, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.chain import Chain
from reconrisk.releases.model_state import LossFunction, check_mode
from reconrisk.releases.observe import resolve_defense
from reconrisk.studies.common.subjects.model_updates import Client, require_labels, training_loss
from reconrisk.studies.common.subjects.subject import UpdateRecipe

OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
"""Optimizers of the server, by name."""


@dataclass(frozen=True)
class TrainingRecipe:
    """Settings of a training under a defense.

    Attributes:
        steps: Training steps; 100 if neither steps nor epochs are stated.
        epochs: Passes through the training records, instead of steps.
        clients: Clients whose defended gradients are averaged at each step.
        batch_size: Records of each client at each step.
        optimizer: ``"sgd"`` or ``"adam"``.
        learning_rate: Learning rate of the optimizer.

    Raises:
        InvalidInput: If both steps and epochs are stated, or a value is out of range.

    >>> TrainingRecipe(epochs=2).steps is None, TrainingRecipe().steps
    (True, 100)
    """

    steps: int | None = None
    epochs: int | None = None
    clients: int = 1
    batch_size: int = 16
    optimizer: str = "sgd"
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise invalid_input(
                "(steps, epochs)",
                (self.steps, self.epochs),
                "to have exactly one number",
                "Pass either steps or epochs.",
            )
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 100)
        for name in ("steps", "epochs", "clients", "batch_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_whole(name, getattr(self, name)))
        if self.optimizer not in OPTIMIZERS:
            raise invalid_input("optimizer", self.optimizer, f"to be one of {', '.join(OPTIMIZERS)}")
        check_positive("learning_rate", self.learning_rate)


DEFAULT_TRAINING = TrainingRecipe()
_SIXTEEN = UpdateRecipe(batch_size=16)
_EVALUATED = 512  # records of one forward pass of the evaluation


@dataclass(frozen=True, eq=False)
class DefendedTraining:
    """Outcome of a training under a defense.

    Attributes:
        model: The trained model.
        losses: Mean training loss of the clients' batches before each step.
        training_loss: Mean training loss of the trained model over the training records.
        test_loss: The same loss over the test records; None without test records.
        test_accuracy: Accuracy over the test records; None without test records or classes.
        seconds: Time of the training.
        client_gradients: Number of updates that the clients computed.
        defense_gradients: Additional cost of the defense, in units of one gradient; None if the defense does not
            report it.
        diverged: True if a gradient was not finite. Training ended before that step.
    """

    model: nn.Module
    losses: tuple[float, ...]
    training_loss: float
    test_loss: float | None
    test_accuracy: float | None
    seconds: float
    client_gradients: int
    defense_gradients: float | None
    diverged: bool

    def __repr__(self) -> str:
        """Describe the outcome without the model."""
        accuracy = "" if self.test_accuracy is None else f", test accuracy {self.test_accuracy:.4g}"
        end = ", diverged" if self.diverged else ""
        return f"DefendedTraining({len(self.losses)} steps, training loss {self.training_loss:.4g}{accuracy}{end})"


def train_defended(
    model: nn.Module,
    training: Dataset,
    defense: Defense | None = None,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    test: Dataset | None = None,
    clients: int = 1,
    update: UpdateRecipe = _SIXTEEN,
    optimizer: str = "sgd",
    learning_rate: float = 0.1,
    rng: torch.Generator,
) -> DefendedTraining:
    r"""Train a copy of ``model`` on gradients that each client defends before they are averaged.

    .. math:: \theta_{t+1} = \mathrm{step}\Bigl(\theta_t, \frac1n \sum_{i=1}^n D\bigl(g_i(\theta_t)\bigr)\Bigr)

    Here :math:`\theta_t` are the parameters, :math:`g_i` is the gradient of client i of n, and D the defense. The
    training records are divided among the clients once. At each step every client takes its next batch; the order
    of its records is drawn again after every pass. Clients defend their updates independently, each with its own noise.
    A defense that depends on the client's records or the current model (``for_release``) is chosen by each client.

    Args:
        model: Network to train; it is not changed.
        training: Training records.
        defense: Defense of every update; None for none.
        steps: Training steps; stated if and only if ``epochs`` is not.
        epochs: Passes through the training records, instead of ``steps``.
        test: Test records of the trained model; None for none.
        clients: Clients whose updates are averaged.
        update: Batch size, loss and kind of update. With local steps, clients send the weight change of local SGD and
            the server moves by ``learning_rate`` times the mean change. The default loss fits the labels.
        optimizer: Optimizer of the server, ``"sgd"`` or ``"adam"``.
        learning_rate: Learning rate of the server.
        rng: Source of the division of records, their order and the noise, in this order.

    Returns:
        The trained model, its losses and the cost of the training.

    Raises:
        InvalidInput: If neither or both of ``steps`` and ``epochs`` are stated, a client has fewer records than a
            batch, or another argument is invalid.

    Assumes: the model is in the mode that clients train in. A defense with a state (``fresh``) is not changed.
    Guarantee: the same result for the same ``rng``. The records of a step do not depend on the defense, so runs with
    equal seeds differ by the defense alone. Cost: one gradient per client and step, and one forward pass over all
    records at the end.
    Edge cases: the last records of a client that do not fill a batch are skipped until the next pass. If a gradient is
    not finite, training ends and ``diverged`` is True; records without finite outputs count as wrong.
    Reference: the training of appendix C.1, chen2025: 4 clients with batches of 16.

    >>> inputs = torch.rand(64, 2, generator=torch.Generator().manual_seed(0))
    >>> data = Dataset("toy", inputs, (inputs[:, 0] > inputs[:, 1]).long())
    >>> rng = torch.Generator().manual_seed(0)
    >>> done = train_defended(nn.Linear(2, 2), data, steps=200, test=data, learning_rate=2.0, rng=rng)
    >>> len(done.losses), done.test_accuracy > 0.8
    (200, True)
    """
    check_mode(model, batch_norm=True)
    stepped = _steps(steps, epochs, len(training), clients, update.batch_size)
    begun, working = time.monotonic(), copy.deepcopy(model)
    loss_fn = update.loss_fn or training_loss(copy.deepcopy(model).eval(), training)
    fresh = fresh_defense(defense)
    server = _make_optimizer(working, optimizer, learning_rate)
    if not isinstance(rng, torch.Generator):
        raise invalid_input("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    # Separate generators: the noise of a defense must not change the records of later steps.
    seeds = torch.randint(2**62, (2,), generator=rng).tolist()  # 2**62 is below the largest int64
    order, noise = (torch.Generator().manual_seed(seed) for seed in seeds)
    batches = _batches(training, check_whole("clients", clients), update.batch_size, order)
    losses: list[float] = []
    for _ in track(range(stepped), "training"):
        sent, loss = _run_round(Client(working, loss_fn, update), next(batches), fresh, noise)
        if not all(bool(value.isfinite().all()) for value in sent.values()):
            break
        losses.append(loss)
        for name, parameter in working.named_parameters():
            parameter.grad = sent.get(name)
        server.step()
    working.zero_grad(set_to_none=True)
    final_loss, _ = evaluate_model(working, training, loss_fn)
    test_loss, accuracy = (None, None) if test is None else evaluate_model(working, test, loss_fn)
    return DefendedTraining(
        model=working,
        losses=tuple(losses),
        training_loss=final_loss,
        test_loss=test_loss,
        test_accuracy=accuracy,
        seconds=time.monotonic() - begun,
        client_gradients=len(losses) * clients,
        defense_gradients=_gradients_spent(fresh),
        diverged=len(losses) < stepped,
    )


def fresh_defense(defense: Defense | None) -> Defense | None:
    """Return a defense in its initial state.

    Args:
        defense: A defense; None for none.

    Returns:
        A copy with its state reset, or the same object if it has no state.

    >>> fresh_defense(None) is None
    True
    """
    if isinstance(defense, Chain):
        return Chain(tuple(fresh for fresh in map(fresh_defense, defense.parts) if fresh is not None))
    begin: Callable[[], Defense] | None = getattr(defense, "fresh", None)
    return defense if begin is None else begin()


def evaluate_model(model: nn.Module, dataset: Dataset, loss_fn: LossFunction) -> tuple[float, float | None]:
    """Return the mean loss and the accuracy of a model in evaluation mode.

    Args:
        model: Network to evaluate; it is not changed.
        dataset: Records with labels.
        loss_fn: Loss of outputs and labels, averaged over records.

    Returns:
        The mean loss and the accuracy; the accuracy is None for real labels.

    Edge cases: a loss that is not finite counts as infinite; outputs that are not finite count as wrong.

    >>> data = Dataset("toy", torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    >>> evaluate_model(nn.Identity(), data, nn.functional.cross_entropy)[1]
    0.5
    """
    labels, quiet = require_labels(dataset), copy.deepcopy(model).eval()
    total, right = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(dataset), _EVALUATED):
            outputs = quiet(dataset.inputs[start : start + _EVALUATED])
            answers = labels[start : start + _EVALUATED]
            total += float(loss_fn(outputs, answers)) * len(answers)
            if not labels.is_floating_point():
                # the class is the largest output, or the sign of the only one
                classes = (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)
                right += int((classes == answers).logical_and(outputs.isfinite().flatten(1).all(1)).sum())
    mean = total / len(dataset)
    return (mean if mean < float("inf") else float("inf")), (  # the comparison is False for NaN too
        None if labels.is_floating_point() else right / len(dataset)
    )


def _run_round(
    client: Client,
    batches: tuple[tuple[Tensor, Tensor], ...],
    defense: Defense | None,
    rng: torch.Generator,
) -> tuple[dict[str, Tensor], float]:
    """Return the mean update of the clients, as a gradient for the optimizer, and their mean loss."""
    sign = 1.0 if client.recipe.local_steps is None else -1.0  # a weight change points downhill, a gradient uphill
    mean: dict[str, Tensor] = {}
    losses = []
    for inputs, labels in batches:
        update, loss = _compute_update(client, inputs, labels)
        losses.append(loss)
        if not all(bool(value.isfinite().all()) for value in update.values()):
            return update, loss  # defenses refuse such values, and the caller ends the training
        if defense is not None:
            by_client = hasattr(defense, "for_release")
            own = resolve_defense(defense, client.release(inputs, labels)) if by_client else defense
            update = own(update, rng=rng)
        for name, value in update.items():
            part = sign * value / len(batches)
            mean[name] = mean[name] + part if name in mean else part
    return mean, sum(losses) / len(losses)


def _compute_update(client: Client, inputs: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], float]:
    """Return the undefended update of a client, and its loss before the update."""
    if client.recipe.local_steps is not None:
        with torch.no_grad():
            loss = client.loss_fn(client.model(inputs), labels)
        return dict(client.release(inputs, labels).value()), float(loss)
    named = {name: value for name, value in client.model.named_parameters() if value.requires_grad}
    loss = client.loss_fn(client.model(inputs), labels)
    # Parameters that the loss does not use get a gradient of zeros.
    found = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    return dict(zip(named, found, strict=True)), float(loss.detach())


def _gradients_spent(defense: Defense | None) -> float | None:
    """Return the cost that the parts of a defense report, in gradients; None if none reports it."""
    if defense is None:
        return 0.0
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    reported = [spent for spent in (getattr(part, "gradients_spent", None) for part in parts) if spent is not None]
    return float(sum(reported)) if reported else None


def _batches(
    dataset: Dataset, clients: int, batch_size: int, rng: torch.Generator
) -> Iterator[tuple[tuple[Tensor, Tensor], ...]]:
    """Yield the batches of all clients for one step after the other, without end."""
    labels, share = require_labels(dataset), len(dataset) // clients
    # Equal shares; the remaining records, fewer than clients, are not used.
    shares = torch.randperm(len(dataset), generator=rng)[: clients * share].view(clients, share)
    while True:
        order = torch.stack([each[torch.randperm(share, generator=rng)] for each in shares])
        for start in range(0, share - batch_size + 1, batch_size):
            rows = order[:, start : start + batch_size]
            yield tuple((dataset.inputs[own], labels[own]) for own in rows)


def _steps(steps: int | None, epochs: int | None, records: int, clients: int, batch_size: int) -> int:
    if (steps is None) == (epochs is None):
        raise invalid_input(
            "(steps, epochs)", (steps, epochs), "to have exactly one number", "Pass either steps or epochs."
        )
    each = records // check_whole("clients", clients) // check_whole("batch_size", batch_size)
    if each < 1:
        remedy = "Pass more records, fewer clients or a smaller batch_size."
        raise invalid_input(
            "number of training records", records, f">= {clients * batch_size}, a batch for every client", remedy
        )
    return check_whole("steps", steps) if epochs is None else check_whole("epochs", epochs) * each


def _make_optimizer(model: nn.Module, optimizer: str, learning_rate: float) -> torch.optim.Optimizer:
    if optimizer not in OPTIMIZERS:
        raise invalid_input("optimizer", optimizer, f"to be one of {', '.join(OPTIMIZERS)}")
    rate = check_positive("learning_rate", learning_rate)
    trained = [value for value in model.parameters() if value.requires_grad]
    if not trained:
        raise invalid_input(
            "type(model)", type(model).__name__, "to have parameters to train", "Call model.requires_grad_()."
        )
    return OPTIMIZERS[optimizer](trained, lr=rate)  # type: ignore[call-arg]  # both take lr
