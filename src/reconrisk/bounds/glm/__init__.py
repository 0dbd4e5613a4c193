"""Fisher information about each record in a released generalised linear model.

Read ``problem.py`` first: it checks the problem and fits it. ``information.py`` computes the information that noisy
coefficients carry about every training record, and the trace of its inverse without a solve for each record.
"""
