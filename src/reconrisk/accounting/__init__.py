"""Numbers about mechanisms. NumPy and SciPy, no torch; only ``events.py`` imports dp_accounting.

Start with ``trade_off.py`` (from a privacy guarantee to a success probability) and ``phases.py`` (a mechanism as the
list of phases that accountants read). Subsampled training: ``loss.py`` puts the privacy loss of one step on a lattice,
``composition.py`` composes steps by FFT, ``subsampled.py`` reads success and epsilon off the result. ``renyi.py`` and
``subsampled_fisher.py`` are the other two accountants. ``calibration.py`` inverts them with ``solver.py``.
"""
