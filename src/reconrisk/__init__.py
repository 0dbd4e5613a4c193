"""How much of a private training record can be rebuilt from what you release, at most and in practice.

The public names are listed in ``__init__.pyi``, which type checkers read and from which they are loaded on first use:
importing the package stays fast, and torch is loaded only by the parts that need it.
"""

from reconrisk.core import version
from reconrisk.core.lazy import lazy_names
from reconrisk.core.storage.links import add_table

__version__ = version.VERSION

add_table("kinds", "reconrisk.kinds:HOMES")
add_table("renderers", "reconrisk.reports.registry:RENDERERS")

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
