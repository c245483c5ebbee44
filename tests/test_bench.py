"""What `clipwise bench` times is a real private step, and its figures are what they say."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from typer.testing import CliRunner

import clipwise
from clipwise.cli import app
from clipwise.clipping import METHODS
from clipwise.lab.bench import clipping, compare, growth, memory, peers, ranks, report, scale, worker, workloads
from clipwise.lab.bench.compare import Effort
from clipwise.lab.bench.timing import Others, Times, time_interleaved, whole_step

TINY = workloads.WORKLOADS["tiny-b32"]


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_json_has_a_row_for_each_method_with_positive_ratios(tmp_path):
    page = tmp_path / "bench.md"
    words = ["--against", "plain", "--models", "tiny-b32", "--rounds", 3, "--json", "--markdown", page]
    done = run("bench", *words)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == ["plain", "clipwise"]
    for row in rows.values():
        assert row["model"] == "tiny-b32"
        assert row["time_ratio"] > 0
        assert row["memory_ratio"] is None or row["memory_ratio"] >= 0  # a tiny step may fit into memory that was there
        assert row["time_ms"] > 0
        assert row["first_step_ms"] > 0
        assert row["peak_rss_mb"] > row["memory_mb"] >= 0
        assert row["rounds"] == 3
    assert rows["plain"]["time_ratio"] == 1
    assert rows["clipwise"]["ledger_steps"] == rows["clipwise"]["steps"] == 3 + 3
    assert result["versions"]["torch"] == torch.__version__
    assert "step time / plain" in page.read_text().lower()
    assert "clipwise" in page.read_text()


def clipped_sum(model, x, y, threshold):
    """By a loop over single examples."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        grads = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        total = [t + g * min(1.0, threshold / norm) for t, g in zip(total, grads, strict=True)]
    return total


def test_what_is_timed_clips_adds_noise_moves_the_weights_and_is_charged():
    peer, steps, residuals = peers.Clipwise(TINY), 6, []
    twin = TINY.model()
    try:
        for _ in range(steps):
            before = [p.detach().clone() for p in peer.model.parameters()]
            twin.load_state_dict(peer.model.state_dict())
            truth = clipped_sum(twin, *TINY.batch(), peers.THRESHOLD)
            peer.prepare()
            assert peer.batch[0].shape[0] == TINY.rows
            peer.step()
            released = [p.grad * TINY.rows for p in peer.model.parameters()]
            residuals += [(r - t).flatten() for r, t in zip(released, truth, strict=True)]
            assert all((p != b).any() for p, b in zip(peer.model.parameters(), before, strict=True))
            peer.tidy()
        noise = torch.cat(residuals).double().numpy() / (peers.NOISE_MULTIPLIER * peers.THRESHOLD)
        low, high = stats.chi2(len(noise)).ppf([1e-6, 1 - 1e-6])
        assert low < (noise**2).sum() < high
        assert not low < ((0.9 * noise) ** 2).sum() < high  # the test would see a tenth less
        assert peer.facts() == {"steps": steps, "ledger_steps": steps}
        lines = [json.loads(line) for line in Path(peer._folder.name, "ledger.jsonl").read_text().splitlines()]
        assert [line["kind"] for line in lines] == ["open", "reserve"]  # nothing is written for a step that is reserved
    finally:
        peer.close()


def test_every_method_starts_from_the_same_weights_and_batch():
    for workload in workloads.WORKLOADS.values():
        if workload.name.startswith("resnet"):
            continue  # large, and built by the same code
        one, two = workload.model().state_dict(), workload.model().state_dict()
        assert all(torch.equal(one[k], two[k]) for k in one)
        assert all(torch.equal(a, b) for a, b in zip(workload.batch(), workload.batch(), strict=True))
        assert workload.batch()[0].shape[0] == workload.rows == int(workload.name.rpartition("-b")[2])


def test_ratios_are_paired():
    """A machine that is ten times slower in one round changes neither side's figure."""
    times = Times(first={"a": 9.0}, rounds={"plain": [1.0, 10.0, 1.0], "a": [2.0, 20.0, 3.0]})
    summary = times.summary("a")
    assert summary["time_ratio"] == 2.0
    assert summary["time_ratio_quartiles"] == [2.0, 2.5]
    assert (summary["time_ms"], summary["first_step_ms"]) == (3000.0, 9000.0)


class Recorder:
    parts = 1

    def __init__(self, name, log, fail_at=None):
        self.name, self.log, self.fail_at, self.count = name, log, fail_at, 0

    def prepare(self): ...

    def step(self):
        self.count += 1
        self.log.append(self.name)
        if self.count == self.fail_at:
            raise ValueError("no such\nkernel")

    def tidy(self): ...


