"""Shadow models: many trainings that share everything but one record.

Start with ``training.py`` (the value that describes them) and ``checks.py`` (what it refuses). Two engines run it:
``dense.py`` trains dense networks together, in the ``tiles.py`` that fit the cache and with the in-place rules of
``optimizers.py``; ``any_network.py`` trains the rest. ``tangents.py`` carries derivatives along, ``store.py`` keeps
models in a folder, ``release.py`` makes a private training a release.
"""
