"""Optimal noise and pruning chosen by the private records themselves, as chen2025 runs them: no guarantee."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from reconrisk.core.defense import Defense
from reconrisk.core.validation import check_whole
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.defenses.deferred import UnchosenDefense
from reconrisk.defenses.noise import ParameterNoise
from reconrisk.defenses.optimal_noise import NoiseBudget, optimal_stds
from reconrisk.defenses.pruning import MaskedRelease, mask_of, written_share
from reconrisk.releases.release import Release
from reconrisk.releases.sensitivity.moments import ReferenceMoments
from reconrisk.releases.sensitivity.parameters import parameter_sensitivity


class LocalDefense(UnchosenDefense):
    """A defense that its own records choose: :meth:`for_release` says which it is for them.

    What it chose is a function of private records. It leaks about them, and no bound that takes noise or mask as given
    holds: the Fisher information has the further term ``tr(S^-1 dS S^-1 dS) / 2``. Its mechanism is None, also after
    clipping: the noise depends on what it is to hide.
    """

    is_local = True
    remedy = (
        "Use it through rr.observe, call for_release(release), or take the global form, which public records choose."
    )

    @abstractmethod
    def for_release(self, release: Release) -> Defense:
        """The defense that the records of ``release`` choose."""


@dataclass(frozen=True)
class LocalOptimalNoise(LocalDefense):
    """The configured defense that :func:`local_optimal_noise` returns."""

    budget: NoiseBudget
    probes: int

    def for_release(self, release: Release) -> ParameterNoise:
        """The noise that these records choose."""
        stds = optimal_stds(_moments(release, self.probes), self.budget)
        return ParameterNoise(NoiseScales(stds), str(self), is_local=True)

    def __str__(self) -> str:
        """The call that configures it."""
        return f"local_optimal_noise({self.budget})"


@dataclass(frozen=True)
class LocalOptimalPruning(LocalDefense):
    """The configured defense that :func:`local_optimal_pruning` returns."""

    share: float | None
    utility: float | None
    probes: int

    def for_release(self, release: Release) -> MaskedRelease:
        """The mask that these records choose."""
        return mask_of(_moments(release, self.probes), str(self), share=self.share, utility=self.utility, is_local=True)

    def __str__(self) -> str:
        """The call that configures it."""
        return f"local_optimal_pruning({written_share(self.share, self.utility)})"


def local_optimal_noise(
    *,
    utility_loss: float | None = None,
    noise_norm: float | None = None,
    like: float | None = None,
    probes: int = 10,
) -> LocalOptimalNoise:
    r"""Optimal noise chosen by the gradient it is added to: what the experiments of chen2025 do.

    .. math:: \Sigma_{ii} = \lambda \frac{|\nabla_x g_i(x)|}{|g_i(x)|}

    Assumes: the release is at hand, not its value alone; ``rr.observe`` passes it.
    Guarantee: **none.** It is not differentially private, even after clipping, and leaks its own scales: what follows
    from the covariance as if it were public does not hold. :func:`optimal_noise` has neither defect.
    Reference: Remark after Theorem 3.5 and Algorithm 1, chen2025, with the root of Theorem 3.5.

    >>> print(local_optimal_noise(noise_norm=0.1))
    local_optimal_noise(noise_norm=0.1)
    """
    return LocalOptimalNoise(NoiseBudget(utility_loss, noise_norm, like), check_whole("probes", probes))


def local_optimal_pruning(
    *, share: float | None = None, utility: float | None = None, probes: int = 10
) -> LocalOptimalPruning:
    r"""Optimal pruning chosen by the gradient it prunes: what the experiments of chen2025 do.

    .. math:: \text{drop the largest } \frac{|\nabla_x g_i(x)|}{|g_i(x)|}

    Assumes: the release is at hand, not its value alone; ``rr.observe`` passes it.
    Guarantee: **none.** Which values are dropped depends on the records and shows in what is sent.
    Reference: eq. 13 and Remark 3.7, chen2025.

    >>> print(local_optimal_pruning(share=0.8))
    local_optimal_pruning(share=0.8)
    """
    written_share(share, utility)
    return LocalOptimalPruning(share, utility, check_whole("probes", probes))


def _moments(release: Release, probes: int) -> ReferenceMoments:
    """The moments that a single point, the private one, has."""
    found = parameter_sensitivity(release, probes=probes)
    square = {name: value.square() for name, value in release.value().items()}
    error = {name: torch.zeros_like(value) for name, value in square.items()}
    return ReferenceMoments(found.values, error, square, len(release.inputs), probes)
