"""Guarantees from numbers about mechanisms: reconstruction robustness, inversion, Fisher, Bayesian. No torch."""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