def test_rounds_interleave_and_the_order_turns():
    log = []
    makers = {name: lambda name=name: Recorder(name, log) for name in ("plain", "b", "c")}
    times, _ = time_interleaved(makers, rounds=3, seconds=60, most=0, least=0)
    assert log[:9] == ["plain", "b", "c"] * 3  # warm-up
    assert log[9:] == ["plain", "b", "c", "b", "c", "plain", "c", "plain", "b"]
    assert all(len(values) == 3 for values in times.rounds.values())


@pytest.mark.parametrize("fail_at", [1, 2, 5])
def test_a_method_that_fails_at_any_time_has_a_reason_and_stops_no_other(fail_at):
    makers = {"plain": lambda: Recorder("plain", []), "bad": lambda: Recorder("bad", [], fail_at)}
    times, alive = time_interleaved(makers, rounds=4, seconds=0, most=0, least=0)
    assert times.summary("bad") == {"failed": "ValueError: no such kernel"}
    assert times.summary("plain")["rounds"] == 4
    assert list(alive) == ["plain"]


def test_a_failed_peer_is_a_row_and_not_a_crash(monkeypatch):
    class Broken(peers.Peer):
        def __init__(self, workload):
            raise NotImplementedError("no rule for this layer")

    monkeypatch.setitem(peers.METHODS, "opacus-hooks", Broken)
    monkeypatch.setattr(
        compare, "_work", lambda spec, *_: worker.time_methods(**{k: v for k, v in spec.items() if k != "task"})
    )
    monkeypatch.setattr(compare, "_memory", lambda *_, **__: {"memory_mb": 1.0, "growth_mb": 1.0})
    done = compare.compare([TINY], ["plain", "clipwise", "opacus-hooks"], Effort(rounds=1), lambda *_: None)
    row = done.rows[2]
    assert (row["method"], row["time_ratio"], row["memory_ratio"]) == ("opacus-hooks", None, None)
    assert row["failed"] == "NotImplementedError: no rule for this layer"
    assert "failed: NotImplementedError" in report.markdown(done, "clipwise bench")


def test_a_peer_that_kills_the_process_does_not_take_our_figures_with_it(monkeypatch):
    def work(spec, *_):
        if len(spec["methods"]) > 2:
            raise compare.WorkerDied("the process ended with code -9: no message")
        return {method: {"time_ratio": 1.0} for method in spec["methods"]}

    monkeypatch.setattr(compare, "_work", work)
    results = compare._timed(TINY, ["plain", "clipwise", "opacus-ghost"], Effort(), lambda _: None)
    assert results["clipwise"] == {"time_ratio": 1.0}
    assert "-9" in results["opacus-ghost"]["failed"]


def test_a_worker_that_ends_without_a_result_is_reported():
    effort = {"rounds": 1, "seconds": 1.0, "most": 1, "least": 1}
    spec = {"task": "time", "model": "no-such-model", "methods": ["plain"], **effort}
    with pytest.raises(compare.WorkerDied, match="KeyError: 'no-such-model'"):
        compare._work(spec, {})


def test_missing_opacus_gives_a_notice_and_the_rest_runs(monkeypatch):
    find_spec = compare.importlib.util.find_spec
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: None if name == "opacus" else find_spec(name))
    asked = {}

    def compared(chosen, methods, effort, progress, *_):  # noqa: ARG001
        asked["methods"] = methods
        return compare.Comparison()

    monkeypatch.setattr(compare, "compare", compared)
    done = run("bench", "--models", "tiny-b32", "--json")
    assert done.exit_code == 0
    assert asked["methods"] == ["plain", "clipwise"]
    assert "clipwise[bench]" in done.stderr.replace("\n", " ")
    assert "Opacus is not installed" in json.loads(done.stdout)["notices"][0]


@pytest.mark.filterwarnings("ignore")
def test_opacus_runs_in_both_modes():
    pytest.importorskip("opacus")
    methods = ["plain", "opacus-hooks", "opacus-ghost"]
    results = worker.time_methods("tiny-b32", methods, rounds=1, seconds=0, most=1, least=1)
    assert all(results[m]["time_ratio"] > 0 for m in methods), results


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "cnn-b63"], "models='cnn-b63'"),
        (["--against", "jax"], "against='jax'"),
        (["--against", ","], "names nothing"),
        (["--rounds", "0"], "rounds=0"),
        (["--seconds", "0"], "seconds=0"),
        (["--release", "/no/such/folder"], "release="),
        (["--markdown", "/no/such/folder/x.md"], "markdown="),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(words, message):
    done = run("bench", *words, "--json")
    assert done.exit_code == 2
    assert message in json.loads(done.stdout)["error"]


