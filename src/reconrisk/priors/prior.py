"""Protocol of a prior: the members that attacks, baselines and studies use.

To write a prior, inherit from :class:`BasePrior`, set ``kind``, ``name``, ``shape`` and ``data_range``, and define
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
    """Distribution of records that an adversary knows before any release."""

    @property
    def kind(self) -> str:
        """Kind of prior: a name in :data:`reconrisk.priors.registry.PRIORS`. Attacks state the kinds they accept."""
        ...

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a record."""
        ...

    @property
    def data_range(self) -> tuple[float, float]:
        """Range of the values of records."""
        ...

    @property
    def mean(self) -> Tensor | None:
        """Mean of the records, None if it is not known exactly."""
        ...

    @property
    def fingerprint(self) -> str:
        """Short digest that is equal for equal distributions, in any form that an attack uses."""
        ...

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw ``count`` records; they need not be clipped to the range.

        A prior that samples in steps may also have ``draw_in_steps(count, rng, *, steps)``, which baselines then use.
        """
        ...

    def time_pass(self) -> float:
        """Measure the seconds that one evaluation of the prior takes in an attack, derivative included."""
        ...

    def scaled_to(self, data_range: tuple[float, float]) -> Prior:
        """Return the same prior for records in another range."""
        ...

    def check_fits(self, shape: Sequence[int], data_range: tuple[float, float]) -> None:
        """Refuse records whose shape or range differs from the prior."""
        ...


_STATED = ("kind", "name", "shape", "data_range", "mean", "fingerprint")
_METHODS = ("draw", "time_pass", "scaled_to", "check_fits")


def is_prior(value: object) -> TypeGuard[Prior]:
    """Return True if an object has all members of :class:`Prior`; none of them is evaluated.

    Args:
        value: Any object.

    Returns:
        True for a prior, False for a class or another object.

    >>> is_prior("gaussian")
    False
    """
    own = getattr(value, "__dict__", {})
    return not isinstance(value, type) and all(
        name in own or hasattr(type(value), name) for name in (*_STATED, *_METHODS)
    )


class BasePrior:
    """Base class with the members of :class:`Prior` that most priors share; each may be overridden.

    >>> class Uniform(BasePrior):
    ...     kind, name, shape, data_range = "uniform", "uniform", (2,), (0.0, 1.0)
    ...     def draw(self, count, rng):
    ...         return torch.rand(count, 2, generator=rng)
    ...     def scaled_to(self, data_range):
    ...         raise NotImplementedError
    >>> is_prior(Uniform())
    True
    """

    if TYPE_CHECKING:  # each prior defines them; properties at run time would prevent dataclass fields of that name

        @property
        def shape(self) -> tuple[int, ...]: ...  # noqa: D102

        @property
        def data_range(self) -> tuple[float, float]: ...  # noqa: D102

        def draw(self, count: int, rng: torch.Generator) -> Tensor: ...  # noqa: D102

    mean: Tensor | None = None

    @property
    def fingerprint(self) -> str:
        """Short digest of everything that the prior holds."""
        return short_digest(self)

    def time_pass(self) -> float:
        """Measure the seconds to draw one record."""
        begun = time.monotonic()
        self.draw(1, torch.Generator().manual_seed(0))
        return time.monotonic() - begun

    def check_fits(self, shape: Sequence[int], data_range: tuple[float, float]) -> None:
        """Refuse records whose shape or range differs from the prior.

        Args:
            shape: Shape of a record.
            data_range: Range of the values of records.

        Raises:
            InvalidInput: If the shape or the range differs.
        """
        if tuple(shape) != self.shape:
            remedy = "Train a prior with reconrisk train-prior, or resize the records."
            raise invalid_input("prior.shape", self.shape, f"to be {tuple(shape)}, the shape of the records", remedy)
        if tuple(map(float, data_range)) != tuple(map(float, self.data_range)):
            remedy = f"If the records are the same in other units, pass prior.scaled_to({tuple(data_range)})."
            raise invalid_input(
                "prior.data_range", self.data_range, f"to be {data_range}, the range of the records", remedy
            )


def draw_within_range(prior: Prior, count: int, rng: torch.Generator, *, steps: int) -> Tensor:
    r"""Draw records that are clipped to the range of the data.

    Args:
        prior: The prior.
        count: Number of records.
        rng: Source of randomness.
        steps: Steps of a prior that samples in steps; others ignore it.

    Returns:
        Records (count, \*shape).

    >>> from reconrisk.priors.gaussian import gaussian
    >>> wide = gaussian(torch.full((2,), 0.5), torch.eye(2))
    >>> bool((draw_within_range(wide, 9, torch.Generator().manual_seed(0), steps=1) <= 1).all())
    True
    """
    in_steps = getattr(prior, "draw_in_steps", None)
    drawn: Tensor = prior.draw(count, rng) if in_steps is None else in_steps(count, rng, steps=steps)
    return drawn.clamp(*prior.data_range)


def time_derivative(answer: Tensor, asked: Tensor, begun: float) -> float:
    """Compute the derivative of an output, if it has one, and return the seconds since ``begun``.

    Args:
        answer: Output of the prior.
        asked: Input that it depends on.
        begun: Start of the measurement, by the monotonic clock.

    Returns:
        The elapsed seconds.
    """
    if answer.requires_grad:
        torch.autograd.grad(answer.sum(), asked, allow_unused=True)
    return time.monotonic() - begun
