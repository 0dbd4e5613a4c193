"""Special functions behind the bounds, in log space and rounded to the safe side.

``chi_square.py`` has chi-square laws down to exp(-1e5), ``cone.py`` the chance that a noisy direction lies within an
angle, ``hits.py`` the binomial law of how often a record was sampled, ``matrices.py`` the checks of vectors and
symmetric matrices. The files do not depend on each other's order; read the one that a bound names.
"""
