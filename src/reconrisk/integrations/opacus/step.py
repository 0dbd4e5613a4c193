"""Settings of a training step, read from the objects of Opacus: sampling, clip norm and noise."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.validation import check_positive, invalid_input

# attributes in which torch keeps the hooks of a module
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MARK = "autograd_grad_sample_hooks"  # attribute of a module that Opacus has added hooks to
NEEDS_EQUAL_NOISE = "needs_equal_noise"
"""Attribute that marks a step hook whose computation assumes equal noise."""
_FLAT = "Train with PrivacyEngine.make_private(clipping='flat', grad_sample_mode='hooks') on one device."


@dataclass(frozen=True)
class LoaderSampling:
    """Sampling of a data loader.

    Attributes:
        sampling_probability: Probability that a record is in a batch.
        poisson: True if batches are Poisson samples, False for shuffled epochs.
    """

    sampling_probability: float
    poisson: bool


@dataclass(frozen=True)
class OpacusStep:
    """Settings of one step, read from the optimizer at that step, so changes by schedulers are included.

    Attributes:
        noise_multiplier: Standard deviation of the noise divided by the clip norm.
        clip_norm: Largest norm of the gradient of a record.
        sampling_probability: Probability that a record is in the batch.
        poisson: True if batches are Poisson samples.
    """

    noise_multiplier: float
    clip_norm: float
    sampling_probability: float
    poisson: bool


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside Opacus's wrapper; both have the same parameter objects.

    Args:
        model: A module, wrapped by Opacus or not.

    Returns:
        The inner module, or ``model`` itself.

    >>> layer = nn.Linear(2, 2)
    >>> unwrap(layer) is layer
    True
    """
    inner = getattr(model, "_module", None)
    wraps = isinstance(inner, nn.Module) and type(model).__module__.split(".")[0] == "opacus"
    return unwrap(inner) if wraps and isinstance(inner, nn.Module) else model


def plain_copy(model: nn.Module) -> nn.Module:
    """Copy a model without the hooks of Opacus, which ``torch.func`` does not support, and without gradients.

    Args:
        model: A module, wrapped by Opacus or not. It is not changed.

    Returns:
        An unwrapped copy.

    >>> plain_copy(nn.Linear(2, 2)).weight.grad is None
    True
    """
    module = unwrap(model)
    memo: dict[int, Any] = {}
    if hasattr(module, _MARK):
        # deepcopy takes these replacements from the memo instead of copying hooks and stored activations
        memo[id(getattr(module, _MARK))] = []
        for layer in module.modules():
            memo.update({id(getattr(layer, name)): OrderedDict() for name in _HOOKS if hasattr(layer, name)})
            if hasattr(layer, "activations"):
                memo[id(layer.activations)] = []
    copied = copy.deepcopy(module, memo)
    if hasattr(copied, _MARK):
        delattr(copied, _MARK)
    return copied


def read_sampling(data_loader: Any) -> LoaderSampling:
    """Read the sampling of a data loader, also under ``BatchMemoryManager`` of Opacus.

    Args:
        data_loader: Loader that ``make_private`` returned, or one with ``shuffle=True``.

    Returns:
        Sampling probability and kind.

    Raises:
        MissingExtra: If Opacus is not installed.
        InvalidInput: If the loader neither draws Poisson samples nor shuffles.
    """
    check_installed("FisherAccountant.attach")
    from opacus.utils.batch_memory_manager import BatchSplittingSampler
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    from torch.utils.data import BatchSampler, RandomSampler

    sampler = getattr(data_loader, "batch_sampler", None)
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    if isinstance(sampler, UniformWithReplacementSampler):
        return LoaderSampling(float(sampler.sample_rate), poisson=True)
    if isinstance(sampler, BatchSampler) and isinstance(sampler.sampler, RandomSampler):
        # each record is in one of the len(sampler) batches of an epoch
        return LoaderSampling(1 / len(sampler), poisson=False)
    raise invalid_input(
        "type(data_loader.batch_sampler)",
        type(sampler).__name__,
        "to draw Poisson samples or shuffle",
        "Pass the loader that make_private returned, or one with shuffle=True; a fixed order amplifies nothing.",
    )


