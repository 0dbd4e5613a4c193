"""Shadow models: many trainings that share everything but one record.

Start with ``training.py`` (the value that describes them) and ``checks.py`` (its checks). Two engines run it:
``dense.py`` trains dense networks together, in the cache-sized parts of ``tiles.py`` and with the in-place rules of
``optimizers.py``; ``any_network.py`` trains other networks. ``tangents.py`` computes derivatives along the training,
``store.py`` keeps models in a folder, ``release.py`` turns a private training into a release and ``trajectory.py`` all
its steps.
"""
