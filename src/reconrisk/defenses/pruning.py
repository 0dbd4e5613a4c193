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
from reconrisk.defenses.base import SendingDefense
from reconrisk.defenses.chain import Chain, chain
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.defenses.noise import ParameterNoise
from reconrisk.defenses.optimal_noise import SMALLEST_GRADIENT, NoiseBudget, TargetBound, optimal_stds
from reconrisk.releases.release import Release
from reconrisk.releases.sensitivity.moments import ReferenceMoments

if TYPE_CHECKING:
    from reconrisk.core.defense import Defense
    from reconrisk.defenses.families import Reference

_UTILITY_KEPT = 0.9  # of the decrease of a step, by the pruning of the family that adds noise as well


@dataclass(frozen=True)
class Pruning(SendingDefense):
    """The configured defense that :func:`prune` returns."""

    share: float
    only_drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_share(self.share)

    @property
    def mechanism(self) -> None:
        """None: leaving values out has no guarantee."""

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """The release with its smallest values set to zero; ``rng`` is not used."""
        del rng
        sizes = torch.cat([tensor.detach().abs().flatten() for tensor in released.values()])
        dropped = _dropped_of(len(sizes), self.share)
        least = sizes.sort().values[dropped] if dropped else sizes.new_zeros(())
        return {name: tensor * (tensor.abs() >= least) for name, tensor in released.items()}

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everything: which values are kept shows in what was sent."""
        return dict(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """There is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values that are not zero."""
        return {name: tensor != 0 for name, tensor in sent.items()}

    def __str__(self) -> str:
        """The call that configures it."""
        return f"prune(share={self.share:g})"


def _check_share(share: float, count: int | None = None) -> float:
    """A share of values to drop that leaves something, of ``count`` where that is known."""
    if 0 <= check_real("share", share) < 1:
        return share
    nearest = "0"
    if share >= 1:
        nearest = "1 - 1/n, which sends one of n values"
        if count is not None:
            nearest = f"{1 - 1 / count:.9g}, which sends one value of {count}"
    raise invalid_input("share", share, "in [0, 1)", f"The nearest possible value is {nearest}.")


def _dropped_of(count: int, share: float) -> int:
    """How many of ``count`` values are dropped; at least one is sent."""
    return min(int(share * count + 1e-6), count - 1)  # 0.29 of 100 is 29, though a product of floats is below it


def prune(share: float) -> Pruning:
    """The release with the ``share`` of values that are smallest in size set to zero.

    Assumes: nothing; it is a heuristic, its ``mechanism`` is None.
    Edge cases: share 0 sends everything; values equal to the smallest kept one are kept too.
    Reference: Section 5, `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_.

    >>> prune(0.5)({"w": torch.tensor([1.0, -2.0, 3.0, 0.5])}, rng=torch.Generator())
    {'w': tensor([ 0., -2.,  3.,  0.])}
    """
    return Pruning(share)


@dataclass(frozen=True, eq=False)
class MaskedRelease(SendingDefense):
    """A release of which only the values where ``mask`` is true are sent; ``borderline`` ones by a coin.

    A borderline value is sent with probability ``borderline_kept``, so that a budget is met on average where no mask
    meets it exactly. ``is_local`` says that the private record itself chose the mask: then it leaks about it.
    """

    mask: Mapping[str, Tensor]
    name: str
    borderline: tuple[str, int] | None = None
    borderline_kept: float = 0.0
    is_local: bool = False
    only_drops: ClassVar[bool] = True

    @property
    def mechanism(self) -> None:
        """None: leaving values out has no guarantee."""

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        """The release with zeros where the mask is false."""
        self._check_fits(released)
        mask = {name: each.clone() for name, each in self.mask.items()}
        if self.borderline is not None:
            name, place = self.borderline
            mask[name].view(-1)[place] = bool(torch.rand((), generator=rng) < self.borderline_kept)
        return {name: tensor * mask[name].to(tensor) for name, tensor in released.items()}

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is sent always or by a coin; whether the coin let it pass shows in what was sent."""
        self._check_fits(released)
        mask = self.sometimes_sent()
        return {name: tensor * mask[name].to(tensor) for name, tensor in released.items()}

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """There is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mask, and the borderline value if it is not zero."""
        mask = {name: each.clone() for name, each in self.mask.items()}
        if self.borderline is not None:
            name, place = self.borderline
            mask[name].view(-1)[place] = bool(sent[name].reshape(-1)[place] != 0)
        return mask

    def sometimes_sent(self) -> dict[str, Tensor]:
        """Where a value is sent always or by a coin."""
        mask = {name: each.clone() for name, each in self.mask.items()}
        if self.borderline is not None:
            name, place = self.borderline
            mask[name].view(-1)[place] = True
        return mask

    def _check_fits(self, released: Mapping[str, Tensor]) -> None:
        shapes = {name: tuple(tensor.shape) for name, tensor in released.items()}
        expected = {name: tuple(each.shape) for name, each in self.mask.items()}
        if shapes != expected:
            raise invalid_input("released", shapes, f"to have the names and shapes of the mask, {expected}")

    def __str__(self) -> str:
        """How it was chosen."""
        return self.name


def optimal_pruning(
    moments: ReferenceMoments, *, share: float | None = None, utility: float | None = None
) -> MaskedRelease:
    r"""The mask with the largest bound on reconstruction error for its utility.

    .. math:: \text{drop the largest } \frac{E|\nabla_x g_i|^2}{E g_i^2}, \qquad U_1 = \sum_{i \text{ kept}} E g_i^2

    State the budget by the ``share`` of values that are dropped, or by the share ``utility`` of the first-order
    utility U1 that is left; a borderline value is then sent by a coin, so that it is met on average.

    Assumes: ``moments`` of public or reference records: then the mask tells nothing of private ones.
    Guarantee: of all masks of equal U1 it has the smallest trace of the Fisher information under equal noise on what is
    kept. Without noise the information of what is kept is unbounded: it is a heuristic, its ``mechanism`` is None.
    Reference: Theorem 3.6 and Remark 3.7, chen2025.

    >>> def mean(*values): return {"w": torch.tensor(values)}
    >>> moments = ReferenceMoments(mean(9.0, 1.0, 4.0), mean(0.0, 0.0, 0.0), mean(1.0, 1.0, 1.0), records=1, probes=1)
    >>> optimal_pruning(moments, share=0.34).mask
    {'w': tensor([False,  True,  True])}
    """
    count = sum(value.numel() for value in moments.square.values())
    return mask_of(moments, f"optimal_pruning({written_share(share, utility, count)})", share=share, utility=utility)


def mask_of(
    moments: ReferenceMoments, name: str, *, share: float | None, utility: float | None, is_local: bool = False
) -> MaskedRelease:
    """The mask that drops what tells most for its utility."""
    names = list(moments.square)
    square = torch.cat([moments.square[name].double().flatten() for name in names])
    sensitivity = torch.cat([moments.sensitivity[name].double().flatten() for name in names])
    order = (sensitivity / square.clamp_min(SMALLEST_GRADIENT**2)).argsort(descending=True, stable=True)
    mask, border, kept = torch.ones(len(order), dtype=torch.bool), None, 0.0
    if share is not None:
        mask[order[: _dropped_of(len(order), share)]] = False
    elif utility is not None:
        border, kept = _drop_to(mask, order, square, utility)
    shaped, place = _shaped(mask, moments.square, border)
    return MaskedRelease(shaped, name, place, kept, is_local)


def written_share(share: float | None, utility: float | None, count: int | None = None) -> str:
    """The budget of a pruning of ``count`` values as it is written; refused unless it is exactly one and can be met."""
    if (share is None) == (utility is None):
        raise invalid_input("(share, utility)", (share, utility), "to hold exactly one value")
    if share is not None:
        return f"share={_check_share(share, count):g}"
    return f"utility={check_probability('utility', utility):g}"


@dataclass(frozen=True)
class RandomPruning(SendingDefense):
    """The configured defense that :func:`random_pruning` returns."""

    share: float
    seed: int
    only_drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_share(self.share)
        check_whole("seed", self.seed, minimum=0)

    @property
    def mechanism(self) -> None:
        """None: leaving values out has no guarantee."""

    def masked(self, like: Mapping[str, Tensor]) -> MaskedRelease:
        """The mask for releases shaped ``like`` this."""
        mask = _random_mask(sum(tensor.numel() for tensor in like.values()), self.share, self.seed).clone()
        return MaskedRelease(_shaped(mask, like, None)[0], str(self))

    def for_release(self, release: Release) -> MaskedRelease:
        """The mask for the shapes of this release; its records are not looked at."""
        return self.masked(release.value())

    def _sent(self, released: Mapping[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
        return self.masked(released)(released, rng=rng)

    def replay(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The release with zeros where the mask is false."""
        return self.masked(released).replay(released)

    def noise_std(self, sent: Mapping[str, Tensor]) -> None:
        """There is no noise."""
        del sent

    def kept(self, sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mask, which everybody who knows the defense knows."""
        return self.masked(sent).kept(sent)

    def __str__(self) -> str:
        """The call that configures it."""
        return f"random_pruning(share={self.share:g}" + (f", seed={self.seed})" if self.seed else ")")


def random_pruning(share: float, *, seed: int = 0) -> RandomPruning:
    """The release with a random ``share`` of its values set to zero, the same values for every record.

    Assumes: nothing; it is a heuristic, its ``mechanism`` is None.
    Guarantee: which values are dropped depends on seed, names and shapes alone; never on a record.
    Edge cases: share 0 sends everything; the largest share sends one value.

    >>> sent = random_pruning(0.3)({"w": torch.ones(10)}, rng=torch.Generator())
    >>> int(sent["w"].sum())
    7
    """
    return RandomPruning(share, seed)


@lru_cache(maxsize=4)
def _random_mask(count: int, share: float, seed: int) -> Tensor:
    """Which of ``count`` values are sent; by NumPy, whose chance may be taken within torch's transforms too."""
    mask = np.ones(count, dtype=bool)
    mask[np.random.default_rng(seed).permutation(count)[: _dropped_of(count, share)]] = False
    return torch.as_tensor(mask)


def _drop_to(mask: Tensor, order: Tensor, square: Tensor, utility: float) -> tuple[int | None, float]:
    """Drop values until so much of the utility is left; the value at which it is met, and how often to keep it."""
    spent = square[order].cumsum(0)
    budget = (1 - utility) * float(spent[-1])
    dropped = int((spent <= budget * (1 + 1e-12)).sum())
    mask[order[:dropped]] = False
    if dropped == len(order):
        least = float(square[order[-1]]) / float(spent[-1])
        raise invalid_input(
            "utility", utility, "> 0", f"Something must be sent: the nearest possible value is {least:.3g}."
        )
    left = budget - (float(spent[dropped - 1]) if dropped else 0.0)
    border, worth = int(order[dropped]), float(square[order[dropped]])
    return (border, 1 - left / worth) if left > 0 and worth > 0 else (None, 0.0)


def _shaped(
    mask: Tensor, like: Mapping[str, Tensor], border: int | None
) -> tuple[dict[str, Tensor], tuple[str, int] | None]:
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
    r"""Optimal pruning, then optimal noise on what is kept: what is dropped is sent as zero, without noise.

    State the pruning by ``share`` or ``utility`` as in :func:`optimal_pruning`, the noise by one of the others as in
    :func:`optimal_noise`; they count the kept values only. A borderline value is sent always, not by a coin.

    Guarantee: ``clip(C) >> optimal_pruning_and_noise(...)`` is a Gaussian mechanism: dropping values makes no release
    longer, and dropping them again after the noise is post-processing.
    Reference: end of appendix A.3, chen2025: the best mask is the same with optimal noise as with equal noise.

    >>> def mean(*values): return {"w": torch.tensor(values)}
    >>> moments = ReferenceMoments(mean(9.0, 1.0, 4.0), mean(0.0, 0.0, 0.0), mean(1.0, 1.0, 1.0), records=1, probes=1)
    >>> defense = optimal_pruning_and_noise(moments, share=0.34, like=0.1)
    >>> defense({"w": torch.ones(3)}, rng=torch.Generator().manual_seed(0))["w"][0]
    tensor(0.)
    """
    pruning = optimal_pruning(moments, share=share, utility=utility)
    sent = pruning.sometimes_sent()
    budget = NoiseBudget(utility_loss, noise_norm, like, unit, target)
    sensitivity = {name: value[sent[name]] for name, value in moments.sensitivity.items()}
    square = {name: value[sent[name]] for name, value in moments.square.items()}
    chosen = optimal_stds(replace(moments, sensitivity=sensitivity, square=square), budget)
    # what is dropped anyway gets the usual noise, which leaves the unit that a clip is measured in
    usual = NoiseScales(chosen).unit
    stds = {name: torch.full_like(value, usual) for name, value in moments.square.items()}
    for name, std in stds.items():
        std[sent[name]] = chosen[name]
    noise = ParameterNoise(NoiseScales(stds), f"optimal_noise({budget})")
    mask = replace(pruning, mask=sent, borderline=None)
    return chain(mask, noise, replace(mask, name="the same values"))


def prune_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the pruning that sends one value in ``level``, the largest, and the call that makes it."""
    share = reference.share_dropped(level)
    return prune(share), f"rr.defenses.prune({share:.10g})"


def optimal_pruning_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build the optimal pruning that sends one value in ``level``, and the call that makes it."""
    share = reference.share_dropped(level)
    code = f"rr.defenses.optimal_pruning(moments, share={share:.10g})"
    return optimal_pruning(reference.moments, share=share), code


def optimal_pruning_and_noise_at(reference: Reference, level: float) -> tuple[Defense, str]:
    """Build an optimal pruning of fixed utility with shaped noise of this ``level``, and the call that makes it."""
    code = f"rr.defenses.optimal_pruning_and_noise(moments, utility={_UTILITY_KEPT:g}, like={level:g})"
    return optimal_pruning_and_noise(reference.moments, utility=_UTILITY_KEPT, like=level), code
