"""Fisher information about each record in a released generalised linear model.

Read ``problem.py`` first: the fitted problem as the bounds see it. ``information.py`` computes the information that
noisy coefficients carry about every training record, and the trace of its inverse without a solve per record.
"""
