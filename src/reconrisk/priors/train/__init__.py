"""Training of small priors on given records; every training can be stopped and resumed.

Read ``diffusion.py`` or ``gan.py`` for the training itself. ``training_state.py`` keeps what a training needs to go on.
``card.py`` writes down what was trained: data, licence, settings, quality on held-out records.
"""
