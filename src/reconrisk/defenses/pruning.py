"""Defenses that send only part of a release.

:func:`prune` keeps the largest values. :func:`optimal_pruning` and :func:`random_pruning` use a mask that is chosen
before any record is seen; :func:`optimal_pruning_and_noise` adds optimal noise to the values that are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from reconrisk.core.validation import check_probability, check_real, check_whole, invalid_input
from reconrisk.defenses.base import BaseDefense
from reconrisk.defenses.chain import Chain, chain
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.defenses.noise import ParameterNoise
from reconrisk.defenses.optimal_noise import SMALLEST_GRADIENT, NoiseBudget, TargetBound, optimal_stds
from reconrisk.releases.release import Release
from reconrisk.releases.sensitivity.moments import ReferenceMoments

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.defenses.families import Reference

_UTILITY_KEPT = 0.9  # share of the first-order decrease of a step; fixed, so that the family has one strength


@dataclass(frozen=True)
class Pruning(BaseDefense):
    """Configured defense, as returned by :func:`prune`.

    Attributes:
        share: Share of values that are set to zero, in [0, 1).
    """

    share: float
    only_drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_share(self.share)

    @property
    def mechanism(self) -> None:
        """None: dropping values has no guarantee."""

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Set the smallest values to zero; ``rng`` is not used."""
        del rng
        # one threshold for all tensors; sorting gives an exact order statistic, torch.quantile would interpolate
        sizes = torch.cat([tensor.detach().abs().flatten() for tensor in released.values()])
        dropped = _count_dropped(len(sizes), self.share)
        least = sizes.sort().values[dropped] if dropped else sizes.new_zeros(())
        return {name: tensor * (tensor.abs() >= least) for name, tensor in released.items()}

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the release unchanged: the kept positions are visible in the sent values."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: there is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return True for values that are not zero."""
        return {name: tensor != 0 for name, tensor in sent.items()}

    def __str__(self) -> str:
        """Return the call that configures the defense."""
        return f"prune(share={self.share:g})"


def _check_share(share: float, count: int | None = None) -> float:
    """Return a share of values to drop that leaves at least one of ``count`` values, or raise InvalidInput."""
    if 0 <= check_real("share", share) < 1:
        return share
    nearest = "0"
    if share >= 1:
        nearest = "1 - 1/n, which sends one of n values"
        if count is not None:
            nearest = f"{1 - 1 / count:.9g}, which sends one value of {count}"
    raise invalid_input("share", share, "in [0, 1)", f"Pass the nearest possible value, {nearest}.")


def _count_dropped(count: int, share: float) -> int:
    """Return the number of values to drop out of ``count``; at least one is sent."""
    # 1e-6 undoes rounding: 0.29 * 100 is slightly below 29 in floating point
    return min(int(share * count + 1e-6), count - 1)


def prune(share: float) -> Pruning:
    """Set the values that are smallest in magnitude to zero, over all parameters together.

    Args:
        share: Share of values to drop, in [0, 1).

    Returns:
        The configured defense. Its ``mechanism`` is None.

    Raises:
        InvalidInput: If ``share`` is not in [0, 1).

    Assumes: nothing; it is a heuristic.
    Edge cases: share 0 sends everything; values equal to the smallest kept one are kept too.
    Reference: Section 5, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_.

    >>> prune(0.5)({"w": torch.tensor([1.0, -2.0, 3.0, 0.5])}, rng=torch.Generator())
    {'w': tensor([ 0., -2.,  3.,  0.])}
    """
    return Pruning(share)


