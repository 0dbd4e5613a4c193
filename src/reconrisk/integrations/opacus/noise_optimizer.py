"""Optimizer of Opacus in units of a noise that differs between parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import Tensor

from reconrisk.core.validation import invalid_input
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.releases.float_safe_noise import add_noise_by_name, clip_limit, protecting_generator, to_float64

_MOST_RECORDS = 2**16
"""Bound on the records of one batch, fixed beforehand: the margin of the clip must not depend on the drawn batch."""


class ParameterNoiseOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus has no types
    r"""``DPOptimizer`` that clips, sums and adds noise in units :math:`s` of the noise of each value.

    .. math:: s \Bigl(\sum_i \min\bigl(1, C / |g_i / s|\bigr)\, g_i / s + N(0, (\sigma C)^2 I)\Bigr)

    Here :math:`g_i` is the gradient of record i and C the clip norm. The term in brackets is the mechanism of Opacus
    with noise multiplier :math:`\sigma`. The units :math:`s` are public, so multiplying by them is post-processing.
    Clipping and summing are in float64 and the noise is rounded exactly
    (:mod:`~reconrisk.releases.float_safe_noise`), so that the guarantee holds for the floating-point values. A record
    whose gradient is not finite contributes nothing.
    Made by :func:`~reconrisk.integrations.opacus.optimal_noise.with_optimal_noise`.

    Args:
        optimizer: The ``DPOptimizer`` that ``make_private`` returned. The new one continues it with other noise.
        named: Parameters of the optimizer by name.
        scales: Function that returns the scales of the next step.
        refresh: True to call ``scales`` before each step, False to call it once.
    """

    def __init__(
        self, optimizer: Any, named: Mapping[str, Tensor], scales: Callable[[], NoiseScales], *, refresh: bool
    ) -> None:
        super().__init__(
            optimizer.original_optimizer,
            noise_multiplier=optimizer.noise_multiplier,
            max_grad_norm=optimizer.max_grad_norm,
            expected_batch_size=optimizer.expected_batch_size,
            loss_reduction=optimizer.loss_reduction,
            generator=optimizer.generator,
            secure_mode=optimizer.secure_mode,
        )
        self.step_hook = optimizer.step_hook  # the privacy accountant of the engine counts through it
        self._named, self._scales, self._refresh = dict(named), scales, refresh
        self._set_scales(scales())
        self._summed = 0  # records of the current batch
        # the generator of Opacus's secure mode is the operating system's too
        self._rng = protecting_generator(None if optimizer.secure_mode else optimizer.generator)
        self._is_new = True  # the constructor has set the scales of the first batch

    @property
    def noise_std(self) -> dict[str, Tensor]:
        """Standard deviation of the noise that the next step adds to each value of the sum over records, by name."""
        size = self.noise_multiplier * self.max_grad_norm  # read now: schedulers change both
        return {name: (size * self._units[id(value)]).to(value) for name, value in self._named.items()}

    def pre_step(self, closure: Callable[[], float] | None = None) -> Any:
        """Refresh the scales at the beginning of a batch, never between its parts, then do the step of Opacus."""
        if self._refresh and not self._is_new and not self._is_last_step_skipped:
            self._set_scales(self._scales())
        self._is_new = False
        return super().pre_step(closure)

    def clip_and_accumulate(self) -> None:
        """Clip and sum in units of the noise, in float64."""
        size = sum(parameter.numel() for parameter in self.params)
        limit = clip_limit(self.max_grad_norm, size, records=_MOST_RECORDS)
        squares = torch.stack(
            [flat.square().flatten(1).sum(1).cpu() for flat in self.grad_samples]  # layers may be on several devices
        ).sum(0)
        norms = squares.sqrt()
        finite = norms.isfinite()
        factors = torch.where(norms > limit, limit / norms, 1.0)
        self._summed += len(norms)
        if self._summed > _MOST_RECORDS:
            raise invalid_input("records in a batch", self._summed, f"<= {_MOST_RECORDS}", "Use smaller batches.")
        for parameter in self.params:
            _check_processed_flag(parameter.grad_sample)
            rows = self._get_flat_grad_sample(parameter)
            rows = rows.where(finite.to(rows.device).view(-1, *[1] * parameter.dim()), 0.0)
            total = torch.einsum("i,i...", factors.to(rows.device), rows)
            parameter.summed_grad = total if parameter.summed_grad is None else parameter.summed_grad + total
            _mark_as_processed(parameter.grad_sample)

    def add_noise(self) -> None:
        """Add the noise to the sums, then convert from noise units to gradients."""
        self._summed = 0
        std = float(self.noise_multiplier * self.max_grad_norm)
        sums: dict[str, Tensor] = {name: value.summed_grad for name, value in self._named.items()}  # type: ignore[attr-defined]  # Opacus's field
        for total in sums.values():
            _check_processed_flag(total)
        noisy = add_noise_by_name(sums, std, self._rng) if std > 0 else sums
        for name, parameter in self._named.items():
            # conversion to the precision of the model after the noise is post-processing
            parameter.grad = (
                (noisy[name] * self._units[id(parameter)].to(noisy[name].device)).view(parameter.shape).to(parameter)
            )
            _mark_as_processed(sums[name])

    def _get_flat_grad_sample(self, p: Tensor) -> Tensor:
        """Return the per-record gradients in noise units; Opacus clips and sums only through this method."""
        flat = to_float64(super()._get_flat_grad_sample(p))
        return flat / self._units[id(p)].to(flat.device)

    def _set_scales(self, scales: NoiseScales) -> None:
        """Set the units of each parameter, with the mean of :math:`1/s^2` equal to 1."""
        scales.check_fits(self._named)
        # by identity, because Opacus passes parameters without their names
        self._units = {id(value): to_float64(scales.stds[name]) / scales.unit for name, value in self._named.items()}
