"""Bounds of one run from jax_privacy 2.0.0, for tests that do not install it.

``pip install jax-privacy==2.0.0`` in an environment of its own, then ``python tests/reference/jax_privacy_one_run.py``
writes ``jax_privacy_one_run.json``: epsilon from counts, and the default of the peer on the scores of canaries.
"""

import json
from pathlib import Path

import numpy as np

COUNTS = [
    (1000, 100, 90),
    (1000, 200, 150),
    (100, 20, 20),
    (5000, 500, 450),
    (1000, 1000, 700),
    (50, 5, 5),
    (300, 30, 16),
]
MUS = (0.5, 1.0, 2.0)
CANARIES = 1000
RUNS = 10
ALPHA, DELTA = 0.05, 1e-5


def canary_scores(mu, seed):
    """Log-likelihood ratios of ideal Gaussian canaries, and the coins that they are about."""
    rng = np.random.default_rng(seed)
    truths = rng.random(CANARIES) < 0.5
    return mu * (mu * (truths - 0.5) + rng.normal(size=CANARIES)), truths


def main():
    from jax_privacy import auditing

    def default(mu, seed):
        scores, truths = canary_scores(mu, seed)
        return float(auditing.CanaryScoreAuditor(scores[truths], scores[~truths]).epsilon_one_run_fdp(ALPHA, DELTA))

    stored = {
        "epsilon": {
            " ".join(map(str, counts)): {
                "any mechanism": float(auditing._epsilon_one_run(0, *counts, ALPHA, DELTA)),
                "Gaussian DP": float(auditing._epsilon_one_run_fdp(0, *counts, ALPHA, DELTA)),
            }
            for counts in COUNTS
        },
        "default": {str(mu): [default(mu, seed) for seed in range(RUNS)] for mu in MUS},
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
