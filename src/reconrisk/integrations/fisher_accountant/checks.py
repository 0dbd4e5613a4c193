"""Checks of a Fisher accountant before training starts, and its cost.

Every argument is checked first, so that a wrong loss is found at once and not after an epoch. :class:`AccountingCost`
is measured on one step.
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

    Attributes:
        seconds_per_step: Time of one step of the account.
        seconds: Time of all steps. An upper limit if ``fewer_later``.
        steps: Number of steps.
        records_per_step: Records that are evaluated at each step.
        cycle_steps: Steps in which every record is evaluated once.
        probes: Number of random directions per evaluation.
        fewer_later: True if later cycles use fewer probes.
        memory_bytes: Growth of the peak memory while a step was measured: of tensors on a graphics card, else of the
            process. 0 if no more was needed than before, None if the system does not report it.
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
        """Return the cost in one sentence."""
        memory = "unknown" if self.memory_bytes is None else f"{self.memory_bytes / 1e6:.0f} MB"
        most = "at most " if self.fewer_later else ""
        block = f"{self.records_per_step} records, {most}{self.probes} probes; every record once in"
        return (
            f"{self.seconds_per_step:.3g} s per step ({block} {self.cycle_steps} steps), "
            f"{most}{self.seconds:.3g} s for {self.steps} steps, "
            f"memory {memory}"
        )


def measure_cost(
    evaluate: Callable[[], object],
    *,
    steps: int,
    records_per_step: int,
    cycle_steps: int,
    probes: int,
    fewer_later: bool,
) -> AccountingCost:
    """Measure one evaluation and scale its time to all steps.

    Args:
        evaluate: Evaluation of the records of one step. The first call is not timed; a short call is repeated.
        steps: Number of steps.
        records_per_step: Number of records that each step evaluates.
        cycle_steps: Steps in which every record is evaluated once.
        probes: Number of random directions per evaluation.
        fewer_later: True if later cycles use fewer probes.

    Returns:
        The cost.
    """
    before = _largest_memory()
    seconds = _time_call(evaluate)
    if seconds < 1:  # short: repeat without the warm-up
        seconds = min(_time_call(evaluate), seconds)
    after = _largest_memory()
    memory = None if before is None or after is None else max(0, after - before)
    return AccountingCost(seconds, seconds * steps, steps, records_per_step, cycle_steps, probes, fewer_later, memory)


def _time_call(evaluate: Callable[[], object]) -> float:
    """Return the seconds of one call, with pending work on the graphics card finished."""
    begun = time.perf_counter()
    evaluate()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _largest_memory() -> int | None:
    """Return the peak memory so far in bytes; None if the system does not report it."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource  # only on Unix
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, in KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


_CLIPS: dict[str, type[HardClip] | type[SmoothClip]] = {"hard": HardClip, "smooth": SmoothClip}
_SUBSAMPLING = ("exact", "none", "guo2022")
_FEW = 4  # records in a trial run
_CLOSE = 1e-3  # far above single-precision rounding in another order, far below the effect of a wrong reduction


