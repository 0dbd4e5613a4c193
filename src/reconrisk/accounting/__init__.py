"""Privacy accounting of mechanisms. NumPy and SciPy, no torch; only ``events.py`` imports dp_accounting.

Start with ``trade_off.py`` (from a privacy guarantee to a success probability) and ``phases.py`` (a mechanism as the
list of phases that accountants read). For subsampled training, ``loss.py`` puts the privacy loss of one step on a
lattice, ``composition.py`` composes steps by FFT, and ``subsampled.py`` computes success and epsilon from the result.
``laplace.py`` does the same for Laplace noise.
``renyi.py`` and ``subsampled_fisher.py`` are the other two accountants. ``calibration.py`` inverts them with
``solver.py``.
"""
