"""Confidence intervals of measured success rates and means.

``intervals.py`` has the interval of a success rate (for single records and for records that share an update) and
Student's interval of a mean. Privacy accounting is in ``accounting/``, scores of estimates are in ``metrics/``.
"""
