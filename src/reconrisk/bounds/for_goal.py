"""Every guarantee that a mechanism gives for one criterion of success: the place that knows all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reconrisk.accounting.phases import has_phases
from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.bounds.known_norm import from_scratch_success
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.guarantee import Guarantee
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_nonnegative, check_whole


@dataclass(frozen=True)
class BoundQuery:
    """What is asked of the bounds: success is a mean squared error of at most ``mse``.

    Targets are ``dimension`` values in ``data_range``, none of a norm below ``least_norm``. ``prior`` is the best
    success at them without the release, by whoever knows all else that the threat knows.
    """

    mechanism: Mechanism
    mse: float
    dimension: int
    data_range: tuple[float, float]
    prior: PriorSuccess
    least_norm: float

    def __post_init__(self) -> None:
        check_nonnegative("mse", self.mse)
        check_whole("dimension", self.dimension)
        check_nonnegative("least_norm", self.least_norm)


@dataclass(frozen=True)
class BoundResult:
    """A guarantee, whether it bounds the success of attacks on the targets asked about, and ``why`` it does or not."""

    guarantee: Guarantee
    is_about_targets: bool
    why: str


def guarantees_for(question: BoundQuery) -> tuple[BoundResult, ...]:
    """All guarantees that hold for a mechanism, those that can be compared with measured success first.

    Guarantee: an answer ``is_about_targets`` only if it holds for targets drawn as ``question.prior`` assumes.

    >>> from reconrisk.bounds.prior_success import candidate_set
    >>> from reconrisk.core.mechanism import Gaussian
    >>> asked = BoundQuery(Gaussian(1.0), 0.01, 4, (0.0, 1.0), candidate_set([0.1] * 10), 1.0)
    >>> for answer in guarantees_for(asked):
    ...     print(answer.is_about_targets, answer.guarantee.quantity.value, answer.guarantee.scope.value)
    True success probability at most any adversary with this prior
    False success probability at most known norm, direction uniform on the sphere
    False mean squared error at least unbiased estimators, mean squared error only
    """
    mechanism, norm = question.mechanism, question.least_norm
    with_prior = success_upper_bound(mechanism, prior_success=question.prior)
    answers = [BoundResult(with_prior, True, f"targets are {question.prior.belief}")]
    if not has_phases(mechanism):
        return tuple(answers)
    if question.mse * question.dimension < norm * norm:  # else guessing zero succeeds already
        from_norm = from_scratch_success(mechanism, dimension=question.dimension, norm=norm, mse=question.mse)
        answers.append(BoundResult(from_norm, False, "the directions of these records are not uniform on the sphere"))
    width = question.data_range[1] - question.data_range[0]
    unbiased = replace(mse_lower_bound_from_rdp(replace_one_order_two(mechanism), diameters=width), mechanism=mechanism)
    why = "an error of unbiased estimates, no success probability; attacks may be biased"
    return (*answers, BoundResult(unbiased, False, why))
