"""Confidence limits of measured rates, noise and privacy parameters.

``intervals.py`` has the interval of a success rate for a number of trials fixed in advance (for single records and for
records that share an update) and Student's interval of a mean. The other files hold at whatever time one looks.
``betting.py`` has limits of a success rate, ``noise_scale.py`` evidence against a claimed scale of noise,
``contribution.py`` evidence against a claimed contribution of a record, and ``privacy_lower_bounds.py`` lower bounds on
mu and epsilon from guesses about canaries. ``search.py`` has the bisection that they share. Privacy accounting is in
``accounting/``, scores of estimates are in ``metrics/``.
"""
