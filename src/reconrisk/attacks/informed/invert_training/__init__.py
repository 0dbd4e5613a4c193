"""Inversion of a known training: the record that reproduces the trained network.

Read ``problem.py`` (training as a function of the record, followed by a known defense), then ``attack.py``.
``search.py`` tries every possible label, ``chord.py`` reconstructs many records at once, ``tangents.py`` holds the
derivatives, ``weighted.py`` works in units of the noise.
"""
