"""Quality of a prior, measured on held-out records."""

from __future__ import annotations

from collections.abc import Sized

import torch
from torch import Tensor

from reconrisk.core.progress import track
from reconrisk.core.validation import check_not_empty, check_whole, invalid_input
from reconrisk.priors.diffusion import DiffusionPrior
from reconrisk.priors.network import device_of
from reconrisk.priors.prior import Prior

LOSS_TIMES = (50, 150, 250, 350, 450, 550, 650, 750, 850, 950)
"""Times, out of a thousand, at which the loss of a diffusion prior is measured."""

FEWEST = 2
"""Smallest number of records that the quality of a prior is measured on."""

_AT_ONCE = 128  # records per pass, limited by memory
# Three times, or 256 draws, are enough to distinguish priors of different data.
_FEW_TIMES = (100, 300, 500)
_DRAWS = 256
_SEED = 0  # fixed: the same choice for the same records


def denoising_loss(
    prior: DiffusionPrior, records: Tensor, *, rng: torch.Generator, times: tuple[int, ...] = LOSS_TIMES
) -> Tensor:
    r"""Measure the mean squared error of the predicted noise for each record and time.

    .. math:: |\epsilon(\sqrt{\bar\alpha_t} x_0 + \sqrt{1 - \bar\alpha_t}\, n, t) - n|^2 / d

    Here :math:`x_0` is a record of d values, n the noise that is added at time t, :math:`\bar\alpha_t` the share of the
    signal, and :math:`\epsilon` the noise that the prior predicts. By default the noise is added at ten different
    times.

    Args:
        prior: Diffusion prior.
        records: Held-out records (n, \*shape) in the range of the prior.
        rng: Source of the noise.
        times: Times at which noise is added.

    Returns:
        Errors (n, times).

    Raises:
        InvalidInput: If there are no records or times, the shape differs, or a time is not one of the prior.

    Assumes: the prior was not trained on ``records``; on training records the error is too small.
    Edge cases: 0 is perfect; a prior that predicts no noise has 1.
    Reference: equation 14, `Ho et al. (2020) <https://arxiv.org/abs/2006.11239>`_.

    >>> from reconrisk.priors import denoiser
    >>> nothing = denoiser(lambda noisy, times: 0 * noisy, (1, 20, 20))
    >>> found = denoising_loss(nothing, torch.zeros(50, 1, 20, 20), rng=torch.Generator().manual_seed(0))
    >>> found.shape, found.mean().round(decimals=2)
    (torch.Size([50, 10]), tensor(1.))
    """
    check_not_empty("records", records)
    check_not_empty("times", times)
    prior.check_fits(tuple(records.shape[1:]), prior.data_range)
    placed = records.float().to(device_of(prior.predict_noise, records.device))
    for time in times:
        if not 0 <= check_whole("times", time, minimum=0) < len(prior.schedule):
            raise invalid_input("times", time, f"< {len(prior.schedule)}, the number of time steps of the prior")
    losses = []
    with torch.no_grad():
        for part in track(placed.split(_AT_ONCE), f"denoising loss of {prior.name}"):
            values, found = prior.values(part), []
            for time in times:
                share = float(prior.schedule.signal[time])
                noise = torch.randn(values.shape, generator=rng, device=rng.device).to(values.device)
                noisy = share**0.5 * values + (1 - share) ** 0.5 * noise
                found.append((prior.noise(noisy, time) - noise).square().flatten(1).mean(1))
            losses.append(torch.stack(found, dim=1))
    return torch.cat(losses)


