r"""The Gaussian noise on a release, as its standard deviation per released value.

``noise_std`` is one number, a number or tensor for each released name, or None for unit noise, under which the Fisher
information is that of the bare Jacobian. A value of ``inf`` says that the coordinate is not released.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_all_numbers, check_real, refuse

NoiseStd = float | Mapping[str, Tensor | float] | None


def standard_normal_weights(
    released: Mapping[str, Tensor], noise_std: NoiseStd, rng: torch.Generator
) -> dict[str, Tensor]:
    r"""A draw of u ~ N(0, Sigma^-1) shaped as ``released``: E |(J^T u)_i|^2 is the trace of record i's information.

    Assumes: independent noise of standard deviation ``noise_std`` on every released value.
    Edge cases: ``inf`` gives the weight 0; None is unit noise.

    >>> released = {"weight": torch.zeros(2), "bias": torch.zeros(1)}
    >>> drawn = standard_normal_weights(released, {"weight": 0.1, "bias": torch.inf}, torch.Generator().manual_seed(0))
    >>> drawn["weight"].shape, drawn["bias"].any()
    (torch.Size([2]), tensor(False))
    """
    return whitened({name: standard_normal(tensor, rng) for name, tensor in released.items()}, noise_std)


def standard_normal(like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normal values in the shape and precision of ``like``, drawn on the generator's device."""
    return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=rng.device).to(like.device)


def whitened(tensors: Mapping[str, Tensor], noise_std: NoiseStd) -> dict[str, Tensor]:
    r"""Released values, or changes of them, divided by the noise: Sigma^(-1/2) t, whose noise has unit variance.

    Edge cases: a coordinate with ``inf`` becomes 0; None leaves everything as it is. Twice whitened is Sigma^-1 t.

    >>> whitened({"weight": torch.ones(2)}, 0.5)
    {'weight': tensor([2., 2.])}
    """
    if noise_std is None:
        return dict(tensors)
    stds = noise_stds(tensors, noise_std)
    return {name: tensor / stds[name] for name, tensor in tensors.items()}


def noise_stds(released: Mapping[str, Tensor], noise_std: NoiseStd) -> dict[str, Tensor]:
    """The standard deviation for each released name, checked, in the precision of what is released.

    >>> noise_stds({"weight": torch.ones(2)}, None)
    {'weight': tensor(1.)}
    """
    if not isinstance(noise_std, Mapping):
        number = 1.0 if noise_std is None else noise_std
        return {name: _checked("noise_std", number, tensor) for name, tensor in released.items()}
    unknown, missing = sorted(set(noise_std) - set(released)), sorted(set(released) - set(noise_std))
    if unknown or missing:
        raise InvalidInput(
            f"Expected noise_std for each released name; without a value: {missing}, not released: {unknown}. "
            "Use inf for what is not released."
        )
    return {name: _checked(f"noise_std[{name!r}]", noise_std[name], tensor) for name, tensor in released.items()}


def directions_rng(rng: torch.Generator | None) -> torch.Generator:
    """The generator to draw directions from; without one the same directions are drawn each time.

    >>> directions_rng(None).initial_seed()
    0
    """
    if rng is None:
        return torch.Generator().manual_seed(0)
    if not isinstance(rng, torch.Generator):
        raise refuse("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    return rng


def _checked(name: str, value: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        if value.dim() and value.shape != like.shape:
            raise refuse(f"{name}.shape", tuple(value.shape), f"to be {tuple(like.shape)}, that of what is released")
        given = value.detach()
        check_all_numbers(name, given)
    else:
        given = torch.tensor(check_real(name, value), dtype=torch.float64)
    if not bool((given > 0).all()):
        raise refuse(name, float(given.min()), "> 0", "Use None for the bare Jacobian, inf for what is not released.")
    std = given.to(like)
    if bool(((std == 0) | (std.isinf() & ~given.isinf())).any()):  # would read as no noise, or as not released
        raise refuse(name, float(given.min()), f"to be representable in {like.dtype}", "Pass inputs.double().")
    return std
