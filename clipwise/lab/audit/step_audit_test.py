"""The audit passes for every sound method, and catches every broken twin of the step."""

import pytest
import torch

from clipwise import step
from clipwise.clipping import METHODS, make_method
from clipwise.clipping.automatic import AutoS
from clipwise.clipping.fixed import Fixed
from clipwise.clipping.quantile import Quantile
from clipwise.lab.audit import audit_step
from clipwise.noise import GaussianNoise
from clipwise.norms import Tape
from clipwise.types import Decision


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.sound])
def test_sound_methods_pass(name):
    audit = audit_step(make_method(name))
    assert audit.passed, audit.failures
    assert len(audit.findings) > 200


def caught(monkeypatch_target, method=None, **options):
    audit = audit_step(method or Fixed(), **options)
    assert not audit.passed, f"the audit did not see {monkeypatch_target}"
    return {finding.check for finding in audit.failures}


@pytest.mark.parametrize("factor", [0.9, 0.95, 0.97])
def test_missing_noise(monkeypatch, factor):
    plain = GaussianNoise._standard_normal

    def less(self, *piece):
        return plain(self, *piece).mul_(factor)

    monkeypatch.setattr(GaussianNoise, "_standard_normal", less)
    assert "noise variance" in caught(f"noise x {factor}", steps=60)


def test_uniform_noise(monkeypatch):
    def uniform(self, device, stream, index, count, *where):  # noqa: ARG001
        return (torch.rand(count) * 2 - 1) * 3**0.5

    monkeypatch.setattr(GaussianNoise, "_standard_normal", uniform)
    assert "noise shape" in caught("uniform noise")


def test_noise_used_twice(monkeypatch):
    plain = GaussianNoise._standard_normal

    def halves(self, device, stream, index, count, *where):
        half = plain(self, device, stream, index, (count + 1) // 2, *where)
        return torch.cat([half, half])[:count]

    monkeypatch.setattr(GaussianNoise, "_standard_normal", halves)
    assert "independence" in caught("the same noise in both halves")


def test_the_same_noise_every_step(monkeypatch):
    plain = GaussianNoise._standard_normal

    def frozen(self, *piece):
        self._step = 0
        return plain(self, *piece)

    monkeypatch.setattr(GaussianNoise, "_standard_normal", frozen)
    assert "independence" in caught("the same noise every step")


def test_realised_denominator(monkeypatch):
    """Dividing by the number of rows: the audit knows the expected batch size and sees another."""
    sizes = []
    plain = step.clip_and_sum

    def absorb(plan, state, partial, tape, **rest):
        sizes.append(tape.rows)
        return plain(plan, state, partial, tape, **rest)

    def hand_over(optimizer, parameters, released, **rest):  # noqa: ARG001
        for p, total in zip(parameters, released.gradient, strict=True):
            p.grad = total / sizes[-1]

    monkeypatch.setattr(step, "clip_and_sum", absorb)
    monkeypatch.setattr(step, "hand_over", hand_over)
    assert "denominator" in caught("a realised denominator")


@pytest.mark.parametrize("factor", [1.02, 1.1])
def test_clipping_above_the_bound(monkeypatch, factor):
    plain = Tape._summed
    monkeypatch.setattr(
        Tape, "_summed", lambda self, weights, norms, **how: plain(self, weights * factor, norms, **how)
    )
    assert "sensitivity" in caught(f"clipping at {factor} C")


def test_batch_level_clipping():
    """Clipping the mean of the batch instead of each gradient (Tramer et al. 2022)."""

    class BatchLevel(Fixed):
        def decide(self, state, norms, groups=None):  # noqa: ARG002
            return Decision(
                torch.where(norms.isfinite(), min(1.0, state.threshold / max(1e-9, float(norms.nanmean()))), 0.0)
            )

    assert "sensitivity" in caught("batch-level clipping", BatchLevel())


def test_nan_leak(monkeypatch):
    plain = Tape._summed

    def with_nan(self, weights, norms, **how):
        return [total * (1 + 0 * norms.sum().to(torch.float32)) for total in plain(self, weights, norms, **how)]

    monkeypatch.setattr(Tape, "_summed", with_nan)
    assert "finite" in caught("a NaN leak")


def test_noise_from_the_batch(monkeypatch):
    """A noise scale read off the batch (Auto DP-SGD as published): not the same on both sides."""
    largest = []
    plain_absorb, plain_release = step.clip_and_sum, step.add_noise

    def absorb(plan, state, partial, tape, **rest):
        finite = tape.norms[tape.norms.isfinite()]
        largest.append(float(finite.mean()) if len(finite) else 0.0)
        return plain_absorb(plan, state, partial, tape, **rest)

    def add_noise(plan, state, partial, noise):
        add = noise.add
        noise.add = lambda sums, std, *, step: add(sums, std * (0.5 + largest[-1]), step=step)
        try:
            return plain_release(plan, state, partial, noise)
        finally:
            del noise.add

    monkeypatch.setattr(step, "clip_and_sum", absorb)
    monkeypatch.setattr(step, "add_noise", add_noise)
    assert {"public values", "noise std"} <= caught("noise scaled by the batch's own norms")


def test_noise_for_each_physical_batch(monkeypatch):
    """Noise drawn for every physical batch: more draws when a batch is split than when it is not, or than the ledger says."""
    plain = step.clip_and_sum

    def absorb(plan, state, partial, tape, **rest):
        plain(plan, state, partial, tape, **rest)
        partial.gradient = [g * (2 if tape.rows > 1 else 1) for g in partial.gradient]

    monkeypatch.setattr(step, "clip_and_sum", absorb)
    assert "sensitivity" in caught("a physical batch counted twice")


def test_side_query_with_an_unearned_bound():
    """Andrew's count without the shift moves by 1, not by 1/2: an error that a public library has (docs/references.md, Opacus)."""

    class Unshifted(Quantile):
        def decide(self, state, norms, groups=None):
            decision = super().decide(state, norms, groups)
            return Decision(decision.weights, {"below": decision.rows["below"] + 0.5})

    assert "sensitivity" in caught("an unshifted bit", Unshifted())


def test_a_method_that_exceeds_its_own_bound():
    class Loose(AutoS):
        def decide(self, state, norms, groups=None):  # noqa: ARG002
            return Decision(torch.where(norms.isfinite(), 1.05 * state.threshold / (norms + self.gamma), 0.0))

    assert "sensitivity" in caught("5 % above the bound", Loose())


def test_ledger_that_says_more_noise_than_there_is(monkeypatch):
    """Declared and drawn std differ: a smaller gradient share than the plan's."""
    plain = GaussianNoise.add
    monkeypatch.setattr(GaussianNoise, "add", lambda self, sums, std, *, step: plain(self, sums, std * 0.9, step=step))
    assert "noise variance" in caught("std x 0.9 at the call")


def test_a_charge_after_the_noise(monkeypatch):
    """A run that is killed between the two would have released what no ledger counts."""
    owed = []
    plain_charge, plain_noise = step.charge, step.add_noise

    def add_noise(*args):
        released = plain_noise(*args)
        plain_charge(*owed.pop())
        return released

    monkeypatch.setattr(step, "charge", lambda *args: owed.append(args))
    monkeypatch.setattr(step, "add_noise", add_noise)
    assert "charged first" in caught("a charge after the noise")


def test_no_slack_for_rounding(monkeypatch):
    made = Tape.__init__

    def without_slack(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.slack = 0.0

    monkeypatch.setattr(Tape, "__init__", without_slack)
    assert caught("no slack") == {"rounding"}
