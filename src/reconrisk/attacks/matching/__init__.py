"""Attacks that search for records whose release matches the observed one: one loop, assembled from parts.

Read ``loop.py`` and ``published.py`` first: a paper is a function that assembles parts. The parts are ``variables.py``
(starts, labels and parametrizations), ``distances.py`` and ``regularizers.py`` (the objective, summed in ``loop.py``)
and ``optimizers.py`` (update rules). ``span_inversion.py`` adds the span of the first layer's gradient for small
batches.
"""
