"""The risk corridor as a figure."""

from __future__ import annotations

from pathlib import Path

from reconrisk.bounds.corridor import CorridorCurve, RiskCorridor, RiskSurface, corridor_curve
from reconrisk.reports.drawing import save_figure

_SMALLEST_SHOWN = 1e-12  # lower end of the logarithmic probability axis


def write_corridor(corridor: RiskCorridor, path: str | Path, *, curve: CorridorCurve | None = None) -> Path:
    """Draw success probability against the error threshold: both ends of the corridor, interior and attack.

    Args:
        corridor: The corridor.
        path: The file; its suffix (.png, .svg or .pdf) sets the format.
        curve: The corridor over a range of thresholds, if already computed.

    Returns:
        The path.
    """
    from matplotlib.figure import Figure  # slow import, needed only to draw

    curve = corridor_curve(corridor) if curve is None else curve
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axis = figure.subplots()
    axis.loglog(
        curve.mse,
        _raise_zeros(curve.known_norm),
        color="tab:blue",
        label="any attack, norm known, direction uniform (guarantee)",
    )
    axis.loglog(
        curve.mse,
        _raise_zeros(curve.from_scratch),
        color="tab:blue",
        linestyle="--",
        label="the same, only for the release x/|x| plus noise (guarantee)",
    )
    axis.loglog(
        curve.mse,
        _raise_zeros(curve.attack),
        color="tab:blue",
        linestyle=":",
        label="riess2025's attack (law, no bound)",
    )
    for point, success in zip(corridor.interior, curve.interior, strict=True):
        axis.loglog(
            curve.mse,
            _raise_zeros(success),
            color="tab:grey",
            linewidth=0.8,
            label=f"Gaussian prior, spread {point.prior_std:.2g}",
        )
    axis.axhline(
        corridor.identification.value,
        color="tab:red",
        label=f"any attack, prior success {corridor.prior_success:.2g} (guarantee)",
    )
    axis.axvline(corridor.mse, color="black", linewidth=0.8, linestyle="--", label=f"threshold {corridor.psnr:.3g} dB")
    axis.set_ylim(_SMALLEST_SHOWN, 2)
    axis.set_xlabel("mean squared error that counts as success")
    axis.set_ylabel("success probability")
    axis.legend(fontsize=8, loc="lower right")
    return save_figure(figure, Path(path))


def write_surface(surface: RiskSurface, path: str | Path) -> Path:
    """Draw success probability over noise and error threshold, for the attack and for any attack.

    Success of identification is drawn at error zero.

    Args:
        surface: The result of ``rr.bounds.risk_surface``.
        path: The file; its suffix (.png, .svg or .pdf) sets the format.

    Returns:
        The path.

    Reference: Figure 3, riess2025.

    >>> import tempfile, numpy as np
    >>> from reconrisk.bounds.corridor import risk_surface
    >>> grid = {"noise_multipliers": np.array([0.5, 1.0]), "mse": np.array([0.1, 0.5])}
    >>> surface = risk_surface(**grid, dimension=1, norm=1.0, prior_success=0.1)
    >>> write_surface(surface, f"{tempfile.mkdtemp()}/surface.png").name
    'surface.png'
    """
    import numpy as np  # imported late, as matplotlib: needed only to draw
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axis = figure.add_subplot(projection="3d")
    noise, mse = np.meshgrid(surface.noise_multipliers, surface.mse, indexing="ij")
    axis.plot_surface(noise, mse, surface.attack, alpha=0.5, color="tab:blue")
    axis.plot_wireframe(noise, mse, surface.from_scratch, color="black", linewidth=0.4)
    axis.plot(
        surface.noise_multipliers, np.zeros_like(surface.noise_multipliers), surface.identification, color="tab:red"
    )
    axis.set_xlabel("noise multiplier")
    axis.set_ylabel("mean squared error")
    axis.set_zlabel("success probability")
    axis.set_title("attack (blue), any attack (wires), identification (red)", fontsize=9)
    return save_figure(figure, Path(path))


def _raise_zeros(values: tuple[float, ...]) -> list[float]:
    """Replace values that a logarithmic axis cannot show by one just below its lower end."""
    return [max(value, _SMALLEST_SHOWN / 10) for value in values]
