"""Every attack on the edges is refused or bounded, every control is accepted; and the audit can tell."""

import json

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

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