@pytest.mark.skipif(not memory.can_measure(), reason="needs /proc")
def test_memory_is_the_growth_at_the_peak():
    class Greedy(Recorder):
        def step(self):
            size = 100 if self.count else 150  # MB; the first step takes more
            self.count += 1
            torch.zeros(size * 2**18).add_(1)

    figures = memory.measure(lambda: Greedy("greedy", []))
    assert figures["memory_mb"] == pytest.approx(150, abs=8)
    assert figures["growth_mb"] == pytest.approx(100, abs=8)


@pytest.mark.skipif(not memory.can_measure(), reason="needs /proc")
def test_a_busy_machine_is_noticed():
    spin = "import time\nend = time.time() + 3\nwhile time.time() < end: pass"
    clock = Others()
    other = subprocess.Popen([sys.executable, "-c", spin])
    other.wait()
    assert clock.share() > 0.5 / (os.cpu_count() or 1)


@pytest.mark.skipif(not memory.can_measure(), reason="needs /proc")
def test_processor_time_is_measured_once_and_the_page_says_so(tmp_path, monkeypatch):
    page, clocks = tmp_path / "bench.md", []
    real = compare._work
    monkeypatch.setattr(compare, "_work", lambda spec, *more: clocks.append(spec) or real(spec, *more))
    words = ["bench", "--against", "plain", "--models", "tiny-b32", "--rounds", 3, "--cpu-time", "--markdown", page]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    refused = run(*words)
    assert refused.exit_code
    assert "OMP_NUM_THREADS=1" in refused.output
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(compare, "_others", lambda _: 0.9)  # which asks for no second attempt
    assert run(*words).exit_code == 0
    assert [spec["cpu_time"] for spec in clocks if spec["task"] == "time"] == [True]
    text = page.read_text()
    assert "times are processor time of one thread" in text
    assert "Rounds that were counted: tiny-b32 3." in text
    assert "quiet machine" not in text


def test_own_work_does_not_count_as_others():
    clock, end = Others(), time.process_time() + 1
    while time.process_time() < end:
        pass
    total, busy, own = (b - a for a, b in zip(clock._start, clock._read(), strict=True))
    assert own >= 1
    assert clock.share() == pytest.approx(max(0, busy - own) / total, abs=0.05)


def test_a_disturbed_measurement_is_made_again_and_the_quietest_kept():
    """Whatever its ratio: the first here is the fastest, and is not the one that counts."""
    made = iter(
        [{"clipwise": {"others": o, "time_ratio": r}} for o, r in [(0.5, 1.0), (0.2, 1.4), (0.3, 1.1), (0.0, 9)]]
    )
    assert compare._quietest(lambda: next(made), 3)["clipwise"] == {"others": 0.2, "time_ratio": 1.4}
    assert compare._quietest(lambda: next(made), 3)["clipwise"]["time_ratio"] == 9  # quiet at once: no second attempt
    assert next(made, None) is None


def test_a_release_is_timed_in_a_process_of_its_own_and_compared_round_by_round(tmp_path):
    checkout = Path(__file__).parents[1]
    methods = ["plain", "clipwise", "release"]
    found = worker.time_methods("tiny-b32", methods, rounds=3, seconds=0, most=3, least=3, release=str(checkout))
    assert found["release"]["rounds"] == 3
    assert found["release"]["ours_over_it"] > 0
    assert clipwise.__version__ in found["release"]["note"]
    (tmp_path / "clipwise").mkdir()
    (tmp_path / "clipwise" / "__init__.py").write_text("raise RuntimeError('of another age')")
    broken = worker.time_methods("tiny-b32", methods, rounds=1, seconds=0, most=1, least=1, release=str(tmp_path))
    assert "of another age" in broken["release"]["failed"]
    assert broken["clipwise"]["rounds"] == 1


def test_what_is_slower_than_the_release_is_named():
    row = {"base": "plain", "method": "release", "time_ratio": 1.0}
    rows = [{**row, "model": "quick-b1", "ours_over_it": 0.9}, {**row, "model": "slow-b1", "ours_over_it": 1.2}]
    (note,) = report.notes(compare.Comparison(rows))
    assert "quick-b1 0.90, slow-b1 1.20" in note
    assert "Slower by more than 5%: slow-b1 (1.20)." in note


