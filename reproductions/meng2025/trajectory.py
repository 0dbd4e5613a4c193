"""The path of a guided diffusion as a picture: how its loss went, where it stopped, what it passed through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.reports.drawing import save_figure, to_image

if TYPE_CHECKING:
    from torch import Tensor

    from reconrisk.attacks.with_prior.guided_diffusion import GuidedTrajectory

_STOP, _PEAK = "#0072B2", "#D55E00"
"""Blue and vermilion of Okabe and Ito, which people with any kind of colour vision tell apart."""

_IMAGE_SIDES = 3


def write_trajectory(
    path: str | Path,
    trajectory: GuidedTrajectory,
    *,
    data_range: tuple[float, float] = (0.0, 1.0),
    targets: Tensor | None = None,
    pictures: int = 8,
) -> Path:
    """Draw the attack loss of each step, where the attacker stops, and records along the way; the suffix is the format.

    With ``targets`` there is the PSNR of every step as well, and the best of them: an oracle, which no attacker has.
    The strip shows the first record of so many ``pictures`` steps, and those of the stop and of the oracle.

    Guarantee: the file appears whole or not at all, for its owner alone, since what is rebuilt is private too.
    Edge cases: records that are not images (channels x height x width) have no strip, exact copies no PSNR to draw.
    Reference: Figure 3, meng2025; whether the loss falls in every step, as Theorem 5.3 there has it, is in the title.
    """
    check_whole("pictures", pictures)
    if targets is not None and targets.shape != trajectory.estimates.shape[1:]:
        raise invalid_input("targets.shape", tuple(targets.shape), f"to be {tuple(trajectory.estimates.shape[1:])}")
    peak = None if targets is None else trajectory.oracle_peak(targets)[0]
    shown = _shown(len(trajectory.residuals), pictures, trajectory.stop, peak)
    has_strip = trajectory.estimates.ndim == 2 + _IMAGE_SIDES
    figure, axis, panels = _axes(len(shown) + (targets is not None), has_strip)
    _curves(axis, trajectory, None if targets is None else _psnr(trajectory, targets, data_range), peak)
    if has_strip:
        _strip(panels, trajectory, targets, shown, peak, data_range)
    return save_figure(figure, Path(path), secret=True)


def _axes(columns: int, has_strip: bool) -> tuple[Any, Any, Any]:
    from matplotlib.figure import Figure  # slow import, needed only to draw

    figure = Figure(figsize=(max(7.5, 1.0 * columns), 5.6 if has_strip else 4.2), layout="constrained")
    if not has_strip:
        return figure, figure.subplots(), None
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.2, 1.3))[:, 0]
    return figure, above.subplots(), below.subplots(1, columns, squeeze=False)[0]


def _curves(axis: Any, trajectory: GuidedTrajectory, psnr: NDArray[np.float64] | None, peak: int | None) -> None:
    residuals = trajectory.residuals.numpy()
    steps = np.arange(1, len(residuals) + 1)
    axis.semilogy(steps, residuals, color="black", label="attack loss")
    axis.axvline(trajectory.stop + 1, color=_STOP, label=f"the attacker's stop, step {trajectory.stop + 1}")
    rises = int((np.diff(residuals) > 0).sum())
    monotone = trajectory.falls_monotonically
    said = "falls in every step" if monotone else f"rises in {rises} of {len(residuals) - 1} steps"
    axis.set_title(f"The attack loss {said}", fontsize=11)
    axis.set_xlabel("step, from much noise to none")
    axis.set_ylabel(f"squared residual in units of the {'noise' if trajectory.noise_is_known else 'observation'}")
    handles, labels = axis.get_legend_handles_labels()
    if psnr is not None and peak is not None:
        beside = axis.twinx()
        finite = np.where(np.isfinite(psnr), psnr, np.nan)
        beside.plot(steps, finite, color=_PEAK, linestyle="--", label="PSNR (oracle)")
        best = f"the oracle's peak, step {peak + 1}, {psnr[peak]:.1f} dB; at the stop {psnr[trajectory.stop]:.1f} dB"
        beside.axvline(peak + 1, color=_PEAK, linestyle=":", label=best)
        beside.set_ylabel("PSNR (dB), which no attacker sees")
        more = beside.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    axis.legend(handles, labels, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)


def _strip(
    panels: Any,
    trajectory: GuidedTrajectory,
    targets: Tensor | None,
    shown: list[int],
    peak: int | None,
    data_range: tuple[float, float],
) -> None:
    for panel, step in zip(panels, shown, strict=False):  # the last panel is the target's
        panel.imshow(to_image(trajectory.estimates[step, 0].numpy(), data_range), interpolation="nearest")
        said = [name for name, at in (("stop", trajectory.stop), ("oracle", peak)) if at == step]
        panel.set_title("\n".join([str(step + 1), *said]), fontsize=8)
    if targets is not None:
        panels[-1].imshow(to_image(targets[0].numpy(), data_range), interpolation="nearest")
        panels[-1].set_title("target", fontsize=8)
    for panel in panels:
        panel.set_axis_off()


def _shown(steps: int, pictures: int, stop: int, peak: int | None) -> list[int]:
    """Steps evenly spread from the first to the last, with those that are marked.

    >>> _shown(100, 3, 70, 80)
    [0, 50, 70, 80, 99]
    """
    spread = {round(float(place)) for place in np.linspace(0, steps - 1, min(pictures, steps))}
    return sorted(spread | {stop} | ({peak} if peak is not None else set()))


def _psnr(trajectory: GuidedTrajectory, targets: Tensor, data_range: tuple[float, float]) -> NDArray[np.float64]:
    """Of all records of a step together."""
    errors = (trajectory.estimates.numpy().astype(np.float64) - targets.numpy()[None]) ** 2
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = -10 * np.log10(
            errors.reshape(len(errors), -1).mean(1) / (data_range[1] - data_range[0]) ** 2
        )
    return found
