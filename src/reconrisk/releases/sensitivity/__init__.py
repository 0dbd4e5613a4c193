"""Measures of how strongly a release depends on private records.

Start with ``fisher.py``: Fisher information about each record, as trace, diagonal or matrix. ``spectrum.py`` finds the
directions that leak most, ``parameters.py`` the sensitivity of each released value, ``vulnerability.py`` meng2025's
measure of a network, and ``moments.py`` the means over public records that optimal noise needs.
"""
