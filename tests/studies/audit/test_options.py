"""Options and training runs refuse invalid values when they are built."""

import pytest
import torch

import reconrisk as rr
from reconrisk.data.dataset import Dataset
from reconrisk.studies.common.arguments import StudyOptions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confidence": 1.0}, r"Expected confidence=1.0 in \(0, 1\)"),
        ({"seed": -1}, "Expected seed=-1 >= 0"),
        ({"seed": 2**63}, "< 2\\^63"),
        ({"public": torch.zeros(2)}, r"Expected type\(public\)='Tensor' to be public records. Pass an rr.data.Dataset"),
        ({"name": 3}, "Expected name=3 to be a text"),
        ({"show_plan": "print"}, "Expected show_plan='print' to be callable"),
        ({"records": 5}, "Expected records=5 to be rows of data"),
        ({"records": "0-9"}, "Expected records='0-9' to be rows of data"),
        ({"records": [-1]}, "Expected records=-1 >= 0"),
        ({"signature": 3}, "Expected signature=3 to be a text"),
    ],
)
def test_invalid_options_are_refused(change, message):
    with pytest.raises(rr.InvalidInput, match=message):
        rr.AuditOptions(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": "dp-sgd"}, "Expected mechanism='dp-sgd' to be the mechanism of a training run"),
        ({"account": "account.safetensors"}, r"Expected type\(account\)='str' to be a Fisher account"),
        ({"guarantees": print}, "to be a list of functions"),
        ({"guarantees": [0.1]}, "Expected guarantees=0.1 to be callable"),
    ],
)
def test_invalid_training_runs_are_refused(change, message):
    with pytest.raises(rr.InvalidInput, match=message):
        rr.TrainingRun(**change)


def test_every_mechanism_is_one_of_a_training_run():
    step = rr.mechanisms.Gaussian(1.0, 1.0)
    sampled = rr.mechanisms.PoissonSampled(step, 0.1)
    for mechanism in (step, sampled, rr.mechanisms.Repeated(sampled, 3), rr.mechanisms.GaussianDP(0.5)):
        assert rr.TrainingRun(mechanism).stated_mechanism == mechanism
    assert rr.TrainingRun().stated_mechanism is None


def test_public_records_are_taken_in_every_form_that_data_has():
    inputs, labels = torch.rand(4, 2), torch.tensor([0, 1, 0, 1])
    for public in (Dataset("toy", inputs, labels), (inputs, labels)):
        assert torch.equal(StudyOptions(public=public).public_dataset().inputs, inputs)
    assert StudyOptions().public_dataset() is None
