"""Goals of an adversary: a metric and the score that counts as a successful reconstruction.

This module only collects names. The code is in ``metrics/goals.py``.
"""

from reconrisk.metrics.goals import (
    goal_from_text,
    goal_in,
    limit_from_text,
    mse_at_most,
    ncc_at_least,
    psnr_at_least,
    ssim_at_least,
)

__all__ = [
    "goal_from_text",
    "goal_in",
    "limit_from_text",
    "mse_at_most",
    "ncc_at_least",
    "psnr_at_least",
    "ssim_at_least",
]
