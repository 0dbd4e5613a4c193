"""Defenses change a release before it leaves the machine. Each names its mechanism, or None if it is heuristic.

Start with ``base.py`` and ``noise.py``, then ``clipping.py``, ``pruning.py``, ``quantisation.py`` and ``chain.py``
(several in a row). ``optimal_noise.py`` has the optimal forms of chen2025. ``local.py`` chooses noise or mask from the
private records, without a guarantee. ``refreshed.py`` recomputes a defense as the model trains. ``deferred.py`` holds
defenses that still need a release or public records. ``registry.py`` finds defenses by name; ``families.py`` lists
families with one strength parameter each, which studies search.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
