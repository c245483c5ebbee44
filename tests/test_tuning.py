"""Searches from end to end: what runs is what was planned, what is charged covers it, and what must stay secret does."""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import TensorDataset

import clipwise
from clipwise.accounting import Ledger, epsilon, trade_off
from clipwise.cli import output
from clipwise.data import load
from clipwise.lab.processes import Ended
from clipwise.lab.tuning.executors import EXECUTORS
from clipwise.lab.tuning.runner import finish
from clipwise.lab.tuning.search import prepare
from clipwise.lab.tuning.trial import Part, Spec, count_errors, pieces, run_trial
from clipwise.statement import shown_epsilon
from clipwise.training.verify import RunTampered
from clipwise.types import BadArgument, ClipwiseError

OPTIONS = {"data": "digits", "model": "linear", "epochs": 1, "batch": 256}
RATES = {"lr": [0.0001, 0.5]}


class Cut(BaseException):
    """The whole search is killed."""


class InProcess:
    """Runs trials one after another in this process; `killed` says which attempts a signal ends, and when."""

    def __init__(self, killed=None):
        self.specs, self.killed = [], killed or {}

    def __call__(self, tasks, command, jobs):
        assert jobs in (None, 1)
        for task in tasks:
            spec = Spec.read(Path(command(task)[-1]))
            self.specs.append(spec)
            how = self.killed.get(len(self.specs))
            if how == "early":
                Path(spec.out).mkdir()
                (Path(spec.out) / "ledger.jsonl").write_text("")
                yield task, Ended(None, "killed", True, 0.1)
                continue
            if how == "never":
                yield task, Ended(None, "broken", False, 0.1)
                continue
            if how == "cut early":
                Path(spec.out).mkdir()
                raise Cut
            outcome = json.loads(json.dumps(output.finite(run_trial(spec))))
            if how == "cut late":
                (Path(spec.out) / "statement.json").unlink()  # its last file
                raise Cut
            if how == "cut unheard":
                raise Cut
            if how == "late":
                yield task, Ended(None, "killed", True, 0.1)
                continue
            yield task, Ended(outcome, None, False, 0.1)


@pytest.fixture
def in_process(monkeypatch):
    def use(killed=None):
        executor = InProcess(killed)
        monkeypatch.setitem(EXECUTORS, "local", executor)
        return executor

    return use


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def charged(folder):
    return [event for ledger in sorted(folder.glob("*/ledger.jsonl")) for event in Ledger.read(ledger).events()]


def test_a_grid_is_paid_for_in_full(in_process, tmp_path):
    executor = in_process()
    tuned = clipwise.tune({**OPTIONS, "seed": 5}, RATES, epsilon=3.0, out=str(tmp_path / "out"))
    # The truth from outside: what the ledgers of all runs say together.
    events = charged(tmp_path / "out" / "trials")
    spent = epsilon(events, tuned.plan.delta).value
    assert sum(event.count for event in events) == 2 * 6
    assert spent == pytest.approx(tuned.result["epsilon"], rel=1e-9)
    assert 2.99 < spent <= 3.0
    assert tuned.chosen == {"lr": 0.5}
    scores = {
        line["id"]: line["score"] for line in lines(tmp_path / "out" / "search.jsonl") if line.get("event") == "ended"
    }
    assert scores["1"] == tuned.result["accuracy"] > scores["0"]
    statement = (tmp_path / "out" / "statement.md").read_text()
    assert "grid-rdp over 2 candidates, covered by epsilon" in statement
    assert "NOT CHARGED" not in statement
    assert f"{math.ceil(spent * 1e4) / 1e4:.4f} at 1e-05" in statement
    # What an attacker gains counts the search too: from its pair, for the chosen run's own curve leaves it out.
    attack = list(trade_off((), tuned.result["epsilon"], 1e-5, whole_curve=False).pairs())
    assert (list(tuned.statement.attack), tuned.statement.attack_source) == (attack, "epsilon")
    assert json.loads((tmp_path / "out" / "result.json").read_text())["attack"] == attack
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        tmp_path / "out" / "trials" / "1" / "model.safetensors"
    ).read_bytes()
    assert len({spec.config.seed for spec in executor.specs}) == 2, "two runs with one noise would cancel it"
    with pytest.raises(BadArgument, match="exists already"):
        clipwise.tune(OPTIONS, RATES, epsilon=3.0, out=str(tmp_path / "out"))


