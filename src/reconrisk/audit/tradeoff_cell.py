"""One defense at one strength with one seed: the unit that a frontier runs and stores."""

from __future__ import annotations

from dataclasses import dataclass

from reconrisk.core.serialization import serializable
from reconrisk.core.validation import check_not_empty, check_real, check_whole, refuse


@serializable
@dataclass(frozen=True)
class AttackScore:
    """Mean scores of one attack by one attacker over all attacked records; ``failures`` of them a guess stands for."""

    attacker: str
    attack: str
    is_guess: bool
    mse: float
    psnr: float
    failures: int = 0

    def __post_init__(self) -> None:
        check_real("mse", self.mse)
        check_real("psnr", self.psnr)


@serializable
@dataclass(frozen=True)
class TradeoffCell:
    """What training under a defense gave, and attacks on what it sends, for one seed.

    ``utility_1`` is E<g, y> over the squared norm of the gradient g, ``utility_2`` is -Var<g, y>, y what is sent.
    ``fisher_trace`` is the information of what is sent about one record, ``mse_bound`` an estimate, no proof, of what
    it implies for records of the stated prior: the lower end at 95 % confidence. ``defense_gradients`` is the cost of
    the defense in ordinary gradients, None where it is not told.
    """

    family: str
    strength: float | None
    seed: int
    training_loss: float
    test_loss: float
    test_accuracy: float | None
    diverged: bool
    utility_1: float
    utility_2: float
    fisher_trace: float
    mse_bound: float
    scores: tuple[AttackScore, ...]
    seconds: float
    defense_gradients: float | None = None

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, minimum=0)
        check_not_empty("scores", self.scores)

    def score(self, attacker: str, attack: str) -> AttackScore:
        """What an attack by an attacker came to."""
        for score in self.scores:
            if (score.attacker, score.attack) == (attacker, attack):
                return score
        raise refuse("attack", attack, f"to be one that the {attacker} attacker ran")