def nearest_distance(records: Tensor, others: Tensor) -> Tensor:
    r"""Compute the mean squared difference of each record to the nearest of others.

    .. math:: \min_j |x_i - y_j|^2 / d

    Here :math:`x_i` is a record of d values, and :math:`y_j` is one of the others.

    Args:
        records: Records (n, \*shape).
        others: Records (m, \*shape) to compare with.

    Returns:
        Distances (n,).

    Raises:
        InvalidInput: If there are no records or the shapes differ.

    >>> nearest_distance(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [3.0]]))
    tensor([0.2500, 0.2500])
    """
    check_not_empty("records", records)
    check_not_empty("others", others)
    if records.shape[1:] != others.shape[1:]:
        raise invalid_input(
            "others.shape",
            tuple(others.shape),
            f"to be {(len(others), *records.shape[1:])}, since records are {tuple(records.shape[1:])}",
        )
    ones, flat = records.float().flatten(1), others.float().flatten(1)
    sizes = flat.square().sum(1)
    # |x - y|^2 = |x|^2 - 2 x y + |y|^2; rounding may leave it slightly below 0
    found = [(sizes - 2 * part @ flat.T).min(1).values + part.square().sum(1) for part in ones.split(_AT_ONCE)]
    return torch.cat(found).clamp_min(0) / ones.shape[1]


def check_several(name: str, records: Sized) -> None:
    """Refuse a single record: it has neither a covariance nor a standard error.

    Args:
        name: Name of the argument in error messages.
        records: Records.

    Raises:
        InvalidInput: If there are fewer than two.
    """
    if len(records) < FEWEST:
        raise invalid_input(
            f"len({name})", len(records), f">= {FEWEST}", "Pass more records, so that their spread can be estimated."
        )


def frechet_distance(records: Tensor, others: Tensor, directions: Tensor) -> float:
    r"""Compute the squared Frechet distance of two sets of records as if both were normal.

    .. math:: |m_1 - m_2|^2 + \mathrm{tr}(S_1 + S_2 - 2 (S_1^{1/2} S_2 S_1^{1/2})^{1/2})

    Here :math:`m_1`, :math:`S_1` and :math:`m_2`, :math:`S_2` are mean and covariance of the two sets along
    ``directions``.

    Args:
        records: Records (n, \*shape), at least two.
        others: Records (m, \*shape), at least two.
        directions: Orthonormal directions (d, k) along which the two sets are compared.

    Returns:
        The squared distance.

    Raises:
        InvalidInput: If a set has fewer than two records.

    Edge cases: 0 for two sets of the same mean and covariance, such as records and the draws of a Gaussian fitted to
    them. A single record has no covariance and is refused.
    Reference: `Dowson and Landau (1982) <https://doi.org/10.1016/0047-259X(82)90077-X>`_.

    >>> frechet_distance(torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [5.0]]), torch.ones(1, 1))
    9.0
    """
    check_several("records", records)
    check_several("others", others)
    one, other = (each.double().flatten(1) @ directions.double() for each in (records, others))
    means = (one.mean(0) - other.mean(0)).square().sum()
    first, second = (torch.atleast_2d(torch.cov(each.T)) for each in (one, other))
    values, vectors = torch.linalg.eigh(first)
    # eigenvalues of S1^(1/2) S2 S1^(1/2) give the trace of the root without a matrix root of a product
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    shared = torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()
    return float((means + first.trace() + second.trace() - 2 * shared).clamp_min(0))


def misfit_of_diffusion(prior: DiffusionPrior, records: Tensor) -> float:
    r"""Return the mean squared error of the noise that a prior predicts in records at three times; deterministic.

    Args:
        prior: Diffusion prior.
        records: Records (n, \*shape).

    Returns:
        The error; smaller is better.
    """
    rng = torch.Generator().manual_seed(_SEED)
    return float(denoising_loss(prior, records, rng=rng, times=_FEW_TIMES).mean())


def misfit_of_draws(prior: Prior, records: Tensor) -> float:
    r"""Return the mean distance of records to the nearest of 256 draws of a prior; deterministic.

    Args:
        prior: Any prior.
        records: Records (n, \*shape).

    Returns:
        The distance; smaller is better.
    """
    return float(nearest_distance(records, prior.draw(_DRAWS, torch.Generator().manual_seed(_SEED))).mean())
