"""Measure and bound how much of a private training record can be reconstructed from a release.

Folders from the lowest layer up: ``core/`` (shared types); ``accounting/``, ``statistics/``, ``releases/`` and
``priors/``; ``attacks/``, ``defenses/``, ``bounds/``, ``metrics/``, ``data/`` and ``models/``; ``reports/``;
``integrations/``; ``studies/`` and ``testing/``; ``cli/``. To follow one audit, read ``core/observation.py``,
``releases/release.py``, ``attacks/matching/loop.py``, ``bounds/success.py`` and ``studies/audit/run.py``.

The stub ``__init__.pyi`` lists the public names. Type checkers read it, and the package imports each name from it on
first use. Importing the package is therefore fast, and only the parts that need torch load it.
"""

from reconrisk.core import VERSION
from reconrisk.core.lazy import lazy_names
from reconrisk.core.storage.links import add_table

__version__ = VERSION

add_table("kinds", "reconrisk.kinds:HOMES")
add_table("renderers", "reconrisk.reports.registry:RENDERERS")

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
