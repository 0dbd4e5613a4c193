"""How much noise: what it may cost, or what it must achieve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from torch import Tensor

from reconrisk.core.validation import check_positive, check_whole, refuse


@dataclass(frozen=True)
class TargetBound:
    r"""A mean squared error that no estimate may stay below, for a record with a prior of this information.

    .. math:: \mathrm{mse} = \frac d{\mathrm{tr}\, E I / B^2 + d P}

    ``prior_information`` P is the largest eigenvalue of the prior's information, ``dimension`` d that of a record,
    ``batch_size`` B the number of records whose gradients are averaged in what is released.

    Guarantee: none by itself: the moments are estimates. :func:`reconrisk.bayesian_mse_lower_bound` with an upper limit
    of the trace is the bound.
    Reference: Theorem 3.2, chen2025.

    >>> TargetBound(mse=0.02, prior_information=30.0, dimension=100).trace
    2000.0
    """

    mse: float
    prior_information: float
    dimension: int
    batch_size: int = 1

    def __post_init__(self) -> None:
        check_positive("mse", self.mse)
        check_positive("prior_information", self.prior_information)
        check_whole("dimension", self.dimension)
        check_whole("batch_size", self.batch_size)
        if self.mse * self.prior_information >= 1:
            most = 1 / self.prior_information
            remedy = f"Without any release the bound is {most:.4g}; noise comes as near to it as {0.99 * most:.4g}."
            raise refuse("mse", self.mse, "to be below 1 / prior_information", remedy)

    @property
    def trace(self) -> float:
        """The largest expected trace of the information of one record's gradient that leaves the bound."""
        return self.batch_size**2 * self.dimension * (1 / self.mse - self.prior_information)

    def __str__(self) -> str:
        """The error and the prior."""
        return f"mse {self.mse:g} at prior information {self.prior_information:g}"


@dataclass(frozen=True)
class NoiseBudget:
    """What noise is scaled to: exactly one of its second-order cost, its norm, equal noise, its unit, or a bound."""

    utility_loss: float | None = None
    noise_norm: float | None = None
    like: float | None = None
    unit: float | None = None
    target: TargetBound | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            stated = " and ".join(given) or "nothing"
            raise refuse("budget", stated, f"to be exactly one of {', '.join(field.name for field in fields(self))}")
        if self.target is None:
            check_positive(given[0], getattr(self, given[0]))

    def factor(
        self, shape: Mapping[str, Tensor], square: Mapping[str, Tensor], sensitivity: Mapping[str, Tensor]
    ) -> float:
        """What variances, known up to a factor as ``shape``, are to be multiplied by."""
        cost = sum(float((shape[name] * square[name]).sum()) for name in shape)
        if self.utility_loss is not None:
            return self.utility_loss / cost
        if self.like is not None:
            return self.like**2 * sum(float(value.sum()) for value in square.values()) / cost
        if self.noise_norm is not None:
            return self.noise_norm / math.sqrt(sum(float(value.square().sum()) for value in shape.values()))
        if self.unit is not None:
            count = sum(value.numel() for value in shape.values())
            return self.unit**2 * sum(float((1 / value).sum()) for value in shape.values()) / count
        trace = sum(float((sensitivity[name] / shape[name]).sum()) for name in shape)
        return trace / self.target.trace if self.target is not None else math.nan

    def __str__(self) -> str:
        """The setting as it is written."""
        if self.target is not None:
            return f"target={self.target}"
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name}={value:g}" for name, value in stated.items() if value is not None)
