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
from reconrisk.metrics.records import check_finite_records, check_records, match_indices, reordered


class Exposed(NamedTuple):
    """The record an attack came nearest to, and its score."""

    record: int
    score: float


@dataclass(frozen=True, eq=False)
class Scores(Mapping[str, Tensor]):
    """Scores of every target by every metric: a mapping from names to tensors, in the order the metrics were given.

    ``by_metric`` maps the name of a metric to one score per target. ``matched`` says which estimate was scored against
    each target, -1 for none.
    """

    by_metric: Mapping[str, Tensor]
    metrics: tuple[Metric, ...]
    matched: Tensor

    def __getitem__(self, name: str) -> Tensor:
        """One score per target by the metric of this name."""
        if name not in self.by_metric:
            raise KeyError(f"Expected metric={name!r} to be one of {', '.join(self.by_metric)}.")
        return self.by_metric[name]

    def __iter__(self) -> Iterator[str]:
        """Names of the metrics."""
        return iter(self.by_metric)

    def __len__(self) -> int:
        """Number of metrics."""
        return len(self.by_metric)

    def __eq__(self, other: object) -> bool:
        """Identity: tensors have no single truth value."""
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def mean(self) -> dict[str, float]:
        """Mean score by metric; an infinitely bad score of one record makes it the worst."""
        means = {}
        for metric in self.metrics:
            scores = self.by_metric[metric.name]
            lost = math.isinf(metric.worst) and bool((scores == metric.worst).any())
            means[metric.name] = metric.worst if lost else float(scores.mean())
        return means

    @property
    def most_exposed(self) -> dict[str, Exposed]:
        """By metric the record that was rebuilt best: what an audit must look at first."""
        exposed = {}
        for metric in self.metrics:
            scores = self.by_metric[metric.name]
            record = int(scores.argmax() if metric.higher_is_better else scores.argmin())
            exposed[metric.name] = Exposed(record, float(scores[record]))
        return exposed

    def __repr__(self) -> str:
        """A line for each metric: its settings, the mean and the most exposed record."""
        missing = int((self.matched < 0).sum())
        head = f"Scores of {len(self.matched)} records" + (f", {missing} without an estimate" if missing else "")
        width = max(len(repr(metric)) for metric in self.metrics)
        mean, exposed = self.mean, self.most_exposed
        lines = [
            f"  {metric!r:<{width}}  mean {mean[metric.name]:<10.4g}  "
            f"best rebuilt {exposed[metric.name].score:.4g} (record {exposed[metric.name].record})"
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
    """Scores of a reconstruction, or of bare estimates, against the targets by each of the metrics.

    The estimates are first matched to the targets by the Hungarian method (:func:`match_indices`), because the order
    of a batch is usually lost in what is released; every metric then scores the same pairs. Matching flatters: a
    baseline must be matched as well. Where each row is known to be of the target in that row, such as one
    observation per record, say ``in_order=True``.

    Guarantee: one score per target and metric; without ``in_order``, unchanged if the estimates are permuted.
    Edge cases: a target without an estimate, or with NaN in it, gets the worst score of each metric.

    >>> import torch
    >>> from reconrisk.metrics import mse, ncc
    >>> targets = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> scores = score(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), targets, [mse(), ncc()])
    >>> scores
    Scores of 2 records
      mse()  mean 0.0625      best rebuilt 0 (record 1)
      ncc()  mean 1           best rebuilt 1 (record 1)
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
        expected = f"to equal targets.shape={tuple(targets.shape)} with in_order"
        raise invalid_input("estimates.shape", tuple(values.shape), expected)
    arranged = reordered(values, matched, targets)
    return Scores({metric.name: metric(arranged, targets) for metric in metrics}, metrics, matched)


def _check_metrics(metrics: tuple[Metric, ...]) -> None:
    check_not_empty("metrics", metrics, "Pass mse(), for instance.")
    for metric in metrics:
        if not isinstance(metric, Metric):
            raise invalid_input("metrics", metric, "to hold metrics", "Call the constructor, such as mse().")
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1:
            remedy = "Name one of them otherwise: dataclasses.replace(metric, name=...)."
            raise invalid_input("metrics", names, f"to hold {name} once", remedy)
