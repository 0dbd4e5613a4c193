"""Estimate and target to one score per record, and the matching of batches.

Each constructor returns a configured :class:`~reconrisk.core.metric.Metric`: call it on estimates and targets of one
shape, records first. Scores are float64, computed on float64 copies of any real type.
"""

from reconrisk.metrics.candidates import identification, identification_rate
from reconrisk.metrics.columns import ColumnScore, ColumnScores, score_columns
from reconrisk.metrics.elementwise import mse, ncc, psnr
from reconrisk.metrics.judge import judge_kl
from reconrisk.metrics.leakage import relative_leakage
from reconrisk.metrics.matching import match_indices, match_records
from reconrisk.metrics.neighbours import NearestNeighbours, nearest_neighbour_oracle
from reconrisk.metrics.perceptual import lpips
from reconrisk.metrics.scoring import Exposed, Scores, score
from reconrisk.metrics.structural import ssim

__all__ = [
    "ColumnScore",
    "ColumnScores",
    "Exposed",
    "NearestNeighbours",
    "Scores",
    "identification",
    "identification_rate",
    "judge_kl",
    "lpips",
    "match_indices",
    "match_records",
    "mse",
    "ncc",
    "nearest_neighbour_oracle",
    "psnr",
    "relative_leakage",
    "score",
    "score_columns",
    "ssim",
]
