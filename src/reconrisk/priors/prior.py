"""The protocol of a prior: what attacks, baselines and studies ask of one, whatever its kind.

To write a prior, inherit from :class:`BasePrior`, state ``kind``, ``name``, ``shape`` and ``data_range``, and define
``draw`` and ``scaled_to``. ``reconrisk.testing.check_prior`` checks it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard

import torch

from reconrisk.core.digest import short_digest
from reconrisk.core.validation import invalid_input

if TYPE_CHECKING:
    from torch import Tensor


class Prior(Protocol):
    """What an adversary may believe about records."""

    @property
    def kind(self) -> str:
        """The kind, by which attacks state what they take: a name in :data:`reconrisk.priors.registry.PRIORS`."""
        ...

    @property
    def name(self) -> str:
        """The name that reports show."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record."""
        ...

    @property
    def data_range(self) -> tuple[float, float]:
        """The range of the values of records."""
        ...

    @property
    def mean(self) -> Tensor | None:
        """The mean of the records where it is known exactly, else None."""
        ...

    @property
    def fingerprint(self) -> str:
        """A short digest that is the same for the same belief, in whatever form an attack holds it."""
        ...

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw so many records; they need not be clipped to the range.

        A prior that draws in steps may also have ``draw_in_steps(count, rng, *, steps)``, which baselines then use.
        """
        ...

    def time_pass(self) -> float:
        """Measure the seconds that an attack waits for the prior once, derivative included."""
        ...

    def scaled_to(self, data_range: tuple[float, float]) -> Prior:
        """Return the same prior for records that lie in another range."""
        ...

    def check_fits(self, shape: Sequence[int], data_range: tuple[float, float]) -> None:
        """Refuse records of another shape or range than the prior was made for."""
        ...


_STATED = ("kind", "name", "shape", "data_range", "mean", "fingerprint")
_METHODS = ("draw", "time_pass", "scaled_to", "check_fits")


def is_prior(value: object) -> TypeGuard[Prior]:
    """Return True if an object has all that :class:`Prior` demands; none of it is computed.

    >>> is_prior("gaussian")
    False
    """
    own = getattr(value, "__dict__", {})
    return not isinstance(value, type) and all(
        name in own or hasattr(type(value), name) for name in (*_STATED, *_METHODS)
    )


class BasePrior:
    """The members of :class:`Prior` that most priors share; each may be defined anew."""

    if TYPE_CHECKING:  # defined by each prior; properties here would keep fields of dataclasses from being set

        @property
        def shape(self) -> tuple[int, ...]: ...  # noqa: D102

        @property
        def data_range(self) -> tuple[float, float]: ...  # noqa: D102

        def draw(self, count: int, rng: torch.Generator) -> Tensor: ...  # noqa: D102

    mean: Tensor | None = None

    @property
    def fingerprint(self) -> str:
        """A short digest of all that the prior holds."""
        return short_digest(self)

    def time_pass(self) -> float:
        """Measure the seconds that a draw of one record takes."""
        begun = time.monotonic()
        self.draw(1, torch.Generator().manual_seed(0))
        return time.monotonic() - begun

    def check_fits(self, shape: Sequence[int], data_range: tuple[float, float]) -> None:
        """Refuse records of another shape or range than the prior was made for."""
        if tuple(shape) != self.shape:
            remedy = "Train one with reconrisk train-prior, or resize the records."
            raise invalid_input("prior.shape", self.shape, f"to be that of the records, {tuple(shape)}", remedy)
        if tuple(map(float, data_range)) != tuple(map(float, self.data_range)):
            remedy = f"If they are the same pictures in other units, pass prior.scaled_to({tuple(data_range)})."
            raise invalid_input("prior.data_range", self.data_range, f"to be that of the records, {data_range}", remedy)


def draw_within_range(prior: Prior, count: int, rng: torch.Generator, *, steps: int) -> Tensor:
    """Draw records that lie in the range of the data.

    Args:
        prior: The prior.
        count: The number of records.
        rng: The only source of chance.
        steps: Steps of a prior that draws in steps; others ignore it.

    >>> from reconrisk.priors.gaussian import gaussian
    >>> wide = gaussian(torch.full((2,), 0.5), torch.eye(2))
    >>> bool((draw_within_range(wide, 9, torch.Generator().manual_seed(0), steps=1) <= 1).all())
    True
    """
    in_steps = getattr(prior, "draw_in_steps", None)
    drawn: Tensor = prior.draw(count, rng) if in_steps is None else in_steps(count, rng, steps=steps)
    return drawn.clamp(*prior.data_range)


def time_derivative(answer: Tensor, asked: Tensor, begun: float) -> float:
    """Return the seconds since ``begun`` after the derivative of an answer was computed, where it has one."""
    if answer.requires_grad:
        torch.autograd.grad(answer.sum(), asked, allow_unused=True)
    return time.monotonic() - begun
