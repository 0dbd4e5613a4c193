"""Scores of a reconstruction by several metrics at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reconrisk.core.metric import Metric
from reconrisk.core.reconstruction import Reconstruction
from reconrisk.core.validation import check_not_empty, invalid_input
from reconrisk.metrics.records import check_finite_records, check_records, match_indices, reorder_estimates


class ExposedScore(NamedTuple):
    """Most exposed record and its score.

    Attributes:
        record: Index of the record.
        score: Its score.
    """

    record: int
    score: float


@dataclass(frozen=True, eq=False)
class Scores(Mapping[str, Tensor]):
    """Scores of every target by every metric: a mapping from metric names to tensors, in the order given.

    Attributes:
        by_metric: One score for each target, by metric name.
        metrics: The metrics.
        matched: Index of the estimate that was scored against each target, -1 for none.
    """

    by_metric: Mapping[str, Tensor]
    metrics: tuple[Metric, ...]
    matched: Tensor

    def __getitem__(self, name: str) -> Tensor:
        """Return one score for each target by the metric of this name."""
        if name not in self.by_metric:
            raise KeyError(f"Expected metric={name!r} to be one of {', '.join(self.by_metric)}.")
        return self.by_metric[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the metrics."""
        return iter(self.by_metric)

    def __len__(self) -> int:
        """Return the number of metrics."""
        return len(self.by_metric)

    def __eq__(self, other: object) -> bool:
        """Return True for the same object only, because tensors have no single truth value."""
        return self is other

    def __hash__(self) -> int:
        return id(self)  # consistent with identity as equality

    @property
    def mean(self) -> dict[str, float]:
        """Mean score by metric; one infinitely bad record makes it the worst score."""
        means = {}
        for metric in self.metrics:
            scores = self.by_metric[metric.name]
            # The mean of inf and -inf would be NaN; a lost record must not make the mean look undefined.
            lost = math.isinf(metric.worst) and bool((scores == metric.worst).any())
            means[metric.name] = metric.worst if lost else float(scores.mean())
        return means

    @property
    def most_exposed(self) -> dict[str, ExposedScore]:
        """Record with the best score, by metric; audits look at it first."""
        exposed = {}
        for metric in self.metrics:
            scores = self.by_metric[metric.name]
            record = int(scores.argmax() if metric.higher_is_better else scores.argmin())
            exposed[metric.name] = ExposedScore(record, float(scores[record]))
        return exposed

    def __repr__(self) -> str:
        """Return a line for each metric: its settings, the mean and the most exposed record."""
        missing = int((self.matched < 0).sum())
        head = f"Scores of {len(self.matched)} records" + (f", {missing} without an estimate" if missing else "")
        width = max(len(repr(metric)) for metric in self.metrics)
        mean, exposed = self.mean, self.most_exposed
        lines = [
            f"  {metric!r:<{width}}  mean {mean[metric.name]:<10.4g}  "
            f"best {exposed[metric.name].score:.4g} (record {exposed[metric.name].record})"
            for metric in self.metrics
        ]
        return "\n".join([head, *lines])


def score(
    estimates: Reconstruction | Tensor,
    targets: Tensor,
    metrics: Metric | Sequence[Metric],
    *,
    in_order: bool = False,
) -> Scores:
    """Score a reconstruction, or a tensor of estimates, against the targets by each of the metrics.

    The estimates are first matched to the targets by the Hungarian method (:func:`match_indices`), because a release
    usually loses the order of a batch. Every metric then scores the same pairs. Matching improves the scores of every
    estimate, so match a baseline as well before comparing. The result prints the mean and the best score of each
    metric, and ``scores["mse"]`` are the scores of all targets by one metric.

    Args:
        estimates: Reconstruction, or reconstructed records.
        targets: True records.
        metrics: One metric, or several with different names.
        in_order: True if row i of the estimates belongs to row i of the targets, as with one observation per record; by
            default the estimates are matched to the targets.

    Returns:
        One score for each target and metric.

    Raises:
        InvalidInput: If targets are empty or not finite, if shapes differ, or if a metric is missing or named twice.

    Guarantee: one score for each target and metric. Without ``in_order``, scores do not change if the estimates are
    permuted.
    Edge cases: a target without an estimate, or whose estimate contains NaN, gets the worst score of each metric.

    >>> import torch
    >>> from reconrisk.metrics import mse, ncc
    >>> targets = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> scores = score(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), targets, [mse(), ncc()])
    >>> scores
    Scores of 2 records
      mse()  mean 0.0625      best 0 (record 1)
      ncc()  mean 1           best 1 (record 1)
    >>> scores["mse"]
    tensor([0.1250, 0.0000], dtype=torch.float64)
    """
    metrics = (metrics,) if isinstance(metrics, Metric) else tuple(metrics)
    _check_metrics(metrics)
    values = estimates.estimates if isinstance(estimates, Reconstruction) else estimates
    check_finite_records("targets", targets)
    if not in_order:
        matched = match_indices(values, targets)
    elif check_records("estimates", values).shape == targets.shape:
        matched = torch.arange(len(targets), device=targets.device)
    else:
        expected = f"to equal targets.shape={tuple(targets.shape)} with in_order=True"
        raise invalid_input("estimates.shape", tuple(values.shape), expected, "Pass one estimate per target, in order.")
    arranged = reorder_estimates(values, matched, targets)
    # Missing estimates are rows of NaN here, to which every metric gives its worst score.
    return Scores({metric.name: metric(arranged, targets) for metric in metrics}, metrics, matched)


def _check_metrics(metrics: tuple[Metric, ...]) -> None:
    check_not_empty("metrics", metrics, "Pass mse(), for instance.")
    for metric in metrics:
        if not isinstance(metric, Metric):
            raise invalid_input(
                "metrics", metric, "to contain only metrics", "Pass a configured metric, such as mse()."
            )
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1:
            remedy = "Rename one of them: dataclasses.replace(metric, name=...)."
            raise invalid_input("names of metrics", names, f"to contain {name!r} once", remedy)
