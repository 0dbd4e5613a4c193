"""Statistics of measured success: intervals for shares and means.

``intervals.py`` has the interval of a share of successes (for single records and for records that share an update) and
Student's interval of a mean. Numbers about mechanisms are in ``accounting/``, scores of estimates in ``metrics/``.
"""
