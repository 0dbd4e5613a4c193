"""Table of JSON tags and the modules that define them, for the layers above ``core``.

Reading a JSON value imports the module of its tag. Tags are stable: if a class is renamed or moved, only its row
changes, and existing files stay readable. Kinds of ``core`` need no row. A test compares the rows with the classes of
the package.
"""

from __future__ import annotations

from collections.abc import Mapping

_TAGS: Mapping[str, tuple[str, ...]] = {
    "bounds.analytic_inversion": ("chi-square-law", "run-law"),
    "bounds.calibration": ("calibration",),
    "bounds.corridor": ("corridor-curve", "interior-point", "risk-corridor", "simple-guesses"),
    "bounds.numerics.hits": ("hits",),
    "bounds.prior_success": ("prior-success",),
    "bounds.risks": ("from-scratch-risk", "identification-risk", "known-norm-risk", "unbiased-error-risk"),
    "integrations.fisher_accountant.summary": ("leakage-summary", "record-leakage"),
    "studies.audit.comparison": ("audit-comparison", "line-change", "setting-change"),
    "studies.audit.result": (
        "attack-outcome",
        "attack-summary",
        "audit-line",
        "audit-result",
        "audit-subject",
        "bound-comparison",
        "defense-summary",
        "exposure",
        "identification-check",
        "leakage-histogram",
        "limit-check",
        "noise-checks",
        "noise-scale-check",
        "prior-use",
        "training-audit",
    ),
    "studies.audit.spec": ("audit-spec", "training-settings"),
    "studies.audit.store": ("run-summary",),
    "studies.common.runs": ("environment", "run-info", "trial", "trial-key", "trial-scores"),
    "studies.informed.result": ("informed-report", "informed-target"),
    "studies.leakage.report": ("leakage-report",),
    "studies.prior_value.result": ("leakage-over-prior", "metric-over-prior"),
    "studies.rebuild.report": ("metric-scores", "misfit", "rebuild-report", "rebuilt-column"),
    "studies.recommend.result": ("defense-option", "recommendation", "training-cost"),
    "studies.tradeoff.result": ("attack-score", "dominance", "tradeoff-cell", "tradeoff-result", "tradeoff-row"),
    "studies.verify_mechanism.result": ("mechanism-test", "mechanism-verdict"),
}

HOMES: Mapping[str, str] = {tag: f"reconrisk.{module}" for module, tags in _TAGS.items() for tag in tags}
"""Module that defines each tag."""
