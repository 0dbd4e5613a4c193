"""Parts that several studies share.

Start with ``subjects/`` (what is audited), ``plan.py`` (which attacks, on which updates) and ``experiment.py`` (one
trial: update, defend, observe, attack, score; its outcome is in ``runs.py``). ``attacked_updates.py`` is the same for
one attack on chosen records. ``population.py`` draws targets, ``guarantees.py`` finds guarantees, ``arguments.py``
reads arguments, ``runs.py`` also names runs. ``defended_training.py`` and ``defended_release.py``
measure the cost of a defense.
"""
