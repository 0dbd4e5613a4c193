"""Types of the results that studies return, for annotations and ``isinstance``.

This module only collects names. Each type is defined next to its study in ``studies/``.
"""

from reconrisk.bounds.calibration import Calibration
from reconrisk.bounds.corridor import RiskCorridor
from reconrisk.studies.audit.comparison import AuditComparison
from reconrisk.studies.audit.result import AuditResult
from reconrisk.studies.informed.result import InformedReport, RebuiltInformed
from reconrisk.studies.leakage.report import LeakageReport
from reconrisk.studies.prior_value.result import LeakageOverPrior
from reconrisk.studies.rebuild.updates import Rebuilt
from reconrisk.studies.recommend.result import Recommendation
from reconrisk.studies.tradeoff.result import TradeoffResult
from reconrisk.studies.verify_mechanism.result import MechanismVerdict

__all__ = [
    "AuditComparison",
    "AuditResult",
    "Calibration",
    "InformedReport",
    "LeakageOverPrior",
    "LeakageReport",
    "MechanismVerdict",
    "Rebuilt",
    "RebuiltInformed",
    "Recommendation",
    "RiskCorridor",
    "TradeoffResult",
]
