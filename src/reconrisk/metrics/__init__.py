"""Scores of estimates against targets, one for each record.

Start with ``elementwise.py`` (MSE, PSNR, correlation) and ``scoring.py`` (several metrics at once). ``records.py``
checks records and matches estimates to targets. ``registry.py`` lists metrics by name, and ``goals.py`` states goals in
them. ``ssim.py`` and ``lpips.py`` compare images, ``columns.py`` tables, and ``judge.py`` the predictions of a
classifier. ``candidates.py`` and ``neighbours.py`` compare with other records.

Each constructor returns a configured :class:`~reconrisk.core.metric.Metric`: call it on estimates and targets of one
shape, records first. Scores are float64, computed on float64 copies of any real type.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
