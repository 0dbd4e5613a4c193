import math

import pytest

from reconrisk.accounting.composition import compose
from reconrisk.accounting.loss import Cuts, Direction
from reconrisk.accounting.phases import Phase

PHASES = (Phase(1.0, 0.01, 1000),)


@pytest.mark.parametrize("direction", Direction)
def test_the_mass_beyond_the_window_counts_as_a_certain_loss(direction):
    # The window leaves out at most 1e-12 above: the divergence at its last point must say so, though the transform
    # wraps that mass around to its beginning.
    profile = compose(
        PHASES, spacing=2.0**-9, cuts=Cuts(math.log(1e-30), math.inf), direction=direction, log_smallest=0.0
    )
    assert profile.deltas[-1] >= 1e-12 * (1 - 1e-9)


@pytest.mark.parametrize("log_smallest", [0.0, math.log(1e-6), math.log(1e-15)])
def test_the_tilted_window_gives_the_same_profile_where_both_are_accurate(log_smallest):
    cuts = Cuts(math.log(1e-40), math.inf)
    plain, tilted = (
        compose(PHASES, spacing=2.0**-10, cuts=cuts, direction=Direction.WITH_RECORD, log_smallest=level)
        for level in (0.0, log_smallest)
    )
    assert tilted.success(1e-3) >= plain.success(1e-3) * (1 - 1e-3)
    assert tilted.success(1e-6) <= plain.success(1e-6) * (1 + 1e-6) + 1e-11
