"""Reconstructor networks: learn from shadow models to read a record off a trained model.

Read ``shadow_knowledge.py`` (what the adversary knows), ``settings.py`` and ``attack.py`` first. ``features.py``
standardises what is read of a model, ``network.py`` has the networks of balle2022, ``training.py`` trains them and can
be resumed, ``linear.py`` is a reconstructor in closed form, ``files.py`` stores one.
"""
