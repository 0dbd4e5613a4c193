"""Special functions behind the bounds, in log space and rounded to the safe side.

``chi_square.py`` computes chi-square laws down to exp(-1e5). ``cone.py`` computes the probability that a noisy
direction lies within an angle. ``hits.py`` holds the binomial law of the number of releases with a record, and
``matrices.py`` the checks of vectors and symmetric matrices. The files can be read in any order.
"""
