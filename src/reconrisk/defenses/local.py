"""Optimal noise and pruning chosen from the private records themselves, as chen2025 runs them: no guarantee."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from reconrisk.core.defense import Defense
from reconrisk.core.validation import check_whole
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.defenses.deferred import DeferredDefense
from reconrisk.defenses.noise import ParameterNoise
from reconrisk.defenses.optimal_noise import NoiseBudget, optimal_stds
from reconrisk.defenses.pruning import MaskedRelease, choose_mask, format_budget
from reconrisk.releases.release import Release
from reconrisk.releases.sensitivity.moments import ReferenceMoments
from reconrisk.releases.sensitivity.parameters import parameter_sensitivity


class LocalDefense(DeferredDefense):
    """Defense whose settings depend on the private records; :meth:`for_release` computes the settings.

    Its choice is a function of private records, so it leaks about them. No bound that treats noise or mask as given
    holds: the Fisher information has the further term ``tr(S^-1 dS S^-1 dS) / 2``. Here S is the
    covariance of the noise and dS its derivative with respect to a value of the record. The mechanism is None, also
    after clipping, because the noise depends on the data that it should hide.
    """

    is_local = True
    remedy = (
        "Use it through rr.observe, call for_release(release), or use the global form, which public records choose."
    )

    @abstractmethod
    def for_release(self, release: Release) -> Defense:
        """Return the defense that the records of ``release`` choose."""


@dataclass(frozen=True)
class LocalOptimalNoise(LocalDefense):
    """Configured defense, as returned by :func:`local_optimal_noise`.

    Attributes:
        budget: Total amount of noise, stated by one quantity (:class:`NoiseBudget`).
        probes: Number of random directions for the estimate of the sensitivity.
    """

    budget: NoiseBudget
    probes: int

    def for_release(self, release: Release) -> ParameterNoise:
        """Return the noise that these records choose."""
        stds = optimal_stds(_private_moments(release, self.probes), self.budget)
        return ParameterNoise(NoiseScales(stds), str(self), is_local=True)

    def __str__(self) -> str:
        """Return the call that configures the defense."""
        return f"local_optimal_noise({self.budget})"


@dataclass(frozen=True)
class LocalOptimalPruning(LocalDefense):
    """Configured defense, as returned by :func:`local_optimal_pruning`.

    Attributes:
        share: Share of values to drop, or None.
        utility: Share of the first-order utility to keep, or None.
        probes: Number of random directions for the estimate of the sensitivity.
    """

    share: float | None
    utility: float | None
    probes: int

    def for_release(self, release: Release) -> MaskedRelease:
        """Return the mask that these records choose."""
        return choose_mask(
            _private_moments(release, self.probes), str(self), share=self.share, utility=self.utility, is_local=True
        )

    def __str__(self) -> str:
        """Return the call that configures the defense."""
        return f"local_optimal_pruning({format_budget(self.share, self.utility)})"


def local_optimal_noise(
    *,
    utility_loss: float | None = None,
    noise_norm: float | None = None,
    like: float | None = None,
    probes: int = 10,
) -> LocalOptimalNoise:
    r"""Optimal noise chosen from the gradient to which it is added, as in the experiments of chen2025.

    .. math:: \Sigma_{ii} = \lambda \frac{|\nabla_x g_i(x)|}{|g_i(x)|}

    Here :math:`\Sigma_{ii}` is the variance of the noise on value i of the gradient g at the record x. The factor
    :math:`\lambda` scales the noise to the budget.

    Pass exactly one of ``utility_loss``, ``noise_norm`` and ``like``.

    Args:
        utility_loss: Expected second-order decrease of utility, minus U2 of :func:`optimal_noise`.
        noise_norm: Frobenius norm of the noise covariance.
        like: Standard deviation of the equal noise with the same U2.
        probes: Number of random directions for the estimate of the sensitivity of each value.

    Returns:
        The defense. ``rr.observe`` computes its settings from the release; before that every use raises InvalidInput.

    Raises:
        InvalidInput: If not exactly one budget is given, it is not above zero, or ``probes`` is below 1.

    Assumes: the whole release is available, not only its value; ``rr.observe`` passes it.
    Guarantee: **none.** It is not differentially private, even after clipping, and its scales leak about the records.
    Bounds that treat the covariance as public do not hold. Use :func:`optimal_noise` for both.
    Reference: Remark after Theorem 3.5 and Algorithm 1, chen2025, with the root of Theorem 3.5.

    >>> print(local_optimal_noise(noise_norm=0.1))
    local_optimal_noise(noise_norm=0.1)
    """
    return LocalOptimalNoise(NoiseBudget(utility_loss, noise_norm, like), check_whole("probes", probes))


def local_optimal_pruning(
    *, share: float | None = None, utility: float | None = None, probes: int = 10
) -> LocalOptimalPruning:
    r"""Optimal pruning chosen from the gradient that it prunes, as in the experiments of chen2025.

    .. math:: \text{drop the largest } \frac{|\nabla_x g_i(x)|}{|g_i(x)|}

    Here :math:`g_i(x)` is value i of the gradient at the record x.

    Pass exactly one of ``share`` and ``utility``.

    Args:
        share: Share of values to drop, in [0, 1).
        utility: Share of the first-order utility to keep, in [0, 1].
        probes: Number of random directions for the estimate of the sensitivity of each value.

    Returns:
        The defense. ``rr.observe`` computes its settings from the release; before that every use raises InvalidInput.

    Raises:
        InvalidInput: If not exactly one budget is given, it is out of range, or ``probes`` is below 1.

    Assumes: the whole release is available, not only its value; ``rr.observe`` passes it.
    Guarantee: **none.** The dropped positions depend on the records and are visible in the sent update.
    Reference: eq. 13 and Remark 3.7, chen2025.

    >>> print(local_optimal_pruning(share=0.8))
    local_optimal_pruning(share=0.8)
    """
    format_budget(share, utility)
    return LocalOptimalPruning(share, utility, check_whole("probes", probes))


def _private_moments(release: Release, probes: int) -> ReferenceMoments:
    """Return the moments of a single point, the private update."""
    sensitivity = parameter_sensitivity(release, probes=probes)
    square = {name: value.square() for name, value in release.value().items()}
    # a single point has no sampling error
    error = {name: torch.zeros_like(value) for name, value in square.items()}
    return ReferenceMoments(sensitivity.values, error, square, len(release.inputs), probes)
