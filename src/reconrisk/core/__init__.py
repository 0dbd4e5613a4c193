"""What we talk about: mechanisms, threat models, guarantees, observations, reconstructions and errors.

Frozen values and protocols; no algorithm, no torch at run time.
"""

VERSION = "0.1.0"
"""The version of the package: the one place that states it."""
