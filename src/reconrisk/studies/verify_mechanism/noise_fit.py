"""Fit of the noise to its description: independent Gaussian values whose law does not depend on the records.

The tests of ``evidence.py`` measure the size of the noise. Their verdict would be worthless for noise of another kind,
such as two values of the right variance. A misfit withholds the verdict "consistent"; it is no contradiction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, f, kstest

from reconrisk.statistics.noise_scale import log_evidence_of_reused_noise, mean_log_evidence

Array = NDArray[np.float64]

MISFIT = 1e-4
"""Probability with which sound noise fails one of these checks."""

_MOST_SAMPLES = 200_000  # values whose shape is compared
_MOST_PLACES = 2000  # of them in one release
_FEWEST_OF_BLOCK = 200  # values of a parameter, so that its own scale hardly changes the shape
_FEWEST_VALUES = 100  # of a release whose squared length is nearly normal
_MOST_EARLIER = 256  # releases whose noise is compared with later noise
_MOST_KEPT = 2**23  # values of them together


class NoiseFit:
    """Residuals of releases, compared with independent Gaussian noise.

    Args:
        starts: First place of each parameter in a release.
        size: Number of values of a release.

    Attributes:
        cosines: Correlation of the noise of each release with that of the release before.
    """

    def __init__(self, starts: list[int], size: int) -> None:
        self._size = size
        self._places = np.unique(np.linspace(0, size - 1, min(size, _MOST_PLACES)).astype(np.int64))
        self._block_of = np.searchsorted(starts, self._places, side="right") - 1
        self._samples: list[Array] = []
        self._squares: dict[int | None, list[float]] = {}
        self._sizes = np.diff([*starts, size])
        self._starts = starts
        self._earlier: list[Array] = []
        self.cosines: list[float] = []
        self._before: Array | None = None
        self._reuse: list[float] = []

    def add(self, residual: Array, *, arm: int | None) -> None:
        """Add the residual of a release.

        Args:
            residual: Noise of a release in units of the claimed noise.
            arm: Number of the set of records in it; None if it is not known.
        """
        length = float(np.linalg.norm(residual))
        self._squares.setdefault(arm, []).append(length**2)
        if len(self._samples) * len(self._places) < _MOST_SAMPLES:
            self._samples.append(residual[self._places])
        self._compare_with_earlier(residual)

    def evidence_of_reuse(self) -> float:
        """Return the logarithm of the evidence that noise of an earlier release was used again.

        Half of the bet is on the release before. The other half is on any earlier one: a mixture over the release at
        which it happens, with weights 1 / (t (t + 1)). Bets on later releases count 1.
        """
        later = -math.log(len(self._reuse) + 1)
        bets = [log - math.log(t * (t + 1)) for t, log in enumerate(self._reuse, 1)]
        any_earlier = float(np.logaddexp.reduce([later, *bets]))
        return mean_log_evidence([log_evidence_of_reused_noise(self.cosines, self._size), any_earlier])

    def misfits(self, scales: Mapping[str, tuple[float | None, int]]) -> Iterator[str]:
        """Yield a sentence for each way in which the noise is not as described.

        Args:
            scales: Measured scale of each parameter and the number of values behind it.

        Yields:
            One sentence, for the reason of a verdict.
        """
        yield from self._dependence_on_records()
        if self._is_other_shape(scales):
            yield "The noise does not have the shape of a Gaussian, which the claim assumes."
        squares = np.array([square for one in self._squares.values() for square in one])
        if self._size >= _FEWEST_VALUES and len(squares) > 1 and squares.mean() > 0:
            spread = float(np.square(squares / squares.mean() * self._size - self._size).sum()) / (2 * self._size)
            if chi2.sf(spread, len(squares) - 1) < MISFIT:
                yield "The values of the noise depend on each other: the length of the noise varies too much."

    def _compare_with_earlier(self, residual: Array) -> None:
        """Compare directions: each parameter alone, because some may have more noise than claimed.

        The cosine of n of p values is sub-Gaussian with variance 1/n. With weights n/p, their sum has variance 1/p.
        """
        lengths = np.sqrt(np.add.reduceat(np.square(residual), self._starts))
        weights = np.sqrt(self._sizes / self._size) / np.where(lengths > 0, lengths, np.inf)
        unit = residual * np.repeat(weights, self._sizes)
        if self._before is not None:
            self.cosines.append(float(np.clip(self._before @ unit, -1, 1)))
        if self._earlier:
            found = [float(np.clip(each @ unit, -1, 1)) for each in self._earlier]
            self._reuse.append(mean_log_evidence([log_evidence_of_reused_noise([each], self._size) for each in found]))
        if len(self._earlier) < min(_MOST_EARLIER, _MOST_KEPT // self._size):
            self._earlier.append(unit)
        self._before = unit

    def _dependence_on_records(self) -> Iterator[str]:
        """Yield a sentence if the noise has another scale with other records."""
        arms = {arm: squares for arm, squares in self._squares.items() if arm is not None}
        for (_, first), (_, second) in itertools.combinations(sorted(arms.items()), 2):
            means = np.mean(first), np.mean(second)
            if min(means) == 0:
                continue  # no noise at all: the noise scale finds it
            ratio, counts = means[1] / means[0], [len(each) * self._size for each in (second, first)]
            if 2 * min(f.sf(ratio, *counts), f.cdf(ratio, *counts)) < MISFIT:
                words = f"The noise depends on the records: other records have {math.sqrt(ratio):.3g} times the noise"
                yield f"{words}, so that its size reveals them."
                return

    def _is_other_shape(self, scales: Mapping[str, tuple[float | None, int]]) -> bool:
        """Return True if values in units of their own scale are not normal."""
        if not self._samples:
            return False
        units = np.array([scale or 0.0 if count >= _FEWEST_OF_BLOCK else 0.0 for scale, count in scales.values()])
        unit = units[self._block_of]
        values = (np.stack(self._samples)[:, unit > 0] / unit[unit > 0]).ravel()
        return len(values) > 0 and float(kstest(values, "norm", method="asymp").pvalue) < MISFIT
