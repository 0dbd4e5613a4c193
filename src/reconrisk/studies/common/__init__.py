"""Parts that several studies share.

Start with ``subjects/`` (the kinds of audited objects), ``plan.py`` (the trials of a study) and ``experiment.py`` (one
trial: release, defend, observe, attack, score). ``runs.py`` holds the values that trials return and the identity of a
run. ``attacked_updates.py`` runs one attack on chosen records. ``population.py`` draws targets, ``guarantees.py`` finds
guarantees, ``arguments.py`` checks arguments and holds shared options. ``defended_training.py`` and
``defended_release.py`` measure the cost of a defense.
"""
