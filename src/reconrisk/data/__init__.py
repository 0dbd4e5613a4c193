"""Datasets in the wheel, and loaders for the usual files on disk."""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