def test_a_run_that_was_broken_off_goes_on(tmp_path, monkeypatch):
    timed = []

    def work(spec, *_):
        timed.append(spec["model"])
        if spec["model"] == "cnn-b64" and len(timed) == 2:
            raise KeyboardInterrupt
        return {name: {"time_ratio": 1.0, "time_ms": 1.0, "first_step_ms": 1.0} for name in spec["methods"]}

    monkeypatch.setattr(compare, "_work", work)
    monkeypatch.setattr(compare, "_memory", lambda *_: {})
    words = ["--against", "plain", "--models", "tiny-b32,cnn-b64", "--keep", tmp_path / "rows.json", "--json"]
    run("bench", *words)
    assert timed == ["tiny-b32", "cnn-b64"]
    done = run("bench", *words)
    assert timed == ["tiny-b32", "cnn-b64", "cnn-b64"]
    assert [row["model"] for row in json.loads(done.stdout)["rows"]] == ["tiny-b32"] * 2 + ["cnn-b64"] * 2


def test_a_split_batch_is_one_step_and_compared_with_the_whole():
    split = workloads.WORKLOADS["mlp-by64-b512"]
    steps = {"unsplit": 0, "clipwise": 0}
    for name in steps:
        peer = peers.METHODS[name](split)
        whole_step(peer)
        steps[name] = peer.private.run.state.step
        assert peer.parts == (8 if name == "clipwise" else 1)
        assert peer.facts()["steps"] == 1
        peer.close()
    assert steps == {"unsplit": 1, "clipwise": 1}
    figures = {"memory_mb": 10.0, "growth_mb": 10.0}
    results = {"unsplit": {"time_ratio": 1.0, "time_ms": 5.0, **figures}, "clipwise": {"time_ratio": 2.5, **figures}}
    rows = compare._rows(workloads.WORKLOADS["mlp-by16-b512"], results)
    assert rows[1]["time_met"] is False
    (table, _) = report.sections(compare.Comparison(rows))
    assert table.title == "time of a split step / unsplit"
    assert table.cells[0][:4] == ["mlp-by16-b512", "5.0", "2.50", "2.00 NO"]


@pytest.mark.filterwarnings("ignore")
def test_opacus_splits_as_its_memory_manager_does():
    pytest.importorskip("opacus")
    split = workloads.WORKLOADS["mlp-by64-b512"]
    peer = peers.OpacusHooks(split)
    before = [p.detach().clone() for p in peer.model.parameters()]
    moved = []
    for _ in range(peer.parts):
        peer.prepare()
        peer.step()
        moved.append(any((p != b).any() for p, b in zip(peer.model.parameters(), before, strict=True)))
    assert moved == [False] * 7 + [True]


def test_growth_has_a_point_for_every_size(monkeypatch):
    names = [name for axis in growth.AXES for name in axis.sizes.values()]
    assert set(names) <= set(workloads.WORKLOADS)
    figure = {"time_ratio": 1.5, "time_ratio_quartiles": [1.4, 1.6], "time_ms": 2.0}
    monkeypatch.setattr(growth, "clocked", lambda _, methods, *__: dict.fromkeys(methods, figure))
    page = growth.markdown(growth.measure(lambda *_: None), "clipwise bench growth")
    assert page.count("| 2.00 | 1.50 | 1.40 to 1.60 |") == len(names)
    assert "| 10^6 |" in page
    assert "1 threads" in page


@pytest.mark.parametrize("device", ["cuda:77", "meta", "nonsense"])
def test_a_device_that_is_not_there_is_refused_before_anything_runs(device):
    done = run("bench", "--device", device, "--json")
    assert done.exit_code == 2
    assert f"device='{device}'" in json.loads(done.stdout)["error"]


def test_what_runs_elsewhere_is_the_step_alone():
    done = run("bench", "growth", "--device", "cuda", "--json")
    assert done.exit_code == 2
    assert "--device: `clipwise bench growth` has no such option" in json.loads(done.stdout)["error"]


def test_a_workload_goes_to_its_device_and_memory_is_read_there(monkeypatch):
    """On torch's `meta` device, which has shapes and no numbers: model, batch, loss and gradients stay on it."""
    peer = peers.Peer(replace(TINY, device=torch.device("meta")))
    peer.step()
    assert {t.device.type for p in peer.model.parameters() for t in (p, p.grad)} == {"meta"}
    peaks, order = iter([0, 50 << 20, 40 << 20]), []
    monkeypatch.setattr(memory, "peak_bytes", lambda _: order.append("peak") or next(peaks))
    monkeypatch.setattr(memory, "held_bytes", lambda _: 10 << 20)
    figures = memory.measure(lambda: Recorder("", order), torch.device("meta"))
    assert order == ["peak", "", "peak", "", "peak"]
    assert (figures["memory_mb"], figures["growth_mb"]) == (50, 30)


