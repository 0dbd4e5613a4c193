import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.core.threat import (
    HONEST_BUT_CURIOUS,
    INFORMED,
    MALICIOUS_SERVER,
    STRONGEST,
    Controls,
    Knows,
    Sees,
    ThreatModel,
)

THREATS = st.builds(
    ThreatModel,
    sees=st.sampled_from(Sees),
    knows=st.frozensets(st.sampled_from(Knows)),
    controls=st.frozensets(st.sampled_from(Controls)),
)


@given(THREATS)
def test_covers_is_reflexive_and_bounded_by_the_strongest(threat):
    assert threat.covers(threat)
    assert STRONGEST.covers(threat)


@given(THREATS, THREATS)
def test_covers_is_antisymmetric(one, other):
    assert (one.covers(other) and other.covers(one)) == (one == other)


@given(THREATS, THREATS, THREATS)
def test_covers_is_transitive(one, two, three):
    if one.covers(two) and two.covers(three):
        assert one.covers(three)


@given(THREATS, st.sampled_from(Knows))
def test_more_knowledge_covers_less(threat, item):
    assert threat.with_knowledge(item).covers(threat)
    assert threat.covers(threat.with_knowledge(item)) == (item in threat.knows)


def test_one_update_and_the_final_model_are_incomparable():
    one, final = ThreatModel(Sees.ONE_UPDATE), ThreatModel(Sees.FINAL_MODEL)
    assert not one.covers(final)
    assert not final.covers(one)
    assert ThreatModel(Sees.EVERY_UPDATE).covers(one)
    assert ThreatModel(Sees.EVERY_UPDATE).covers(final)


def test_named_adversaries_relate_as_their_names_say():
    assert MALICIOUS_SERVER.covers(HONEST_BUT_CURIOUS)
    assert not HONEST_BUT_CURIOUS.covers(MALICIOUS_SERVER)
    assert Knows.OTHER_RECORDS in INFORMED.knows


def test_repr_lists_powers_in_a_fixed_order():
    threat = ThreatModel("one-update", knows=["prior", "labels"])
    assert repr(threat) == "ThreatModel(sees=one-update, knows=labels+prior, controls=nothing)"


def test_unknown_powers_are_refused():
    with pytest.raises(InvalidInput, match="sees='everything' to be one of final-model, one-update"):
        ThreatModel("everything")
    with pytest.raises(InvalidInput, match="knows='shoe size' to be one of labels"):
        ThreatModel("one-update", knows=["shoe size"])


def test_a_single_power_stands_for_the_set_of_it():
    assert ThreatModel("one-update", knows=Knows.LABELS).knows == {Knows.LABELS}
