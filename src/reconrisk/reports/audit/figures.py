"""Figures of an audit and of a training run as inline SVG.

Audits: measured success with guarantees, scores, and defenses against their cost. Training runs: the risk corridor and
the distribution of leakage over records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from reconrisk.bounds.corridor import CorridorCurve, RiskCorridor, corridor_curve
from reconrisk.core.guarantee import Estimate
from reconrisk.core.metric import Goal
from reconrisk.reports.audit.words import (
    defense_name,
    exposures_by_defense,
    format_bound,
    format_estimate,
    interval,
    metric_name,
    number,
    released_thing,
    share,
)
from reconrisk.reports.drawing import (
    WIDTH_OF_A_LETTER,
    Axis,
    diamond,
    disc,
    drawing,
    line,
    polygon,
    polyline,
    rectangle,
    text,
)

if TYPE_CHECKING:
    from reconrisk.studies.audit.result import AuditLine, AuditResult, LeakageHistogram

WIDE, NARROW = 560, 328
"""Width of a figure in pixels on a large screen and on a phone. Text has the same size on both."""

_EDGE = 12  # margin left and right, in pixels
_BINS = 16
_BARS = 56  # height of a histogram, in pixels
_PERCENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SPAN_FOR_LOG = 1e3  # an axis is logarithmic if its values span more than this factor


def _for_screens(draw: Callable[[int, str], Markup], name: str) -> Markup:
    """Draw a figure for wide and for narrow screens; the page shows one of them."""
    wide, narrow = draw(WIDE, f"{name}-wide"), draw(NARROW, f"{name}-narrow")
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def corridor_of_attacks(result: AuditResult, goal: Goal) -> Markup:
    """Draw for every defense the range from the success of the best attack to the upper bound.

    Args:
        result: The audit.
        goal: Goal that defines success.

    Returns:
        The figure.
    """
    lines = [each for each in result.lines if each.goal == goal]
    limits = [check.limit.at_most for each in lines[:1] for check in each.limits]
    title = f"How often records are rebuilt to {goal}: measured, guessed and bounded"
    return _for_screens(
        lambda width, name: _corridor(lines, limits, title, width, name), f"corridor-{result.goals.index(goal)}"
    )


def _corridor(lines: Sequence[AuditLine], limits: Sequence[float], title: str, width: int, name: str) -> Markup:
    axis, row = Axis(0.0, 1.0, _EDGE, width - _EDGE), 64
    bottom = row * len(lines) + 6
    parts, words = _percent_axis(axis, bottom), list[str]()
    for place, each in enumerate(lines):
        parts += _corridor_row(each, axis, place * row, width)
        parts += [_limit(axis, at_most, place * row + 32, place * row + 56) for at_most in limits]
        proved = "no bound is compared" if each.bound is None else f"bound {format_bound(each.bound)}"
        success, guess = format_estimate(each.success), format_estimate(each.baseline)
        numbers = f"{success}, interval {interval(each.success)}, guess {guess}"
        words.append(f"{defense_name(each.defense)}: {numbers}, {proved}.")
    return drawing(width, bottom + 24, parts, name=name, title=title, words=" ".join(words))


def _corridor_row(each: AuditLine, axis: Axis, top: float, width: int) -> list[Markup]:
    bound, middle = each.bound, top + 44
    found = [
        *_row_label(each, top, width),
        rectangle(axis.start, middle - 7, axis.end - axis.start, 14, "track"),
    ]
    start, end = axis.at(each.success.value), axis.at(1.0 if bound is None else bound.value)
    if end > start:
        found.append(rectangle(start, middle - 7, end - start, 14, "open" if bound is None else "between"))
    if start > axis.start:
        found.append(rectangle(axis.start, middle - 7, start - axis.start, 14, "rebuilt"))
    if bound is not None:
        found.append(line(end, middle - 11, end, middle + 11, "bound"))
    if each.baseline.samples:
        found.append(diamond(axis.at(each.baseline.value), middle, "guess", 5.5))
    return found + whisker(axis, each.success, middle, "attack")


def _row_label(each: AuditLine, top: float, width: int) -> list[Markup]:
    """Write the defense and its numbers on one line, or on two lines of a narrow screen."""
    bound, room = each.bound, width - 2 * _EDGE
    proved = "no bound" if bound is None else f"bound {format_bound(bound)}"
    numbers = f"{format_estimate(each.success)} rebuilt, {proved}"
    if width > NARROW:
        rest = room - WIDTH_OF_A_LETTER["quiet"] * len(numbers) - 12
        return [
            text(_EDGE, top + 26, defense_name(each.defense), kind="name", room=rest),
            text(width - _EDGE, top + 26, numbers, kind="quiet", anchor="end"),
        ]
    return [
        text(_EDGE, top + 13, defense_name(each.defense), kind="name", room=room),
        text(_EDGE, top + 29, numbers, kind="quiet", room=room),
    ]


def whisker(axis: Axis, estimate: Estimate, y: float, kind: str) -> list[Markup]:
    """Draw a measured probability with its interval.

    Args:
        axis: Horizontal axis.
        estimate: The probability; without samples nothing is drawn.
        y: Vertical position in pixels.
        kind: CSS class.

    Returns:
        The parts of the drawing.
    """
    if not estimate.samples:
        return []
    low, high = axis.at(estimate.low), axis.at(estimate.high)
    ends = [line(x, y - 4, x, y + 4, f"{kind} stroke") for x in (low, high)]
    return [line(low, y, high, y, f"{kind} stroke"), *ends, disc(axis.at(estimate.value), y, kind)]


def attacks_against_bounds(result: AuditResult, goal: Goal) -> Markup:
    """Draw every attack and baseline under every defense with its interval, and the bound if there is one.

    Args:
        result: The audit.
        goal: Goal that defines success.

    Returns:
        The figure.
    """
    lines = [each for each in result.lines if each.goal == goal]
    limits = [check.limit.at_most for each in lines[:1] for check in each.limits]
    title = f"Attacks against bounds: how often each reaches {goal}"
    return _for_screens(
        lambda width, name: _against(lines, limits, title, width, name), f"against-{result.goals.index(goal)}"
    )


def _against(lines: Sequence[AuditLine], limits: Sequence[float], title: str, width: int, name: str) -> Markup:
    axis, top = Axis(0.0, 1.0, 220 if width > NARROW else _EDGE, width - _EDGE), 0.0
    parts: list[Markup] = []
    for each in lines:
        parts.append(text(_EDGE, top + 18, defense_name(each.defense), kind="name", room=width - 2 * _EDGE))
        rows, bottom = _outcomes(each, axis, top + 26, width)
        bound = each.bound
        parts += [_limit(axis, at_most, top + 26, bottom) for at_most in limits]
        if bound is not None:
            parts.append(line(axis.at(bound.value), top + 26, axis.at(bound.value), bottom, "bound"))
        parts += rows
        top = bottom + 8
    words = " ".join(
        f"{defense_name(each.defense)}, {one.attack}: {format_estimate(one.success)}, {interval(one.success)}."
        for each in lines
        for one in each.outcomes
    )
    return drawing(width, top + 24, [*_percent_axis(axis, top), *parts], name=name, title=title, words=words)


def _outcomes(each: AuditLine, axis: Axis, top: float, width: int) -> tuple[list[Markup], float]:
    """Draw one row per attack, with its name in front or, on a narrow screen, above; return the lower end too."""
    beside = width > NARROW
    row, parts = 24 if beside else 36, list[Markup]()
    for place, outcome in enumerate(each.outcomes):
        middle = top + place * row + (12 if beside else 26)
        room, above = (axis.start - 20, middle + 4) if beside else (width - 2 * _EDGE, middle - 10)
        parts.append(text(_EDGE, above, outcome.attack, kind="quiet", room=room))
        parts += whisker(axis, outcome.success, middle, "guess" if outcome.is_baseline else "attack")
    return parts, top + max(1, len(each.outcomes)) * row


def histogram_of_scores(result: AuditResult) -> Markup:
    """Draw the distribution of the best score of each record under each defense, in the metric of the first goal.

    Args:
        result: The audit.

    Returns:
        The figure.
    """
    goal = result.goals[0]
    scores = {label: [each.score for each in mine] for label, mine in exposures_by_defense(result).items()}
    title = f"Records by the best {goal.metric} that any attack reached"
    return _for_screens(lambda width, name: _histograms(scores, goal, title, width, name), "scores")


def _histograms(scores: dict[str, list[float]], goal: Goal, title: str, width: int, name: str) -> Markup:
    axis = axis_of(
        [*(score for mine in scores.values() for score in mine), goal.threshold], _EDGE + 4, width - _EDGE - 4
    )
    row, parts, words = _BARS + 36, list[Markup](), list[str]()
    for place, (label, mine) in enumerate(scores.items()):
        top, reached, counts = place * row, sum(map(goal.is_reached_by, mine)), [0] * _BINS
        for score in mine:
            counts[min(_BINS - 1, int(_BINS * (axis.at(score) - axis.start) / (axis.end - axis.start)))] += 1
        parts.append(text(_EDGE, top + 16, defense_name(label), kind="name", room=width - 2 * _EDGE))
        parts += bars(counts, axis, top + 28, _BARS)
        parts.append(_limit(axis, goal.threshold, top + 24, top + 28 + _BARS))
        words.append(f"{defense_name(label)}: {reached} of {len(mine)} records at {goal} or better.")
    bottom = row * len(scores)
    parts += [text(axis.at(tick), bottom + 16, number(tick), kind="tiny", anchor="middle") for tick in axis.ticks()]
    parts.append(text(width / 2, bottom + 34, metric_name(goal.metric), kind="tiny", anchor="middle"))
    return drawing(width, bottom + 42, parts, name=name, title=title, words=" ".join(words))


def axis_of(values: Sequence[float], start: float, end: float) -> Axis:
    """Choose an axis for values.

    Args:
        values: The values; infinite ones are drawn at the ends.
        start: First pixel of the axis.
        end: Last pixel of the axis.

    Returns:
        The axis, logarithmic if the values span orders of magnitude.
    """
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    if positive and min(finite) >= 0 and max(positive) / min(positive) > _SPAN_FOR_LOG:
        return Axis(min(positive), max(positive), start, end, is_log=True)
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    pad = 0.04 * (high - low) or abs(high) or 1.0  # 4 % of room on both sides
    return Axis(low - pad, high + pad, start, end)


def bars(counts: Sequence[int], axis: Axis, top: float, height: float) -> list[Markup]:
    """Draw counts as bars, with the number above each bar that is not empty.

    Args:
        counts: Counts of equal bins along the axis.
        axis: Horizontal axis.
        top: Upper edge in pixels.
        height: Height in pixels.

    Returns:
        The parts of the drawing.
    """
    step, most = (axis.end - axis.start) / len(counts), max([1, *counts])
    found = [line(axis.start, top + height, axis.end, top + height, "rule")]
    for place, count in enumerate(counts):
        if count:
            tall, x = max(2.0, (height - 12) * count / most), axis.start + place * step
            found.append(rectangle(x + 1, top + height - tall, step - 2, tall, "bar"))
            found.append(text(x + step / 2, top + height - tall - 3, str(count), kind="tiny", anchor="middle"))
    return found


def frontier_of_defenses(result: AuditResult) -> Markup:
    """Draw the distortion of each defense against the success of the best attack.

    Args:
        result: The audit.

    Returns:
        The figure.
    """
    goal = result.goals[0]
    title = f"Defenses: distortion of the {released_thing(result.threat)} against success at {goal}"
    return _for_screens(lambda width, name: _frontier(result, goal, title, width, name), "frontier")


def letter(place: int) -> str:
    """Return the letter that marks a defense in the figure.

    Args:
        place: Position of the defense in the audit.

    Returns:
        A letter, with a number after the first 26.

    >>> letter(0), letter(27)
    ('A', 'B2')
    """
    return chr(ord("A") + place % 26) + (str(place // 26 + 1) if place >= 26 else "")


def _frontier(result: AuditResult, goal: Goal, title: str, width: int, name: str) -> Markup:
    points = [(each.distortion, result.line(each.label, goal).success) for each in result.defenses]
    positive = [cost for cost, _ in points if 0 < cost < math.inf]
    across, thing = axis_of(positive or [1.0], 96, width - 28), released_thing(result.threat)
    upward = Axis(0.0, 1.0, 220, 20)

    def at(cost: float) -> float:
        return across.at(cost) if cost > 0 else 64.0

    parts = [line(44, upward.at(tick), width - 8, upward.at(tick), "grid") for tick in _PERCENTS]
    parts += [text(38, upward.at(tick) + 4, share(tick), kind="tiny", anchor="end") for tick in _PERCENTS]
    parts += [text(at(0), 238, "0", kind="tiny", anchor="middle")]
    parts += [text(at(tick), 238, number(tick), kind="tiny", anchor="middle") for tick in across.ticks() if positive]
    parts.append(
        text(width / 2, 256, f"distortion (relative squared error of the {thing})", kind="tiny", anchor="middle")
    )
    parts.append(polyline([(at(cost), upward.at(value)) for cost, value in undominated(points)], "frontier"))
    for place, (cost, success) in enumerate(points):
        x, y = at(cost), upward.at(success.value)
        parts += [
            line(x, upward.at(success.low), x, upward.at(success.high), "attack stroke"),
            disc(x, y, "attack", 10),
        ]
        parts.append(text(x, y + 4, letter(place), kind="letter", anchor="middle"))
    words = " ".join(
        f"{letter(place)}, {defense_name(each.label)}: distortion {number(cost)}, success {format_estimate(success)}."
        for place, (each, (cost, success)) in enumerate(zip(result.defenses, points, strict=True))
    )
    return drawing(width, 264, parts, name=name, title=title, words=words)


def undominated(points: Sequence[tuple[float, Estimate]]) -> list[tuple[float, float]]:
    """Return the Pareto front of cost and success, cheapest first.

    Args:
        points: Cost and measured success of each defense; those without samples are ignored.

    Returns:
        Cost and success of the defenses that no other defense beats in both.
    """
    found: list[tuple[float, float]] = []
    for cost, success in sorted((cost, success.value) for cost, success in points if success.samples):
        if not found or success < found[-1][1]:
            found.append((cost, success))
    return found


def _percent_axis(axis: Axis, bottom: float) -> list[Markup]:
    found = []
    for tick in _PERCENTS:
        x = axis.at(tick)
        anchor = "start" if tick == 0 else "end" if tick == 1 else "middle"
        found += [line(x, 30, x, bottom, "grid"), text(x, bottom + 16, share(tick), kind="tiny", anchor=anchor)]
    return found


def _limit(axis: Axis, value: float, top: float, bottom: float) -> Markup:
    return line(axis.at(value), top, axis.at(value), bottom, "limit")


_SMALLEST = 1e-12  # lower end of the probability axis
_POINTS = 33  # points of each curve
_TOP, _BOTTOM = 14, 230


def training_corridor(corridor: RiskCorridor) -> Markup:
    """Draw success probability against the error threshold: both ends of the corridor and priors in between.

    Args:
        corridor: Risk corridor of the training run.

    Returns:
        The figure.
    """
    curve = corridor_curve(corridor, points=_POINTS)
    return _for_screens(lambda width, name: _training_corridor_figure(corridor, curve, width, name), "training")


def _training_corridor_figure(corridor: RiskCorridor, curve: CorridorCurve, width: int, name: str) -> Markup:
    across = Axis(curve.mse[0], curve.mse[-1], 46, width - 14, is_log=True)
    upward = Axis(_SMALLEST, 1.0, _BOTTOM, _TOP, is_log=True)

    def through(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(across.at(x), upward.at(y)) for x, y in zip(curve.mse, values, strict=True)]

    named, lower = upward.at(corridor.identification.value), through(curve.known_norm)
    parts = [polygon([*lower, (across.end, named), (across.start, named)], "between")]
    for tick in upward.ticks():
        parts.append(line(across.start, upward.at(tick), across.end, upward.at(tick), "grid"))
        parts.append(text(40, upward.at(tick) + 4, number(tick), kind="tiny", anchor="end"))
    parts += [text(across.at(tick), 246, number(tick), kind="tiny", anchor="middle") for tick in across.ticks()]
    parts.append(text(width / 2, 263, "mean squared error that counts as success", kind="tiny", anchor="middle"))
    parts += [polyline(through(inside), "prior") for inside in curve.interior]
    parts += [polyline(lower, "bound"), polyline(through(curve.attack), "law")]
    parts.append(line(across.start, named, across.end, named, "bound"))
    parts.append(line(across.at(corridor.mse), _TOP, across.at(corridor.mse), _BOTTOM, "limit"))
    title = "Risk corridor of the training run"
    return drawing(width, 272, parts, name=name, title=title, words=corridor.sentence)


def leakage_histogram(leakage: LeakageHistogram) -> Markup:
    """Draw the distribution of leakage over the records of a training run.

    Args:
        leakage: Counts by leakage.

    Returns:
        The figure; empty if no record leaks.
    """
    if not leakage.edges:
        return Markup("")
    return _for_screens(lambda width, name: _leakage(leakage, width, name), "leakage")


def _leakage(leakage: LeakageHistogram, width: int, name: str) -> Markup:
    axis = Axis(leakage.edges[0], leakage.edges[-1], 20, width - 20, is_log=True)
    parts = bars(leakage.counts, axis, 8, 110)
    parts += [text(axis.at(tick), 134, number(tick), kind="tiny", anchor="middle") for tick in axis.ticks()]
    parts.append(text(width / 2, 152, "Fisher information leakage tr(I)/d", kind="tiny", anchor="middle"))
    words = f"{leakage.records} records, median {number(leakage.median)}, largest {number(leakage.maximum)}."
    return drawing(width, 160, parts, name=name, title="Records by their leakage in training", words=words)
