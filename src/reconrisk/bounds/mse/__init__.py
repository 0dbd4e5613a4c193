"""Lower bounds on the mean squared error of estimates.

Start with ``premises.py``, which turns each bound into a guarantee capped by the error of a constant guess.
``renyi.py`` (guo2022, Theorem 1) and ``fisher.py`` (guo2022, Theorem 2) cover unbiased estimates. ``bayesian.py`` (van
Trees; chen2025) covers every estimate under a prior, and ``output_perturbation.py`` regularised logistic regression.
"""
