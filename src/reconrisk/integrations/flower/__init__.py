"""Defended federated learning with Flower.

Read ``client_mod.py`` (the client modifier) first, then ``risk.py`` (the guarantee for all rounds so far).
``arrays.py`` converts array records of Flower to named tensors and back.
"""
