"""Trade-off between leakage and utility over families of defenses.

Read ``tradeoff.py`` (``rr.tradeoff``), then ``study.py`` (one cell: train, attack and measure one defense at one
strength with one seed) and ``result.py`` (rows, Pareto fronts, dominance). ``store.py`` keeps finished cells by a
digest of everything they depend on.
"""
