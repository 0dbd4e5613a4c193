"""Attacks that solve for the record directly, from the gradient of a linear layer that reads it.

Read ``../first_layer.py`` (the gradient of that layer), then ``estimates.py`` (each estimate with its assumptions and
its use of noise), then ``attack.py`` (the configured attack, and the average of several updates of one record).
"""
