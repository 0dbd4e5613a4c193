"""Every guarantee that a mechanism gives for one criterion of success: the place that knows all of them."""

from __future__ import annotations

from collections.abc import Callable
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
class Question:
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
class Answer:
    """A guarantee, whether it bounds the success of attacks on the targets asked about, and ``why`` it does or not."""

    guarantee: Guarantee
    is_about_targets: bool
    why: str


def guarantees_for(question: Question) -> tuple[Answer, ...]:
    """All guarantees that hold for a mechanism, those that can be compared with measured success first.

    Guarantee: an answer ``is_about_targets`` only if it holds for targets drawn as ``question.prior`` assumes.

    >>> from reconrisk.bounds.prior_success import candidate_set
    >>> from reconrisk.core.mechanism import Gaussian
    >>> asked = Question(Gaussian(1.0), 0.01, 4, (0.0, 1.0), candidate_set([0.1] * 10), 1.0)
    >>> for answer in guarantees_for(asked):
    ...     print(answer.is_about_targets, answer.guarantee.quantity.value, answer.guarantee.scope.value)
    True success probability at most any adversary with this prior
    False success probability at most known norm, direction uniform on the sphere
    False mean squared error at least unbiased estimators, mean squared error only
    """
    return tuple(answer for source in _SOURCES for answer in source(question))


def _with_prior(question: Question) -> tuple[Answer, ...]:
    guarantee = success_upper_bound(question.mechanism, prior_success=question.prior)
    return (Answer(guarantee, True, f"targets are {question.prior.belief}"),)


def _from_scratch(question: Question) -> tuple[Answer, ...]:
    """For whoever knows a norm alone; nothing where guessing zero succeeds already."""
    mechanism, norm = question.mechanism, question.least_norm
    if not has_phases(mechanism) or question.mse * question.dimension >= norm * norm:
        return ()
    guarantee = from_scratch_success(mechanism, dimension=question.dimension, norm=norm, mse=question.mse)
    return (Answer(guarantee, False, "the directions of these records are not uniform on the sphere"),)


def _unbiased(question: Question) -> tuple[Answer, ...]:
    if not has_phases(question.mechanism):
        return ()
    width = question.data_range[1] - question.data_range[0]
    guarantee = mse_lower_bound_from_rdp(replace_one_order_two(question.mechanism), diameters=width)
    stated = replace(guarantee, mechanism=question.mechanism)
    return (Answer(stated, False, "an error of unbiased estimates, no success probability; attacks may be biased"),)


_SOURCES: tuple[Callable[[Question], tuple[Answer, ...]], ...] = (_with_prior, _from_scratch, _unbiased)
