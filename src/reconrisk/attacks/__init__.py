"""Observation to reconstruction: one file per algorithm, assembled from parts."""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
