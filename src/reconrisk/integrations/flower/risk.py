"""Guarantees for a federated client that defended each of its updates, over the rounds so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reconrisk.accounting.renyi import replace_one_order_two
from reconrisk.accounting.subsampled import epsilon_of_training
from reconrisk.bounds.mse.renyi import mse_lower_bound_from_rdp
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.validation import check_nonnegative, check_not_empty, check_probability, invalid_input

HEURISTIC = 0.0
"""Noise multiplier that marks a round whose defense names no mechanism."""


@dataclass(frozen=True)
class FederatedRisk:
    r"""Calculator of the reconstruction risk of one client after several rounds.

    .. math:: \mu = \Bigl(\sum_t \sigma_t^{-2}\Bigr)^{1/2}

    Rounds with noise multipliers :math:`\sigma_t` reveal as much as one round with :math:`1/\mu`.

    Attributes:
        prior_success: Success probability of the adversary without the updates.
        delta: Delta of the epsilons.
        data_range: Range of the records, for the bound on the error; None to leave it out.

    Assumes: each update was clipped to a norm and got noise of :math:`\sigma_t` times that norm. The server knows which
    clients were sampled in a round, so the sampling does not reduce epsilon.
    Guarantee: success and error cover everything that the records of the client changed in its updates, hence also each
    single record. Epsilon refers to the presence of the client. Two updates that differ in one record are up to twice
    the clip norm apart, so the epsilon of a record is computed with half the noise.
    Edge cases: after a round without a mechanism only trivial bounds are left: success at most 1, error at least 0,
    epsilon infinite.
    Reference: Corollary 3.3, `Dong et al. (2022) <https://arxiv.org/abs/1905.02383>`_, for the composition; the bounds
    are :func:`success_upper_bound` and, for unbiased estimates, :func:`mse_lower_bound_from_rdp`.

    >>> risk = FederatedRisk(prior_success=0.1, delta=1e-5)
    >>> numbers = risk.after_rounds([1.0])
    >>> {name: round(numbers[name], 4) for name in ("success-so-far", "epsilon-so-far", "record-epsilon-so-far")}
    {'success-so-far': 0.3891, 'epsilon-so-far': 4.3772, 'record-epsilon-so-far': 9.9973}
    >>> risk.after_rounds([1.0, HEURISTIC])["success-so-far"]
    1.0
    """

    prior_success: float | PriorSuccess
    delta: float
    data_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        success_upper_bound(Gaussian(1.0), prior_success=self.prior_success)  # raises for an invalid prior
        if not 0 < check_probability("delta", self.delta) < 1:
            raise invalid_input("delta", self.delta, "in (0, 1)", "Pass 1e-5, for instance.")
        if self.data_range is not None:
            mse_lower_bound_from_rdp(1.0, low=self.data_range[0], high=self.data_range[1])  # raises for a bad range

    def after_rounds(self, noise_multipliers: Sequence[float]) -> dict[str, float]:
        """Return the bounds by name after rounds with these noise multipliers; the last one is the current round."""
        check_not_empty("noise_multipliers", noise_multipliers)
        composed = _compose_rounds(noise_multipliers)
        numbers = {
            "rounds": len(noise_multipliers),
            "heuristic": int(composed is None),
            "success-this-round": self._success(_compose_rounds(noise_multipliers[-1:])),
            "success-so-far": self._success(composed),
            "epsilon-so-far": math.inf if composed is None else epsilon_of_training(composed, self.delta),
            "record-epsilon-so-far": math.inf
            if composed is None
            # replacing a record moves an update by up to two clip norms
            else epsilon_of_training(Gaussian(composed.noise_multiplier / 2), self.delta),
        }
        if self.data_range is not None:
            numbers["mse-so-far"] = 0.0
            if composed is not None:
                low, high = self.data_range
                bound = mse_lower_bound_from_rdp(replace_one_order_two(composed), low=low, high=high)
                numbers["mse-so-far"] = bound.value
        return numbers

    def _success(self, mechanism: Gaussian | None) -> float:
        return 1.0 if mechanism is None else success_upper_bound(mechanism, prior_success=self.prior_success).value


def _compose_rounds(noise_multipliers: Sequence[float]) -> Gaussian | None:
    """Return the single Gaussian mechanism equivalent to these rounds; None if one of them has no mechanism."""
    for noise in noise_multipliers:
        check_nonnegative("noise_multipliers", noise)
    if HEURISTIC in noise_multipliers:
        return None
    return Gaussian(1 / math.hypot(*(1 / noise for noise in noise_multipliers)))
