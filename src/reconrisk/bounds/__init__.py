"""Guarantees for reconstruction, derived from numbers about mechanisms. No torch.

Start with ``success.py`` (success of any adversary with a prior) and ``prior_success.py`` (success without a release),
then ``mse/`` (lower bounds on the mean squared error). ``known_norm.py``, ``gaussian_prior.py`` and
``analytic_inversion.py`` are statements for stated adversaries; ``corridor.py`` joins them into the risk corridor of
riess2025. ``risks.py`` and ``calibration.py`` go from a stated risk to the noise. ``for_goal.py`` lists every guarantee
for one goal: audits read it. ``glm/`` is for linear models, ``numerics/`` holds the special functions.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
