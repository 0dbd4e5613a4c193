"""Generator priors: the generator of a GAN, or any function of latent values."""

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
    precision_of,
    rescale_range,
)
from reconrisk.priors.prior import BasePrior, time_derivative
from reconrisk.priors.registry import GAN

Decode = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class GeneratorPrior(BasePrior):
    r"""Prior given by a function that maps standard normal values to records.

    .. math:: x = g(z), \qquad z \sim N(0, I)

    An ``nn.Sequential`` can be entered between two of its layers.

    Attributes:
        name: Name in reports.
        shape: Shape of a record.
        latent_size: Number of latent values.
        generate: Function from latent values (n, ``latent_size``) to records (n, \*``shape``), in the prior's units.
        data_range: Range of the values of records.
        units: Values in the prior's units that correspond to the two ends of ``data_range``.

    Guarantee: records that are not finite or of another shape are refused; the error names the prior. A network gets
    latent values in the precision of its weights. The returned records have the precision of the latent values.

    >>> GeneratorPrior("flat", (2,), 2, lambda latents: latents.tanh()).decode(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]])
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
            raise invalid_input("generate", type(self.generate).__name__, "to be a function of latent values")
        check_network("generate", self.generate)

    @property
    def fingerprint(self) -> str:
        """Short digest of the generator and its units."""
        return short_digest((repr(self), function_digest(self.generate)))

    def decode(self, latents: Tensor) -> Tensor:
        """Generate records from latent values; differentiable."""
        if latents.ndim != 2 or latents.shape[1] != self.latent_size:
            raise invalid_input(
                "latents.shape",
                tuple(latents.shape),
                f"to be (records, {self.latent_size}), the latent size of {self.name}",
            )
        check_mode("generate", self.generate)  # checked again: .train() may have been called in the meantime
        asked = latents.to(precision_of(self.generate, latents.dtype))
        made = self.to_records(self.generate(asked), len(latents)).to(latents.dtype)
        if latents.requires_grad and not made.requires_grad:
            remedy = "Use rr.attacks.ggl, which needs no derivatives, or write the function in torch."
            raise InvalidInput(f"Expected the output of {self.name} to be differentiable in latent values. {remedy}")
        return made

    def to_records(self, made: Tensor, count: int) -> Tensor:
        """Validate the output of the generator and convert it to the units of the data."""
        if not isinstance(made, Tensor) or tuple(made.shape) != (count, *self.shape):
            given = f"of shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            wanted = f"records of shape {(count, *self.shape)}"
            raise InvalidInput(f"Expected the output of {self.name} to be {wanted}. It is {given}.")
        if not bool(made.isfinite().all()):
            raise InvalidInput(f"Expected the output of {self.name} to be finite. Check its weights.")
        return rescale_range(made, self.units, self.data_range)

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw ``count`` records."""
        with torch.no_grad():
            latents = torch.randn(count, self.latent_size, generator=rng, device=rng.device)
            return self.decode(latents.to(device_of(self.generate, rng.device)))

    def time_pass(self) -> float:
        """Measure the seconds to generate one record, derivative included."""
        begun, asked = time.monotonic(), torch.zeros(1, self.latent_size, requires_grad=True)
        return time_derivative(self.decode(asked), asked, begun)

    def scaled_to(self, data_range: tuple[float, float]) -> GeneratorPrior:
        """Return the same prior for records in another range."""
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
    r"""Build a prior from any function that generates records from latent values.

    .. math:: x = g(z), \qquad z \sim N(0, I)

    Here g is the function ``generate`` and z are its latent values. ``prior.decode(latents)`` returns records in
    ``data_range``.

    Args:
        generate: Differentiable function from latent values (n, ``latent_size``) to records (n, \*shape).
        shape: Shape of a record.
        latent_size: Number of latent values.
        data_range: Range of the values of records.
        units: Values in the units of the function that correspond to the two ends of ``data_range``.
        name: Name in reports.

    Returns:
        The prior.

    Raises:
        InvalidInput: If the function is not callable, the ranges are invalid, or a network is in training mode or not
            in single precision.

    Edge cases: the weights of a module are neither changed nor trained. A module in training mode is refused, also
    later, if it has layers that behave differently there, such as batch norm, dropout or spectral norm. A module whose
    weights are not in single precision is refused too.
    Reference: `Goodfellow et al. (2014) <https://arxiv.org/abs/1406.2661>`_.

    >>> prior = generator(lambda latents: latents.tanh().view(-1, 1, 2, 2), (1, 2, 2), 4)
    >>> prior.decode(torch.zeros(1, 4)).flatten()
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    return GeneratorPrior(name, tuple(shape), latent_size, generate, data_range, units)
