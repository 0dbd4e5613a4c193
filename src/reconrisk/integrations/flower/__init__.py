"""Defended federated learning with Flower.

Read ``client_mod.py`` (the modifier of a client) first, then ``risk.py`` (the guarantee of all rounds so far).
``arrays.py`` converts Flower's records of arrays to named tensors and back.
"""
