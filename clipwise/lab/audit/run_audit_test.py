"""The audit of a whole automatic run passes, and catches every broken twin of what is measured."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from clipwise import step
from clipwise.automatic import inputs, measure, race, rule
from clipwise.automatic.pilot import Pilot
from clipwise.lab.audit import audit_run
from clipwise.run import Run
from clipwise.sampling import PoissonSampler

ONE = ("1000 u",)  # enough to see a broken twin


def test_a_run_passes():
    audit = audit_run()
    assert audit.passed, audit.failures[:5]
    assert len(audit.findings) > 1000


def caught(only=ONE):
    audit = audit_run(only)
    assert not audit.passed
    return {finding.check for finding in audit.failures}


@pytest.mark.parametrize("which", ["median_norm", "typical_loss"])
def test_a_mean_of_raw_numbers(monkeypatch, which):
    raw = []
    plain = measure.histogram
    monkeypatch.setattr(measure, "histogram", lambda norms, bins: (raw.extend(norms.tolist()), plain(norms, bins))[1])
    plain_look = measure.first_look

    def first_look(*args):
        raw.clear()
        look = plain_look(*args)
        finite = [norm for norm in raw if math.isfinite(norm)]
        return look._replace(**{which: float(torch.tensor(finite).abs().mean())})

    monkeypatch.setattr("clipwise.automatic.prepare.first_look", first_look)
    assert "post-processing" in caught(("1000 u", "1e-30 u"))


@pytest.mark.parametrize("which", ["histogram of sizes of the first layer's inputs", ("histogram", "sum"), "scores"])
def test_a_measurement_that_is_not_charged(monkeypatch, which):
    plain_release = Run.release

    def release(run, sums, event, *, l2_bound, what):
        if not what.startswith(which):
            return plain_release(run, sums, event, l2_bound=l2_bound, what=what)
        at = run.state.step
        (noised,) = run.noise.add([sums], event.noise_multiplier * l2_bound, step=at)
        run.stepper.state = run.state._replace(step=at + 1)
        return noised

    monkeypatch.setattr(Run, "release", release)
    assert {"charged first", "charges"} <= caught()


def test_a_measurement_that_is_charged_after_its_noise(monkeypatch):
    def release(run, sums, event, *, l2_bound, what):
        at = run.state.step
        (noised,) = run.noise.add([sums], event.noise_multiplier * l2_bound, step=at)
        run.ledger.charge(at, event, note={"release": what})
        run.stepper.state = run.state._replace(step=at + 1)
        return noised

    monkeypatch.setattr(Run, "release", release)
    assert "charged first" in caught()


def test_a_scale_from_raw_sizes(monkeypatch):
    """The largest input sets it, and not the released counts."""
    largest = [0.0]
    plain = inputs._rms

    def rms(numbers):
        found = plain(numbers)
        largest.append(float(found.nan_to_num(0.0, 0.0).max()))
        return found

    monkeypatch.setattr(inputs, "_rms", rms)
    monkeypatch.setattr(rule, "input_scale", lambda *_: 2.0 ** -round(math.log2(max(largest))))
    assert "post-processing" in caught()


def test_two_entries_a_record_in_the_histogram_of_sizes(monkeypatch):
    plain = inputs._histogram
    monkeypatch.setattr(inputs, "_histogram", lambda calls, rows, **how: 2 * plain(calls, rows, **how))
    assert "covered" in caught()


def test_a_sum_of_inputs_that_are_not_cut(monkeypatch):
    plain = inputs._cut_sum
    monkeypatch.setattr(inputs, "_cut_sum", lambda calls, rows, width, _bound: plain(calls, rows, width, 1e40))
    assert "covered" in caught(("3e38 u",))


def test_a_mean_of_inputs_without_noise(monkeypatch):
    """What is subtracted is the raw sum over the number of records."""
    plain, sums = inputs._cut_sum, []
    monkeypatch.setattr(inputs, "_cut_sum", lambda *of: (sums.append(plain(*of)), sums[-1])[1])
    monkeypatch.setattr(rule, "input_mean", lambda _noised, _std, records: sum(sums) / records)
    assert "post-processing" in caught()


def test_scores_from_raw_losses(monkeypatch):
    monkeypatch.setattr(race, "bounded", lambda scores: scores.nan_to_num(0.0))
    assert "covered" in caught()


def test_scores_without_noise(monkeypatch):
    plain = Run.release

    def release(run, sums, event, *, l2_bound, what):
        raw = sums.clone()
        noised = plain(run, sums, event, l2_bound=l2_bound, what=what)
        return raw if what.startswith("scores") else noised

    monkeypatch.setattr(Run, "release", release)
    assert "post-processing" in caught()


def test_batches_of_the_race_at_another_rate_than_is_charged(monkeypatch):
    """Each is drawn at the training's rate, and charged at a third of it."""
    plain = PoissonSampler.draw

    def draw(sampler, key, at):
        wide = sampler.sample_rate < 0.4
        return plain(dataclasses.replace(sampler, sample_rate=0.5) if wide else sampler, key, at)

    monkeypatch.setattr(PoissonSampler, "draw", draw)
    assert "sampling" in caught()


def test_two_entries_a_record_in_the_histogram(monkeypatch):
    plain = measure.histogram
    monkeypatch.setattr(measure, "histogram", lambda norms, bins: plain(norms, bins) + plain(2 * norms, bins))
    assert "covered" in caught()


def test_losses_in_a_second_histogram_at_the_price_of_one(monkeypatch):
    monkeypatch.setattr(measure, "math", SimpleNamespace(sqrt=lambda _: 1.0))
    assert "covered" in caught()


def test_a_controller_that_reads_a_count_without_noise(monkeypatch):
    """The rate rises by the number of rows in the batch."""
    rows = []
    plain = step.clip_and_sum

    def absorb(plan, state, partial, tape, **rest):
        rows.append(int(tape.norms.isfinite().sum()))
        return plain(plan, state, partial, tape, **rest)

    monkeypatch.setattr(step, "clip_and_sum", absorb)
    monkeypatch.setattr(Pilot, "_downhill", lambda _: rows[-1] / 1000 - 0.1)
    assert "post-processing" in caught()


def test_a_realised_denominator(monkeypatch):
    rows = [1]
    plain, plain_hand_over = step.clip_and_sum, step.hand_over

    def absorb(plan, state, partial, tape, **rest):
        rows.append(1 + int(tape.norms.isfinite().sum()))
        return plain(plan, state, partial, tape, **rest)

    def hand_over(optimizer, parameters, released, **rest):
        plain_hand_over(optimizer, parameters, released, **{**rest, "divide_by": rows[-1]})

    monkeypatch.setattr(step, "clip_and_sum", absorb)
    monkeypatch.setattr(step, "hand_over", hand_over)
    assert "post-processing" in caught()


def test_less_noise_than_is_charged(monkeypatch):
    plain = Run.release

    def release(run, sums, event, *, l2_bound, what):
        return plain(run, sums, event, l2_bound=l2_bound / 2, what=what)

    monkeypatch.setattr(Run, "release", release)
    assert "covered" in caught()
