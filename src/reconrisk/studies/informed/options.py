"""Options of :func:`reconrisk.studies.informed.network.rebuild_informed`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reconrisk.core.validation import invalid_input


@dataclass(frozen=True, kw_only=True)
class InformedOptions:
    """Settings of an informed attack on a network that most calls leave at their defaults.

    Attributes:
        seconds: Time limit of ``invert_training`` for each model or batch of models; by default none.
        shadows: Number of shadow models that a ``reconstructor`` learns from; by default one for every record that is
            neither fixed nor a target.
        store: Folder that keeps the shadow models; the same call resumes there. By default nothing is kept.
        name: Name of the model in the report; by default its class.

    >>> InformedOptions(seconds=10.0).shadows is None
    True
    """

    seconds: float | None = None
    shadows: int | None = None
    store: str | Path | None = None
    name: str | None = None


DEFAULT_OPTIONS = InformedOptions()


def check_informed_options(options: object) -> None:
    """Raise unless the argument is an ``InformedOptions``.

    Args:
        options: Value of the argument ``options``.

    Raises:
        InvalidInput: If it is anything else, such as a mapping.

    >>> check_informed_options({"seconds": 10})
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected options={'seconds': 10} to be InformedOptions. Pass ...
    """
    if not isinstance(options, InformedOptions):
        remedy = "Pass rr.InformedOptions(seconds=10), for instance."
        raise invalid_input("options", options, "to be InformedOptions", remedy)
