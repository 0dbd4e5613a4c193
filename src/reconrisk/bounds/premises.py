"""What guarantees that start from a number or a matrix take for granted about mechanism and adversary."""

from __future__ import annotations

from reconrisk.core.mechanism import ApproximateDP
from reconrisk.core.threat import Controls, Knows, Sees, ThreatModel

UNSTATED = ApproximateDP(epsilon=0.0, delta=1.0)
"""A mechanism of which nothing is stated: every mechanism is (0, 1)-differentially private."""

_ALL_BUT_RECORD = frozenset({Knows.LABELS, Knows.OTHER_RECORDS, Knows.INITIALISATION, Knows.DEFENSE})

KNOWS_THE_REST = ThreatModel(sees=Sees.EVERY_UPDATE, knows=_ALL_BUT_RECORD)
"""Sees the whole release and knows everything but the record, of which it has no prior knowledge."""

CONTROLS_THE_REST = ThreatModel(sees=Sees.EVERY_UPDATE, knows=_ALL_BUT_RECORD, controls=frozenset(Controls))
"""The same adversary, who also chooses the model: for guarantees that hold for every function that is released."""

KNOWS_PRIOR = KNOWS_THE_REST.knowing(Knows.PRIOR)
"""The same adversary with a prior on the record, given everything else it knows."""