def check_model(model: nn.Module) -> nn.Module:
    """Return the model in evaluation mode; raise InvalidInput if a layer is random or mixes records in training.

    Args:
        model: Model without hooks; its mode is changed.

    Returns:
        The same object.

    Raises:
        InvalidInput: If nothing requires gradients, or there is dropout or batch norm.
    """
    if not any(value.requires_grad for value in model.parameters()):
        raise invalid_input("parameters", [], "to include one that requires gradients", "Call model.requires_grad_().")
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise invalid_input(
                f"{name}.p",
                layer.p,
                "to be 0",
                "Remove the dropout: with it a step is not a function of the record alone.",
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise invalid_input(
                f"type({name})",
                type(layer).__name__,
                "not to be batch norm, which mixes records",
                "Use rr.models.group_norm(channels) instead.",
            )
    return model.eval()


def check_indices(records: Sequence[int] | Tensor | None, count: int) -> Tensor:
    """Return the tracked records as indices.

    Args:
        records: Indices, or None for all.
        count: Number of records.

    Returns:
        Indices as an int64 tensor on the CPU.

    Raises:
        InvalidInput: If the indices are not whole, different and in range.

    Edge cases: masks, floats and a single number are refused, because each can be read in more than one way.
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


def check_accuracy(relative_error: float | None, probes: int | None) -> tuple[float | None, int | None]:
    """Return the target of the relative error or the number of probes, whichever was given.

    Args:
        relative_error: Target, above zero, or None.
        probes: Number of random directions, at least 2, or None.

    Returns:
        Relative error and probes; exactly one is not None. The relative error is 0.1 if neither was given.

    Raises:
        InvalidInput: If both are given, or one is out of range.
    """
    if probes is None:
        return (0.1 if relative_error is None else check_positive("relative_error", relative_error)), None
    if relative_error is not None:
        raise invalid_input("probes", probes, "to be None if relative_error is given", "Pass one of the two.")
    return None, check_whole("probes", probes, minimum=2, remedy="A single probe has no error estimate.")


def check_subsampling(subsampling: str, delta: float | None) -> tuple[str, float | None]:
    """Return the factor for amplification by sampling and its delta.

    Args:
        subsampling: ``"exact"``, ``"none"`` or ``"guo2022"``.
        delta: Delta of ``"guo2022"`` in (0, 1); None for the others.

    Returns:
        ``subsampling`` and ``delta``, unchanged.

    Raises:
        InvalidInput: If the name is unknown, or ``delta`` is missing, not needed or out of range.
    """
    if subsampling not in _SUBSAMPLING:
        raise invalid_input("subsampling", subsampling, f"to be one of {', '.join(_SUBSAMPLING)}")
    if (delta is None) == (subsampling == "guo2022"):
        raise invalid_input(
            "delta",
            delta,
            "to be given if, and only if, subsampling='guo2022'",
            "Pass 1/(steps * records), as guo2022, or change subsampling.",
        )
    if delta is not None and not 0 < check_probability("delta", delta) < 1:
        raise invalid_input("delta", delta, "in (0, 1)", "Pass 1/(steps * records), as guo2022.")
    return subsampling, delta


def clip_by_name(clip: str) -> type[HardClip] | type[SmoothClip]:
    """Return the class of a clipping.

    Args:
        clip: ``"hard"`` or ``"smooth"``.

    Returns:
        The class, which takes a norm.

    Raises:
        InvalidInput: If the name is unknown.
    """
    if clip not in _CLIPS:
        raise invalid_input("clip", clip, f"to be one of {', '.join(_CLIPS)}")
    return _CLIPS[clip]


def pick_few_records(inputs: Tensor, labels: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a few records for trial runs, including those with the smallest and the largest label.

    Args:
        inputs: All records.
        labels: Their labels.
        device: Device to move them to.

    Returns:
        Inputs and labels of at most four records.
    """
    first = list(range(min(_FEW, len(inputs))))
    if labels.ndim == 1:
        ends = labels.detach().double()
        # extreme labels are the first to be out of range of the outputs
        first = [int(ends.argmin()), int(ends.argmax()), *first]
    chosen = list(dict.fromkeys(first))[:_FEW]
    return inputs[chosen].to(device), labels[chosen].to(device)


def detect_reduction(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> str | None:
    """Detect the reduction of a loss over a batch.

    Args:
        model: Model in evaluation mode.
        loss_fn: Loss of outputs and labels.
        inputs: A few records.
        labels: Their labels.

    Returns:
        ``"mean"`` or ``"sum"``; None if the few records do not decide.

    Raises:
        InvalidInput: If model, loss and labels do not fit each other; the message contains the original error.
    """
    state = model_state(model, inputs.dtype)
    with _preserve_rng(inputs.device), torch.no_grad():
        with _reraise_as_invalid(f"a model that takes records of shape {tuple(inputs.shape[1:])}"):
            outputs: Any = state.outputs(inputs)
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise invalid_input("model(records)", shape, f"to be {len(inputs)} rows of outputs", "Return a tensor.")
        _check_classes(loss_fn, outputs, labels)
        shapes = f"outputs of shape {tuple(outputs.shape)} and labels of shape {tuple(labels.shape)}, {labels.dtype}"
        with _reraise_as_invalid(f"a loss_fn that takes {shapes}"):
            losses, together = record_losses(loss_fn, outputs, labels), loss_fn(outputs, labels)
    with _preserve_rng(inputs.device), _reraise_as_invalid("a model and a loss_fn that can be differentiated twice"):
        # a trial run: models that cannot be differentiated twice fail here, not after an epoch
        rng = torch.Generator(inputs.device).manual_seed(0)
        probe_clipped_gradients(model, loss_fn, inputs, labels, clip=HardClip(1.0), probes=1, rng=rng)
    return _reduction(losses, together)


def check_training_mode(
    model: nn.Module, live: nn.Module, inputs: Tensor, state: Mapping[str, Tensor] | None = None
) -> None:
    """Check that the model has the same outputs in training mode and in evaluation mode.

    Args:
        model: Copy that is evaluated, in evaluation mode before and after.
        live: Model that is trained; only the modes of its layers are read.
        inputs: A few records.
        state: Tensors by name to evaluate the copy at; None for its own.

    Raises:
        InvalidInput: If outputs differ between the modes.
    """
    modes = {name: layer.training for name, layer in live.named_modules()}
    if not any(modes.values()):
        return
    tensors = model_state(model, inputs.dtype, state=state)
    with _preserve_rng(inputs.device), torch.no_grad():
        expected: Any = tensors.outputs(inputs)
        try:
            for name, layer in model.named_modules():
                layer.training = modes.get(name, False)
            # twice: randomness or an updated state may not show in the first pass
            training: Any = [tensors.outputs(inputs) for _ in range(2)]
        finally:
            model.eval()
    if not all(isinstance(each, Tensor) and _same(each, expected) for each in training):
        raise InvalidInput(
            "Expected a model with the same outputs in training and evaluation mode, but they differ. "
            "Call model.eval() before training, or replace the layer that differs in training (dropout, running "
            "statistics)."
        )


def _check_classes(loss_fn: LossFunction, outputs: Tensor, labels: Tensor) -> None:
    """Raise InvalidInput if cross-entropy does not fit the number of outputs or the labels."""
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
            "labels",
            wrong,
            f"to be from 0 to {classes - 1}, the outputs of the model",
            "Build the model with one output per class.",
        )


def _reduction(losses: Tensor, together: Tensor) -> str | None:
    """Return "mean" or "sum", whichever gives the loss of a batch from the losses of its records."""
    if together.ndim:
        raise invalid_input(
            "loss_fn(...).shape", tuple(together.shape), "to be ()", "Reduce the loss of a batch to a scalar."
        )
    if not bool(losses.isfinite().all()) or not bool(together.isfinite()):
        return None
    size = losses.abs().sum()
    # both distances in units of the sum, so that one tolerance fits
    matches = {"mean": (together - losses.mean()).abs() * len(losses), "sum": (together - losses.sum()).abs()}
    fitting = [name for name, distance in matches.items() if bool(distance <= _tolerance(losses) * size)]
    if not fitting:
        raise invalid_input(
            "loss_fn(batch)",
            float(together),
            f"to be the mean {float(losses.mean()):.6g} or sum {float(losses.sum()):.6g} of its records' losses",
            "Class weights and broadcasting change it: weight each record's loss inside loss_fn, and match the shapes.",
        )
    return fitting[0] if len(fitting) == 1 else None


def _same(found: Tensor, wanted: Tensor) -> bool:
    """Return True if two outputs agree up to rounding; values that are not finite are ignored."""
    if found.shape != wanted.shape:
        return False
    broken = ~wanted.isfinite()
    found, wanted = found.masked_fill(broken, 0), wanted.masked_fill(broken, 0)
    return bool((found - wanted).norm() <= _tolerance(wanted) * wanted.norm())


def _tolerance(values: Tensor) -> float:
    """Return the relative tolerance for values of this precision."""
    return max(_CLOSE, math.sqrt(torch.finfo(values.dtype).eps))  # half precision needs more than _CLOSE


@contextmanager
def _reraise_as_invalid(expected: str) -> Iterator[None]:
    """Raise any error of the block as InvalidInput with the first line of its message."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:  # a module or loss of the user may raise anything
        message = (str(error).splitlines() or [""])[0]
        raise InvalidInput(f"Expected {expected}. It raised {type(error).__name__}: {message}") from error


@contextmanager
def _preserve_rng(device: torch.device) -> Iterator[None]:
    """Restore the state of the global random generators afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
