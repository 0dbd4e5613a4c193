"""Lower bounds on the mean squared error of estimates.

Start with ``premises.py``: every bound here becomes a guarantee there, capped by the error of a constant guess. Then
``renyi.py`` (guo2022, Theorem 1) and ``fisher.py`` (guo2022, Theorem 2), for unbiased estimates; ``bayesian.py`` (van
Trees; chen2025), for every estimate under a prior; ``output_perturbation.py`` for regularised logistic regression.
"""
