"""What we talk about: mechanisms, threat models, guarantees, observations, reconstructions and errors.

Frozen values and protocols; no algorithm, no torch at run time.
"""
