"""Wrong arguments of studies end with a sentence that names the argument and a value that works."""

import pytest
import torch
from torch import nn

import reconrisk as rr

DATA = rr.data.Dataset("toy", torch.rand(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
NOISE = {"noise": {0.1: rr.defenses.gaussian_noise(0.1)}}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: rr.audit(model, DATA, goals=20), r"goals=20 to be goals\. Pass goals='psnr>=20'"),
        (lambda model: rr.audit(model, DATA, max_risk=0.1), r"max_risk=0\.1 to be limits\. Pass .*'psnr>=20: 5%'"),
        (lambda model: rr.Limit("psnr>=20", 0.1), r"to be a Goal\. Pass rr\.goals\.psnr_at_least\(20\)"),
        (lambda model: rr.TrainingRun(guarantees=5), r"guarantees=5 to be a list of functions\. Pass a list"),
        (
            lambda model: rr.TrainingRun("x"),
            r"mechanism='x' to be the mechanism of a training run\. Pass rr\.mechanisms",
        ),
        (
            lambda model: rr.audit(model, DATA, training=rr.TrainingRun(guarantees=[lambda goal, label: 0.5])),
            r"guarantees\(\.\.\.\)=0\.5 to be a Guarantee or None\. Return",
        ),
        (lambda model: rr.UpdateRecipe(loss_fn="mse"), r"loss_fn='mse'.* Pass torch\.nn\.functional\.cross_entropy"),
        (lambda model: rr.tradeoff(model, DATA, NOISE, update=8), r"update=8 to be an UpdateRecipe\. Pass"),
        (lambda model: rr.tradeoff(model, DATA, NOISE, training=100), r"training=100 to be a TrainingRecipe\. Pass"),
        (lambda model: rr.tradeoff(model, DATA, NOISE, attacks=5), r"attacks=5 to be attacks\. Pass 'quick'"),
        (lambda model: rr.tradeoff(model, DATA, NOISE, test=None), r"test=None to hold records and labels\. Pass"),
        (lambda model: rr.recommend_defense(model, DATA, accept="psnr>=20: 5%", update=3), r"update=3 to be an Upd"),
        (lambda model: rr.InformedOptions(store=5), r"store=5 to be a folder\. Pass store='shadows'"),
        (lambda model: rr.InformedOptions(seconds=-1), r"seconds=-1"),
        (
            lambda model: rr.audit(model, DATA, options=rr.AuditOptions(public=(DATA.inputs,))),
            r"type\(public\)='tuple' to hold records and labels\. Pass",
        ),
        (
            lambda model: rr.audit(model, DATA, attacks=["imprint"]),
            r"imprint needs.* Pass threat=rr\.ThreatModel\(sees='one-update'.*controls=\['model-parameters'\]",
        ),
    ],
)
def test_the_message_says_what_to_pass(call, message):
    with pytest.raises(rr.InvalidInput, match=message):
        call(nn.Linear(3, 2))
