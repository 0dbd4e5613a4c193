"""Attacks of a server that changes the model before clients train it.

Read ``planting.py`` first: the planted layer, and the records that its gradient reveals. Then ``optimal_analytic.py``
(riess2025: one record, under noise), ``imprint.py`` (Robbing the Fed: bins) and ``trap_weights.py`` (neurons that few
records activate).
"""
