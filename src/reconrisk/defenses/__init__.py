"""Defenses: changes of a release before it leaves the machine. Each names its mechanism, or None if it is heuristic.

Start with ``base.py`` and ``noise.py``, then ``clipping.py``, ``pruning.py``, ``quantisation.py`` and ``chain.py``
(several in a row). Optimal forms of chen2025: ``optimal_noise.py``; ``local.py`` chooses by the private records,
without a guarantee; ``refreshed.py`` follows the model. ``deferred.py`` waits for a release or public records.
``registry.py`` finds defenses by name; ``families.py`` lists families of one strength each, from which studies choose.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