def test_targets_are_judged():
    figures = {"memory_mb": 10.0, "growth_mb": 10.0}
    results = {
        "plain": {"time_ratio": 1.0, **figures},
        "clipwise": {"time_ratio": 1.31, **figures, "memory_mb": 13.0},
        "opacus-hooks": {"time_ratio": 1.2, **figures},
        "opacus-ghost": {"failed": "x"},
    }
    ours = compare._rows(workloads.WORKLOADS["cnn-b64"], results)[1]
    assert (ours["time_met"], ours["memory_met"], ours["faster_than_peers"]) == (False, True, False)
    results["clipwise"]["time_ratio"] = 1.1
    ours = compare._rows(workloads.WORKLOADS["cnn-b64"], results)[1]
    assert (ours["time_met"], ours["faster_than_peers"]) == (True, True)


def test_clipping_methods_beside_fixed(tmp_path):
    """Through the command, with one round: ratios to the step of `fixed` of the same round, and a target for each."""
    page = tmp_path / "methods.md"
    options = ["bench", "--methods", "--models", "small-cnn-b256", "--rounds", "1", "--markdown", str(page), "--json"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {row["clipping"] for row in rows} == set(METHODS) - {clipping.BASE}
    assert all(row["time_ratio"] > 0 for row in rows)  # one round on a shared machine: a closer bound would be chance
    assert {row["clipping"]: row["target"] for row in rows}["oso"] == clipping.VECTOR_TARGET
    assert {row["target"] for row in rows if row["clipping"] != "oso"} == {clipping.TARGET}
    assert "| oso |" in page.read_text()


def test_methods_are_not_compared_with_peers():
    result = CliRunner().invoke(app, ["bench", "--methods", "--against", "opacus"])
    assert result.exit_code == 2
    assert "against" in result.stderr


def test_checks_are_clocked_once_and_given_back(monkeypatch):
    from clipwise.lab.bench import checks
    from clipwise.norms.look.watch import Watch

    plain = Watch.check
    monkeypatch.setattr(checks, "RUNS", 1)
    (row,) = checks.measure(["tiny-b32"], lambda *_: None, steps=4).rows
    assert Watch.check is plain
    assert set(row["share_by_kind"]) >= {
        "collate",
        "model",
        "loss",
        "state",
        "p.grad",
        "parameters",
        "process",
        "precision",
    }
    assert all(value > 0 for kind, value in row["later_us_by_kind"].items() if kind not in ("collate", "loop"))
    assert {"added", "added_at_first_ms", "added_a_later_step_us"} <= set(row)
    assert row["share"] == pytest.approx(sum(row["share_by_kind"].values()))
    clock = checks.Clock()
    clock.now = iter([0.0, 1.0]).__next__  # the outermost alone asks for the time
    clock.around("outer", clock.around("inner", lambda: None))()
    assert clock.read() == {"outer": 1.0}


def test_bad_arguments_of_bench_checks():
    assert run("bench", "checks", "--rounds", 3).exit_code == 2
    assert run("bench", "checks", "--models", "nonsense").exit_code == 2


def test_two_processes_hand_over_the_gradient_and_sixteen_bytes():
    found = ranks._start(2, 2)
    numbers = sum(p.numel() for p in ranks._model().parameters())
    assert found.plain_bytes == 4 * numbers
    assert found.private_bytes == found.plain_bytes + 16, "two numbers in which they agree"
    assert len(found.plain) == len(found.private) == 2


def test_scale_says_what_was_measured_and_what_was_computed():
    found = scale.measure(lambda *_: None, quick=True)
    rows = {(row["what"], row["size"]): row for row in found.rows}
    for what in ("poisson", "fixed-size", "noise"):
        assert rows[what, 10**6]["measured"]
        assert not rows[what, 10**7]["measured"]
        assert rows[what, 10**10]["seconds"] == pytest.approx(10**4 * rows[what, 10**6]["seconds"])
    shown = scale.markdown(found, "clipwise bench scale --quick")
    assert " ms m |" in shown
    assert " s c |" in shown
    assert all(rows["accounting", n]["measured"] for n in scale.RECORDS)
