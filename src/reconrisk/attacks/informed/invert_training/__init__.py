"""Inversion of a known training: the record that explains the trained network.

Read ``problem.py`` (training as a function of the record, and what a known defense does to its result), then
``attack.py``. ``search.py`` tries every possible label, ``chord.py`` rebuilds many records at once, ``tangents.py``
keeps the derivatives, ``weighted.py`` works in units of the noise.
"""
