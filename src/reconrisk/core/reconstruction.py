"""What an attack returns: estimates, and an account of how it went that may go into a report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_nonnegative, check_whole, invalid_input

if TYPE_CHECKING:
    from torch import Tensor


class Ending(Enum):
    """How an attack came to its end."""

    CONVERGED = "converged"
    EXACT = "exact"
    BUDGET_SPENT = "budget spent"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    NOT_APPLICABLE = "not applicable"


@serializable("attack-status")
@dataclass(frozen=True)
class Status:
    """How an attack ended, why, and what to change if that is not good enough.

    >>> print(Status(Ending.BUDGET_SPENT, "300 steps were not enough", "Raise steps or budget"))
    budget spent: 300 steps were not enough. Raise steps or budget.
    """

    ending: Ending
    cause: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.is_failure and not self.remedy:
            raise invalid_input("remedy", self.remedy, f"to say what to do when an attack is {self.ending.value}")

    @property
    def is_failure(self) -> bool:
        """Whether the estimates must not be read as the strength of the attack."""
        return self.ending in (Ending.DIVERGED, Ending.NOT_APPLICABLE, Ending.INTERRUPTED)

    def __str__(self) -> str:
        """Ending, cause and remedy as one line."""
        return f"{self.ending.value}: {self.cause}." + (f" {self.remedy}." if self.remedy else "")


ZERO_RELEASE = Status(Ending.NOT_APPLICABLE, "the release is zero", "Observe another update")
"""The status of every attack on :attr:`reconrisk.core.observation.Observation.is_zero`."""


@serializable("attack-cost")
@dataclass(frozen=True)
class Cost:
    """What an attack spent: wall-clock seconds and evaluations of the release."""

    seconds: float
    evaluations: int

    def __post_init__(self) -> None:
        check_nonnegative("seconds", self.seconds)
        check_whole("evaluations", self.evaluations, minimum=0)


@serializable("attack-account")
@dataclass(frozen=True)
class Account:
    """How an attack went, without any private value but the labels it inferred: what a report keeps of it.

    ``objective`` is the attacker's own, one value per record, lower is better; it never uses the target.
    """

    attack: str
    status: Status
    objective: tuple[float, ...]
    cost: Cost
    labels: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Estimates of the records, one per row, and the account of the attack that made them."""

    estimates: Tensor
    account: Account

    def __post_init__(self) -> None:
        if len(self.account.objective) != len(self.estimates):
            raise invalid_input(
                "objective", self.account.objective, f"to have one value for each of {len(self.estimates)} estimates"
            )

    @property
    def status(self) -> Status:
        """How the attack ended."""
        return self.account.status

    @property
    def labels(self) -> tuple[int, ...] | None:
        """Labels the attack inferred, if it did."""
        return self.account.labels

    def __repr__(self) -> str:
        """Shapes and status instead of pixels."""
        records = f"{len(self.estimates)} x {tuple(self.estimates.shape[1:])}"
        return f"Reconstruction({records}, {self.account.attack}, {self.status})"
