"""breaching's Inverting Gradients on a gradient of ours, with a clock: the peer of the gradient inversion benchmarks.

Package breaching 0.1.2 with its own configuration ``invertinggradients``: cosine distance, signed Adam of step 0.1 with
step decay, total variation 0.2, box constraint, one trial from a normal start, 24,000 iterations.

Stubbed or changed, all of it here: ``torchvision``, which breaching imports for data sets and models of its own (an
empty module stands in while breaching is imported), and the total variation, which breaching hard-wires to three
channels (the same convolution for as many as there are). The attack's start is drawn under a seed of ours.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PACE_STEPS = 100
"""Steps that are timed to fit the schedule of step sizes to the seconds there are."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What the attack would have returned, had it been stopped after so many seconds and iterations."""

    seconds: float
    iterations: int
    estimates: Tensor


OnProgress = Callable[[Snapshot], object]


def invert(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    gradient: Mapping[str, Tensor],
    input_shape: Sequence[int],
    labels: Tensor,
    data_range: tuple[float, float],
    seconds: float,
    on_progress: OnProgress | None = None,
    *,
    iterations: int | None = 24_000,
    seed: int = 0,
) -> list[Snapshot]:
    """Run the attack for so many seconds; its best candidates over time, the last one what it returns.

    ``gradient`` has one tensor for each parameter of ``model``, in their order. ``on_progress`` is called with each
    snapshot, outside the clock, and stops the attack by returning true. ``iterations=None`` fits breaching's schedule
    of step sizes to ``seconds``, by the pace of some steps; otherwise it is that of so many iterations.
    """

    def clock(limit: float, listener: OnProgress | None, count: int) -> list[Snapshot]:
        attacker = _attacker(model, loss_fn, channels=input_shape[0])
        attacker.cfg.optim.max_iterations = count
        return _Clock(attacker, limit, listener).run(
            _payload(model, input_shape, data_range), _stepped_parameters(gradient, labels), seed
        )

    if iterations is None:
        clock(math.inf, None, PACE_STEPS)  # the first run compiles
        iterations = max(PACE_STEPS, int(PACE_STEPS * seconds / clock(math.inf, None, PACE_STEPS)[-1].seconds))
    return clock(seconds, on_progress, iterations)


def psnr_over_time(snapshots: Sequence[Snapshot], target: Tensor, data_range: tuple[float, float]) -> list[list[float]]:
    """Seconds and mean PSNR over the records in dB, for each snapshot; the records are in the order of ``target``."""
    peak = data_range[1] - data_range[0]
    rows = []
    for snapshot in snapshots:
        errors = (snapshot.estimates - target).square().flatten(1).mean(1).clamp_min(1e-30)
        rows.append([snapshot.seconds, float((20 * math.log10(peak) - 10 * errors.log10()).mean())])
    return rows


class _Clock:
    """Runs an attacker of breaching, keeps what it would return over time, and ends it as Ctrl-C would."""

    def __init__(self, attacker: Any, seconds: float, on_progress: OnProgress | None) -> None:
        self._attacker, self._seconds, self._on_progress = attacker, seconds, on_progress
        self._begun = self._paused = 0.0
        self._count = 0
        self._value = self._best_value = math.inf
        self._best: Tensor | None = None
        self._snapshots: list[Snapshot] = []
        self._objective = attacker._compute_objective
        attacker._compute_objective = self._observed

    def elapsed(self) -> float:
        """Seconds of the attack, without those of this class."""
        return time.perf_counter() - self._begun - self._paused

    def run(self, payload: list[Any], shared: list[Any], seed: int) -> list[Snapshot]:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            self._begun = time.perf_counter()
            result, _ = self._attacker.reconstruct(payload, shared, {})
            self._keep(Snapshot(self.elapsed(), self._count, result["data"].detach().clone()))
        return self._snapshots

    def _observed(
        self, candidate: Tensor, labels: Any, models: Any, optimizer: Any, shared: Any, iteration: int
    ) -> Any:
        """Breaching asks for the objective of each iteration here: candidate is what the last one left."""
        self._count = iteration + 1
        if self._value < self._best_value:
            self._best_value, self._best = self._value, candidate.detach().clone()
        elapsed = self.elapsed()
        last = self._snapshots[-1].seconds if self._snapshots else 0.0
        stopped = elapsed >= self._seconds
        if self._best is not None and elapsed - last >= max(0.05, 0.02 * elapsed):
            stopped = bool(self._keep(Snapshot(elapsed, iteration, self._best))) or stopped
        if stopped:
            raise KeyboardInterrupt  # which breaching catches, to return its best candidate
        closure = self._objective(candidate, labels, models, optimizer, shared, iteration)

        def remembering() -> Tensor:
            value: Tensor = closure()
            self._value = float(value.detach())
            return value

        return remembering

    def _keep(self, snapshot: Snapshot) -> object:
        begun = time.perf_counter()
        self._snapshots.append(snapshot)
        stop = None if self._on_progress is None else self._on_progress(snapshot)
        self._paused += time.perf_counter() - begun
        return stop


def _attacker(model: nn.Module, loss_fn: Callable[[Tensor, Tensor], Tensor], *, channels: int) -> Any:
    with _no_torchvision(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        import breaching

        cfg = breaching.get_attack_config("invertinggradients")
        attacker = breaching.attacks.prepare_attack(model, loss_fn, cfg)
    (variation,) = attacker.regularizers
    variation.groups, variation.weight = channels, variation.weight[:2].repeat(channels, 1, 1, 1)
    return attacker


def _payload(model: nn.Module, input_shape: Sequence[int], data_range: tuple[float, float]) -> list[Any]:
    """What breaching's server sends. Its box is (0 - mean) / std to (1 - mean) / std: here ``data_range``."""
    low, high = data_range
    channels = input_shape[0]
    scale = 1 / (high - low)
    metadata = types.SimpleNamespace(
        shape=tuple(input_shape), modality="vision", mean=[-low * scale] * channels, std=[scale] * channels
    )
    buffers = None if model.training else list(model.buffers())
    return [{"parameters": list(model.parameters()), "buffers": buffers, "metadata": metadata}]


def _stepped_parameters(gradient: Mapping[str, Tensor], labels: Tensor) -> list[Any]:
    metadata = {"num_data_points": len(labels), "labels": labels, "local_hyperparams": None}
    return [{"gradients": [tensor.detach() for tensor in gradient.values()], "buffers": None, "metadata": metadata}]


class _Empty(types.ModuleType):
    """A module in which every name is there: classes where one is derived from, modules elsewhere."""

    __path__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nn.Module if name.lstrip("_")[:1].isupper() else _Empty(f"{self.__name__}.{name}")


@contextlib.contextmanager
def _no_torchvision() -> Iterator[None]:
    names = ("", ".models", ".models.densenet", ".transforms", ".datasets", ".datasets.utils")
    stubs = {f"torchvision{name}": _Empty(f"torchvision{name}") for name in names}
    before = {name: sys.modules[name] for name in stubs if name in sys.modules}
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]
        sys.modules.update(before)
