"""dpsgd-f's group labels, audited through the public API: the sound method passes, and every twin that uses its counts
without noise, without paying, or beyond their bound is caught."""

import dataclasses
from dataclasses import dataclass

import clipwise
from clipwise.clipping.dpsgd_f import DpsgdF
from clipwise.lab.audit import audit_step
from clipwise.noise import GaussianNoise
from clipwise.plans import Plan, Shares
from clipwise.types import Decision

SHORT = {"steps": 8, "width": 400}  # of the statistics; the replay needs none


def failed(method, **options):
    return {finding.check for finding in audit_step(method, **{**SHORT, **options}).failures}


def test_the_sound_method_passes():
    audit = audit_step(DpsgdF(number_of_groups=5, count_noise=4.0, threshold=0.3), **SHORT)
    assert audit.passed, audit.failures
    assert {"charged", "post-processing", "sensitivity", "noise variance"} <= {f.check for f in audit.findings}
    assert any("counts" in f.detail for f in audit.findings if f.check == "noise variance")
    assert any("at a later step" in f.detail for f in audit.findings if f.check == "sensitivity")


def test_counts_that_are_used_without_their_noise():
    """The thresholds follow the exact counts of the batch, past the noise."""
    exact = {}

    class Unnoised(DpsgdF):
        def decide(self, state, norms, groups=None):
            decision = super().decide(state, norms, groups)
            exact["counts"] = decision.rows["counts"].sum(0)
            return decision

        def update(self, state, released, context, step):
            raw = dataclasses.replace(released, sides={"counts": exact["counts"]})
            return super().update(state, raw, context, step)

    assert "post-processing" in failed(Unnoised())


def test_counts_that_are_not_paid_for():
    """Noised as declared, while the gradient's noise stays what it is without them: the ledger says too little."""

    class Unpaid(Plan):
        def shares(self, step):
            found = super().shares(step)
            return Shares(found.total, found.total, found.sides)

    def attach(*positional, **named):
        private = clipwise.attach(*positional, **named)
        plan = private.run.plan
        private.run.stepper.plan = Unpaid(**{f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)})
        return private

    assert failed(DpsgdF(), attach=attach) == {"charged"}


def test_counts_with_too_little_noise(monkeypatch):
    plain = GaussianNoise.add

    def add(self, sums, std, *, step):
        return plain(self, sums, std * (0.5 if sums[0].shape == (4,) else 1), step=step)

    monkeypatch.setattr(GaussianNoise, "add", add)
    assert "noise variance" in failed(DpsgdF(), steps=40)


def test_a_record_that_is_counted_in_two_groups():
    class Twice(DpsgdF):
        def decide(self, state, norms, groups=None):
            decision = super().decide(state, norms, groups)
            return Decision(decision.weights, {"counts": decision.rows["counts"] + decision.rows["counts"].roll(1, 1)})

    assert failed(Twice()) == {"sensitivity"}


def test_a_noise_scale_that_tells_which_groups_were_drawn():
    """The largest threshold of the groups *in the batch* (the published code): it differs only once thresholds do."""
    seen = {}

    @dataclass(frozen=True, kw_only=True)
    class OfTheBatch(DpsgdF):
        def decide(self, state, norms, groups=None):
            seen["bound"] = float(state.thresholds[groups.long()].max()) if len(groups) else float(self.threshold)
            return super().decide(state, norms, groups)

        def noise_scale(self, state, sides, context):  # noqa: ARG002
            return seen["bound"]

    assert "public values" in failed(OfTheBatch())
