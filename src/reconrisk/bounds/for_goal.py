"""All guarantees that a mechanism gives for one criterion of success."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reconrisk.accounting.phases import has_phases
from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.bounds.known_norm import known_norm_success
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.guarantee import CoveredRelease, Guarantee
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_nonnegative, check_whole


@dataclass(frozen=True)
class BoundQuery:
    """Query for the guarantees that hold if success is a mean squared error of at most ``mse``.

    Attributes:
        mechanism: Mechanism that produced the release.
        mse: Largest mean squared error that counts as success.
        dimension: Number of values in a target record.
        data_range: Smallest and largest value of a record.
        prior: Best success on the targets without the release, by an adversary with all other knowledge of the threat
            model.
        least_norm: Lower limit on the Euclidean norm of every target.
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
    """A guarantee, and its applicability to the targets of the query.

    Attributes:
        guarantee: The guarantee.
        is_about_targets: True if the guarantee bounds the success of attacks on the targets of the query.
        why: Reason for the value of ``is_about_targets``, as a text.
        release: Kind of the release, as far as it is known.
    """

    guarantee: Guarantee
    is_about_targets: bool
    why: str
    release: CoveredRelease = CoveredRelease.ANY


def guarantees_for(question: BoundQuery) -> tuple[BoundResult, ...]:
    """Return all guarantees that hold for a mechanism, starting with the ones comparable to measured success.

    Args:
        question: The mechanism, the criterion of success and the targets.

    Returns:
        One result for each guarantee that applies.

    Guarantee: a result has ``is_about_targets`` only if it holds for targets drawn as ``question.prior`` assumes.

    >>> from reconrisk.bounds.prior_success import candidate_set
    >>> from reconrisk.core.mechanism import Gaussian
    >>> query = BoundQuery(Gaussian(1.0), 0.01, 4, (0.0, 1.0), candidate_set([0.1] * 10), 1.0)
    >>> for result in guarantees_for(query):
    ...     print(result.is_about_targets, result.guarantee.quantity.value, result.guarantee.scope.value)
    True success probability at most any adversary with this prior
    False success probability at most known norm, direction uniform on the sphere, any release
    False mean squared error at least unbiased estimators, mean squared error only
    """
    mechanism, norm = question.mechanism, question.least_norm
    with_prior = success_upper_bound(mechanism, prior_success=question.prior)
    results = [BoundResult(with_prior, True, f"targets are {question.prior.belief}")]
    if not has_phases(mechanism):  # the other bounds need the noise itself, not only an epsilon
        return tuple(results)
    if question.mse * question.dimension < norm * norm:  # otherwise guessing zero already succeeds
        from_norm = known_norm_success(mechanism, dimension=question.dimension, norm=norm, mse=question.mse)
        results.append(BoundResult(from_norm, False, "the directions of these records are not uniform on the sphere"))
    width = question.data_range[1] - question.data_range[0]
    unbiased = replace(mse_lower_bound_from_rdp(replace_one_order_two(mechanism), diameters=width), mechanism=mechanism)
    why = "it bounds the error of unbiased estimates, not a success probability; attacks may be biased"
    return (*results, BoundResult(unbiased, False, why))
