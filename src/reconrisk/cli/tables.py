"""Results of calculations as readable text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from reconrisk.accounting.subsampled import epsilon_of_training
from reconrisk.bounds.calibration import Calibration
from reconrisk.bounds.corridor import RiskCorridor


def print_corridor(corridor: RiskCorridor, delta: float) -> None:
    """The corridor as a table, the sentence for a non-specialist, and the assumptions."""
    console = Console()
    table = Table(
        title=f"Success at {corridor.psnr:.3g} dB (mean squared error {corridor.mse:.4g})", title_justify="left"
    )
    table.add_column("an adversary who ...")
    table.add_column("succeeds with", justify="right")
    table.add_column("this is")
    for who, value, kind in corridor.rows():
        table.add_row(who, value, kind)
    console.print(table)
    console.print(corridor.sentence())
    console.print(corridor.comparison())
    epsilon = epsilon_of_training(corridor.mechanism, delta)
    console.print(f"The training is ({epsilon:.4g}, {delta:g})-differentially private.")
    _print_assumptions(console, (*corridor.identification.assumptions, *corridor.from_scratch.assumptions))


def print_calibration(calibration: Calibration) -> None:
    """The setting, what each risk comes to there, and the assumptions."""
    console = Console()
    name = calibration.adjusted.value.replace("_", " ")
    extreme = "smallest" if name == "noise multiplier" else "largest"
    console.print(f"The {extreme} {name} that meets every demand is [bold]{calibration.value:.6g}[/bold].")
    table = Table("demand", "attained", "against", title_justify="left")
    for risk, guarantee in zip(calibration.risks, calibration.guarantees, strict=True):
        table.add_row(str(risk), f"{guarantee.value:.4g}", guarantee.scope.value)
    console.print(table)
    console.print(f"The training is then ({calibration.epsilon:.4g}, {calibration.delta:g})-differentially private.")
    _print_assumptions(console, [item for guarantee in calibration.guarantees for item in guarantee.assumptions])


def _print_assumptions(console: Console, assumptions: Iterable[str]) -> None:
    console.print("Assumes:")
    for assumption in dict.fromkeys(assumptions):
        console.print(f"  - {assumption}")
