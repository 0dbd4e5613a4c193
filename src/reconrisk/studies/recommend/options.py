"""Options of :func:`reconrisk.studies.recommend.recommend.recommend_defense`."""

from __future__ import annotations

from dataclasses import dataclass

from reconrisk.core.validation import check_finite, check_positive, check_whole, invalid_input
from reconrisk.studies.common.options import StudyOptions


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(StudyOptions):
    """Settings of a search for a defense that most calls leave at their defaults.

    Attributes:
        search_trials: Updates that are attacked at each strength of the search.
        confirm_trials: Fresh updates that confirm a defense; by default as many as the target needs.
        finalists: Defenses to confirm and to train with.
        resolution: Largest factor between the strength found and the smallest sufficient one, above 1.
        training_steps: Training steps under each finalist; 0 for no training.
        learning_rate: Learning rate of that training for gradients. Weight changes of local steps are added as sent.
        training_seeds: Training runs under each finalist.

    The other attributes are those of :class:`~reconrisk.studies.common.options.StudyOptions`. By default a quarter of
    the data, at most 256 records, is split off as ``public``, and no plan is shown.

    Raises:
        InvalidInput: If a value is out of range or of the wrong kind.

    >>> RecommendOptions(training_steps=0, seed=3).finalists
    3
    """

    search_trials: int = 8
    confirm_trials: int | None = None
    finalists: int = 3
    resolution: float = 1.5
    training_steps: int = 100
    learning_rate: float = 0.1
    training_seeds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"search_trials": 1, "confirm_trials": 1, "finalists": 1, "training_steps": 0, "training_seeds": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None or name != "confirm_trials":
                object.__setattr__(self, name, check_whole(name, value, minimum=minimum))
        if not check_finite("resolution", self.resolution) > 1:
            remedy = "It is the factor between the strength found and the smallest sufficient."
            raise invalid_input("resolution", self.resolution, "> 1", remedy)
        check_positive("learning_rate", self.learning_rate)


DEFAULT_OPTIONS = RecommendOptions()
