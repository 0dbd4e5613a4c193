"""A recommendation in words."""

from __future__ import annotations

from collections.abc import Sequence

from reconrisk.audit.recommendation_result import DefenseOption, Met, Recommendation
from reconrisk.core.guarantee import Estimate
from reconrisk.core.rounding import rounded_down, rounded_up

_HEADER = ("", "family", "meets", "rebuilt", "proved", "est. MSE bound", "U1 kept", "U2 dev.", "training", "defense")


def sentence_of(found: Recommendation) -> str:
    """What to do, on what evidence, at which cost, and what is second best."""
    if found.best is None:
        return f"No defense was shown to meet {found.target}: {_nearest(found)}{_end(found)}"
    best = found.option(found.best)
    words = [
        f"Use {best.code}: {_evidence(found, best)}, {_cost(found, best)}.",
        *_caution(found, best),
        *_choice(best),
    ]
    if found.runner_up is not None:
        second = found.option(found.runner_up)
        words.append(f"Second best is {second.code}: {_cost(found, second)}.")
        if _overlap(best, second):
            words.append("The two differ by no more than seeds do.")
    else:
        words.append("There is no second that was shown to meet the target.")
    return " ".join(words) + _end(found)


def table_of(found: Recommendation) -> str:
    """Every family in a line, the recommended marked with an arrow."""
    header = tuple(f"{head}?" if head == "est. MSE bound" and not found.is_smooth else head for head in _HEADER)
    rows = [header, *(_row(found, option) for option in found.options)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADER))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if found.undefended is not None:
        lines.append(f"training without a defense: {found.undefended}")
    return "\n".join(lines)


def _row(found: Recommendation, option: DefenseOption) -> tuple[str, ...]:
    mark = {found.best: "->", found.runner_up: "2."}.get(option.family, "")
    return (
        mark,
        option.family,
        option.met.value,
        ", ".join(_share(risk) for risk in option.risks) or "-",
        ", ".join("-" if value >= 1 else f"<= {rounded_up(value)}" for value in option.proved) or "-",
        "-" if option.mse_bound is None or not option.mse_bound.low else f">= {rounded_down(option.mse_bound.low)}",
        "-" if option.utility_kept is None else f"{option.utility_kept:.3g}",
        "-" if option.utility_deviation is None else f"{option.utility_deviation:.3g}",
        "-" if option.training is None else str(option.training),
        option.code + (f"  ({option.remark})" if option.remark else ""),
    )


def _evidence(found: Recommendation, option: DefenseOption) -> str:
    words: list[str] = []
    if option.met in (Met.PROVED, Met.ESTIMATED) and found.accept:
        pairs = zip(found.accept, option.proved, strict=True)
        words += [f"{limit.goal} succeeds with at most {rounded_up(value)}, proved" for limit, value in pairs]
    elif found.accept:
        words += [
            f"{100 * risk.value:.3g}% of the records of {risk.samples} fresh updates reached {limit.goal} by any "
            f"attack ({', '.join(found.attacks)}), at most {rounded_up(100 * risk.high)}% with "
            f"{100 * found.confidence:.4g}% confidence"
            for limit, risk in zip(found.accept, option.risks, strict=True)
        ]
    if found.mse_bound is not None and option.mse_bound is not None:
        prior = f"for a prior of information {found.prior_information:.4g}"
        evidence = f"estimated bound, no proof: {option.mse_bound.samples} draws"
        least = rounded_down(option.mse_bound.low)
        words.append(f"no estimate has a mean squared error below {least} {prior} ({evidence})")
    return "; ".join(words)


def _caution(found: Recommendation, option: DefenseOption) -> list[str]:
    """Where attacks that were not tried may do better, as far as the bound says."""
    if option.met is Met.PROVED or option.mse_bound is None:
        return []
    goals = (limit.goal for limit in found.accept)
    bound = option.mse_bound.low
    below = [goal for goal in goals if bound < (goal.mean_squared_error(found.data_range) or 0.0)]
    if not below:
        return []
    error = below[0].mean_squared_error(found.data_range)
    return [
        f"That is about the attacks tried: the estimated bound on the error of any estimate, {rounded_down(bound)}, "
        f"is below the {error:.3g} of {below[0]}, so that better attacks are not excluded."
    ]


def _choice(option: DefenseOption) -> list[str]:
    """What the guarantee of a mechanism, where there is one, says nothing about."""
    if all(value >= 1 for value in option.proved):
        return []
    return ["Private records took part in the choice of family and strength, which its guarantee does not cover."]


def _cost(found: Recommendation, option: DefenseOption) -> str:
    if option.training is not None:
        against = "" if found.undefended is None else f" against {found.undefended} without a defense"
        return f"{option.training}{against}"
    if option.utility_kept is None:
        return "cost not measured"
    return f"a step keeps {option.utility_kept:.3g} +- {option.utility_deviation:.2g} of its decrease"


def _overlap(first: DefenseOption, second: DefenseOption) -> bool:
    """Whether training tells two defenses apart."""
    if first.training is None or second.training is None:
        return False
    one, two = first.training.accuracy or first.training.loss, second.training.accuracy or second.training.loss
    return one is not None and two is not None and one.low <= two.high and two.low <= one.high


def _nearest(found: Recommendation) -> str:
    beyond = [
        f"guesses alone reach {limit.goal} for {100 * guess:.3g}% of records, so accept more than that"
        for limit, guess in zip(found.accept, found.guess, strict=False)
        if guess > limit.at_most
    ]
    if beyond:
        return "; ".join(beyond) + "."
    tried = [option for option in found.options if option.strength is not None]
    if not tried:
        return "nothing was tried."
    nearest = min(tried, key=lambda option: _distance(found, option))
    words = [
        f"{limit.goal} for {_share(risk)} of records" for limit, risk in zip(found.accept, nearest.risks, strict=False)
    ]
    if found.evidence == "proved" and found.accept:
        words = [
            f"{limit.goal} with at most {rounded_up(value)}"
            for limit, value in zip(found.accept, nearest.proved, strict=False)
        ]
    if found.mse_bound is not None and nearest.mse_bound is not None:
        words.append(f"an estimated Bayesian bound of {rounded_down(nearest.mse_bound.low)}")
    return f"the nearest is {nearest.code} with {' and '.join(words) or 'nothing measured'} ({nearest.met.value})."


def _distance(found: Recommendation, option: DefenseOption) -> tuple[float, float]:
    shares: Sequence[float] = option.proved if found.evidence == "proved" else [risk.value for risk in option.risks]
    bound = 0.0 if found.mse_bound is None or option.mse_bound is None else -option.mse_bound.low
    return max(shares, default=0.0), bound


def _share(risk: Estimate) -> str:
    if (risk.low, risk.high) == (0.0, 1.0):
        return f"{100 * risk.value:.3g}% of {risk.samples} ({risk.method})"
    return f"{100 * risk.value:.3g}% [{100 * risk.low:.3g}, {100 * risk.high:.3g}]"


def _end(found: Recommendation) -> str:
    if found.ended == "complete":
        return ""
    remedy = " Raise the budget." if found.ended == "out of time" else ""
    return f" The search ended before it was complete: {found.ended}.{remedy}"
