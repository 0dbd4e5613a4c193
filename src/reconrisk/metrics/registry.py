"""Registry of metrics by name, including plugins by the entry points ``reconrisk.metrics``.

Importing this module loads no metric and no torch. A new metric is one file, one row here and one line in the stub.
Goals can then be stated in it, from Python and from the shell.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reconrisk.core.metric import Metric
from reconrisk.core.registry import Info, Plugin, Registry, summary_from_docstring
from reconrisk.core.validation import invalid_input

ErrorAt = Callable[[float, tuple[float, float]], float]
"""Function of a score and the range of the data; returns the mean squared error at which the score is reached."""

_LARGEST_EXPONENT = 100.0  # at an error of 10^100 every estimate succeeds; larger powers would overflow


@dataclass(frozen=True)
class MetricInfo(Info):
    """Registry row of a metric.

    Attributes:
        name: Name of the metric, also in goals such as ``psnr>=20``.
        where: Function that configures it, as "module:function". It takes ``data_range`` if it needs the range of the
            data.
        summary: One sentence in plain English.
        best: Score of an exact estimate.
        worst: Score of a failed estimate. A higher score is better if ``best`` is above ``worst``.
        label: Axis label in figures; the name if empty.
        unit: Unit of a difference of scores; empty for a plain number.
        smallest_image: Smallest side, in pixels, of images that it compares; 0 if it compares records of any shape.
        is_goal: True if the metric needs no settings but the data range; then goals such as ``psnr>=20`` can use it.
        error_at: Function that returns the mean squared error at a score; None if scores do not determine an error.
            Guarantees cover only goals in metrics with this function.
    """

    best: float
    worst: float
    label: str = ""
    unit: str = ""
    smallest_image: int = 0
    is_goal: bool = True
    error_at: ErrorAt | None = field(default=None, repr=False)

    @property
    def higher_is_better(self) -> bool:
        """True if a larger score means an estimate nearer to the target."""
        return self.best > self.worst

    def fits(self, shape: Sequence[int]) -> bool:
        """Return True if the metric compares records of this shape."""
        if not self.smallest_image:
            return True
        return len(shape) == 3 and min(shape[1:]) >= self.smallest_image  # (channels, height, width)

    def configure(self, data_range: tuple[float, float]) -> Metric:
        """Load the metric for data in a range, under the name of this row."""
        if not self.is_goal:
            raise invalid_input(
                "metric", self.name, "to need no further settings", "Call its function in Python instead."
            )
        metric = _configure(self.load(), data_range)
        # A plugin may be registered under another name than its metric has; scores are looked up by the registered one.
        return metric if metric.name == self.name else replace(metric, name=self.name)


def _error_at_psnr(decibel: float, data_range: tuple[float, float]) -> float:
    exponent = min(-decibel / 10, _LARGEST_EXPONENT)
    return float((data_range[1] - data_range[0]) ** 2 * 10**exponent)


def _error_at_mse(error: float, data_range: tuple[float, float]) -> float:
    del data_range
    return error


_ROWS = (
    MetricInfo(
        "psnr",
        "reconrisk.metrics.elementwise:psnr",
        "Peak signal-to-noise ratio in decibel.",
        best=math.inf,
        worst=-math.inf,
        label="PSNR in dB",
        unit="dB",
        error_at=_error_at_psnr,
    ),
    MetricInfo(
        "mse",
        "reconrisk.metrics.elementwise:mse",
        "Mean squared error of the values of a record.",
        best=0.0,
        worst=math.inf,
        label="mean squared error",
        error_at=_error_at_mse,
    ),
    MetricInfo(
        "ncc",
        "reconrisk.metrics.elementwise:ncc",
        "Normalised cross-correlation: blind to brightness and contrast.",
        best=1.0,
        worst=-1.0,
        label="normalised cross-correlation",
    ),
    MetricInfo(
        "ssim",
        "reconrisk.metrics.ssim:ssim",
        "Structural similarity of images.",
        best=1.0,
        worst=-1.0,
        label="structural similarity",
        smallest_image=3,  # structure needs a neighbourhood
    ),
    MetricInfo(
        "lpips",
        "reconrisk.metrics.lpips:lpips",
        "Perceptual distance of images by the features of AlexNet, with the weights of torchvision.",
        best=0.0,
        worst=math.inf,
        label="perceptual distance (LPIPS)",
        smallest_image=1,
    ),
    MetricInfo(
        "judge_kl",
        "reconrisk.metrics.judge:judge_kl",
        "Divergence between the predictions of a classifier for estimate and target.",
        best=0.0,
        worst=math.inf,
        label="divergence of a judge's predictions",
        is_goal=False,  # the classifier must be passed
    ),
)


def _row_from_plugin(plugin: Plugin, offered: Any) -> MetricInfo:
    """Build a row from a metric, or from a function that configures one; the scale is read from the metric."""
    metric = _configure(offered, (0.0, 1.0))  # any range will do: only best and worst are read
    summary = "" if isinstance(offered, Metric) else summary_from_docstring(offered)
    return MetricInfo(plugin.name, plugin.where, summary, best=metric.best, worst=metric.worst)


METRICS: Registry[MetricInfo] = Registry("metric", _ROWS, _row_from_plugin)
"""Metrics by name, including plugins."""


def metric_by_name(name: str, *, data_range: tuple[float, float]) -> Metric:
    """Configure the metric of this name.

    Args:
        name: Name in :data:`METRICS`, or of a plugin.
        data_range: Smallest and largest value of a record.

    Returns:
        The configured metric.

    Raises:
        InvalidInput: If the name is unknown, or if the metric needs more settings than the range.

    >>> metric_by_name("psnr", data_range=(0.0, 1.0))
    psnr(data_range=(0.0, 1.0))
    """
    return METRICS[name].configure(data_range)


def fitting_metrics(names: Iterable[str], shape: Sequence[int], data_range: tuple[float, float]) -> tuple[Metric, ...]:
    """Configure the named metrics that can compare records of a shape, each once, in the order of the names.

    Args:
        names: Names of metrics; duplicates are ignored.
        shape: Shape of one record.
        data_range: Smallest and largest value of a record.

    Returns:
        The configured metrics.

    Raises:
        InvalidInput: If a name is unknown.

    >>> fitting_metrics(("mse", "ssim", "mse"), (30,), (0.0, 1.0))
    (mse(),)
    """
    rows = (METRICS[name] for name in dict.fromkeys(names))
    return tuple(row.configure(data_range) for row in rows if row.fits(shape))


def _configure(offered: Any, data_range: tuple[float, float]) -> Metric:
    if isinstance(offered, Metric):
        return offered
    takes_range = "data_range" in inspect.signature(offered).parameters
    metric = offered(data_range=data_range) if takes_range else offered()
    if not isinstance(metric, Metric):
        name = getattr(offered, "__name__", repr(offered))
        condition = f"to return a reconrisk.core.metric.Metric, found {type(metric).__name__}"
        raise invalid_input("metric", name, condition, "Return Metric(name, function, best=..., worst=...).")
    return metric
