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
from reconrisk.core.storage.files import write_whole
from reconrisk.core.validation import invalid_input

Part: TypeAlias = "nn.Module | torch.optim.Optimizer"

_KEY = "reconrisk"
_FORMAT = 2  # of the digest that marks a training
_REMEDY = "Delete it and train again, or name another file."


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a training stands: epochs done, the best so far, and all tensors that the next epoch depends on."""

    mark: str
    done: int
    best_epoch: int
    best_error: float
    tensors: Mapping[str, Tensor]


def packed(parts: Mapping[str, Part], best: Mapping[str, Tensor], shuffle: torch.Generator) -> dict[str, Tensor]:
    """All that the next epoch depends on, as named tensors."""
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
    """Put the parts where they were, and return the best network so far."""
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
    """Write a checkpoint, whole or not at all."""
    numbers = {"mark": state.mark, "done": state.done, "best_epoch": state.best_epoch, "best_error": state.best_error}
    write_tensors(path, state.tensors, {"format": _FORMAT, **numbers})


def _read_checkpoint(path: Path, mark: str) -> Checkpoint:
    """The checkpoint in a file, refused where it is damaged or belongs to another training."""
    tensors, numbers = read_header_and_tensors(path, _REMEDY)
    if numbers.get("format") != _FORMAT:
        raise InvalidFile(path, "header", "It was written by another version of reconrisk.", _REMEDY)
    if numbers.get("mark") != mark:
        raise InvalidFile(path, "header", "It is of a training with other settings or shadow models.", _REMEDY)
    try:
        return Checkpoint(mark, int(numbers["done"]), int(numbers["best_epoch"]), float(numbers["best_error"]), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFile(path, "header", f"It does not say where training stood ({error}).", _REMEDY) from error


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
    """Named tensors and a header of plain values in one safetensors file."""
    text = json.dumps(header)
    content = {name: value.contiguous() for name, value in tensors.items()}
    return write_whole(path, lambda where: save_file(content, where, metadata={_KEY: text}))


def read_header_and_tensors(path: str | Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`write_tensors` wrote; anything else is refused, naming the file."""
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
        raise InvalidFile(path, "header", "It is no set of named values.", remedy)
    return tensors, header


def _under(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


M = TypeVar("M", bound=nn.Module)

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class ShadowPairs:
    """What the network learns from: features (n, k) of shadow models and their targets (n, ...), some held out."""

    features: Tensor
    targets: Tensor
    held_out: Tensor
    data_range: tuple[float, float]

    @property
    def learned(self) -> Tensor:
        """Rows that train the network."""
        used = torch.ones(len(self.features), dtype=torch.bool)
        used[self.held_out] = False
        return used.nonzero().flatten()


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """The network of the best epoch, its mean squared error on held-out shadow targets, and how training ended."""

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
    """Train a network on shadow pairs and return its best epoch, that before the first included.

    Guarantee: with ``checkpoint`` the state after each epoch is kept in that file, and the same call takes it up; the
    result is that of a run without interruption. A file of other data or settings is refused.
    """
    if settings.perceptual and perceptual is None:
        remedy = "Pass rr.metrics.lpips(..., data_range=...)."
        raise invalid_input(
            "perceptual", None, f"to be a distance of images where its weight is {settings.perceptual}", remedy
        )
    run = _Run(network, pairs, settings, rng, perceptual)
    path = None if checkpoint is None else Path(checkpoint)
    first = next(network.parameters())  # a draw, so that another generator is told
    mark = content_digest((settings, pairs.features, pairs.targets, first)) if path else ""
    if path is not None and path.exists():
        run.resume(_read_checkpoint(path, mark))
    else:
        run.judge()
    bar = ProgressBar("reconstructor epochs", total=settings.epochs - run.done)
    interrupted = False
    try:
        patience = settings.epochs if settings.patience is None else settings.patience
        while run.done < settings.epochs and run.done - run.best_epoch < patience:
            run.epoch()
            run.judge()
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


def predicted(network: nn.Module, features: Tensor) -> Tensor:
    """Outputs of a network for many rows, in parts."""
    network.eval()
    with torch.no_grad():
        return torch.cat([network(part) for part in features.split(_ROWS_AT_ONCE)])


class _Run:
    """The state of one training."""

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
        self.learned = pairs.learned
        self.optimizer = _optimizer(network, settings, settings.learning_rate)
        self.discriminator: nn.Module | None = None
        self.rival: torch.optim.Optimizer | None = None
        if settings.adversarial:
            self.discriminator = seeded(lambda: patch_discriminator(pairs.targets.shape[1:]), rng)
            self.rival = _optimizer(self.discriminator, settings, settings.discriminator_rate)
        self.done, self.best_epoch, self.best_error = 0, 0, math.inf
        self.best: Mapping[str, Tensor] = copy.deepcopy(network.state_dict())

    def epoch(self) -> None:
        self.network.train()
        order = self.learned[torch.randperm(len(self.learned), generator=self.shuffle)]
        for rows in order.split(self.settings.batch_size):
            self._step(self.pairs.features[rows], self.pairs.targets[rows])
        self.done += 1

    def judge(self) -> None:
        """Score the network on held-out shadow targets and remember it where it is the best so far."""
        rows = self.pairs.held_out
        estimates = predicted(self.network, self.pairs.features[rows]).clamp(*self.pairs.data_range)
        error = float(mse_loss(estimates, self.pairs.targets[rows]))
        if error < self.best_error:
            self.best_error, self.best_epoch = error, self.done
            self.best = copy.deepcopy(self.network.state_dict())

    def _step(self, features: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        settings, estimates = self.settings, self.network(features)
        error = estimates - targets
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
        tensors = packed(self._parts(), self.best, self.shuffle)
        return Checkpoint(mark, self.done, self.best_epoch, self.best_error, tensors)

    def resume(self, stored: Checkpoint) -> None:
        self.best = unpack(stored, self._parts(), self.shuffle)
        self.done, self.best_epoch, self.best_error = stored.done, stored.best_epoch, stored.best_error


def seeded(build: Callable[[], M], rng: torch.Generator) -> M:
    """A module whose first weights are drawn from ``rng``, not from torch's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        return build()


def _optimizer(module: nn.Module, settings: ReconstructorSettings, rate: float) -> torch.optim.Optimizer:
    kind = torch.optim.RMSprop if settings.optimizer == "rmsprop" else torch.optim.Adam
    return kind(module.parameters(), lr=rate)