@dataclass(frozen=True, eq=False)
class MaskedRelease(BaseDefense):
    """Defense that sends only the values of a fixed mask.

    Attributes:
        mask: True for values that are always sent, by parameter name.
        name: Name of the defense as shown in reports: the call that made it.
        borderline: Name and flat index of one value that is sent at random; None without one. It lets the expected
            utility meet a budget that no fixed mask meets exactly.
        borderline_probability: Probability that the borderline value is sent.
        is_local: True if the mask was computed from the private record. The mask then reveals
            information about the record.
    """

    mask: Mapping[str, Tensor]
    name: str
    borderline: tuple[str, int] | None = None
    borderline_probability: float = 0.0
    is_local: bool = False
    only_drops: ClassVar[bool] = True

    @property
    def mechanism(self) -> None:
        """None: dropping values has no guarantee."""

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """Set values outside the mask to zero; draw the borderline value."""
        self._check_fits(released)
        mask = {name: each.clone() for name, each in self.mask.items()}
        if self.borderline is not None:
            name, place = self.borderline
            mask[name].view(-1)[place] = bool(torch.rand((), generator=rng) < self.borderline_probability)
        return {name: tensor * mask[name].to(tensor) for name, tensor in released.items()}

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all values that can be sent, the borderline value included."""
        self._check_fits(released)
        mask = self.support_mask()
        return {name: tensor * mask[name].to(tensor) for name, tensor in released.items()}

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: there is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mask, with the borderline value True if it is not zero in ``sent``."""
        mask = {name: each.clone() for name, each in self.mask.items()}
        if self.borderline is not None:
            name, place = self.borderline
            mask[name].view(-1)[place] = bool(sent[name].reshape(-1)[place] != 0)
        return mask

    def support_mask(self) -> dict[str, Tensor]:
        """Return the mask of values that are sent always or at random."""
        mask = {name: each.clone() for name, each in self.mask.items()}
        if self.borderline is not None:
            name, place = self.borderline
            mask[name].view(-1)[place] = True
        return mask

    def _check_fits(self, released: Mapping[str, Tensor]) -> None:
        shapes = {name: tuple(tensor.shape) for name, tensor in released.items()}
        expected = {name: tuple(each.shape) for name, each in self.mask.items()}
        if shapes != expected:
            raise invalid_input(
                "shapes of released",
                shapes,
                f"to be the shapes of the mask, {expected}",
                "Pass a release of the model that the mask was made for.",
            )

    def __str__(self) -> str:
        """Return the call that made the mask."""
        return self.name


def optimal_pruning(
    moments: ReferenceMoments, *, share: float | None = None, utility: float | None = None
) -> MaskedRelease:
    r"""Mask with the largest bound on the reconstruction error for its utility.

    .. math:: \text{drop the largest } \frac{E|\nabla_x g_i|^2}{E g_i^2}, \qquad U_1 = \sum_{i \text{ kept}} E g_i^2

    Here g is the gradient, x a record, and E the mean over public records. Pass exactly one of ``share`` and
    ``utility``.

    Args:
        moments: Moments of gradients over public records, from ``rr.sensitivity.reference_moments``.
        share: Share of values to drop, in [0, 1).
        utility: Share of the first-order utility :math:`U_1` to keep. One borderline value is sent at random, so that
            the share is met on average.

    Returns:
        The configured defense. Its ``mechanism`` is None.

    Raises:
        InvalidInput: If not exactly one budget is given, or it leaves no value to send.

    Assumes: ``moments`` of public or reference records. Then the mask carries no information about private ones.
    Guarantee: among all masks of equal U1 it has the smallest trace of the Fisher information under equal noise on the
    kept values. Without noise the information in the kept values is unbounded, so it is a heuristic.
    Reference: Theorem 3.6 and Remark 3.7, chen2025.

    >>> def mean(*values): return {"w": torch.tensor(values)}
    >>> moments = ReferenceMoments(mean(9.0, 1.0, 4.0), mean(0.0, 0.0, 0.0), mean(1.0, 1.0, 1.0), records=1, probes=1)
    >>> optimal_pruning(moments, share=0.34).mask
    {'w': tensor([False,  True,  True])}
    """
    count = sum(value.numel() for value in moments.square.values())
    return choose_mask(
        moments, f"optimal_pruning({format_budget(share, utility, count)})", share=share, utility=utility
    )


def choose_mask(
    moments: ReferenceMoments, name: str, *, share: float | None, utility: float | None, is_local: bool = False
) -> MaskedRelease:
    """Choose the mask that drops the values with the most information for their utility.

    Args:
        moments: Moments of gradients over the reference records.
        name: Name of the defense as shown in reports.
        share: Share of values to drop, or None.
        utility: Share of the first-order utility to keep, or None. Checked by :func:`format_budget`.
        is_local: True if the moments are computed from the private record.

    Returns:
        The configured defense.

    Raises:
        InvalidInput: If ``utility`` leaves no value to send.
    """
    names = list(moments.square)
    square = torch.cat([moments.square[name].double().flatten() for name in names])
    sensitivity = torch.cat([moments.sensitivity[name].double().flatten() for name in names])
    # stable: equal values are dropped in the order of the parameters, so that the mask is reproducible
    order = (sensitivity / square.clamp_min(SMALLEST_GRADIENT**2)).argsort(descending=True, stable=True)
    mask, border, kept = torch.ones(len(order), dtype=torch.bool), None, 0.0
    if share is not None:
        mask[order[: _count_dropped(len(order), share)]] = False
    elif utility is not None:
        border, kept = _drop_until(mask, order, square, utility)
    shaped, place = _split_mask(mask, moments.square, border)
    return MaskedRelease(shaped, name, place, kept, is_local)


