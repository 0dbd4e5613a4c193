"""What the rounds of federated learning so far guarantee about a client that defended each of its updates."""

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
"""In place of the noise multiplier of a round whose defense names no mechanism."""


@dataclass(frozen=True)
class FederatedRisk:
    r"""What is asked about the rounds of one client: whose success, at which delta, for records of which range.

    .. math:: \mu = \Bigl(\sum_t \sigma_t^{-2}\Bigr)^{1/2}

    Rounds with noise multipliers :math:`\sigma_t` tell as much as one with :math:`1/\mu`.

    Assumes: each update was clipped to a norm and hidden by noise of :math:`\sigma_t` times it; the server knows which
    clients take part, so that nothing is gained by sampling them.
    Guarantee: success and error are for everything that the client's records changed in its updates, those of one
    record included. Epsilon is of the client's presence; two updates that differ by one record among others lie up to
    twice the clip norm apart, so that the epsilon of a record is that of half the noise.
    Edge cases: after a round without a mechanism only what is trivially true is left: success at most 1, error at least
    0, epsilon infinite.
    Reference: Corollary 3.3, `Dong et al. (2022) <https://arxiv.org/abs/1905.02383>`_, for the composition; the bounds
    are :func:`success_upper_bound` and, for unbiased estimates, :func:`mse_lower_bound_from_rdp`.

    >>> risk = FederatedRisk(prior_success=0.1, delta=1e-5)
    >>> found = risk.of([1.0])
    >>> {name: round(found[name], 4) for name in ("success-so-far", "epsilon-so-far", "record-epsilon-so-far")}
    {'success-so-far': 0.3891, 'epsilon-so-far': 4.3772, 'record-epsilon-so-far': 9.9973}
    >>> risk.of([1.0, HEURISTIC])["success-so-far"]
    1.0
    """

    prior_success: float | PriorSuccess
    delta: float
    data_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        success_upper_bound(Gaussian(1.0), prior_success=self.prior_success)  # refuses what is no prior
        if not 0 < check_probability("delta", self.delta) < 1:
            raise invalid_input("delta", self.delta, "in (0, 1)", "1e-5 is usual.")
        if self.data_range is not None:
            mse_lower_bound_from_rdp(1.0, low=self.data_range[0], high=self.data_range[1])

    def of(self, noise_multipliers: Sequence[float]) -> dict[str, float]:
        """The numbers after the rounds with these noise multipliers, the last of which is this round."""
        check_not_empty("noise_multipliers", noise_multipliers)
        found = _together(noise_multipliers)
        numbers = {
            "rounds": len(noise_multipliers),
            "heuristic": int(found is None),
            "success-this-round": self._success(_together(noise_multipliers[-1:])),
            "success-so-far": self._success(found),
            "epsilon-so-far": math.inf if found is None else epsilon_of_training(found, self.delta),
            "record-epsilon-so-far": math.inf
            if found is None
            else epsilon_of_training(Gaussian(found.noise_multiplier / 2), self.delta),
        }
        if self.data_range is not None:
            numbers["mse-so-far"] = 0.0
            if found is not None:
                low, high = self.data_range
                bound = mse_lower_bound_from_rdp(replace_one_order_two(found), low=low, high=high)
                numbers["mse-so-far"] = bound.value
        return numbers

    def _success(self, mechanism: Gaussian | None) -> float:
        return 1.0 if mechanism is None else success_upper_bound(mechanism, prior_success=self.prior_success).value


def _together(noise_multipliers: Sequence[float]) -> Gaussian | None:
    """The one round that tells as much as these; None where one of them has no mechanism."""
    for noise in noise_multipliers:
        check_nonnegative("noise_multipliers", noise)
    if HEURISTIC in noise_multipliers:
        return None
    return Gaussian(1 / math.hypot(*(1 / noise for noise in noise_multipliers)))
