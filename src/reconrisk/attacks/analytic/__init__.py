"""Attacks that solve for the record instead of searching: a linear layer reads it.

Read ``../first_layer.py`` (the gradient of that layer), then ``estimates.py`` (each estimate with its assumptions and
its use of noise), then ``attack.py`` (the configured attack, and several updates of one record averaged).
"""
