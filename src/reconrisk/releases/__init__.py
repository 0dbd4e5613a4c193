"""Forward maps from a record to what leaves the machine, with their derivatives."""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
