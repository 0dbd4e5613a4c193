"""Noise that differs between parameters for training with Opacus, counted by the accountants of Opacus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_positive, invalid_input
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.defenses.local import LocalDefense
from reconrisk.defenses.noise import ParameterNoise
from reconrisk.defenses.optimal_noise import optimal_noise
from reconrisk.defenses.refreshed import RefreshedDefense
from reconrisk.integrations.opacus import step as opacus
from reconrisk.releases.sensitivity.moments import ReferenceMoments

if TYPE_CHECKING:
    from reconrisk.integrations.opacus.noise_optimizer import ParameterNoiseOptimizer


Noise: TypeAlias = ReferenceMoments | ParameterNoise | RefreshedDefense


def with_optimal_noise(optimizer: Any, model: nn.Module, noise: Noise) -> ParameterNoiseOptimizer:
    r"""Replace the equal noise of an Opacus optimizer by noise that differs between parameters.

    .. math:: s \Bigl(\sum_i \min\bigl(1, C / |g_i / s|\bigr)\, g_i / s + N(0, (\sigma C)^2 I)\Bigr)

    Here :math:`g_i` is the gradient of record i, C the clip norm and :math:`\sigma` the noise multiplier. Each
    record's gradient is clipped in units :math:`s` of the noise, with :math:`1/s^2` of mean 1, so that a gradient
    of random direction keeps its norm. Only the proportions of ``noise`` count; its size follows from
    ``noise_multiplier`` and ``max_grad_norm`` as in Opacus.

    Args:
        optimizer: The optimizer that ``make_private`` returned.
        model: The model trained with ``make_private``, wrapped or not.
        noise: Moments of public records from ``rr.sensitivity.reference_moments``, or
            ``rr.defenses.optimal_noise(...)``, or ``rr.defenses.refreshed(...)``, which recomputes them regularly.

    Returns:
        The optimizer to train with, in place of ``optimizer``.

    Raises:
        MissingExtra: If Opacus is not installed.
        InvalidInput: If the optimizer, its clipping or its step hook is not supported, or private records choose
            ``noise``.

    Assumes: the noise was chosen from public records and released weights alone; batches are drawn as the accountant
    assumes.
    Guarantee: every step is the Gaussian mechanism with Opacus's ``noise_multiplier``: the epsilon of the engine holds.
    It holds for the floating-point values too: clipping and summing are in float64, and the noise is rounded exactly.
    With equal scales the sums equal those of Opacus up to rounding. Schedulers may change noise and clip norm.
    Edge cases: the bits of the noise come from the operating system; with a ``noise_generator`` of ``make_private``,
    which is for simulations, a warning says so. Batches of more than 65,536 records are refused. Clipping per layer,
    adaptive, ghost or distributed clipping are refused, as is noise chosen by private records, which has no guarantee.
    An attached ``FisherAccountant`` is refused too, because it assumes equal noise.
    Reference: Theorem 3.5, chen2025, for the noise; the change of units is post-processing.

    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> model = nn.Linear(2, 1, bias=False)
    >>> plain = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> private = DPOptimizer(plain, noise_multiplier=2.0, max_grad_norm=0.5, expected_batch_size=8)
    >>> noise = ParameterNoise(NoiseScales({"weight": torch.tensor([[1.0, 7.0]])}), "mine")
    >>> with_optimal_noise(private, model, noise).noise_std["weight"]
    tensor([[0.7143, 5.0000]])
    """
    opacus.check_optimizer(optimizer, model, "with_optimal_noise")
    check_positive("optimizer.max_grad_norm", optimizer.max_grad_norm)
    if getattr(optimizer.step_hook, opacus.NEEDS_EQUAL_NOISE, False):
        remedy = "Call accountant.detach() first: the accountant assumes equal noise on all parameters."
        raise InvalidInput(f"Expected an optimizer without a FisherAccountant, but one is attached. {remedy}")
    from reconrisk.integrations.opacus.noise_optimizer import ParameterNoiseOptimizer

    inner = opacus.unwrap(model)
    trained = {name: value for name, value in inner.named_parameters() if value.requires_grad}
    return ParameterNoiseOptimizer(
        optimizer, trained, _scale_source(noise, inner), refresh=isinstance(noise, RefreshedDefense)
    )


def _scale_source(noise: Noise, model: nn.Module) -> Callable[[], NoiseScales]:
    """Return the function that gives the scales of the next step."""
    if isinstance(noise, RefreshedDefense):
        # moments are computed with torch.func, which does not support the hooks of Opacus
        return lambda: _public_scales(noise.for_model(opacus.plain_copy(model).eval()))
    # like=1.0 is arbitrary: only the proportions of the scales count
    fixed = _public_scales(optimal_noise(noise, like=1.0) if isinstance(noise, ReferenceMoments) else noise)
    return lambda: fixed


def _public_scales(noise: object) -> NoiseScales:
    """Return the scales of a noise with a guarantee; raise InvalidInput for any other defense."""
    if isinstance(noise, LocalDefense) or getattr(noise, "is_local", False):
        remedy = "Pass rr.sensitivity.reference_moments of public records: noise chosen by private records leaks them."
        raise invalid_input("noise", str(noise), "to be chosen by public records", remedy)
    if not isinstance(noise, ParameterNoise):
        remedy = "Pass optimal_noise(...) alone: max_grad_norm clips, and Opacus itself adds equal noise."
        raise invalid_input("noise", str(noise), "to be only noise that differs between parameters", remedy)
    return noise.scales
