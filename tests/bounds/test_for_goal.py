import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.bounds.for_goal import BoundQuery, guarantees_for
from reconrisk.bounds.prior_success import candidate_set
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.errors import InvalidInput
from reconrisk.core.guarantee import Quantity, Scope
from reconrisk.core.mechanism import Composed, Gaussian, GaussianDP, Neighbouring, PureDP, dp_sgd

PRIOR = candidate_set([0.1] * 10)
STEP = dp_sgd(noise_multiplier=1.0, sampling_probability=0.1, steps=5)
NOISE = [Gaussian(1.0), STEP, Composed((Gaussian(2.0), STEP))]
STATED = [GaussianDP(1.0), PureDP(1.0, Neighbouring.REPLACE_ONE)]


def ask(mechanism, *, mse=0.01, dimension=4, least_norm=1.0):
    return guarantees_for(BoundQuery(mechanism, mse, dimension, (0.0, 1.0), PRIOR, least_norm))


@pytest.mark.parametrize("mechanism", NOISE + STATED)
def test_only_the_bound_for_the_stated_prior_is_about_the_targets(mechanism):
    first, *others = ask(mechanism)
    assert first.is_about_targets
    assert first.guarantee == success_upper_bound(mechanism, prior_success=PRIOR)
    assert first.guarantee.scope is Scope.ANY_ADVERSARY_WITH_PRIOR
    assert PRIOR.belief in first.why
    assert not any(answer.is_about_targets for answer in others)
    assert all(answer.why for answer in others)
    assert all(answer.guarantee.mechanism == mechanism for answer in others)


@pytest.mark.parametrize("mechanism", NOISE)
def test_noise_says_more_than_stated_privacy(mechanism):
    scopes = [answer.guarantee.scope for answer in ask(mechanism)]
    assert scopes == [Scope.ANY_ADVERSARY_WITH_PRIOR, Scope.KNOWN_NORM_ANY_RELEASE, Scope.UNBIASED_ESTIMATORS]
    assert ask(mechanism)[2].guarantee.quantity is Quantity.MEAN_SQUARED_ERROR


@pytest.mark.parametrize("mechanism", STATED)
def test_stated_privacy_has_the_bound_for_the_prior_alone(mechanism):
    assert len(ask(mechanism)) == 1


@given(st.floats(0.0, 1.0), st.integers(1, 9), st.floats(0.0, 2.0))
def test_nothing_is_said_of_norms_where_guessing_zero_succeeds(mse, dimension, norm):
    scopes = {each.guarantee.scope for each in ask(Gaussian(1.0), mse=mse, dimension=dimension, least_norm=norm)}
    assert (Scope.KNOWN_NORM_ANY_RELEASE in scopes) == (mse * dimension < norm * norm)


@given(st.floats(0.2, 5), st.floats(0.2, 5))
def test_more_noise_proves_more(one, other):
    loud, quiet = (ask(Gaussian(noise))[0].guarantee.value for noise in (max(one, other), min(one, other)))
    assert loud <= quiet + 1e-12
    assert loud >= PRIOR.value - 1e-12


@pytest.mark.parametrize(
    ("change", "message"),
    [({"mse": -0.1}, "mse"), ({"dimension": 0}, "dimension"), ({"least_norm": -1.0}, "least_norm")],
)
def test_impossible_questions_are_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        ask(Gaussian(1.0), **change)
