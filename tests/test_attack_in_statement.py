"""What an attacker gains, in the statement of a run: rows, JSON and a sentence, from the ledger's own events."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.accounting import trade_off
from clipwise.statement import plain_words, shown_percent


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(300, 4, generator=generator), torch.randint(0, 2, (300,), generator=generator))


def statement(data, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"epsilon": 2.0, "delta": 1e-4, "epochs": 2, "method": "fixed", "seed": 3} | options
    run = clipwise.Run(model, optimizer, DataLoader(data, batch_size=60), **settings)
    with run:
        for batches in run.logical_batches(4):
            clipwise.private_step(run.stepper, batches, loss=lambda r: nn.functional.cross_entropy(model(r[0]), r[1]))
    return run, run.statement()


def test_the_rates_are_those_of_the_ledger(data):
    run, said = statement(data)
    found = trade_off(run.ledger.events(), said.epsilon, said.delta)
    assert said.attack == found.pairs()
    assert said.attack_source == found.source == "pld"
    told = json.loads(json.dumps(said.to_dict(), allow_nan=False))
    assert [each["false_positive_rate"] for each in told["attack"]] == [0.001, 0.01, 0.05]
    text = said.to_markdown()
    for each in said.attack:
        rate, most = 100 * each["false_positive_rate"], shown_percent(each["true_positive_rate"])
        assert f"where its false-positive rate is {rate:g} % | at most {most} |" in text
        assert rate < float(most.removesuffix(" %")) < 100 * (math.exp(2.0) * rate / 100 + 1e-4)
    assert (
        "at most " + shown_percent(said.attack[1]["true_positive_rate"]).removesuffix(" %") + " in 100 that were"
        in text
    )


def test_more_charged_is_more_gained(data):
    few, many = (statement(data, epsilon=None, noise_multiplier=noise)[1] for noise in (4.0, 1.0))
    pairs = zip(few.attack, many.attack, strict=True)
    assert all(a["true_positive_rate"] < b["true_positive_rate"] for a, b in pairs)


def test_without_delta_there_is_a_curve_all_the_same(data):
    said = statement(data, epsilon=None, delta=None, noise_multiplier=1.0)[1]
    assert said.attack_source == "pld"
    assert 0.01 < said.attack[1]["true_positive_rate"] < 1


@pytest.mark.parametrize("options", [{"sampling": "fixed-size"}, {"accountant": "rdp"}])
def test_without_a_curve_the_pair_counts_and_is_named(data, options):
    said = statement(data, **options)[1]
    assert said.attack_source == "epsilon"
    assert said.attack[0]["true_positive_rate"] == pytest.approx(math.exp(said.epsilon) * 0.001 + 1e-4, rel=1e-6)
    assert "from epsilon and delta alone" in said.to_markdown()
    assert ("rather than on another" in said.to_markdown()) == ("sampling" in options)


def test_where_nothing_is_proven_nothing_is_promised(data):
    said = statement(data, method="auto-dp", allow_unsound=True)[1]
    assert [each["true_positive_rate"] for each in said.attack] == [1.0, 1.0, 1.0]
    assert "nothing proven here stands in the way" in said.to_markdown()
    said = statement(data, epsilon=math.inf)[1]
    assert said.attack == ()
    assert "In plain words" not in said.to_markdown()


def test_what_is_shown_is_rounded_up():
    assert shown_percent(0.0411231) == "4.12 %"
    assert shown_percent(0.04112) == "4.12 %"
    assert shown_percent(1.0) == shown_percent(0.99999) == "100.00 %"
    assert "at most 4.12 in 100" in plain_words(0.0411231, "one record")
