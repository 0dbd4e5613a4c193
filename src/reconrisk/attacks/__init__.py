"""Attacks: callables from an observation to a reconstruction. An attack never sees the target.

Start with ``baselines.py`` (guesses that every attack must beat) and ``registry.py`` (one row per attack).
``knowledge.py`` configures an attack by name from public knowledge; ``prior_choice.py`` finds priors by name. Each
family may use the ones before it: ``labels/``; then ``analytic/``, ``matching/``, ``gauss_newton/`` and ``informed/``;
then ``malicious_server/`` (on analytic) and ``with_prior/`` (on matching and gauss_newton). ``first_layer.py`` reads
the gradient of a linear layer on the record; ``best_candidate.py`` tries every given candidate, and
``low_bits.py`` those that float noise can have turned into the release (``float_noise.py``).

Reconstructions, random draws and labels of an attack are on the device of the release (``Observation.device``). Random
numbers are drawn on the device of their generator and then moved. ``tests/other_device.py`` simulates a GPU.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
