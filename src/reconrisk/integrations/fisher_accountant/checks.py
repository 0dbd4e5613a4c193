"""Checks of a Fisher accountant before training starts, and its cost.

A wrong loss must not show after an epoch, so every argument is checked first. :class:`AccountingCost` is measured on
one step.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_positive, check_probability, check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction, model_state, record_losses
from reconrisk.releases.updates.clipped_gradient import probe_clipped_gradients
from reconrisk.releases.updates.clipping import HardClip, SmoothClip


@dataclass(frozen=True)
class AccountingCost:
    """Time and memory of an account on this machine.

    ``memory_bytes`` is by how much the largest memory use so far grew while a step was measured: on a graphics card
    that of tensors, else that of the process, where 0 means that no more was needed than had been used before; None
    where the system does not tell. Later cycles of an account with ``relative_error`` use fewer probes, so that
    ``seconds`` is from above.
    """

    seconds_per_step: float
    seconds: float
    steps: int
    records_per_step: int
    cycle_steps: int
    probes: int
    fewer_later: bool
    memory_bytes: int | None

    def __str__(self) -> str:
        """The cost in a sentence."""
        memory = "unknown" if self.memory_bytes is None else f"{self.memory_bytes / 1e6:.0f} MB"
        most = "at most " if self.fewer_later else ""
        block = f"{self.records_per_step} records, {most}{self.probes} probes; every record once in"
        return (
            f"{self.seconds_per_step:.3g} s per step ({block} {self.cycle_steps} steps), "
            f"{most}{self.seconds:.3g} s for {self.steps} steps, "
            f"memory {memory}"
        )


def measure(
    evaluate: Callable[[], object],
    *,
    steps: int,
    records_per_step: int,
    cycle_steps: int,
    probes: int,
    fewer_later: bool,
) -> AccountingCost:
    """Run ``evaluate`` and scale its time up; the first call also warms up and is not timed where it is short."""
    before = _largest_memory()
    seconds = _timed(evaluate)
    if seconds < 1:
        seconds = min(_timed(evaluate), seconds)
    after = _largest_memory()
    memory = None if before is None or after is None else max(0, after - before)
    return AccountingCost(seconds, seconds * steps, steps, records_per_step, cycle_steps, probes, fewer_later, memory)


def _timed(evaluate: Callable[[], object]) -> float:
    begun = time.perf_counter()
    evaluate()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _largest_memory() -> int | None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource  # only on Unix
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


_CLIPS: dict[str, type[HardClip] | type[SmoothClip]] = {"hard": HardClip, "smooth": SmoothClip}
_SUBSAMPLING = ("exact", "none", "guo2022")
_FEW = 4
_CLOSE = 1e-3  # rounding of single precision in another order stays far below it, a wrong reduction far above


def checked_model(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, refused if a layer draws something or mixes records while it trains."""
    if not any(value.requires_grad for value in model.parameters()):
        raise invalid_input("parameters", [], "to have one that requires gradients", "Call model.requires_grad_().")
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise invalid_input(
                f"{name}.p", layer.p, "to be 0", "Replace the dropout: a step with it is not a function of the record."
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise invalid_input(
                name,
                type(layer).__name__,
                "not to be batch norm, which mixes records",
                "Use rr.models.group_norm(channels) instead.",
            )
    return model.eval()


def checked_indices(records: Sequence[int] | Tensor | None, count: int) -> Tensor:
    """The tracked records as indices; all without a choice.

    Edge cases: masks, floats and a single number are refused, since each can be read in more than one way.
    """
    if records is None:
        return torch.arange(count)
    if isinstance(records, Tensor):
        whole = records.ndim == 1 and records.dtype in (torch.int64, torch.int32)
    else:
        given: Any = records
        listed = isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, (str, bytes))
        whole = listed and all(isinstance(each, Integral) and not isinstance(each, bool) for each in given)
    if not whole:
        remedy = "A mask becomes indices by mask.nonzero().flatten(); one record is [index]."
        raise invalid_input("records", records, "to be a list or tensor of whole numbers", remedy)
    chosen = torch.as_tensor(records if isinstance(records, Tensor) else [int(i) for i in records], dtype=torch.int64)
    chosen = chosen.cpu()
    if len(chosen) == 0 or len(chosen.unique()) != len(chosen) or bool(((chosen < 0) | (chosen >= count)).any()):
        raise invalid_input(
            "records", chosen.tolist()[:10], f"to be different indices in [0, {count})", "Pass None to track all."
        )
    return chosen


def checked_accuracy(relative_error: float | None, probes: int | None) -> tuple[float | None, int | None]:
    """The relative error aimed at or the number of probes, whichever was stated; 0.1 if neither was."""
    if probes is None:
        return (0.1 if relative_error is None else check_positive("relative_error", relative_error)), None
    if relative_error is not None:
        raise invalid_input("probes", probes, "to be None beside relative_error", "Pass one of the two.")
    return None, check_whole("probes", probes, minimum=2, remedy="One probe does not tell its own error.")


def checked_subsampling(subsampling: str, delta: float | None) -> tuple[str, float | None]:
    """The way to count amplification, and the delta that only one of them needs."""
    if subsampling not in _SUBSAMPLING:
        raise invalid_input("subsampling", subsampling, f"to be one of {', '.join(_SUBSAMPLING)}")
    if (delta is None) == (subsampling == "guo2022"):
        raise invalid_input(
            "delta", delta, "to be stated exactly if subsampling='guo2022'", "guo2022: 1/(steps * records)."
        )
    if delta is not None and not 0 < check_probability("delta", delta) < 1:
        raise invalid_input("delta", delta, "in (0, 1)", "guo2022 takes 1/(steps * records).")
    return subsampling, delta


