"""Text output of ``reconrisk risk`` and ``reconrisk calibrate``."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from reconrisk.bounds.calibration import Calibration
from reconrisk.bounds.corridor import RiskCorridor
from reconrisk.core.guarantee import CoveredRelease, Guarantee, Quantity, format_rounded_down, format_rounded_up


def print_corridor(corridor: RiskCorridor) -> None:
    """Print a risk corridor: table, sentence for a non-specialist, and assumptions.

    Args:
        corridor: The result of ``rr.risk``.
    """
    console = Console()
    table = Table(
        title=f"Success at {corridor.psnr:.3g} dB (mean squared error {corridor.mse:.4g})", title_justify="left"
    )
    table.add_column("an adversary who ...")
    table.add_column("succeeds with", justify="right")
    table.add_column("this is")
    for who, value, kind in corridor.adversaries():
        table.add_row(who, value, kind)
    console.print(table)
    console.print(corridor.sentence)
    console.print(corridor.comparison())
    console.print(
        f"The training is ({format_rounded_up(corridor.epsilon)}, {corridor.delta:g})-differentially private."
    )
    ends = (corridor.identification, corridor.known_norm, corridor.from_scratch)
    _print_assumptions(console, [item for guarantee in ends for item in guarantee.assumptions])


def print_calibration(calibration: Calibration) -> None:
    """Print a calibration: the adjusted setting, the guarantee for each risk limit, and the assumptions.

    Args:
        calibration: The result of ``rr.calibrate``.
    """
    console = Console()
    name = calibration.adjusted.value.replace("_", " ")
    answer = f"[bold]{calibration.value_text}[/bold]"
    console.print(f"The {calibration.extreme} {name} that meets every risk limit is {answer}.")
    table = Table("risk limit", "attained", "against", title_justify="left")
    for risk, guarantee in zip(calibration.risks, calibration.guarantees, strict=True):
        is_upper = guarantee.quantity is Quantity.SUCCESS_PROBABILITY
        attained = format_rounded_up(guarantee.value) if is_upper else format_rounded_down(guarantee.value)
        table.add_row(str(risk), attained, _against(guarantee))
    console.print(table)
    epsilon = format_rounded_up(calibration.epsilon)
    console.print(f"The training is then ({epsilon}, {calibration.delta:g})-differentially private.")
    _print_assumptions(console, [item for guarantee in calibration.guarantees for item in guarantee.assumptions])


def _against(guarantee: Guarantee) -> str:
    """Return the adversaries that a guarantee covers, and its release if it covers one only."""
    if guarantee.release is CoveredRelease.ANY:
        return guarantee.scope.value
    return f"{guarantee.scope.value}; {guarantee.release.value}"


def _print_assumptions(console: Console, assumptions: Iterable[str]) -> None:
    console.print("Assumes:")
    for assumption in dict.fromkeys(assumptions):
        console.print(f"  - {assumption}")
