"""Exact attack on generalised linear models.

Read ``equations.py`` (the equations that optimality leaves for the unknown record), then ``outcomes.py`` (records that
solve them, the most plausible first), then ``attack.py`` (the public function and the form that audits run).
``arguments.py`` reads models and records, ``accuracy.py`` estimates the error of an inexact solver, ``candidates.py``
picks among given records.
"""
