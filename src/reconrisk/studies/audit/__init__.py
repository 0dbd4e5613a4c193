"""The audit: attacks on releases under defenses, with guesses, guarantees and limits.

Read ``run.py`` (``rr.audit``), then ``conclusion.py`` (from trials to lines of the result) and ``result.py``.
``store.py`` keeps trials in SQLite, ``words.py`` writes sentence and table, ``comparison.py`` compares two audits.
``spec.py`` is an audit as a value that files and options state; ``job.py`` loads what it names. ``demo.py`` is the
demonstration.

An audit names no attack, defense or bound itself: it reads the registries and ``bounds/for_goal.py``.
"""
