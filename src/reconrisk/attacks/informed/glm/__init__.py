"""Exact attack on generalised linear models.

Read ``equations.py`` (the optimality conditions as equations for the unknown record), then ``outcomes.py`` (records
that solve them, the most plausible first), then ``attack.py`` (the public function, and the form that audits run).
``arguments.py`` validates models and records, ``accuracy.py`` estimates the error that an inexact solver causes,
``candidates.py`` compares given records.
"""
