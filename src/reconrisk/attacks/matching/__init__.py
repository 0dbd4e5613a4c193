"""Attacks that search for records whose release matches the observed one: one loop, assembled from parts.

Read ``loop.py`` and ``published.py`` first: a paper is a function that assembles parts. Parts: ``initialization.py``
(starts and labels), ``parametrizations.py`` (what is varied), ``distances.py`` and ``regularizers.py`` (what is made
small, summed in ``objective.py``), ``optimizers.py`` (how candidates move). ``span_inversion.py`` adds the span of the
first layer's gradient for small batches.
"""
