"""Forward maps from private records to the tensors that leave the machine, with their derivatives.

Start with ``release.py`` (records, forward map, Jacobian products, noise) and ``observe.py`` (from a release, a defense
and a threat to an observation). ``model_state.py`` holds the tensors of a module as values. Kinds of releases:
``updates/`` (gradients and local training), ``training/`` (a trained network), ``shadow/`` (many trainings that differ
in one record), ``fitted_estimators/`` (linear models). ``sensitivity/`` measures how strongly a release depends on a
record.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
