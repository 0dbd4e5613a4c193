import copy
import math
import pickle
from fractions import Fraction

import mpmath
import pytest
import torch
from scipy import stats

from reconrisk.core.errors import InvalidInput
from reconrisk.releases import float_safe_noise as noise


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def wide(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_reference_values_come_back():
    # computed once by an implementation in rational arithmetic of 320 bits
    values = wide(0.0, 0.25, -0.5, 1.0)
    assert (1024 * noise.add_noise(values, 1.0, seeded())).tolist() == [609, 1380, 1611, 1735]
    assert (1024 * noise.add_noise(values, 1.0, seeded(), law="laplace")).tolist() == [1685, -354, 634, 2769]


@pytest.mark.parametrize(("std", "exponent"), [(1.0, -10), (0.3, -12), (3.0, -9), (2.0**-300, -310)])
def test_the_lattice_is_a_power_of_two_below_the_scale(std, exponent):
    assert float(noise.lattice_step(wide(std))) == 2.0**exponent


def exact_sum(law, words, values, std):
    """Round the real sum that the leading bits and zeros after them give, with 400 bits."""
    pairs = -(-len(values) // 2)
    step, found = 2.0 ** (math.floor(math.log2(std)) - 10), []
    with mpmath.workprec(400):
        for place, value in enumerate(values):
            if law == "laplace":
                uniform = mpmath.ldexp(words[place] >> 11, -52)
                z = -mpmath.log(uniform) / mpmath.sqrt(2) * (1 if words[place] & 1 else -1)
            else:
                is_sine, pair = divmod(place, pairs)
                one, two = (mpmath.ldexp(words[start + pair] >> 11, -52) for start in (0, pairs))
                wave = mpmath.sin if is_sine else mpmath.cos
                z = mpmath.sqrt(-2 * mpmath.log(one)) * wave(2 * mpmath.pi * two)
            found.append(int(mpmath.floor((mpmath.mpf(value) + mpmath.mpf(std) * z) / step + mpmath.mpf(0.5))) * step)
    return found


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [1.0, 1e12])
def test_every_decided_rounding_equals_the_rational_one(law, scale):
    size = 301
    values = scale * torch.randn(size, dtype=torch.float64, generator=seeded(1))
    count = size if law == "laplace" else 2 * -(-size // 2)
    words = torch.empty(count, dtype=torch.int64).random_(generator=seeded(2)).tolist()
    expected = exact_sum(law, words, values.tolist(), 0.7)
    assert noise.add_noise(values, 0.7, seeded(2), law=law).tolist() == expected


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_values_are_on_the_lattice_and_have_the_law(law):
    rng, size = seeded(3), 200_000
    values, std = torch.full((size,), 0.123, dtype=torch.float64), 0.9
    sent = noise.add_noise(values, std, rng, law=law)
    steps = sent / noise.lattice_step(wide(std))
    assert torch.equal(steps, steps.round())
    ideal = stats.norm(0.123, std) if law == "gaussian" else stats.laplace(0.123, std / math.sqrt(2))
    assert stats.kstest(sent.numpy(), ideal.cdf).pvalue > 1e-4  # cells of 1/1000 std shift the statistic by 4e-4


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_open_roundings_are_as_frequent_as_the_guard_says(law, monkeypatch):
    asked = []
    monkeypatch.setattr(noise._SeededBits, "more", lambda self: asked.append(1) or 0)
    monkeypatch.setattr(noise, "_LARGEST_RATIO", 2.0**41)  # as if the lattice had 2^41 steps per scale
    noise.add_noise(torch.zeros(4000, dtype=torch.float64), 1.0, seeded(), law=law)
    assert 0.02 < len(asked) / 4000 < 0.3


def test_open_roundings_agree_with_the_evaluation_of_the_same_bits(monkeypatch):
    # a wide guard sends most values to the 320-bit path; more bits of zero change no rounding but the undecided ones
    plain = noise.add_noise(torch.zeros(1000, dtype=torch.float64), 1.0, seeded(5))
    monkeypatch.setattr(noise, "_LARGEST_RATIO", 2.0**46)
    assert torch.equal(plain, noise.add_noise(torch.zeros(1000, dtype=torch.float64), 1.0, seeded(5)))


def test_extra_bits_do_not_move_the_generator(monkeypatch):
    after = []
    for ratio in (2.0**11, 2.0**46):
        monkeypatch.setattr(noise, "_LARGEST_RATIO", ratio)
        rng = seeded(6)
        noise.add_noise(torch.zeros(100, dtype=torch.float64), 1.0, rng)
        after.append(torch.rand(1, generator=rng))
    assert torch.equal(*after)


def test_a_scale_for_each_value_equals_the_single_scales():
    values = torch.randn(6, dtype=torch.float64, generator=seeded(7))
    stds = wide(0.1, 3.0, 0.5, 7.0, 1.0, 2.0)
    together = noise.add_noise(values, stds, seeded(8))
    for place, std in enumerate(stds.tolist()):
        assert float(noise.add_noise(values, std, seeded(8))[place]) == float(together[place])


def test_the_operating_system_gives_new_bits_each_time():
    zeros = torch.zeros(50, dtype=torch.float64)
    first, second = (noise.add_noise(zeros, 1.0, noise.SystemGenerator()) for _ in range(2))
    assert not torch.equal(first, second)
    assert (
        abs(float(noise.add_noise(torch.zeros(100_000, dtype=torch.float64), 1.0, noise.SystemGenerator()).std()) - 1)
        < 0.02
    )


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda rng: pickle.loads(pickle.dumps(rng)),  # noqa: S301 - bytes of this test
        lambda rng: rng.clone_state(),
    ],
)
def test_copies_draw_bits_of_the_operating_system_too(duplicate):
    # torch copies a subclass to its own class, whose noise follows from 32 bits
    one = noise.SystemGenerator()
    other = duplicate(one)
    assert isinstance(other, noise.SystemGenerator)
    assert other.initial_seed() != one.initial_seed()


