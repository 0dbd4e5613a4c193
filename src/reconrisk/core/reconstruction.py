"""Result of an attack: estimates of the records, and an account of the run without private values, for reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_nonnegative, check_whole, invalid_input

if TYPE_CHECKING:
    from torch import Tensor


class Ending(Enum):
    """Reason for which an attack ended."""

    CONVERGED = "converged"
    EXACT = "exact"
    BUDGET_SPENT = "budget spent"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    NOT_APPLICABLE = "not applicable"


@serializable("attack-status")
@dataclass(frozen=True)
class Status:
    """Ending of an attack, with its cause and a remedy.

    Attributes:
        ending: Reason for which the attack ended.
        cause: The cause, without a full stop.
        remedy: What to change for a better result, without a full stop; required for failures.

    >>> print(Status(Ending.BUDGET_SPENT, "300 steps were not enough", "Raise steps or budget"))
    budget spent: 300 steps were not enough. Raise steps or budget.
    """

    ending: Ending
    cause: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.is_failure and not self.remedy:
            condition = f"to be stated for the ending {self.ending.value!r}"
            raise invalid_input("remedy", self.remedy, condition, "Write what to change, such as 'Lower step_size'.")

    @property
    def is_failure(self) -> bool:
        """True if the estimates do not show the strength of the attack."""
        return self.ending in (Ending.DIVERGED, Ending.NOT_APPLICABLE, Ending.INTERRUPTED)

    def __str__(self) -> str:
        """Return ending, cause and remedy in one line."""
        return f"{self.ending.value}: {self.cause}." + (f" {self.remedy}." if self.remedy else "")


ZERO_RELEASE = Status(Ending.NOT_APPLICABLE, "the release is zero", "Observe another update")
"""Status of every attack on an observation with :attr:`reconrisk.core.observation.Observation.is_zero`."""


@serializable("attack-cost")
@dataclass(frozen=True)
class Cost:
    """Cost of an attack.

    Attributes:
        seconds: Wall-clock time in seconds.
        evaluations: Number of evaluations of the forward map.
    """

    seconds: float
    evaluations: int

    def __post_init__(self) -> None:
        check_nonnegative("seconds", self.seconds)
        check_whole("evaluations", self.evaluations, minimum=0)


@serializable("attack-account")
@dataclass(frozen=True)
class AttackReport:
    """Description of the run of an attack, as reports keep it.

    Inferred labels are the only values that depend directly on private records.

    Attributes:
        attack: The attack with its settings.
        status: Ending of the attack.
        objective: Final value of the attack's own objective for each record; lower is better. It never uses the target.
        cost: Time and evaluations.
        labels: Labels that the attack inferred, or None.
    """

    attack: str
    status: Status
    objective: tuple[float, ...]
    cost: Cost
    labels: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Estimates of the private records, with the report of the attack that made them.

    Attributes:
        estimates: One record per row.
        account: Report of the attack: status, objective, cost and inferred labels.
    """

    estimates: Tensor
    account: AttackReport

    def __post_init__(self) -> None:
        if len(self.account.objective) != len(self.estimates):
            raise invalid_input(
                "account.objective",
                self.account.objective,
                f"to have one value for each of {len(self.estimates)} estimates",
            )

    @property
    def status(self) -> Status:
        """Ending of the attack, with cause and remedy."""
        return self.account.status

    @property
    def labels(self) -> tuple[int, ...] | None:
        """Labels that the attack inferred, or None."""
        return self.account.labels

    def __repr__(self) -> str:
        """Return shapes, attack and status, without any tensor value."""
        records = f"{len(self.estimates)} x {tuple(self.estimates.shape[1:])}"
        return f"Reconstruction({records}, {self.account.attack}, {self.status})"
