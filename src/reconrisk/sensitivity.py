"""Measures of how strongly a release depends on the private records.

This module only collects names. The code is in ``releases/sensitivity/`` and ``integrations/linear_models.py``.
"""

from reconrisk.releases.sensitivity.fisher import fisher_diagonal, fisher_matrix, fisher_trace, jacobian
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.releases.sensitivity.parameters import parameter_sensitivity
from reconrisk.releases.sensitivity.spectrum import spectral_norm, top_directions
from reconrisk.releases.sensitivity.vulnerability import reconstruction_vulnerability

__all__ = [
    "fisher_diagonal",
    "fisher_matrix",
    "fisher_trace",
    "jacobian",
    "parameter_sensitivity",
    "reconstruction_vulnerability",
    "reference_moments",
    "spectral_norm",
    "top_directions",
]
