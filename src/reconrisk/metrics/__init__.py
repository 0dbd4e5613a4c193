"""Estimate and target to one score per record, and the matching of batches.

Each constructor returns a configured :class:`~reconrisk.core.metric.Metric`: call it on estimates and targets of one
shape, records first. Scores are float64, computed on float64 copies of any real type.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
