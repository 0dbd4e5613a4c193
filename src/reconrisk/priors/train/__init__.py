"""Training of small priors on given records; every training can be stopped and resumed.

Read ``diffusion.py`` or ``gan.py`` for the training itself. ``training_state.py`` keeps the state of a training.
``card.py`` documents the result: data, licence, settings, quality on held-out records.
"""
