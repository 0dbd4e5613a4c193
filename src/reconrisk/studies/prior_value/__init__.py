"""Value of an update to an attacker who has a prior.

``over_prior.py`` (``rr.leakage_over_prior``) compares an attack with its prior alone and with the same attack on
another record's update, so that plausible records are not mistaken for leaked ones. ``result.py`` is the result.
"""
