"""Values that :func:`reconrisk.studies.audit.run.audit` takes: its options, and a finished training run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_callable, check_whole, invalid_input
from reconrisk.studies.common.guarantees import StatedGuarantee
from reconrisk.studies.common.options import StudyOptions


@dataclass(frozen=True, kw_only=True)
class AuditOptions(StudyOptions):
    """Settings of an audit that most calls leave at their defaults.

    Attributes:
        records: Rows of ``data`` that targets are drawn from; by default all of them, or a sample of large data.
        signature: Command or call that repeats the audit, for the report; by default the call of ``rr.audit``.

    The other attributes are those of :class:`~reconrisk.studies.common.options.StudyOptions`.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> AuditOptions(seed=3, records=range(4)).records
    (0, 1, 2, 3)
    """

    records: Sequence[int] | None = None
    signature: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        stated: Any = self.records
        if stated is not None:
            if isinstance(stated, str) or not isinstance(stated, Iterable):
                raise invalid_input("records", stated, "to be rows of data", "Pass [0, 3, 8], for instance.")
            rows = tuple(check_whole("records", row, minimum=0) for row in stated)
            object.__setattr__(self, "records", rows)
        if self.signature is not None and not isinstance(self.signature, str):
            raise invalid_input("signature", self.signature, "to be a text")


DEFAULT_OPTIONS = AuditOptions()


@dataclass(frozen=True)
class TrainingRun:
    """A finished training run of the audited model.

    Attributes:
        mechanism: Privacy mechanism of the whole run, such as ``rr.mechanisms.dp_sgd(...)``. Default: that of
            ``account``.
        account: Fisher account of the run, an ``rr.integrations.FisherAccount``.
        guarantees: Guarantees that the caller states. Each is a function of a goal and the label of a defense, which
            returns a ``Guarantee`` or None.

    Raises:
        InvalidInput: If a value is of the wrong kind.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> TrainingRun(dp_sgd(noise_multiplier=1.1, sampling_probability=0.01, steps=100)).mechanism.steps
    100
    """

    mechanism: Mechanism | None = None
    account: Any = None
    guarantees: Sequence[StatedGuarantee] = ()

    def __post_init__(self) -> None:
        if self.mechanism is not None and not isinstance(self.mechanism, get_args(Mechanism)):
            remedy = "Pass rr.mechanisms.dp_sgd(...) or another mechanism, or rr.TrainingRun(account=...)."
            raise invalid_input("training", self.mechanism, "to be the mechanism of a run", remedy)
        if self.account is not None and not (hasattr(self.account, "mechanism") and hasattr(self.account, "summary")):
            remedy = "Pass that of an rr.integrations.FisherAccountant: accountant.account()."
            raise invalid_input("account", type(self.account).__name__, "to be a Fisher account", remedy)
        if callable(self.guarantees):
            raise invalid_input("guarantees", self.guarantees, "to be a list of functions", "Put it in a list.")
        for each in self.guarantees:
            check_callable("guarantees", each, "Pass functions of a goal and the label of a defense.")
        object.__setattr__(self, "guarantees", tuple(self.guarantees))

    @property
    def stated_mechanism(self) -> Mechanism | None:
        """Mechanism of the run as stated, or as recorded by its account."""
        if self.mechanism is None and self.account is not None:
            found: Mechanism = self.account.mechanism()
            return found
        return self.mechanism


def training_run(training: Mechanism | TrainingRun | None) -> TrainingRun:
    """Return the argument ``training`` of an audit as a training run.

    Args:
        training: A run, the mechanism of one, or None if nothing is known about the training.

    Returns:
        The run; an empty one for None.

    Raises:
        InvalidInput: If ``training`` is neither.
    """
    return training if isinstance(training, TrainingRun) else TrainingRun(training)
