"""Optimizer of Opacus in units of a noise that differs between parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opacus.optimizers import DPOptimizer
from torch import Tensor

from reconrisk.core.validation import check_all_finite
from reconrisk.defenses.clipping import NoiseScales


class ParameterNoiseOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus has no types
    r"""``DPOptimizer`` that clips, sums and adds noise in units :math:`s` of the noise of each value.

    .. math:: s \Bigl(\sum_i \min\bigl(1, C / |g_i / s|\bigr)\, g_i / s + N(0, (\sigma C)^2 I)\Bigr)

    Here :math:`g_i` is the gradient of record i and C the clip norm. The term in brackets is the mechanism of Opacus
    with noise multiplier :math:`\sigma`. The units :math:`s` are public, so multiplying by them is post-processing.
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
        self._is_new = True  # the constructor has set the scales of the first batch

    @property
    def noise_std(self) -> dict[str, Tensor]:
        """Standard deviation of the noise that the next step adds to each value of the sum over records, by name."""
        size = self.noise_multiplier * self.max_grad_norm  # read now: schedulers change both
        return {name: size * self._units[id(value)] for name, value in self._named.items()}

    def pre_step(self, closure: Callable[[], float] | None = None) -> Any:
        """Refresh the scales at the beginning of a batch, never between its parts, then do the step of Opacus."""
        if self._refresh and not self._is_new and not self._is_last_step_skipped:
            self._set_scales(self._scales())
        self._is_new = False
        return super().pre_step(closure)

    def clip_and_accumulate(self) -> None:
        """Clip and sum in units of the noise; raise InvalidInput if a sum is not finite."""
        super().clip_and_accumulate()
        for name, value in self._named.items():
            check_all_finite(f"summed gradient of {name}", value.summed_grad, "Check the loss and the learning rate.")  # type: ignore[attr-defined]  # Opacus's field

    def add_noise(self) -> None:
        """Add the noise of Opacus, then convert from noise units to gradients."""
        super().add_noise()
        for parameter in self.params:
            parameter.grad = parameter.grad * self._units[id(parameter)]

    def _get_flat_grad_sample(self, p: Tensor) -> Tensor:
        """Return the per-record gradients in noise units; Opacus clips and sums only through this method."""
        flat: Tensor = super()._get_flat_grad_sample(p)
        return flat / self._units[id(p)].to(flat)

    def _set_scales(self, scales: NoiseScales) -> None:
        """Set the units of each parameter, with the mean of :math:`1/s^2` equal to 1."""
        scales.check_fits(self._named)
        # by identity, because Opacus passes parameters without their names
        self._units = {
            id(value): (scales.stds[name].double() / scales.unit).to(value) for name, value in self._named.items()
        }