def check_optimizer(optimizer: Any, model: nn.Module, purpose: str = "FisherAccountant.attach") -> None:
    """Check that a step is one flat clipping of all parameters of the model plus equal noise.

    Args:
        optimizer: Optimizer that ``make_private`` returned.
        model: Model that it trains, wrapped or not.
        purpose: Name of the function that calls this check, for messages.

    Raises:
        MissingExtra: If Opacus is not installed.
        InvalidInput: If the optimizer is of another kind, adds no noise, or trains other parameters.
    """
    check_installed(purpose)
    from opacus.optimizers import DPOptimizer

    from reconrisk.integrations.opacus.noise_optimizer import ParameterNoiseOptimizer

    name = type(optimizer).__name__
    if not isinstance(optimizer, DPOptimizer):
        raise invalid_input(
            "type(optimizer)", name, "to be DPOptimizer", "Pass the optimizer that PrivacyEngine.make_private returned."
        )
    if isinstance(optimizer, ParameterNoiseOptimizer):
        remedy = f"Pass {purpose} the optimizer that make_private returned."
        raise invalid_input("type(optimizer)", name, "to add equal noise to all parameters", remedy)
    if type(optimizer) is not DPOptimizer:  # subclasses clip per layer, adaptively or across devices
        raise invalid_input("type(optimizer)", name, "to be DPOptimizer, which clips all parameters together", _FLAT)
    remedy = "Train with noise: without it the update reveals the gradient."
    check_positive("optimizer.noise_multiplier", optimizer.noise_multiplier, remedy)
    stepped = {id(parameter) for parameter in optimizer.params}
    for label, parameter in unwrap(model).named_parameters():
        if parameter.requires_grad != (id(parameter) in stepped):
            found = "requires gradients and is missing" if parameter.requires_grad else "is frozen and present"
            raise InvalidInput(
                f"Expected the optimizer to have exactly the parameters that require gradients, but {label} {found}. "
                f"Pass {purpose.split('.')[0]} the trained model; call requires_grad_(False) on frozen parameters."
            )


def check_reduction(optimizer: Any, reduction: str | None) -> None:
    """Check that the optimizer expects the reduction of the loss; with another one it would clip to a wrong norm.

    Args:
        optimizer: Optimizer of Opacus.
        reduction: ``"mean"`` or ``"sum"`` over a batch; None, if unknown, passes.

    Raises:
        InvalidInput: If the two differ.
    """
    if reduction is not None and optimizer.loss_reduction != reduction:
        raise invalid_input(
            "optimizer.loss_reduction",
            optimizer.loss_reduction,
            f"to be {reduction!r}, as loss_fn is the {reduction} over a batch",
            f"Pass make_private(loss_reduction={reduction!r}) and the accountant the loss used in training.",
        )


def chain_step_hook(optimizer: Any, hook: Callable[[Any], None]) -> Callable[[], None]:
    """Run a hook after the hook that an optimizer already has; Opacus has room for only one.

    The hook runs once per real step, after the noise was drawn and before the parameters change. Virtual steps of
    ``BatchMemoryManager`` do not call it, empty batches do.

    Args:
        optimizer: Optimizer of Opacus.
        hook: Function of the optimizer.

    Returns:
        A function that restores the earlier hook. It raises InvalidInput if the hook was replaced meanwhile.
    """
    earlier = optimizer.step_hook

    def run_both(stepping: Any) -> None:
        if earlier is not None:
            earlier(stepping)
        hook(stepping)

    setattr(run_both, NEEDS_EQUAL_NOISE, True)
    optimizer.attach_step_hook(run_both)

    def undo() -> None:
        if optimizer.step_hook is not run_both:
            raise invalid_input(
                "optimizer.step_hook",
                optimizer.step_hook,
                "to be the hook that attach() set",
                "Detach later hooks first; a hook attached without chaining has replaced this one.",
            )
        optimizer.attach_step_hook(earlier)

    return undo


def read_step(optimizer: Any, sampling: LoaderSampling) -> OpacusStep:
    """Read the settings of the step that an optimizer is about to take.

    Args:
        optimizer: Optimizer of Opacus.
        sampling: Sampling of its data loader.

    Returns:
        Noise, clip norm and sampling of this step.

    Raises:
        InvalidInput: If Poisson samples are accumulated over several backward passes.

    Edge cases: several backward passes before a step are several shuffled batches, so that their probabilities add up.
    Poisson samples must not be accumulated in this way, because a record could contribute twice.
    """
    batches = int(optimizer.accumulated_iterations)
    if sampling.poisson and batches != 1:
        raise invalid_input(
            "number of accumulated batches", batches, "to be 1", "Use BatchMemoryManager for large Poisson batches."
        )
    # shuffled batches of one epoch are disjoint, so their probabilities add up
    rate = min(1.0, sampling.sampling_probability * batches)
    return OpacusStep(float(optimizer.noise_multiplier), float(optimizer.max_grad_norm), rate, sampling.poisson)


def check_installed(purpose: str) -> None:
    """Check that Opacus is installed.

    Args:
        purpose: Name of the function that needs it, for the message.

    Raises:
        MissingExtra: If it is not.
    """
    try:
        import opacus  # noqa: F401 - checks that it is installed
    except ImportError as error:
        raise MissingExtra("opacus", "dp", purpose) from error
