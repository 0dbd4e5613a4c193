"""Reconstructors: networks or linear maps, trained on shadow models, that map a trained model to its target record.

Read ``shadow_knowledge.py`` (the knowledge of the adversary), ``settings.py`` and ``attack.py`` first. ``features.py``
standardises the parameters or logits that are read, ``network.py`` has the networks of balle2022, ``training.py``
trains them and can be resumed, ``linear.py`` is a reconstructor in closed form, ``files.py`` saves and loads
reconstructors.
"""