def checked_clip(clip: str) -> type[HardClip] | type[SmoothClip]:
    """The clipping of that name."""
    if clip not in _CLIPS:
        raise invalid_input("clip", clip, f"to be one of {', '.join(_CLIPS)}")
    return _CLIPS[clip]


def few_records(inputs: Tensor, labels: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """A few records to try things on, among them those with the smallest and the largest label."""
    first = list(range(min(_FEW, len(inputs))))
    if labels.ndim == 1:
        ends = labels.detach().double()
        first = [int(ends.argmin()), int(ends.argmax()), *first]
    chosen = list(dict.fromkeys(first))[:_FEW]
    return inputs[chosen].to(device), labels[chosen].to(device)


def loss_reduction(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> str | None:
    """Whether the loss of a batch is the ``"mean"`` or ``"sum"`` of its records' losses; None where it does not show.

    Model, loss and labels that do not fit each other are refused here, with what they said.
    """
    state = model_state(model, inputs.dtype)
    with _spared_rng(inputs.device), torch.no_grad():
        with _explained(f"a model that takes records of shape {tuple(inputs.shape[1:])}"):
            outputs: Any = state.outputs(inputs)
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
            came = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise invalid_input("model(records)", came, f"to be {len(inputs)} rows of outputs", "Return a tensor.")
        _check_classes(loss_fn, outputs, labels)
        shapes = f"outputs of shape {tuple(outputs.shape)} and labels of shape {tuple(labels.shape)}, {labels.dtype}"
        with _explained(f"a loss_fn that takes {shapes}"):
            losses, together = record_losses(loss_fn, outputs, labels), loss_fn(outputs, labels)
    with _spared_rng(inputs.device), _explained("a model and a loss_fn that can be differentiated twice"):
        rng = torch.Generator(inputs.device).manual_seed(0)
        probe_clipped_gradients(model, loss_fn, inputs, labels, clip=HardClip(1.0), probes=1, rng=rng)
    return _reduction(losses, together)


def check_training_mode(
    model: nn.Module, live: nn.Module, inputs: Tensor, state: Mapping[str, Tensor] | None = None
) -> None:
    """Refuse a model that is trained in a mode in which it computes something else than in evaluation.

    ``model`` is the copy that is evaluated, in evaluation mode before and after; ``live`` is only asked for its mode.
    """
    modes = {name: layer.training for name, layer in live.named_modules()}
    if not any(modes.values()):
        return
    tensors = model_state(model, inputs.dtype, state=state)
    with _spared_rng(inputs.device), torch.no_grad():
        calm: Any = tensors.outputs(inputs)
        try:
            for name, layer in model.named_modules():
                layer.training = modes.get(name, False)
            training: Any = [tensors.outputs(inputs) for _ in range(2)]
        finally:
            model.eval()
    if not all(isinstance(each, Tensor) and _same(each, calm) for each in training):
        raise invalid_input(
            "model.training",
            True,
            "to give the outputs of evaluation",
            "Train after model.eval(), or replace the layer (dropout, running statistics) that differs in training.",
        )


def _check_classes(loss_fn: LossFunction, outputs: Tensor, labels: Tensor) -> None:
    if loss_fn is not cross_entropy and not isinstance(loss_fn, nn.CrossEntropyLoss):
        return
    if outputs.ndim < 2 or outputs.shape[1] == 1:
        raise invalid_input(
            "outputs.shape",
            tuple(outputs.shape),
            "to have at least two classes for cross-entropy, which is 0 for one",
            "Pass loss_fn, e.g. binary_cross_entropy_with_logits of outputs[:, 0] and labels.float().",
        )
    classes, whole = outputs.shape[1], labels.ndim == 1 and not labels.is_floating_point()
    if whole and loss_fn is cross_entropy and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise invalid_input(
            "labels", wrong, f"from 0 to {classes - 1}, the outputs of the model", "Build it with as many."
        )


def _reduction(losses: Tensor, together: Tensor) -> str | None:
    if together.ndim:
        raise invalid_input("loss_fn(...).shape", tuple(together.shape), "to be ()", "Reduce to a scalar.")
    if not bool(losses.isfinite().all()) or not bool(together.isfinite()):
        return None
    size = losses.abs().sum()
    matches = {"mean": (together - losses.mean()).abs() * len(losses), "sum": (together - losses.sum()).abs()}
    fitting = [name for name, distance in matches.items() if bool(distance <= _tolerance(losses) * size)]
    if not fitting:
        raise invalid_input(
            "loss_fn(batch)",
            float(together),
            f"to be the mean {float(losses.mean()):.6g} or sum {float(losses.sum()):.6g} of its records' losses",
            "Class weights and shapes that broadcast change them: weigh inside each record's loss, match the shapes.",
        )
    return fitting[0] if len(fitting) == 1 else None


def _same(found: Tensor, wanted: Tensor) -> bool:
    if found.shape != wanted.shape:
        return False
    broken = ~wanted.isfinite()
    found, wanted = found.masked_fill(broken, 0), wanted.masked_fill(broken, 0)
    return bool((found - wanted).norm() <= _tolerance(wanted) * wanted.norm())


def _tolerance(values: Tensor) -> float:
    return max(_CLOSE, math.sqrt(torch.finfo(values.dtype).eps))


@contextmanager
def _explained(expected: str) -> Iterator[None]:
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:  # a module or loss of the user may raise anything
        said = (str(error).splitlines() or [""])[0]
        raise InvalidInput(f"Expected {expected}. It raised {type(error).__name__}: {said}") from error


@contextmanager
def _spared_rng(device: torch.device) -> Iterator[None]:
    """Leave the global generators as they are."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
