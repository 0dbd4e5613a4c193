"""Training of reconstructor networks: held-out shadow targets choose the epoch, and Ctrl-C keeps the best so far.

A :class:`Checkpoint` is the state of a training in a file: safetensors with numbers in its header, no pickle.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from reconrisk.attacks.informed.reconstructor.network import patch_discriminator
from reconrisk.attacks.informed.reconstructor.settings import Perceptual, ReconstructorSettings
from reconrisk.core.digest import content_digest
from reconrisk.core.errors import InvalidFile
from reconrisk.core.progress import ProgressBar
from reconrisk.core.storage.files import write_atomically
from reconrisk.core.validation import invalid_input

Part: TypeAlias = "nn.Module | torch.optim.Optimizer"

_KEY = "reconrisk"
_FORMAT = 2  # version of the digest that identifies a training
_REMEDY = "Delete it and train again, or name another file."


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """State of a training after an epoch.

    Attributes:
        mark: Digest of settings and data, which identifies the training.
        done: Number of finished epochs.
        best_epoch: Epoch of the smallest error so far.
        best_error: Its mean squared error on held-out shadow targets.
        tensors: Networks, optimizers and random state that the next epoch depends on.
    """

    mark: str
    done: int
    best_epoch: int
    best_error: float
    tensors: Mapping[str, Tensor]


def pack(parts: Mapping[str, Part], best: Mapping[str, Tensor], shuffle: torch.Generator) -> dict[str, Tensor]:
    """Collect everything that the next epoch depends on as named tensors.

    Args:
        parts: Networks and optimizers by name.
        best: Parameters of the best network so far.
        shuffle: Generator of the order of batches.

    Returns:
        Copies of all tensors.
    """
    tensors = {f"best.{name}": value for name, value in best.items()}
    tensors["shuffle"] = shuffle.get_state()
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            tensors |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
            continue
        for index, kept in part.state_dict()["state"].items():
            tensors |= {f"{name}.{index}.{key}": torch.as_tensor(value) for key, value in kept.items()}
    return {name: value.detach().clone().contiguous() for name, value in tensors.items()}


def unpack(stored: Checkpoint, parts: Mapping[str, Part], shuffle: torch.Generator) -> dict[str, Tensor]:
    """Restore networks, optimizers and the random state from a checkpoint.

    Args:
        stored: The checkpoint.
        parts: Networks and optimizers by name, changed in place.
        shuffle: Generator of the order of batches, changed in place.

    Returns:
        Parameters of the best network so far.
    """
    shuffle.set_state(stored.tensors["shuffle"])
    for name, part in parts.items():
        own = _under(stored.tensors, name)
        if isinstance(part, nn.Module):
            part.load_state_dict(own)
            continue
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in own.items():
            index, _, field = key.partition(".")
            state.setdefault(int(index), {})[field] = value
        part.load_state_dict({"state": state, "param_groups": part.state_dict()["param_groups"]})
    return _under(stored.tensors, "best")


def write_checkpoint(path: Path, state: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: File to write.
        state: The checkpoint.
    """
    numbers = {"mark": state.mark, "done": state.done, "best_epoch": state.best_epoch, "best_error": state.best_error}
    write_tensors(path, state.tensors, {"format": _FORMAT, **numbers})


