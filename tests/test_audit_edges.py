"""Every attack on the edges is refused or bounded, every control is accepted; and the audit can tell."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from clipwise import attach
from clipwise.cli import app
from clipwise.lab.audit.edges import ATTACKS, Attack, try_attack
from clipwise.step import Stepper


@pytest.mark.parametrize("one", ATTACKS, ids=lambda one: one.name)
def test_held(one):
    outcome = try_attack(one)
    assert outcome.held, outcome.how


def test_an_attack_that_gets_through_is_seen(monkeypatch):
    """A step that does not clip: one far record moves the sum beyond the bound."""

    def loop(private, model, batch):  # noqa: ARG001
        F.cross_entropy(model(batch[0]), batch[1]).backward()

    plain = Stepper.begin
    sound = Attack("loss", "plain", loop)
    assert try_attack(sound).held

    def unclipped(stepper, batch, records):
        kind = type(stepper.plan.method)
        monkeypatch.setattr(kind, "decide", lambda _, __, norms, groups=None: _Ones(torch.ones_like(norms)))  # noqa: ARG005
        plain(stepper, batch, records)

    from clipwise.types import Decision as _Ones

    monkeypatch.setattr(Stepper, "begin", unclipped)
    assert not try_attack(sound).held


def test_the_command():
    done = CliRunner().invoke(app, ["audit", "edges", "--only", "control", "--json"], prog_name="clipwise")
    said = json.loads(done.stdout)
    assert done.exit_code == 0
    assert said["tried"] == said["held"] >= 7
    done = CliRunner().invoke(app, ["audit", "edges", "--only", "mean * 2", "--markdown"], prog_name="clipwise")
    assert "| loss | mean * 2 | yes | refused: LoopMisuse |" in done.stdout
    done = CliRunner().invoke(app, ["audit", "step", "fixed", "--json"], prog_name="clipwise")
    assert json.loads(done.stdout)["passed"]


def test_later_batches_are_followed_where_something_was_compiled():
    torch.compile(torch.sin, backend="eager")(torch.ones(2))
    for one in ATTACKS:
        if one.name in ("inputs centred in place, from batch 2", "targets edited in place by the batch, from batch 2"):
            assert try_attack(one).held, one.name


def test_following_a_batch_compiles_nothing_anew():
    counts = []

    def count(graph, inputs):  # noqa: ARG001
        counts.append(1)
        return graph

    twice = torch.compile(lambda x: x * 2, backend=count)
    model, seen = nn.Linear(4, 3), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.arange(32) % 3), batch_size=8)
    private = attach(model, optimizer, loader, noise_multiplier=1.0, sampling="fixed-size", epochs=2)
    for _ in range(2):
        for x, y in private.loader:
            private.backward(F.cross_entropy(model(twice(x)), y, reduction="none"))
            optimizer.step()
            seen.append(len(counts))
    private.detach()
    assert seen == [0, 0, 1, 1, 1, 1, 1, 1]  # the 1st, 2nd, 4th and 8th run it step by step