def test_repeat_select_shows_the_winner_alone(in_process, tmp_path):
    executor = in_process()
    how = {"strategy": "repeat-select", "score": "held-out", "held_out": 0.2, "mean_runs": 3.0}
    tuned = clipwise.tune({**OPTIONS, "seed": 3}, RATES, epsilon=4.0, out=str(tmp_path / "out"), **how)
    shown = {path.name for path in (tmp_path / "out").iterdir()}
    assert "secret" in shown
    assert not shown & {"search.jsonl", "trials"}
    assert (tmp_path / "out" / "secret").stat().st_mode & 0o077 == 0
    assert len(lines(tmp_path / "out" / "secret" / "search.jsonl")) == 3 + 2 * len(executor.specs)
    assert "must not be shown" in (tmp_path / "out" / "statement.md").read_text()
    # A record trains or scores, and both are calibrated to the same total.
    plan = tuned.plan
    assert plan.score_noise > 0
    assert plan.epsilon_total <= 4.0
    records = len(load("digits").train)
    assert {spec.part.pieces for spec in executor.specs} == {
        (records - math.ceil(0.2 * records), math.ceil(0.2 * records))
    }
    (rate,) = {event.sample_rate for event in charged(tmp_path / "out" / "secret" / "trials")}
    assert rate == pytest.approx(256 / (records - math.ceil(0.2 * records)))


def test_exponential_trains_on_parts_and_writes_no_count(in_process, tmp_path):
    executor = in_process()
    tuned = clipwise.tune(
        {**OPTIONS, "batch": 64, "seed": 1}, RATES, epsilon=4.0, strategy="exponential", out=str(tmp_path / "out")
    )
    part = len(load("digits").train) // 3
    assert [spec.part.trains for spec in executor.specs] == [0, 1]
    assert len({spec.part.seed for spec in executor.specs}) == 1
    for run in ("0", "1"):  # each is charged what was planned, and their parts do not meet: the larger counts
        events = Ledger.read(tmp_path / "out" / "trials" / run / "ledger.jsonl").events()
        assert events[0].sample_rate == pytest.approx(64 / part)
        assert epsilon(events, tuned.plan.delta).value == pytest.approx(tuned.plan.epsilon_total, rel=1e-9)
    assert all(
        line["score"] is None for line in lines(tmp_path / "out" / "search.jsonl") if line.get("event") == "ended"
    )


def test_parts_do_not_meet():
    digits = load("digits")
    cut = pieces(len(digits.train), parts=3, held_out=0.5)
    seen = []
    for number in range(3):
        own, back = Part(7, cut, number).of(digits)
        seen.append({tensor.numpy().tobytes() for tensor in own.train.tensors[0]})
        assert abs(len(own.train) - len(digits.train) / 4) < 80  # about: the standard deviation is 16
        assert abs(len(back) - len(digits.train) / 4) < 80
    back_rows = {tensor.numpy().tobytes() for tensor in back.tensors[0]}
    everything = [row.numpy().tobytes() for row in digits.train.tensors[0]]
    twins = len(everything) - len(set(everything))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert len(seen[a] & seen[b]) <= twins
    assert len(back_rows & seen[2]) <= twins


def test_one_record_more_is_one_more_in_one_part():
    """A permutation of all would move nearly every record to another part."""
    digits = load("digits")
    cut = pieces(len(digits.train), parts=3, held_out=0.5)
    fewer = dataclasses.replace(
        digits, train=TensorDataset(*(tensor[1:] for tensor in digits.train.tensors)), groups={}
    )

    def rows(data):
        return Counter(row.numpy().tobytes() for row in data.tensors[0])

    more = Counter()
    for number in range(3):
        (own, back), (less, less_back) = (Part(7, cut, number).of(data) for data in (digits, fewer))
        assert not rows(less.train) - rows(own.train)
        more += rows(own.train) - rows(less.train)
    more += rows(back) - rows(less_back)
    assert not rows(less_back) - rows(back)
    assert more == Counter([digits.train.tensors[0][0].numpy().tobytes()])


