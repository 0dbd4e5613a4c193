"""Settings that every study takes in the same form: seed, confidence, public records, name and plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from reconrisk.core.validation import check_callable, check_probability, invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.studies.common.arguments import check_seed
from reconrisk.studies.common.subjects.subject import Records, as_dataset

_PUBLIC = "Pass an rr.data.Dataset, the name of one, a file, or a pair of tensors: records in [0, 1] and labels."


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Settings of a study that most calls leave at their defaults.

    Attributes:
        seed: Seed of every random choice. The same seed repeats the same trials.
        confidence: Probability that the intervals of the result hold together, in (0, 1).
        public: Records that anybody may have, none of them a target. Baselines, priors and data-dependent defenses
            use them. By default, records of ``data`` that are not attacked take their place.
        name: Name of the audited model in reports; by default its class.
        show_plan: Function that receives the plan as text before the first trial; by default the plan is printed if
            standard error is a terminal.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> StudyOptions(seed=3).confidence
    0.95
    >>> StudyOptions(confidence=1.0)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected confidence=1.0 in (0, 1). 0.95 is usual.
    """

    seed: int = 0
    confidence: float = 0.95
    public: Records | None = None
    name: str | None = None
    show_plan: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        if not 0 < check_probability("confidence", self.confidence) < 1:
            raise invalid_input("confidence", self.confidence, "in (0, 1)", "0.95 is usual.")
        if self.public is not None and not isinstance(self.public, (Dataset, str, Path, tuple)):
            raise invalid_input("public", type(self.public).__name__, "to hold public records", _PUBLIC)
        if self.name is not None and not isinstance(self.name, str):
            raise invalid_input("name", self.name, "to be a text")
        if self.show_plan is not None:
            check_callable("show_plan", self.show_plan, "Pass print, for instance.")

    def public_dataset(self) -> Dataset | None:
        """Return the public records as a data set; None if none are stated."""
        return None if self.public is None else as_dataset(self.public)


Options = TypeVar("Options", bound=StudyOptions)


def check_options(options: object, kind: type[Options]) -> Options:
    """Return ``options`` if they are of the kind that the study takes.

    Args:
        options: Value of the argument ``options``.
        kind: Class of the options of this study.

    Returns:
        The same value.

    Raises:
        InvalidInput: If ``options`` is anything else, such as a mapping.

    >>> check_options({"seed": 1}, StudyOptions)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected options={'seed': 1} to be StudyOptions. Pass StudyOptions(seed=1), ...
    """
    if not isinstance(options, kind):
        remedy = f"Pass {kind.__name__}(seed=1), for instance."
        raise invalid_input("options", options, f"to be {kind.__name__}", remedy)
    return options
