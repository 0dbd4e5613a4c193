"""Rules for metrics, and :func:`check_metric`, which runs them on small batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Metric
from reconrisk.core.validation import invalid_input
from reconrisk.testing.contract import CheckReport, Skipped, broken_rule, describe_error, run_rules

_SHAPE = (3, 16, 16)
_LEVELS = (0.02, 0.1, 0.4)  # standard deviations of noise in units of the data range
_TOLERANCE = 1e-5  # of a score: a convolution may use different algorithms for a batch and for a single record


@dataclass(eq=False)
class MetricCase:
    """A metric with the shape and range of the records that it compares."""

    metric: Metric
    shape: tuple[int, ...]
    data_range: tuple[float, float]

    def batch(self, records: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw records uniformly from the data range.

        Args:
            records: Number of records.
            seed: Seed of the generator.
            dtype: Type of the values.

        Returns:
            Records of shape ``(records, *shape)``, the same for the same seed.
        """
        low, high = self.data_range
        drawn = torch.rand(records, *self.shape, generator=torch.Generator().manual_seed(seed))
        return (low + (high - low) * drawn).to(dtype)

    @cached_property
    def first(self) -> Any:
        """Scores of the first call, or its exception."""
        try:
            return self.metric(self.batch(5, 1), self.batch(5, 2))
        except Exception as error:  # third-party code may raise anything
            return error

    @property
    def scores(self) -> Tensor:
        """Scores of the first call, of one random batch against another."""
        if not self.has_score_per_record:
            raise Skipped("the metric returned no score per record")
        found: Tensor = self.first
        return found

    @property
    def has_score_per_record(self) -> bool:
        """True if the first call returned one score for each record."""
        return isinstance(self.first, Tensor) and self.first.shape == (5,)

    def score(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Call the metric; skip the rule if it returns no score per record."""
        if not self.has_score_per_record:
            raise Skipped("the metric returned no score per record")
        return self.metric(estimates, targets)


def check_metric(
    metric: Any, *, shape: tuple[int, ...] = _SHAPE, data_range: tuple[float, float] = (0.0, 1.0)
) -> CheckReport:
    """Check that a metric keeps the rules that audits rely on.

    Args:
        metric: A configured :class:`~reconrisk.core.metric.Metric`.
        shape: Shape of the records that it compares. By default colour images of 16 x 16 pixels.
        data_range: Smallest and largest value of a record.

    Returns:
        The rules that hold, and those that do not apply to this metric.

    Raises:
        BrokenContract: If a rule does not hold; the message has one sentence for each.
        InvalidInput: If the object is not a metric.

    >>> from reconrisk.metrics.elementwise import mse
    >>> print(check_metric(mse()))  # doctest: +ELLIPSIS
    mse() keeps ... rules for metrics.
      scores_each_record
      ...
    """
    if not isinstance(metric, Metric):
        remedy = "Pass Metric(name, function, best=..., worst=...), or call the function that configures it."
        raise invalid_input("metric", getattr(metric, "__name__", type(metric).__name__), "to be a Metric", remedy)
    return run_rules("metric", metric, RULES, MetricCase(metric, shape, data_range))


def scores_each_record(case: MetricCase) -> None:
    """There is one score for each record."""
    if isinstance(case.first, BaseException):
        remedy = "Pass check_metric the shape of the records that it compares: shape=(...)."
        raise broken_rule("one score per record", describe_error(case.first), remedy)
    if not case.has_score_per_record:
        found = tuple(case.first.shape) if isinstance(case.first, Tensor) else type(case.first).__name__
        raise broken_rule("5 scores for 5 records", found, "Reduce over all dimensions but the first.")


def scores_in_double_precision(case: MetricCase) -> None:
    """Scores are float64 and agree for records of half, single and double precision."""
    if case.scores.dtype != torch.float64:
        raise broken_rule("float64 scores", case.scores.dtype, "Compute on estimates.double() and targets.double().")
    estimates, targets = case.batch(3, 3, torch.float16), case.batch(3, 4, torch.float16)
    half, double = case.score(estimates, targets), case.score(estimates.double(), targets.double())
    mixed = case.score(estimates.double(), targets)
    for name, scores in (("half", half), ("mixed", mixed)):
        if scores.dtype != torch.float64 or not _close(scores, double, 1e-4):
            expected = f"the scores of double precision for {name} precision"
            raise broken_rule(expected, scores, "Convert to double precision before the first operation.")


def has_a_scale(case: MetricCase) -> None:
    """The best and the worst score differ, and every score lies between them."""
    best, worst = case.metric.best, case.metric.worst
    if math.isnan(best) or math.isnan(worst) or best == worst:
        remedy = "Pass the ends of the scale as best and worst."
        raise broken_rule("best and worst to be different numbers", f"{best} and {worst}", remedy)
    low, high = sorted((best, worst))
    if not bool(((low <= case.scores) & (case.scores <= high)).all()):
        found = f"{float(case.scores.min()):g} to {float(case.scores.max()):g}"
        raise broken_rule(
            f"scores from {low:g} to {high:g}", found, "Clamp rounding errors, or correct best and worst."
        )


def is_best_at_equality(case: MetricCase) -> None:
    """An exact estimate gets the best score, and other estimates do not."""
    targets = case.batch(4, 5)
    exact = case.score(targets.clone(), targets)
    # Compared by equality first, because best may be infinite (inf - inf is NaN); else up to rounding.
    if not bool((exact == case.metric.best).all() | (exact - case.metric.best).abs().le(1e-12).all()):
        remedy = "Handle equal records separately."
        raise broken_rule(f"best={case.metric.best:g} for exact estimates", exact.tolist(), remedy)
    if bool((case.scores == case.metric.best).any()):
        remedy = "Compare every value of a record."
        raise broken_rule("worse than the best score for other records", case.scores.tolist(), remedy)


def gets_worse_with_noise(case: MetricCase) -> None:
    """More noise on the estimates makes the mean score worse, in the direction given by best and worst."""
    targets = case.batch(48, 6)
    noise = torch.randn(targets.shape, generator=torch.Generator().manual_seed(7))
    width = case.data_range[1] - case.data_range[0]
    means = [float(case.score(targets + width * level * noise, targets).mean()) for level in _LEVELS]
    ordered = sorted(means, reverse=case.metric.higher_is_better)
    if means != ordered or len(set(means)) < len(means):  # equal means are a failure as well
        better = "higher" if case.metric.higher_is_better else "lower"
        remedy = f"By best and worst, {better} is better: exchange them if that is wrong."
        raise broken_rule("worse mean scores under more noise", [round(each, 4) for each in means], remedy)


def gives_the_worst_score_to_lost_estimates(case: MetricCase) -> None:
    """An estimate with NaN or infinite values gets the worst score, and changes no other score."""
    estimates, targets = case.batch(4, 8), case.batch(4, 9)
    expected = case.score(estimates, targets)
    expected[2] = case.metric.worst
    for poison in (math.nan, math.inf, -math.inf):
        poisoned = estimates.clone()
        poisoned[2].view(-1)[0] = poison
        scores = case.score(poisoned, targets)
        if not _close(scores, expected, _TOLERANCE):
            remedy = "Do not override Metric.__call__, and score each record independently."
            raise broken_rule(f"{expected.tolist()} with {poison} in record 2", scores.tolist(), remedy)


def scores_records_by_themselves(case: MetricCase) -> None:
    """The score of a record does not depend on the other records of a batch or their order."""
    estimates, targets = case.batch(5, 10), case.batch(5, 11)
    together = case.score(estimates, targets)
    alone = torch.cat([case.score(estimates[i : i + 1], targets[i : i + 1]) for i in range(5)])
    order = torch.tensor([3, 1, 4, 0, 2])
    if not _close(together, alone, _TOLERANCE):
        remedy = "Do not use statistics of the batch."
        difference = f"a difference of {(together - alone).abs().max().item():g}"
        raise broken_rule("the same score for a record alone and in a batch", difference, remedy)
    if not _close(case.score(estimates[order], targets[order]), together[order], _TOLERANCE):
        raise broken_rule("scores in the order of the records", "another order", "Score row by row.")


def leaves_its_inputs(case: MetricCase) -> None:
    """A call leaves estimates and targets unchanged, and returns scores without an autograd graph."""
    estimates, targets = case.batch(3, 12), case.batch(3, 13)
    kept = estimates.clone(), targets.clone()
    scores = case.score(estimates, targets)
    if not torch.equal(estimates, kept[0]) or not torch.equal(targets, kept[1]):
        raise broken_rule("unchanged estimates and targets", "changes in them", "Work on copies.")
    if scores.requires_grad:
        remedy = "Freeze the parameters of a network."
        raise broken_rule("scores without an autograd graph", "requires_grad=True", remedy)


def refuses_what_it_cannot_compare(case: MetricCase) -> None:
    """Targets that are not finite, different shapes, empty batches and complex records raise InvalidInput."""
    bad, records = case.batch(2, 14), case.batch(2, 15)
    bad[1].view(-1)[0] = math.nan
    wrong = {
        "a target with NaN": (records, bad),
        "estimates of another shape": (case.batch(3, 16), records),
        "an empty batch": (case.batch(0, 17), case.batch(0, 17)),
        "complex records": (records.to(torch.complex64), records.to(torch.complex64)),
    }
    for what, (estimates, targets) in wrong.items():
        try:
            case.score(estimates, targets)
        except (InvalidInput, Skipped):
            continue
        except Exception as error:  # third-party code may raise anything
            raise broken_rule(f"InvalidInput for {what}", describe_error(error), _RECORDS) from error
        raise broken_rule(f"InvalidInput for {what}", "scores", _RECORDS)


_RECORDS = "Call reconrisk.metrics.records.check_records, or rows, in the function."

RULES = (
    scores_each_record,
    scores_in_double_precision,
    has_a_scale,
    is_best_at_equality,
    gets_worse_with_noise,
    gives_the_worst_score_to_lost_estimates,
    scores_records_by_themselves,
    leaves_its_inputs,
    refuses_what_it_cannot_compare,
)
"""Rules for metrics, in the order in which they are checked."""


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance / 100, equal_nan=True)