def format_budget(share: float | None, utility: float | None, count: int | None = None) -> str:
    """Validate the budget of a pruning and return it as it is written in code.

    Args:
        share: Share of values to drop, or None.
        utility: Share of the first-order utility to keep, or None.
        count: Number of values in the release, for the error message; None if unknown.

    Returns:
        ``share=...`` or ``utility=...``.

    Raises:
        InvalidInput: If not exactly one budget is given, or it is out of range.

    >>> format_budget(share=0.8, utility=None)
    'share=0.8'
    """
    if (share is None) == (utility is None):
        raise invalid_input(
            "(share, utility)", (share, utility), "to have exactly one value", "Pass either share or utility."
        )
    if share is not None:
        return f"share={_check_share(share, count):g}"
    return f"utility={check_probability('utility', utility):g}"


@dataclass(frozen=True)
class RandomPruning(BaseDefense):
    """Configured defense, as returned by :func:`random_pruning`.

    Attributes:
        share: Share of values that are set to zero, in [0, 1).
        seed: Seed of the mask.
    """

    share: float
    seed: int
    only_drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_share(self.share)
        check_whole("seed", self.seed, minimum=0)

    @property
    def mechanism(self) -> None:
        """None: dropping values has no guarantee."""

    def masked(self, like: Mapping[str, Tensor]) -> MaskedRelease:
        """Return the mask for releases with the names and shapes of ``like``."""
        # cloned, because the cached mask is shared between calls
        mask = _random_mask(sum(tensor.numel() for tensor in like.values()), self.share, self.seed).clone()
        return MaskedRelease(_split_mask(mask, like, None)[0], str(self))

    def for_release(self, release: Release) -> MaskedRelease:
        """Return the mask for the shapes of ``release``; its records are not read."""
        return self.masked(release.value())

    def _apply(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        return self.masked(released)(released, rng=rng)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the release with zeros outside the mask."""
        return self.masked(released).replay(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """Return None: there is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mask, which is public."""
        return self.masked(sent).kept(sent)

    def __str__(self) -> str:
        """Return the call that configures the defense."""
        return f"random_pruning(share={self.share:g}" + (f", seed={self.seed})" if self.seed else ")")


def random_pruning(share: float, *, seed: int = 0) -> RandomPruning:
    """Set a random share of the values to zero, at the same positions for every record.

    Args:
        share: Share of values to drop, in [0, 1).
        seed: Seed of the mask, public.

    Returns:
        The configured defense. Its ``mechanism`` is None.

    Raises:
        InvalidInput: If ``share`` is not in [0, 1), or ``seed`` is negative.

    Assumes: nothing; it is a heuristic.
    Guarantee: the dropped positions depend only on seed, names and shapes, never on a record.
    Edge cases: share 0 sends everything; the largest share sends one value.

    >>> sent = random_pruning(0.3)({"w": torch.ones(10)}, rng=torch.Generator())
    >>> int(sent["w"].sum())
    7
    """
    return RandomPruning(share, seed)


@lru_cache(maxsize=4)  # the mask is asked for at every send and replay
def _random_mask(count: int, share: float, seed: int) -> Tensor:
    """Draw the mask of sent values."""
    # drawn by NumPy: random numbers of torch are not allowed inside torch.func transforms
    mask = np.ones(count, dtype=bool)
    mask[np.random.default_rng(seed).permutation(count)[: _count_dropped(count, share)]] = False
    return torch.as_tensor(mask)


def _drop_until(mask: Tensor, order: Tensor, square: Tensor, utility: float) -> tuple[int | None, float]:
    """Drop values from ``mask`` in the order ``order`` until the share ``utility`` of the squared gradient is left.

    Returns the index of the borderline value (None without one) and the probability to send it.
    """
    spent = square[order].cumsum(0)
    budget = (1 - utility) * float(spent[-1])
    # the slack lets rounding of the cumulative sum not cost a value that meets the budget exactly
    dropped = int((spent <= budget * (1 + 1e-12)).sum())
    mask[order[:dropped]] = False
    if dropped == len(order):
        least = float(square[order[-1]]) / float(spent[-1])
        raise invalid_input(
            "utility", utility, "> 0", f"Pass {least:.3g}, for instance: at least one value must be sent."
        )
    # the rest of the budget is spent on average: the next value is dropped with probability left / worth
    left = budget - (float(spent[dropped - 1]) if dropped else 0.0)
    border, worth = int(order[dropped]), float(square[order[dropped]])
    return (border, 1 - left / worth) if left > 0 and worth > 0 else (None, 0.0)


def _split_mask(
    mask: Tensor, like: Mapping[str, Tensor], border: int | None
) -> tuple[dict[str, Tensor], tuple[str, int] | None]:
    """Split a flat mask into tensors shaped as ``like``; return it with name and index of the borderline value."""
    shaped, begin, place = dict[str, Tensor](), 0, None
    for name, tensor in like.items():
        shaped[name] = mask[begin : begin + tensor.numel()].view(tensor.shape)
        if border is not None and begin <= border < begin + tensor.numel():
            place = (name, border - begin)
        begin += tensor.numel()
    return shaped, place


def optimal_pruning_and_noise(
    moments: ReferenceMoments,
    *,
    share: float | None = None,
    utility: float | None = None,
    utility_loss: float | None = None,
    noise_norm: float | None = None,
    like: float | None = None,
    unit: float | None = None,
    target: TargetBound | None = None,
) -> Chain:
    """Optimal pruning, then optimal noise on the kept values. Dropped values are sent as zero, without noise.

    Pass one of ``share`` and ``utility`` for the pruning, and one of the other budgets for the noise. The budgets of
    the noise count the kept values only. The value that :func:`optimal_pruning` sends at random is always sent here.

    Args:
        moments: Moments of gradients over public records, from ``rr.sensitivity.reference_moments``.
        share: Share of values to drop, in [0, 1).
        utility: Share of the first-order utility to keep.
        utility_loss: Expected second-order decrease of utility, minus U2 of :func:`optimal_noise`.
        noise_norm: Frobenius norm of the covariance.
        like: Standard deviation of the equal noise with the same U2.
        unit: Square root of the harmonic mean of the noise variances.
        target: Lower bound on the mean squared error to reach.

    Returns:
        A chain of mask, noise and the same mask.

    Raises:
        InvalidInput: If not exactly one budget is given for the pruning and one for the noise, or one is out of range.

    Guarantee: ``clip(C) >> optimal_pruning_and_noise(...)`` is a Gaussian mechanism. Dropping values makes no release
    longer, and dropping them again after the noise is post-processing.
    Reference: end of appendix A.3, chen2025: the best mask is the same with optimal noise as with equal noise.

    >>> def mean(*values): return {"w": torch.tensor(values)}
    >>> moments = ReferenceMoments(mean(9.0, 1.0, 4.0), mean(0.0, 0.0, 0.0), mean(1.0, 1.0, 1.0), records=1, probes=1)
    >>> defense = optimal_pruning_and_noise(moments, share=0.34, like=0.1)
    >>> defense({"w": torch.ones(3)}, rng=torch.Generator().manual_seed(0))["w"][0]
    tensor(0.)
    """
    pruning = optimal_pruning(moments, share=share, utility=utility)
    sent = pruning.support_mask()
    budget = NoiseBudget(utility_loss, noise_norm, like, unit, target)
    sensitivity = {name: value[sent[name]] for name, value in moments.sensitivity.items()}
    square = {name: value[sent[name]] for name, value in moments.square.items()}
    chosen = optimal_stds(replace(moments, sensitivity=sensitivity, square=square), budget)
    # dropped values get formal noise of one unit, which keeps the harmonic mean and hence the norm of a clip
    unit_std = NoiseScales(chosen).unit
    stds = {name: torch.full_like(value, unit_std) for name, value in moments.square.items()}
    for name, std in stds.items():
        std[sent[name]] = chosen[name]
    noise = ParameterNoise(NoiseScales(stds), f"optimal_noise({budget})")
    mask = replace(pruning, mask=sent, borderline=None)
    return chain(mask, noise, replace(mask, name="same mask"))


def prune_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the pruning of a level, which sends the largest values.

    Args:
        reference: Public updates, for the number of values.
        level: Inverse share of sent values: one value in ``level`` is sent.

    Returns:
        The defense and the call that makes it.
    """
    share = reference.share_dropped(level)
    return prune(share), f"rr.defenses.prune({share:.10g})"


def optimal_pruning_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the optimal pruning of a level.

    Args:
        reference: Public records, whose moments choose the mask.
        level: Inverse share of sent values: one value in ``level`` is sent.

    Returns:
        The defense and the call that makes it.
    """
    share = reference.share_dropped(level)
    code = f"rr.defenses.optimal_pruning(moments, share={share:.10g})"
    return optimal_pruning(reference.moments, share=share), code


def optimal_pruning_and_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build an optimal pruning of fixed utility with optimal noise of a level.

    Args:
        reference: Public records, whose moments choose mask and noise.
        level: Standard deviation of the equal noise with the same utility U2.

    Returns:
        The defense and the call that makes it.
    """
    code = f"rr.defenses.optimal_pruning_and_noise(moments, utility={_UTILITY_KEPT:g}, like={level:g})"
    return optimal_pruning_and_noise(reference.moments, utility=_UTILITY_KEPT, like=level), code
