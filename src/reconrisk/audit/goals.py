"""The metrics that goals are stated in, for records of a shape and range."""

from __future__ import annotations

from collections.abc import Sequence

from reconrisk.core.goal import Goal, Limit, goal_from_text, limit_from_text, mse, psnr
from reconrisk.core.metric import Metric
from reconrisk.core.validation import check_not_empty, refuse
from reconrisk.data.dataset import Dataset
from reconrisk.metrics import mse as mean_squared_error
from reconrisk.metrics import ncc, ssim
from reconrisk.metrics import psnr as peak_ratio

_SMALLEST_IMAGE = 7  # pixels on a side: what structural similarity compares


def metrics_for(dataset: Dataset) -> tuple[Metric, ...]:
    """Every metric that fits the records: all are kept of each trial, so that goals can change afterwards."""
    image = len(dataset.shape) == 3 and min(dataset.shape[1:]) >= _SMALLEST_IMAGE
    similarity = (ssim(data_range=dataset.data_range),) if image else ()
    return (peak_ratio(data_range=dataset.data_range), mean_squared_error(), ncc(), *similarity)


def checked_goals(
    goals: Sequence[Goal | str] | Goal | str | None, limits: Sequence[Limit], dataset: Dataset
) -> tuple[Goal, ...]:
    """Goals as values, those of the limits included; by default 20 dB and a mean squared error of 0.05 of the range.

    Guarantee: a goal in a metric that does not fit the records is refused.
    """
    width = dataset.data_range[1] - dataset.data_range[0]
    stated: Sequence[Goal | str] = (psnr(20), mse(0.05 * width * width))
    if goals is not None:
        stated = (goals,) if isinstance(goals, (Goal, str)) else tuple(goals)
    found = [goal if isinstance(goal, Goal) else goal_from_text(goal) for goal in stated]
    found += [limit.goal for limit in limits]
    check_not_empty("goals", found, "State one such as 'psnr>=20'.")
    fitting = [metric.name for metric in metrics_for(dataset)]
    for goal in found:
        if goal.metric not in fitting:
            raise refuse("goals", str(goal), f"to use one of {', '.join(fitting)} for records of shape {dataset.shape}")
    return tuple(dict.fromkeys(found))


def checked_limits(limits: Sequence[Limit | str] | Limit | str) -> tuple[Limit, ...]:
    """Limits as values."""
    several = (limits,) if isinstance(limits, (Limit, str)) else tuple(limits)
    return tuple(limit if isinstance(limit, Limit) else limit_from_text(limit) for limit in several)
