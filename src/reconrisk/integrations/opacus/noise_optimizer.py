"""Opacus's optimizer in units of a noise that differs between parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opacus.optimizers import DPOptimizer
from torch import Tensor

from reconrisk.core.validation import check_all_finite
from reconrisk.defenses.clipping import NoiseScales


class ParameterNoiseOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus has no types
    r"""A ``DPOptimizer`` that clips, sums and adds noise in units :math:`s` of the noise of each value.

    .. math:: s \Bigl(\sum_i \min\bigl(1, C / |g_i / s|\bigr)\, g_i / s + N(0, (\sigma C)^2 I)\Bigr)

    What is in brackets is Opacus's own mechanism, of noise multiplier sigma; multiplying by :math:`s`, which is public,
    is post-processing. :func:`~reconrisk.integrations.opacus.optimal_noise.with_optimal_noise` makes it.
    """

    def __init__(
        self, optimizer: Any, named: Mapping[str, Tensor], scales: Callable[[], NoiseScales], *, renewed: bool
    ) -> None:
        """Continue ``optimizer`` for the parameters ``named``; ``renewed`` scales are asked for before each step."""
        super().__init__(
            optimizer.original_optimizer,
            noise_multiplier=optimizer.noise_multiplier,
            max_grad_norm=optimizer.max_grad_norm,
            expected_batch_size=optimizer.expected_batch_size,
            loss_reduction=optimizer.loss_reduction,
            generator=optimizer.generator,
            secure_mode=optimizer.secure_mode,
        )
        self.step_hook = optimizer.step_hook
        self._named, self._scales, self._renewed = dict(named), scales, renewed
        self._use(scales())
        self._is_new = True

    @property
    def noise_std(self) -> dict[str, Tensor]:
        """Standard deviation of the noise that the next step adds to each value of the sum over records, by name."""
        size = self.noise_multiplier * self.max_grad_norm
        return {name: size * self._units[id(value)] for name, value in self._named.items()}

    def pre_step(self, closure: Callable[[], float] | None = None) -> Any:
        """Ask for new scales where a batch begins, never between its parts, then as Opacus."""
        if self._renewed and not self._is_new and not self._is_last_step_skipped:
            self._use(self._scales())
        self._is_new = False
        return super().pre_step(closure)

    def clip_and_accumulate(self) -> None:
        """Clip and add up in units of the noise; a sum that is not finite is refused."""
        super().clip_and_accumulate()
        for name, value in self._named.items():
            check_all_finite(f"summed gradient of {name}", value.summed_grad, "Check the loss and the learning rate.")  # type: ignore[attr-defined]  # Opacus's field

    def add_noise(self) -> None:
        """Add Opacus's noise, then leave the units."""
        super().add_noise()
        for parameter in self.params:
            parameter.grad = parameter.grad * self._units[id(parameter)]

    def _get_flat_grad_sample(self, p: Tensor) -> Tensor:
        """Everything that Opacus clips and sums passes here."""
        flat: Tensor = super()._get_flat_grad_sample(p)
        return flat / self._units[id(p)].to(flat)

    def _use(self, scales: NoiseScales) -> None:
        scales.check_fits(self._named)
        self._units = {
            id(value): (scales.stds[name].double() / scales.unit).to(value) for name, value in self._named.items()
        }