def test_public_search_charges_one_run(in_process, tmp_path):
    executor = in_process()
    tuned = clipwise.tune(
        {**OPTIONS, "seed": 2}, RATES, epsilon=2.0, strategy="public", public_data="digits", out=str(tmp_path / "out")
    )
    assert len(executor.specs) == 3
    events = Ledger.read(tmp_path / "out" / "ledger.jsonl").events()
    assert epsilon(events, tuned.plan.delta).value == pytest.approx(tuned.plan.epsilon_total, rel=1e-9)
    assert "public data (digits)" in tuned.statement.tuning
    verified = clipwise.verify(tmp_path / "out")
    assert (verified.finished, verified.epsilon) == (True, tuned.plan.epsilon_total)
    assert {"plan.json", "run_manifest.json", "model.safetensors", "result.json"} <= set(verified.files)
    (tmp_path / "out" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(RunTampered, match=r"model\.safetensors"):
        clipwise.verify(tmp_path / "out")
    assert tuned.result["chosen"] == {"lr": 0.5}


def test_an_uncharged_search_is_stamped(in_process, tmp_path):
    in_process()
    tuned = clipwise.tune(
        {**OPTIONS, "seed": 2}, RATES, epsilon=2.0, strategy="none", uncharged=True, out=str(tmp_path / "out")
    )
    headline = (tmp_path / "out" / "statement.md").read_text().splitlines()[2]
    assert headline.endswith(
        "**The search for its options was NOT CHARGED: this counts one run of several on the same data.**"
    )
    honest = epsilon(charged(tmp_path / "out" / "trials"), tuned.plan.delta).value
    assert tuned.plan.epsilon_composed == pytest.approx(honest, rel=1e-9)
    assert f"{honest:.4f}" in tuned.statement.tuning
    assert tuned.result["tuning"]["charged"] is False


def test_a_killed_run_goes_again_unless_it_was_seen(in_process, tmp_path):
    executor = in_process({1: "early"})
    tuned = clipwise.tune({**OPTIONS, "seed": 2}, RATES, epsilon=3.0, out=str(tmp_path / "early"))
    assert len(executor.specs) == 3
    assert len(charged(tmp_path / "early" / "trials")) == 2  # the second try took the place of the first
    assert epsilon(charged(tmp_path / "early" / "trials"), tuned.plan.delta).value <= 3.0

    executor = in_process({2: "late"})  # after it had left the figures of an epoch
    tuned = clipwise.tune({**OPTIONS, "seed": 2}, RATES, epsilon=3.0, out=str(tmp_path / "late"))
    assert len(executor.specs) == 2
    assert tuned.chosen == {"lr": 0.0001}  # the better one has no score
    assert any("charged" in line.get("event", "") for line in lines(tmp_path / "late" / "search.jsonl"))

    in_process({1: "never", 2: "never"})
    with pytest.raises(ClipwiseError, match="every run failed"):
        clipwise.tune(OPTIONS, RATES, epsilon=3.0, out=str(tmp_path / "never"))


def test_a_cut_search_goes_on(in_process, tmp_path):
    rates = {"lr": [0.0001, 0.5, 0.3]}

    def tune(out, killed=None, **changes):
        executor = in_process(killed)
        options = {**OPTIONS, "seed": 5, **changes}
        try:
            return executor, clipwise.tune(options, rates, epsilon=3.0, out=str(tmp_path / out))
        except Cut:
            return executor, None

    _, whole = tune("whole")
    for how, runs in {"cut early": 2, "cut late": 1, "cut unheard": 1}.items():
        first, nothing = tune(how, {2: how})
        assert len(first.specs) == 2
        assert nothing is None
        assert not (tmp_path / how / "result.json").exists()
        with pytest.raises(BadArgument, match=r"another plan: noise_multiplier was .* give the same options"):
            tune(how, epochs=2)
        again, tuned = tune(how)
        assert len(again.specs) == runs, "what had ended, or was seen, is not repeated"
        assert tuned.chosen == ({"lr": 0.3} if how == "cut late" else whole.chosen)  # what was seen has no score
        events = [line.get("event", "") for line in lines(tmp_path / how / "search.jsonl") if line["id"] == "1"]
        assert (
            events
            == {
                "cut early": ["started", "started", "ended"],
                "cut late": ["started", "failed, and charged"],
                "cut unheard": ["started", "ended"],
            }[how]
        )
        # Whatever happened: three runs are charged, and they cost what was planned for three.
        assert epsilon(charged(tmp_path / how / "trials"), tuned.plan.delta).value == pytest.approx(
            tuned.result["epsilon"], rel=1e-9
        )
        with pytest.raises(BadArgument, match="exists already"):  # it is finished now
            tune(how)


@pytest.mark.parametrize(
    "how",
    [
        {"strategy": "exponential"},
        {"strategy": "repeat-select", "score": "held-out", "mean_runs": 3.0},
        {"score": "held-out"},
        {"strategy": "public", "public_data": "digits"},
    ],
)
def test_going_on_draws_scores_and_chooses_once(in_process, tmp_path, how, monkeypatch):
    """Cut at every step it can be cut at, a search comes to the same end as one that was not, with the same seed."""
    options = {**OPTIONS, "batch": 64, "seed": 10}
    executor = in_process()
    whole = clipwise.tune(options, RATES, epsilon=4.0, out=str(tmp_path / "whole"), **how)
    total = len(executor.specs)
    secret = "secret" if how.get("strategy") == "repeat-select" else "."
    scores, ends = [], iter([cut, finish])  # the first time, it is cut between the choice and its copy
    monkeypatch.setattr("clipwise.lab.tuning.runner.finish", lambda *about: next(ends)(*about))
    for attempt in range(2 * total + 2):
        in_process({1: ("cut early", "cut unheard")[attempt % 2]})
        try:
            tuned = clipwise.tune(options, RATES, epsilon=4.0, out=str(tmp_path / "cut"), **how)
            break
        except Cut:
            scores.append(
                {
                    line["id"]: line["score"]
                    for line in lines(tmp_path / "cut" / secret / "search.jsonl")
                    if "score" in line
                }
            )
    else:
        pytest.fail("it never came to an end")
    ledger = lines(tmp_path / "cut" / secret / "search.jsonl")
    assert [line["id"] for line in ledger].count("drawn") == [line["id"] for line in ledger].count("chosen") == 1
    for before, after in itertools.pairwise(scores):
        assert before.items() <= after.items(), "a score is noised once"
    assert tuned.chosen == whole.chosen
    assert tuned.result["accuracy"] == whole.result["accuracy"]
    if tuned.plan.score_noise is not None:
        noise = {spec.out: scores[-1][Path(spec.out).name] + count_errors(spec) for spec in executor.specs}
        values = sorted(noise.values())
        assert min(np.diff(values)) > 1e-6, "no two scores share noise"
        assert max(np.abs(values)) < 8 * tuned.plan.score_noise


def cut(*_):
    raise Cut


@pytest.mark.parametrize("seed", [None, 7])
def test_a_search_that_was_really_killed_goes_on(seed, tmp_path):
    """SIGKILL to the search alone: the run under way ends with it, and the same command does the rest. With a seed the run goes
    on from its checkpoint, charged once; without one it begins anew, since nobody saw anything of it."""
    out = tmp_path / "out"
    words = (
        "tune --data digits --model linear --epochs 1 --batch 4 --search lr=0.1,0.5 --epsilon 8 --jobs 1 --yes --json"
    )
    seeded = [] if seed is None else ["--seed", str(seed)]
    command = [sys.executable, "-m", "clipwise.cli", *words.split(), "--out", str(out), *seeded]
    search = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    run = out / "trials" / "1"
    there = (run / "ledger.jsonl").exists if seed is None else (run / "checkpoints" / "step-00000000").exists
    while not there() and time.monotonic() < deadline:
        assert search.poll() is None
        time.sleep(0.01)
    search.kill()
    search.wait()
    before = lines(out / "search.jsonl")
    assert [line["id"] for line in before if line.get("event") == "ended"] == ["0"]
    first = (out / "trials" / "0" / "model.safetensors").read_bytes()
    assert not (out / "trials" / "1" / "metrics.jsonl").exists(), "it was to be killed in its first epoch"
    ended = subprocess.run(command, capture_output=True, check=True, start_new_session=True)
    with pytest.raises(ProcessLookupError):
        os.killpg(search.pid, 0)  # the orphan is gone
    assert (out / "trials" / "0" / "model.safetensors").read_bytes() == first
    events = [line["event"] for line in lines(out / "search.jsonl") if line["id"] == "1"]
    assert events == ["started", "started", "ended"]
    result = json.loads(ended.stdout)
    assert epsilon(charged(out / "trials"), result["delta"]).value == pytest.approx(result["epsilon"], rel=1e-9)
    book = Ledger.read(out / "trials" / "1" / "ledger.jsonl").book
    assert len(book.segments) == (1 if seed is None else 2)
    assert {segment.stream for segment in book.segments} == {0}


def page_of(folder):
    from clipwise.lab.report.run_report import write_run_report

    written = write_run_report(folder)
    return written.page.read_text(), written.record


def test_the_page_shows_the_search_and_what_it_cost(in_process, tmp_path):
    in_process({2: "never"})
    tuned = clipwise.tune({**OPTIONS, "seed": 5}, {"lr": [0.0001, 0.3, 0.5]}, epsilon=3.0, out=str(tmp_path / "out"))
    page, record = page_of(tmp_path / "out")
    ledger = lines(tmp_path / "out" / "search.jsonl")
    for line in ledger:
        if line.get("event") == "ended":
            assert f'<td class="number">{line["score"]}</td>' in page
    assert page.count("<td>chosen</td>") == 1
    assert "<td>failed, and charged</td>" in page
    plan = tuned.plan
    side_by_side = f"<td>{shown_epsilon(plan.epsilon_per_run)}</td><td>{shown_epsilon(plan.epsilon_total)}</td>"
    assert side_by_side in page
    assert "search included" in page
    assert "other than lr, whose choice epsilon covers" in page
    assert record.summary()["chosen"] == tuned.chosen
    assert not record.problems


def test_the_page_of_a_secret_search_shows_the_choice_alone(in_process, tmp_path):
    executor = in_process()
    how = {"strategy": "repeat-select", "mean_runs": 6.0}
    tuned = clipwise.tune({**OPTIONS, "seed": 5}, RATES, epsilon=4.0, out=str(tmp_path / "out"), **how)
    page, _ = page_of(tmp_path / "out")
    secret = [line for line in lines(tmp_path / "out" / "secret" / "search.jsonl") if line.get("event") == "ended"]
    assert len(secret) == len(executor.specs) > 1
    for line in secret:
        if line["score"] != tuned.result["accuracy"]:
            assert f">{line['score']}<" not in page
        assert f'<td class="number">{line["seconds"]}<' not in page  # a tick of a chart may be the same number
    assert "secret/" not in page.replace("the folder secret/ (the other runs", "")  # no link to it
    assert page.count("<td>chosen</td>") == 1
    assert "stays secret" in page
    assert "<td>ended</td>" not in page


def test_the_page_stamps_what_was_not_charged_and_a_cut_search_says_so(in_process, tmp_path):
    in_process()
    tuned = clipwise.tune(
        {**OPTIONS, "seed": 2}, RATES, epsilon=2.0, strategy="none", uncharged=True, out=str(tmp_path / "free")
    )
    page, record = page_of(tmp_path / "free")
    together = shown_epsilon(tuned.plan.epsilon_composed)
    assert any("NOT CHARGED" in problem and together in problem for problem in record.problems)
    assert "SEARCH NOT CHARGED" in page
    assert "whose choice epsilon covers" not in page

    in_process({2: "cut early"})
    with pytest.raises(Cut):
        clipwise.tune({**OPTIONS, "seed": 2}, RATES, epsilon=2.0, out=str(tmp_path / "cut"))
    page, record = page_of(tmp_path / "cut")
    assert "goes on with it" in record.problems[0]
    assert "under way, or killed" in page


def test_draws_of_optuna_do_not_look_at_scores():
    pytest.importorskip("optuna")
    from clipwise.lab.tuning.candidates import Range, make_candidates

    space = {"lr": Range(0.01, 1.0, log=True), "threshold": [0.1, 1.0]}
    for draw in ("random", "quasi-random"):
        made, same = (make_candidates({}, space, draw=draw, number=32, seed=4) for _ in range(2))
        assert [c.chosen for c in made] == [c.chosen for c in same]
        rates = np.log10([c.config.lr for c in made])
        assert -2 <= rates.min() < -1.6 < -0.4 < rates.max() <= 0
        assert {c.config.method_options["threshold"] for c in made} == {0.1, 1.0}


@pytest.mark.parametrize(
    ("search", "how", "message"),
    [
        ({}, {}, "it is empty"),
        ({"lr": []}, {}, "has no values"),
        ({"lr": [0.1]}, {}, "nothing to choose"),
        ({"lr": [0.1, 0.1]}, {}, "nothing to choose"),
        ({"colour": [1, 2]}, {}, "'colour' is not an argument"),
        ({"seed": [1, 2]}, {}, "'seed' belongs to the search"),
        ({"method": ["fixed", "dpsgd"]}, {}, "'dpsgd' is not known"),
        ({"method": ["fixed", "auto-dp"]}, {}, "no valid guarantee"),
        (RATES, {"strategy": "best"}, "'best' is not known"),
        (RATES, {"strategy": "none"}, "--uncharged"),
        (RATES, {"uncharged": True}, "uncharged=True goes with"),
        (RATES, {"strategy": "public"}, "public_data=None"),
        (RATES, {"public_data": "mnist"}, "public_data='mnist' is for"),
        (RATES, {"strategy": "exponential", "score": "public"}, "score='public' does not go"),
        (RATES, {"held_out": 0.1}, "held_out=0.1"),
        (RATES, {"mean_runs": 3}, "mean_runs=3 means nothing"),
        (RATES, {"delta": 0.1}, "not below 1"),
        (RATES, {"options": {"group_counts": 5.0}}, "group_counts=5.0 shows more"),
        (RATES, {"options": {"sampling": "fixed-size"}}, "sampling='fixed-size': what a search costs"),
        (RATES, {"samples": 100}, "needs both"),
        (RATES, {"draw": "random"}, "how many to draw"),
        (RATES, {"epsilon": 1e-7}, "too small"),
        (
            {"lr": [k / 100 for k in range(1, 150)]},
            {"epsilon": 0.3, "options": {"method": "quantile"}},
            r"largest number that fits is \d+",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(search, how, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadArgument, match=message):
        prepare({**OPTIONS, **how.pop("options", {})}, search, **{"epsilon": 3.0, **how})
    assert not list(tmp_path.iterdir())


def command(capsys, *words):
    from clipwise.cli import app

    with pytest.raises(SystemExit) as ended:
        app(["tune", *words], prog_name="clipwise")
    return ended.value.code or 0, capsys.readouterr()


WITHOUT_DATA = ("--samples", "60000", "--batch", "256", "--steps", "2350", "--epsilon", "3", "--delta", "1e-6")


@pytest.mark.parametrize("strategy", ["grid-rdp", "liu-talwar", "repeat-select", "exponential"])
def test_a_plan_without_data(capsys, strategy):
    words = ("--search", "threshold=0.1,1,10", "--search", "lr=0.1,0.5", "--strategy", strategy)
    code, printed = command(capsys, *words, *WITHOUT_DATA, "--plan-only", "--json")
    plan = json.loads(printed.out)
    assert code == 0
    assert plan["candidates"] == 6
    assert {"runs", "noise_multiplier", "epsilon_per_run", "epsilon_total", "delta"} <= plan.keys()
    assert 2.99 < plan["epsilon_total"] <= 3.0
    rate = 256 / (60000 // 7 if strategy == "exponential" else 60000)
    from clipwise.accounting import StepEvent

    alone = epsilon([StepEvent(rate, plan["noise_multiplier"], 2350)], 1e-6).value
    assert alone == pytest.approx(plan["epsilon_per_run"], rel=1e-9)
    assert plan["runs"] == {"liu-talwar": 12}.get(strategy, 6)


def test_nothing_is_spent_unasked(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed = command(capsys, "--data", "digits", "--search", "lr=0.1,0.5", "--json")
    assert code == 2
    assert "--yes" in json.loads(printed.out)["error"]
    code, printed = command(capsys, "--search", "lr=0.1,0.5", *WITHOUT_DATA, "--yes", "--json")
    assert code == 2
    assert "planned, but not run" in json.loads(printed.out)["error"]
    code, printed = command(capsys, "--search", "lr=0.1,0.5", *WITHOUT_DATA, "--plan-only")
    assert code == 0
    assert "in all" in printed.out
    assert not list(tmp_path.iterdir())


def test_a_search_from_the_command_line(in_process, capsys, tmp_path):
    in_process()
    words = ("--data", "digits", "--model", "linear", "--epochs", "1", "--batch", "256", "--search", "lr=0.0001,0.5")
    code, printed = command(capsys, *words, "--epsilon", "3", "--yes", "--json", "--out", str(tmp_path / "out"))
    result = json.loads(printed.out)
    assert code == 0
    assert result["chosen"] == {"lr": 0.5}
    assert result == json.loads((tmp_path / "out" / "result.json").read_text())
