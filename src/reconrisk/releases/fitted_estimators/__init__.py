"""Fitted generalised linear models as releases.

Read ``objective.py`` (the objective, its derivatives and its minimiser), then ``glm.py`` (the solution as a function of
some of its records), ``estimators.py`` (the objectives of scikit-learn and torch) and ``estimator_release.py`` (a
fitted estimator with one unknown record).
"""
