"""Bounds on reconstruction, derived from the privacy parameters of a mechanism. No torch.

Start with ``success.py`` (success probability of any adversary with a prior) and ``prior_success.py`` (success
probability without a release). ``mse/`` holds lower bounds on the mean squared error. ``known_norm.py``,
``gaussian_prior.py`` and ``analytic_inversion.py`` treat particular adversaries, and ``corridor.py`` combines them into
the risk corridor of riess2025. ``risks.py`` and ``calibration.py`` turn a risk limit into a noise level.
``for_goal.py`` collects every guarantee for one goal, for use in audits. ``glm/`` covers generalised linear models, and
``numerics/`` holds the special functions.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
