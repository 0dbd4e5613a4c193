"""Priors that make records from noise: the generator of a GAN, or any function of latent values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from reconrisk.core.digest import short_digest
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.priors.network import (
    SYMMETRIC,
    check_mode,
    check_network,
    check_range,
    device_of,
    function_digest,
    moved,
    precision_of,
)
from reconrisk.priors.prior import BasePrior, time_derivative
from reconrisk.priors.registry import GAN

Decode = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class GeneratorPrior(BasePrior):
    r"""What records look like, as a function that makes them of standard normal values.

    .. math:: x = g(z), \qquad z \sim N(0, I)

    ``generate`` takes latent values (n, ``latent_size``) and gives records (n, \*``shape``) in its own units, in which
    ``units`` are the ends of ``data_range``. A sequence of layers can be entered between two of them.

    Guarantee: records that are not finite or of another shape are refused, by the name of the prior. A network gets
    latent values in the precision of its weights, and records are in that of the latent values.
    """

    kind: ClassVar[str] = GAN

    name: str
    shape: tuple[int, ...]
    latent_size: int
    generate: Decode | nn.Module = field(repr=False)
    data_range: tuple[float, float] = (0.0, 1.0)
    units: tuple[float, float] = SYMMETRIC

    def __post_init__(self) -> None:
        for side in self.shape:
            check_whole("shape", side)
        check_whole("latent_size", self.latent_size)
        check_range("data_range", self.data_range)
        check_range("units", self.units)
        if not callable(self.generate):
            raise invalid_input("generate", self.generate, "to be a function of latent values")
        check_network("generate", self.generate)

    @property
    def fingerprint(self) -> str:
        """A short digest of what the prior computes and of its units."""
        return short_digest((repr(self), function_digest(self.generate)))

    def decode(self, latents: Tensor) -> Tensor:
        """Records of latent values; differentiable."""
        if latents.ndim != 2 or latents.shape[1] != self.latent_size:
            raise invalid_input("latents.shape", tuple(latents.shape), f"to be (n, {self.latent_size}), as {self.name}")
        check_mode("generate", self.generate)  # again: .train() may have been called since
        asked = latents.to(precision_of(self.generate, latents.dtype))
        made = self.checked(self.generate(asked), len(latents)).to(latents.dtype)
        if latents.requires_grad and not made.requires_grad:
            remedy = "Use rr.attacks.ggl, which needs no derivatives, or a function of torch."
            raise InvalidInput(f"Expected what {self.name} makes to be differentiable in latent values. {remedy}")
        return made

    def checked(self, made: Tensor, count: int) -> Tensor:
        """What was made as records, if it can be such."""
        if not isinstance(made, Tensor) or tuple(made.shape) != (count, *self.shape):
            given = f"of shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            wanted = f"records of shape {(count, *self.shape)}"
            raise InvalidInput(f"Expected what {self.name} makes to be {wanted}. It is {given}.")
        if not bool(made.isfinite().all()):
            raise InvalidInput(f"Expected what {self.name} makes to be finite. Check its weights.")
        return moved(made, self.units, self.data_range)

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """So many records."""
        with torch.no_grad():
            latents = torch.randn(count, self.latent_size, generator=rng, device=rng.device)
            return self.decode(latents.to(device_of(self.generate, rng.device)))

    def time_pass(self) -> float:
        """Measure the seconds that making one record takes, derivative included."""
        begun, asked = time.monotonic(), torch.zeros(1, self.latent_size, requires_grad=True)
        return time_derivative(self.decode(asked), asked, begun)

    def scaled_to(self, data_range: tuple[float, float]) -> GeneratorPrior:
        """The same prior for records that lie in another range."""
        return replace(self, data_range=data_range)


def generator(
    generate: Decode | nn.Module,
    shape: Sequence[int],
    latent_size: int,
    *,
    data_range: tuple[float, float] = (0.0, 1.0),
    units: tuple[float, float] = SYMMETRIC,
    name: str = "generator",
) -> GeneratorPrior:
    r"""A prior from any function that makes records of latent values.

    .. math:: x = g(z), \qquad z \sim N(0, I)

    Assumes: ``generate`` takes latent values (n, ``latent_size``) and is differentiable.
    Edge cases: the weights of a module are not changed, nor are they trained. Layers in the mode of training that
    answer differently there, such as batch norm, dropout or spectral norm, are refused, also later; and so are weights
    that are not in single precision.
    Reference: `Goodfellow et al. (2014) <https://arxiv.org/abs/1406.2661>`_.

    >>> prior = generator(lambda latents: latents.tanh().view(-1, 1, 2, 2), (1, 2, 2), 4)
    >>> prior.decode(torch.zeros(1, 4)).flatten()
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    return GeneratorPrior(name, tuple(shape), latent_size, generate, data_range, units)
