"""Updates of a model that clients send.

Start with ``recipe.py`` (how a client makes an update) and ``gradient.py`` (one gradient), then ``local_update.py``
(several local steps) and ``captured.py`` (an update from files, without its records). Clipping: ``clipping.py`` states
the rule, ``per_example.py`` has the norms of single gradients, ``clipped_gradient.py`` how each record moves the sum.
"""