def test_a_seed_does_not_decide_the_bits_of_the_operating_system():
    zeros, drawn = torch.zeros(8, dtype=torch.float64), []
    for _ in range(2):
        rng = noise.SystemGenerator()
        rng.manual_seed(0)
        drawn.append(noise.add_noise(zeros, 1.0, rng))
    assert not torch.equal(*drawn)


@pytest.mark.parametrize(
    ("values", "std", "law"),
    [
        (torch.zeros(2), 1.0, "gaussian"),
        (wide(0.0, torch.nan), 1.0, "gaussian"),
        (wide(torch.inf, 0.0), 1.0, "laplace"),
        (wide(0.0), 0.0, "gaussian"),
        (wide(0.0), torch.nan, "gaussian"),
        (wide(0.0), 2.0**401, "gaussian"),
        (wide(0.0), 1.0, "cauchy"),
    ],
)
def test_bad_input_is_refused(values, std, law):
    with pytest.raises(InvalidInput):
        noise.add_noise(values, std, seeded(), law=law)


def rational_square(values):
    return sum(Fraction(value) ** 2 for value in values.tolist())


@pytest.mark.parametrize("seed", range(20))
def test_no_clipped_row_is_longer_than_the_norm_in_rational_numbers(seed):
    rng = seeded(seed)
    size = int(torch.randint(1, 60, (), generator=rng))
    rows = torch.randn(20, size, generator=rng) * 10.0 ** torch.randint(-3, 4, (20, 1), generator=rng)
    norm = float(torch.rand((), generator=rng, dtype=torch.float64)) + 0.1
    for row in noise.clip_rows(rows, norm, records=64):
        assert rational_square(row) <= Fraction(norm) ** 2


def test_a_sum_of_clipped_records_moves_by_at_most_the_norm():
    # the float64 sum of n records, with and without one of them, in rational numbers
    rng = seeded(9)
    for _ in range(20):
        rows = noise.clip_rows(100 * torch.randn(40, 5, generator=rng), 1.0, records=64)
        with_it, without = rows.sum(0), rows[1:].sum(0)
        change = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(with_it.tolist(), without.tolist(), strict=True))
        assert change <= 1


def test_the_margin_is_the_one_of_the_proof():
    margin = 1 - noise.clip_limit(1.0, 10**9)
    assert margin == pytest.approx(2 * (10**9 + 16) * 2.0**-53, rel=1e-6)
    with pytest.raises(InvalidInput, match="records"):
        noise.clip_limit(1.0, 10, records=10**7)


@pytest.mark.parametrize("name", ["log", "cos", "sin"])
@pytest.mark.parametrize("where", [slice(None), slice(-1, None)])  # the last value takes another path than full vectors
def test_a_function_that_errs_is_noticed(name, where, monkeypatch):
    assert 0.4 < noise.largest_function_error(4001) < 1.5  # rounding alone errs by half a unit
    right = getattr(torch.Tensor, name)

    def wrong(self):
        values = right(self)
        for _ in range(5):
            values[where] = torch.nextafter(values[where], torch.full_like(values[where], 2.0))
        return values

    monkeypatch.setattr(torch.Tensor, name, wrong)
    assert 4.4 < noise.largest_function_error(4001) < 11.5  # below a power of two a step is half as long


def test_values_that_are_not_finite_are_noticed(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "log", lambda self: torch.full_like(self, torch.nan))
    assert noise.largest_function_error(101) == math.inf


def test_missing_bits_are_noticed(monkeypatch):
    right = noise._SeededBits.words
    assert noise.count_random_bits() == 63
    monkeypatch.setattr(noise._SeededBits, "words", lambda self, count: right(self, count) >> 10)
    assert noise.count_random_bits() == 53
