"""Updates that clients send: gradients and weight changes.

Start with ``gradient.py`` (one gradient, and the settings of a client), then ``local_update.py`` (several local steps)
and ``captured.py`` (an update from files, without its records). Clipping: ``clipping.py`` has the rules,
``per_example.py`` the gradient norms of single records, ``clipped_gradient.py`` the derivative of clipped gradients.
"""
