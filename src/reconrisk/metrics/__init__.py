"""Scores of estimates against targets, one per record.

Start with ``elementwise.py`` (MSE, PSNR, correlation) and ``scoring.py`` (several metrics at once); ``records.py``
checks records and finds out which estimate is of which target. ``registry.py`` lists metrics by name, ``goals.py``
reads goals in them. ``ssim.py`` and ``lpips.py`` are for images, ``columns.py`` for tables, ``judge.py`` asks a
classifier, ``candidates.py`` and ``neighbours.py`` compare with other records.

Each constructor returns a configured :class:`~reconrisk.core.metric.Metric`: call it on estimates and targets of one
shape, records first. Scores are float64, computed on float64 copies of any real type.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
