"""What Opacus knows about a step of training: who was sampled how, clipped to what, hidden by which noise."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from reconrisk.core.errors import MissingExtra
from reconrisk.core.validation import check_positive, invalid_input

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MARK = "autograd_grad_sample_hooks"
NEEDS_EQUAL_NOISE = "needs_equal_noise"
_FLAT = "Train with PrivacyEngine.make_private(clipping='flat', grad_sample_mode='hooks') on one device."


@dataclass(frozen=True)
class LoaderSampling:
    """The chance of a record to be in a batch, and whether batches are Poisson samples."""

    sampling_probability: float
    poisson: bool


@dataclass(frozen=True)
class OpacusStep:
    """The settings of one step, read when it happens, so that schedulers are followed."""

    noise_multiplier: float
    clip_norm: float
    sampling_probability: float
    poisson: bool


def unwrapped(model: nn.Module) -> nn.Module:
    """The module itself, if ``model`` is Opacus's wrapper of it; their parameters are the same objects.

    >>> layer = nn.Linear(2, 2)
    >>> unwrapped(layer) is layer
    True
    """
    inner = getattr(model, "_module", None)
    wraps = isinstance(inner, nn.Module) and type(model).__module__.split(".")[0] == "opacus"
    return unwrapped(inner) if wraps and isinstance(inner, nn.Module) else model


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy without Opacus's hooks, which ``torch.func`` cannot pass, and without gradients; ``model`` stays as it is.

    >>> plain_copy(nn.Linear(2, 2)).weight.grad is None
    True
    """
    module = unwrapped(model)
    memo: dict[int, Any] = {}
    if hasattr(module, _MARK):
        memo[id(getattr(module, _MARK))] = []
        for layer in module.modules():
            memo.update({id(getattr(layer, name)): OrderedDict() for name in _HOOKS if hasattr(layer, name)})
            if hasattr(layer, "activations"):
                memo[id(layer.activations)] = []
    copied = copy.deepcopy(module, memo)
    if hasattr(copied, _MARK):
        delattr(copied, _MARK)
    return copied


def loader_sampling(data_loader: Any) -> LoaderSampling:
    """How a data loader draws records, also under Opacus's ``BatchMemoryManager``."""
    _check_installed("FisherAccountant.attach")
    from opacus.utils.batch_memory_manager import BatchSplittingSampler
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    from torch.utils.data import BatchSampler, RandomSampler

    sampler = getattr(data_loader, "batch_sampler", None)
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    if isinstance(sampler, UniformWithReplacementSampler):
        return LoaderSampling(float(sampler.sample_rate), poisson=True)
    if isinstance(sampler, BatchSampler) and isinstance(sampler.sampler, RandomSampler):
        return LoaderSampling(1 / len(sampler), poisson=False)
    raise invalid_input(
        "data_loader.batch_sampler",
        type(sampler).__name__,
        "to draw Poisson samples or shuffle",
        "Pass the loader that make_private returned, or one with shuffle=True; a fixed order hides nobody.",
    )


def check_optimizer(optimizer: Any, model: nn.Module, purpose: str = "FisherAccountant.attach") -> None:
    """Refuse optimizers whose step is not one flat clipping of all parameters of ``model`` plus equal noise."""
    _check_installed(purpose)
    from opacus.optimizers import DPOptimizer

    from reconrisk.integrations.opacus.noise_optimizer import ParameterNoiseOptimizer

    name = type(optimizer).__name__
    if not isinstance(optimizer, DPOptimizer):
        raise invalid_input(
            "optimizer", name, "to be a DPOptimizer", "Pass the optimizer that PrivacyEngine.make_private returned."
        )
    if isinstance(optimizer, ParameterNoiseOptimizer):
        remedy = f"{purpose} takes the optimizer that make_private returned."
        raise invalid_input("optimizer", name, "to add equal noise to all parameters", remedy)
    if type(optimizer) is not DPOptimizer:
        raise invalid_input("optimizer", name, "to be DPOptimizer, which clips all parameters together", _FLAT)
    check_positive("optimizer.noise_multiplier", optimizer.noise_multiplier, "Without noise everything leaks.")
    stepped = {id(parameter) for parameter in optimizer.params}
    for label, parameter in unwrapped(model).named_parameters():
        if parameter.requires_grad != (id(parameter) in stepped):
            raise invalid_input(
                label,
                "trained" if parameter.requires_grad else "frozen",
                "to be in the optimizer exactly if it requires gradients",
                f"Pass {purpose.split('.')[0]} the model that is trained; call requires_grad_(False) on what is not.",
            )


def check_reduction(optimizer: Any, reduction: str | None) -> None:
    """Refuse a loss that sums over the batch where Opacus expects the mean, or the reverse; None passes.

    Opacus then clips gradients that are too long or too short by the size of the batch.
    """
    if reduction is not None and optimizer.loss_reduction != reduction:
        raise invalid_input(
            "optimizer.loss_reduction",
            optimizer.loss_reduction,
            f"to be {reduction!r}, as loss_fn is the {reduction} over a batch",
            f"Pass make_private(loss_reduction={reduction!r}) and the accountant the loss used in training.",
        )


def chain_step_hook(optimizer: Any, hook: Callable[[Any], None]) -> Callable[[], None]:
    """Run ``hook`` after the hook that ``optimizer`` already has, whose only slot it takes; returns what undoes it.

    The hook runs once per real step, after the noise was drawn and before the parameters move; virtual steps of
    ``BatchMemoryManager`` do not reach it, empty batches do.
    """
    earlier = optimizer.step_hook

    def both(stepping: Any) -> None:
        if earlier is not None:
            earlier(stepping)
        hook(stepping)

    setattr(both, NEEDS_EQUAL_NOISE, True)
    optimizer.attach_step_hook(both)

    def undo() -> None:
        if optimizer.step_hook is not both:
            raise invalid_input(
                "optimizer.step_hook",
                optimizer.step_hook,
                "to be the one that was attached",
                "Detach later hooks first; a hook attached without chaining has replaced this one.",
            )
        optimizer.attach_step_hook(earlier)

    return undo


def read_step(optimizer: Any, sampling: LoaderSampling) -> OpacusStep:
    """The settings of the step that ``optimizer`` is about to take.

    Edge cases: several backward passes before a step are several shuffled batches, so that the chance adds up; Poisson
    samples must not be accumulated so, since a record may then contribute twice.
    """
    batches = int(optimizer.accumulated_iterations)
    if sampling.poisson and batches != 1:
        raise invalid_input(
            "accumulated batches", batches, "to be 1", "Use BatchMemoryManager for large Poisson batches."
        )
    rate = min(1.0, sampling.sampling_probability * batches)
    return OpacusStep(float(optimizer.noise_multiplier), float(optimizer.max_grad_norm), rate, sampling.poisson)


def _check_installed(purpose: str) -> None:
    try:
        import opacus  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra("opacus", "dp", purpose) from error