def _read_checkpoint(path: Path, mark: str) -> Checkpoint:
    """Read a checkpoint; refuse a file that is damaged or belongs to another training."""
    tensors, numbers = read_header_and_tensors(path, _REMEDY)
    if numbers.get("format") != _FORMAT:
        raise InvalidFile(path, "header", "It was written by another version of reconrisk.", _REMEDY)
    if numbers.get("mark") != mark:
        raise InvalidFile(path, "header", "It belongs to a training with other settings or shadow models.", _REMEDY)
    try:
        return Checkpoint(mark, int(numbers["done"]), int(numbers["best_epoch"]), float(numbers["best_error"]), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFile(path, "header", f"It lacks the state of the training ({error}).", _REMEDY) from error


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
    """Write named tensors and a header of plain values to one safetensors file.

    Args:
        path: File to write.
        tensors: Tensors by name.
        header: Values that JSON can represent.

    Returns:
        The path.
    """
    text = json.dumps(header)
    content = {name: value.contiguous() for name, value in tensors.items()}
    return write_atomically(path, lambda where: save_file(content, where, metadata={_KEY: text}))


def read_header_and_tensors(path: str | Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file that :func:`write_tensors` wrote.

    Args:
        path: File to read.
        remedy: Advice for error messages.

    Returns:
        The tensors by name, and the header.

    Raises:
        InvalidFile: If the file does not exist, cannot be read, or was not written by :func:`write_tensors`.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", remedy)
    try:
        with safe_open(path, framework="pt") as opened:
            header = json.loads((opened.metadata() or {})[_KEY])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidFile(path, "whole file", f"It cannot be read ({str(error).splitlines()[0]}).", remedy) from error
    except KeyError as error:
        raise InvalidFile(path, "header", "It holds tensors, but was not written by reconrisk.", remedy) from error
    if not isinstance(header, dict):
        raise InvalidFile(path, "header", "It is not a table of named values.", remedy)
    return tensors, header


def _under(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


M = TypeVar("M", bound=nn.Module)

_ROWS_AT_ONCE = 1024  # rows per forward pass


@dataclass(frozen=True, eq=False)
class ShadowPairs:
    """Training data of a reconstructor network.

    Attributes:
        features: Features of shadow models (n, k).
        targets: Their target records (n, ...).
        held_out: Rows that choose the epoch and are not trained on.
        data_range: Range of the values of records.
    """

    features: Tensor
    targets: Tensor
    held_out: Tensor
    data_range: tuple[float, float]

    @property
    def training_rows(self) -> Tensor:
        """Rows that train the network."""
        used = torch.ones(len(self.features), dtype=torch.bool)
        used[self.held_out] = False
        return used.nonzero().flatten()


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """Network of the best epoch.

    Attributes:
        network: The network, in evaluation mode.
        error: Its mean squared error on held-out shadow targets.
        epoch: Its epoch, 0 if no epoch improved the initial network.
        epochs: Number of finished epochs.
        interrupted: True if the user stopped the training.
    """

    network: nn.Module
    error: float
    epoch: int
    epochs: int
    interrupted: bool


def train_network(
    network: nn.Module,
    pairs: ShadowPairs,
    settings: ReconstructorSettings,
    *,
    rng: torch.Generator,
    perceptual: Perceptual | None = None,
    checkpoint: str | Path | None = None,
) -> TrainedNetwork:
    """Train a network on shadow pairs and return its best epoch; epoch 0 is the initial network.

    Args:
        network: Network to train, changed in place.
        pairs: Features and targets.
        settings: Training loss, optimizer and epochs.
        rng: Source of randomness.
        perceptual: Metric of images, needed if ``settings.perceptual`` is positive.
        checkpoint: File for the state after each epoch, None to keep no state.

    Returns:
        The network of the best epoch and its error.

    Raises:
        InvalidInput: If ``settings.perceptual`` is positive and ``perceptual`` is None.
        InvalidFile: If ``checkpoint`` belongs to other data or settings.

    Guarantee: with ``checkpoint`` the same call resumes an interrupted training; the result is the same as without
    interruption.
    """
    if settings.perceptual and perceptual is None:
        remedy = "Pass rr.metrics.lpips(..., data_range=...)."
        raise invalid_input(
            "perceptual", None, f"to be a metric of images, since settings.perceptual={settings.perceptual:g}", remedy
        )
    run = _Run(network, pairs, settings, rng, perceptual)
    path = None if checkpoint is None else Path(checkpoint)
    first = next(network.parameters())  # random: distinguishes trainings of other generators
    mark = content_digest((settings, pairs.features, pairs.targets, first)) if path else ""
    if path is not None and path.exists():
        run.resume(_read_checkpoint(path, mark))
    else:
        run.score()
    bar = ProgressBar("reconstructor epochs", total=settings.epochs - run.done)
    interrupted = False
    try:
        patience = settings.epochs if settings.patience is None else settings.patience
        while run.done < settings.epochs and run.done - run.best_epoch < patience:
            run.train_epoch()
            run.score()
            bar.advance()
            if path is not None:
                write_checkpoint(path, run.state(mark))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        bar.close()
    network.load_state_dict(run.best)
    network.eval().requires_grad_(requires_grad=False)
    return TrainedNetwork(network, run.best_error, run.best_epoch, run.done, interrupted)


def predict(network: nn.Module, features: Tensor) -> Tensor:
    """Apply a network to many rows, in chunks and without gradients.

    Args:
        network: Network; it is switched to evaluation mode.
        features: Features (n, k).

    Returns:
        Outputs (n, ...).
    """
    network.eval()
    with torch.no_grad():
        return torch.cat([network(part) for part in features.split(_ROWS_AT_ONCE)])


class _Run:
    """State of one training."""

    def __init__(
        self,
        network: nn.Module,
        pairs: ShadowPairs,
        settings: ReconstructorSettings,
        rng: torch.Generator,
        perceptual: Perceptual | None,
    ) -> None:
        self.network, self.pairs, self.settings, self.perceptual = network, pairs, settings, perceptual
        self.shuffle = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng)))
        self.rows = pairs.training_rows
        self.optimizer = _optimizer(network, settings, settings.learning_rate)
        self.discriminator: nn.Module | None = None
        self.rival: torch.optim.Optimizer | None = None
        if settings.adversarial:
            self.discriminator = build_seeded(lambda: patch_discriminator(pairs.targets.shape[1:]), rng)
            self.rival = _optimizer(self.discriminator, settings, settings.discriminator_rate)
        self.done, self.best_epoch, self.best_error = 0, 0, math.inf
        self.best: Mapping[str, Tensor] = copy.deepcopy(network.state_dict())

    def train_epoch(self) -> None:
        self.network.train()
        order = self.rows[torch.randperm(len(self.rows), generator=self.shuffle)]
        for rows in order.split(self.settings.batch_size):
            self._step(self.pairs.features[rows], self.pairs.targets[rows])
        self.done += 1

    def score(self) -> None:
        """Score the network on held-out shadow targets and keep it if it is the best so far."""
        rows = self.pairs.held_out
        estimates = predict(self.network, self.pairs.features[rows]).clamp(*self.pairs.data_range)
        error = float(mse_loss(estimates, self.pairs.targets[rows]))
        if error < self.best_error:
            self.best_error, self.best_epoch = error, self.done
            self.best = copy.deepcopy(self.network.state_dict())

    def _step(self, features: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        settings, estimates = self.settings, self.network(features)
        error = estimates - targets
        # least-squares GAN: the discriminator's target is 1 for real patches and 0 for reconstructed ones
        loss = settings.absolute * error.abs().mean() + settings.squared * error.square().mean()
        if self.perceptual is not None and settings.perceptual:
            loss = loss + settings.perceptual * self.perceptual(estimates, targets).mean().to(loss.dtype)
        if self.discriminator is not None:
            loss = loss + settings.adversarial * (self.discriminator(estimates) - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        if self.discriminator is not None and self.rival is not None:
            self.rival.zero_grad(set_to_none=True)
            real, made = self.discriminator(targets), self.discriminator(estimates.detach())
            ((real - 1).square().mean() + made.square().mean()).div(2).backward()
            self.rival.step()

    def _parts(self) -> dict[str, Part]:
        rivals = {"discriminator": self.discriminator, "rival": self.rival}
        parts: dict[str, Part] = {"network": self.network, "optimizer": self.optimizer}
        return {**parts, **{name: part for name, part in rivals.items() if part is not None}}

    def state(self, mark: str) -> Checkpoint:
        tensors = pack(self._parts(), self.best, self.shuffle)
        return Checkpoint(mark, self.done, self.best_epoch, self.best_error, tensors)

    def resume(self, stored: Checkpoint) -> None:
        self.best = unpack(stored, self._parts(), self.shuffle)
        self.done, self.best_epoch, self.best_error = stored.done, stored.best_epoch, stored.best_error


def build_seeded(build: Callable[[], M], rng: torch.Generator) -> M:
    """Build a module whose initial weights are drawn from a given generator.

    Args:
        build: Function that builds the module and draws from torch's global generator.
        rng: Generator that seeds the draw; the global generator is left unchanged.

    Returns:
        The module.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        return build()


def _optimizer(module: nn.Module, settings: ReconstructorSettings, rate: float) -> torch.optim.Optimizer:
    kind = torch.optim.RMSprop if settings.optimizer == "rmsprop" else torch.optim.Adam
    return kind(module.parameters(), lr=rate)
