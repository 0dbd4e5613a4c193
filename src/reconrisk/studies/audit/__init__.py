"""The audit: attacks on releases under defenses, compared with baselines, guarantees and limits.

Read ``run.py`` (``rr.audit`` and its options), then ``conclusion.py`` (from trials to the lines of the result)
and ``result.py``. ``store.py`` keeps trials in SQLite, ``words.py`` writes the sentence and the table, and
``comparison.py`` compares two audits. ``spec.py`` is an audit as a value that spec files and command-line options
state; ``job.py`` loads the objects that it names. ``demo.py`` is the demonstration.

An audit names no attack, defense or bound itself: it reads the registries and ``bounds/for_goal.py``.
"""
