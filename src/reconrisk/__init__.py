"""Reconstruction risk: how much of a private training record can be rebuilt from a release, at most and in practice.

Folders from the lowest layer up: ``core/`` (shared types); ``accounting/``, ``statistics/``, ``releases/`` and
``priors/``; ``attacks/``, ``defenses/``, ``bounds/``, ``metrics/``, ``data/`` and ``models/``; ``reports/``;
``studies/``, ``testing/`` and ``integrations/``; ``cli/``. To follow one audit, read ``core/observation.py``,
``releases/release.py``, ``attacks/matching/loop.py``, ``bounds/success.py`` and ``studies/audit/run.py``.

The public names are listed in ``__init__.pyi``, which type checkers read and from which they are loaded on first use:
importing the package stays fast, and torch is loaded only by the parts that need it.
"""

from reconrisk.core import VERSION
from reconrisk.core.lazy import lazy_names
from reconrisk.core.storage.links import add_table

__version__ = VERSION

add_table("kinds", "reconrisk.kinds:HOMES")
add_table("renderers", "reconrisk.reports.registry:RENDERERS")

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
