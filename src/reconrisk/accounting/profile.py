"""Privacy profiles: certified hockey-stick divergences, from which success and epsilon are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    r"""Pairs with :math:`\sup_E P(E) - e^{\varepsilon_j} Q(E) \le \delta_j`, epsilons ascending.

    >>> profile = PrivacyProfile(np.array([0.0, 1.0]), np.array([0.3, 0.1]))
    >>> round(profile.success(0.01), 4), profile.epsilon(0.2), profile.epsilon(0.05)
    (0.1272, 1.0, inf)
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def success(self, prior_success: float) -> float:
        r"""Least :math:`\delta_j + \kappa e^{\varepsilon_j}`: no event of Q-mass at most kappa has more P-mass.

        Guarantee: in [prior_success, 1], nondecreasing and concave in ``prior_success``.
        """
        with np.errstate(over="ignore", under="ignore"):
            bound = float(np.min(self.deltas + prior_success * np.exp(self.epsilons))) if prior_success > 0 else 1.0
        if prior_success == 0:
            bound = float(np.min(self.deltas))
        return min(1.0, max(bound, prior_success))

    def epsilon(self, delta: float) -> float:
        """Least nonnegative epsilon of the profile whose divergence is at most ``delta``; inf if there is none."""
        safe = (self.deltas <= delta) & (self.epsilons >= 0)
        return float(self.epsilons[np.argmax(safe)]) if safe.any() else float("inf")
