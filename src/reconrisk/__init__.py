"""How much of a private training record can be rebuilt from what you release, at most and in practice.

The public names are listed in ``__init__.pyi``, which type checkers read and from which they are loaded on first use:
importing the package stays fast, and torch is loaded only by the parts that need it.
"""

from reconrisk.core import VERSION
from reconrisk.core.lazy import lazy_names

__version__ = VERSION

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
