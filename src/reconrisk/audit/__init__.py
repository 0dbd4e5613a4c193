"""The only place that holds target, attack and bound together: spec, run, store, confidence, verdict.

``rr.audit`` is this package, and calling it calls :func:`reconrisk.audit.run.audit`.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    """A package that is called like the function it is named after."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """The result of :func:`reconrisk.audit.run.audit`."""
        from reconrisk.audit.run import audit  # loads torch, which takes seconds

        return audit(*arguments, **settings)


sys.modules[__name__].__class__ = _CallablePackage
