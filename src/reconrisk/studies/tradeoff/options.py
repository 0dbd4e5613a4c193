"""Options of :func:`reconrisk.studies.tradeoff.tradeoff.tradeoff`."""

from __future__ import annotations

from dataclasses import dataclass

from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.studies.common.options import StudyOptions


@dataclass(frozen=True, kw_only=True)
class TradeoffOptions(StudyOptions):
    """Settings of a leakage-utility study that most calls leave at their defaults.

    Attributes:
        repeat: Number of seeds, counted from ``seed``. Each has its own split, training and attacks.
        attack_trained: True to attack gradients at the trained model, False at the initial one.

    The other attributes are those of :class:`~reconrisk.studies.common.options.StudyOptions`. Each interval has its
    ``confidence`` by itself. Only defenses that need moments of gradients use ``public`` records. By default no plan
    is shown.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> TradeoffOptions(repeat=5).attack_trained
    False
    """

    repeat: int = 3
    attack_trained: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "repeat", check_whole("repeat", self.repeat))
        if not isinstance(self.attack_trained, bool):
            raise invalid_input("attack_trained", self.attack_trained, "to be True or False")


DEFAULT_OPTIONS = TradeoffOptions()
