"""Changes of a release before it leaves the machine, each naming the mechanism it implements or None."""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
