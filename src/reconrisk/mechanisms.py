"""Privacy mechanisms as values: noise, sampling, repetition, and statements of differential privacy.

This module only collects names. The code is in ``core/mechanism.py`` and ``accounting/events.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconrisk.core.mechanism import (
    ApproximateDP,
    Composed,
    Gaussian,
    GaussianDP,
    Neighbouring,
    PoissonSampled,
    PrivacyCurve,
    PureDP,
    RenyiDP,
    Repeated,
    ZeroConcentratedDP,
    dp_sgd,
    output_perturbation,
)

if TYPE_CHECKING:
    from reconrisk.accounting.events import from_event

__all__ = [
    "ApproximateDP",
    "Composed",
    "Gaussian",
    "GaussianDP",
    "Neighbouring",
    "PoissonSampled",
    "PrivacyCurve",
    "PureDP",
    "RenyiDP",
    "Repeated",
    "ZeroConcentratedDP",
    "dp_sgd",
    "from_event",
    "output_perturbation",
]


def __getattr__(name: str) -> object:
    """Import ``from_event`` on first use: it loads dp_accounting, which takes most of a second."""
    if name == "from_event":
        from reconrisk.accounting.events import from_event

        return from_event
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
