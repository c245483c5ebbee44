"""Name an epsilon, tune nothing: what is measured before training is noised, charged in one budget, and put back.

The strongest test here replaces every noised sum by numbers that have nothing to do with the data: whatever then still differs between
two data sets has gone past the noise.
"""

import copy
import json
import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.accounting import Ledger, StepEvent, epsilon
from clipwise.automatic import prepare as prepare_room
from clipwise.automatic import race, rule
from clipwise.automatic.choice import Stated, choose
from clipwise.automatic.inputs import Seen, can_be_centred, first_layer, seen_inputs
from clipwise.automatic.inputs import _cut_sum as cut_sum
from clipwise.automatic.inputs import _histogram as sizes
from clipwise.automatic.measure import histogram, one_a_row
from clipwise.automatic.prepare import phases, prepare
from clipwise.automatic.task import inferred, is_linear, of_batches, of_outputs
from clipwise.keystream import Key
from clipwise.loop.keeping import Keeping
from clipwise.losses import make_loss
from clipwise.mechanism import Mechanism, Performance
from clipwise.noise import GaussianNoise
from clipwise.plans import SAMPLING
from clipwise.run import Run

RECORDS, LENGTH = 400, {"epochs": 5, "expected_batch_size": 100}  # 20 steps
PLAN = rule.measuring(rule.gaussian_mu(3.0, 1e-5), 20, RECORDS)
RACED = sum(each.rates * each.steps for each in PLAN.rounds)
MEASURED = 4 + RACED + len(PLAN.rounds)  # histograms, steps of the race, scores
SHORT = {"epsilon": 3.0, "delta": 1e-5, "method": "auto", "seed": 1, **LENGTH}


def network(seed=0, out=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, out))


def records(seed=0, size=RECORDS):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, generator=draw)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def values(seed=0):
    x = records(seed).tensors[0]
    return TensorDataset(x, x[:, :1] * 2 + 1)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Drawn:
    """Every call for noise, in order: its deviation, and what the ledger held by then."""

    def __init__(self, monkeypatch):
        self.stds, self.shapes = [], []
        plain = GaussianNoise.add

        def add(noise, sums, std, *, step):
            self.stds.append(std)
            self.shapes.append(sum(s.numel() for s in sums))
            return plain(noise, sums, std, step=step)

        monkeypatch.setattr(GaussianNoise, "add", add)


# -- one budget


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_all_of_it_is_inside_the_target(accountant, tmp_path):
    done = clipwise.fit(network(), records(), accountant=accountant, ledger=tmp_path / "ledger.jsonl", **SHORT)
    book = Ledger.read(tmp_path / "ledger.jsonl")
    assert sum(event.count for event in book.events()) == MEASURED + 20 == done.statement.steps
    assert done.statement.planned_steps == done.statement.steps
    spent = epsilon(book.events(), 1e-5, accountant).value
    assert 2.99 < spent <= 3.0
    assert spent == pytest.approx(done.epsilon)


def test_noise_and_charges_are_the_same_events(monkeypatch, tmp_path):
    """By hand: std 1 x h for each histogram, the length of a record x h for the sum of inputs, k sigma for steps of a round, sqrt(rates) x s for its scores, sigma for the rest."""
    drawn = Drawn(monkeypatch)
    done = clipwise.fit(network(), records(), ledger=tmp_path / "ledger.jsonl", **SHORT)
    sigma = done.noise_multiplier
    looks = [PLAN.input_noise, PLAN.centre_noise, PLAN.input_noise, PLAN.histogram_noise]
    expected = [(1.0, noise, 1) for noise in looks]
    by_hand = [looks[0], math.sqrt(6) * looks[1], *looks[2:]]  # each of 6 inputs is cut to a length of sqrt(6)
    for rates, steps, noise, scores, part in PLAN.rounds:
        by_hand += [noise * sigma] * (rates * steps) + [math.sqrt(rates) * scores]
        expected += [(0.25 * part, noise * sigma, rates * steps), (1.0, scores, 1)]
    assert drawn.stds == pytest.approx([*by_hand, *[sigma] * 20])
    events = [(e.sample_rate, e.noise_multiplier, e.count) for e in Ledger.read(tmp_path / "ledger.jsonl").events()]
    assert totals(events) == totals([*expected, (0.25, sigma, 20)])


def totals(events):
    counts = Counter()
    for rate, noise, count in events:
        counts[round(rate, 9), round(noise, 9)] += count
    return counts


def test_with_a_schedule_of_the_noise_the_race_stays_at_its_own(monkeypatch, tmp_path):
    drawn = Drawn(monkeypatch)
    done = clipwise.fit(
        network(), records(), ledger=tmp_path / "ledger.jsonl", **SHORT, schedule="step:decay=0.5,every=2"
    )
    sigma = done.noise_multiplier
    first = PLAN.rounds[0]
    raced = first.rates * first.steps
    assert drawn.stds[4 : 4 + raced] == pytest.approx([first.noise * sigma] * raced)
    assert drawn.stds[MEASURED:] == pytest.approx([sigma] * 8 + [sigma / math.sqrt(2)] * 8 + [sigma / 2] * 4)
    assert 2.98 < done.epsilon <= 3.0


def test_every_release_is_charged_before_its_noise(monkeypatch):
    balance = []
    plain_charge, plain_add = Ledger.charge, GaussianNoise.add

    def charge(book, *args, **kwargs):
        plain_charge(book, *args, **kwargs)
        balance.append(1)

    def add(noise, *args, **kwargs):
        balance.append(-1)
        assert sum(balance) == 0
        return plain_add(noise, *args, **kwargs)

    monkeypatch.setattr(Ledger, "charge", charge)
    monkeypatch.setattr(GaussianNoise, "add", add)
    clipwise.fit(network(), records(), **SHORT)
    assert len(balance) == 2 * (MEASURED + 20)


def test_no_two_releases_share_their_noise(monkeypatch):
    seen = []
    plain = Key.keystream
    monkeypatch.setattr(
        Key, "keystream", lambda key, **at: (seen.append((key.secret, *sorted(at.items()))), plain(key, **at))[1]
    )
    clipwise.fit(network(), records(), **SHORT)
    assert len(seen) > 2 * 30  # noise and samples
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("make", [records, values])
def test_what_is_decided_depends_on_the_data_through_noised_sums_alone(monkeypatch, make):
    """With the noised sums replaced by numbers of our own, two data sets give the same run, bit for bit."""
    calls = []

    def add(_noise, sums, _std, *, step):
        calls.append(step)
        draw = torch.Generator().manual_seed(len(calls))
        return tuple(
            200 * torch.rand(s.shape, generator=draw, dtype=s.dtype).sub_(0.3 * (s.numel() > 60)) for s in sums
        )

    monkeypatch.setattr(GaussianNoise, "add", add)
    found = []
    for seed in (0, 1):
        calls.clear()
        model = network(out=3 if make is records else 1)
        lines = []
        done = clipwise.fit(model, make(seed), on_step=lambda line, _, lines=lines: lines.append(line), **SHORT)
        found.append((weights(model), done.method, done.statement.automatic, lines))
    (one, method, said, lines), (other, *rest) = found
    assert torch.equal(one, other)
    assert [method, said, lines] == rest
    assert method.median_norm is not None
    assert lines[-1]["lr"] != lines[0]["lr"]  # the rate has risen, so that the controller was at work


# -- the parts


@pytest.mark.parametrize("bins", [rule.NORMS, rule.LOSSES])
def test_a_record_moves_a_histogram_by_one(bins):
    norms = torch.tensor([0.0, 1e-30, 1.0, 3.0, 1e30, math.inf, math.nan], dtype=torch.float64)
    whole = histogram(norms, bins)
    assert whole.sum() == 5  # what is not finite is in no bin
    for i in range(len(norms)):
        without = histogram(torch.cat([norms[:i], norms[i + 1 :]]), bins)
        assert torch.linalg.vector_norm(whole - without) <= 1


def test_scores_are_bounded_whatever_the_task_says():
    wild = torch.tensor([-5.0, 0.25, 7.0, math.nan, math.inf, -math.inf])
    assert race.bounded(wild).tolist() == [0, 0.25, 1, 0, 1, 0]
    assert race.bounded(rule.score_of_losses(wild, 0.25)).tolist() == pytest.approx([1, 0.5, 0.25 / 7.25, 0, 0, 1])
    with pytest.raises(clipwise.ClipwiseError, match="one number a row"):
        one_a_row(wild.sum(), 6)


def prepared(model, **options):
    loader = DataLoader(records(), batch_size=50)
    mechanism = Mechanism(**{**SHORT, **options})
    choice = choose(mechanism, Performance(), Stated(RECORDS))
    task = of_outputs(model, make_loss("cross-entropy"), loader)
    return prepare(model, loader, choice, task, ledger=None, earlier=())


def test_everything_is_put_back():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    model[1].eval()
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    torch.manual_seed(5)
    coin = torch.rand(1)
    torch.manual_seed(5)
    prepared(model)
    assert torch.equal(torch.rand(1), coin)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert "forward" not in model.__dict__


def test_the_race_runs_each_rate_from_the_first_weights(monkeypatch):
    starts = []
    plain = Run.take_steps

    def take_steps(run, count, loss):
        starts.append(
            (weights(run.model), len(run.stepper.optimizer.state), run.stepper.optimizer.param_groups[0]["lr"])
        )
        return plain(run, count, loss)

    monkeypatch.setattr(Run, "take_steps", take_steps)
    model = network()
    first = weights(model)
    found = prepared(model)
    assert len(starts) == sum(each.rates for each in PLAN.rounds)
    assert all(torch.equal(start, first) and not state for start, state, _ in starts)
    assert [rate for *_, rate in starts] == sorted({rate for *_, rate in starts})
    assert found.measured.epsilon() < 3.0


@pytest.mark.parametrize(("sampling", "rate"), [("poisson", 0.25 / 3), ("fixed-size", 33 / 400)])
def test_batches_of_the_race_are_drawn_at_the_rate_that_is_charged(monkeypatch, sampling, rate):
    """A third of the training's; a whole number of records where each batch has the same."""
    drawn = Counter()
    kind = SAMPLING[sampling].sampler
    plain = kind.draw
    monkeypatch.setattr(
        kind, "draw", lambda own, key, step: (drawn.update([own.sample_rate]), plain(own, key, step))[1]
    )
    found = prepared(network(), sampling=sampling)
    charged = {e.sample_rate: e.count for e in found.measured.ledger.events() if e.sample_rate < 1}
    assert charged == {rate: 25}
    assert {rate: count for rate, count in drawn.items() if rate < 1} == charged


def test_rounds_are_data(monkeypatch):
    """Two rounds, the second with fewer rates and other noise: events, charges and results follow."""

    def measuring(_mu, _steps, _records):
        return rule.Measuring(1.0, 11.0, 13.0, 9.0, (rule.Round(4, 2, 4.0, 8.0), rule.Round(2, 3, 2.0, 7.0)))

    asked = []

    def race_rates(plan, _middle, results):
        asked.append(len(results))
        return tuple(0.01 * 2**k for k in range(plan.rounds[len(results)].rates))

    monkeypatch.setattr(rule, "measuring", measuring)
    monkeypatch.setattr(rule, "race_rates", race_rates)
    found = prepared(network())
    sigma = found.measured.plan.noise_multiplier
    assert asked == [0, 1]
    assert set(found.measured.ledger.events()) == {
        StepEvent(1.0, 11.0, 2),
        StepEvent(1.0, 13.0, 1),
        StepEvent(1.0, 9.0, 1),
        StepEvent(0.25, 4 * sigma, 8),
        StepEvent(1.0, 8.0, 1),
        StepEvent(0.25, 2 * sigma, 6),
        StepEvent(1.0, 7.0, 1),
    }


def test_what_measuring_costs_is_known_from_public_facts():
    from clipwise.plans import Facts

    mechanism = Mechanism(**SHORT)
    facts = Facts(RECORDS, 83, 100)
    assert sum(p.steps for p in phases(mechanism, facts)) == RACED
    assert phases(mechanism, facts) == phases(mechanism, facts._replace(parameters=10**6))


# -- what is stated wins


def events_of(tmp_path, **options):
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    done = clipwise.fit(network(), records(), ledger=path, **{**SHORT, **options})
    return done, Ledger.read(path).events()


def test_an_optimizer_of_the_users_own_keeps_its_rate_and_nothing_is_measured(tmp_path):
    done, events = events_of(tmp_path, optimizer=lambda p: torch.optim.SGD(p, lr=0.25))
    assert [e.count for e in events] == [20]
    assert done.history[-1]["lr"] == 0.25
    assert any("nothing was measured" in line for line in done.statement.automatic)


def test_lr_auto_sets_the_rate_of_the_users_optimizer(tmp_path):
    done, events = events_of(tmp_path, optimizer=lambda p: torch.optim.SGD(p, lr=99.0, momentum=0.9), lr="auto")
    assert sum(e.count for e in events) == MEASURED + 20
    first = rule.sgd_rate(done.method.rate, done.noise_multiplier / 100, 0.9)
    assert done.history[0]["lr"] == pytest.approx(first)  # before the rate may rise


def test_a_stated_rate_is_kept_and_nothing_is_measured(tmp_path):
    done, events = events_of(tmp_path, lr=0.01)
    assert [e.count for e in events] == [20]
    assert {line["lr"] for line in done.history} == {0.01}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lr": "fast"}, "lr='fast'"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": "auto", "method": "fixed"}, "method='auto'"),
        ({"lr": 0.1, "optimizer": torch.optim.Adam}, "a rate of its own"),
        ({"lr": "auto", "optimizer": torch.optim.Adagrad}, "Adagrad"),
        ({"lr_schedule": "cosine"}, "sets the learning rate itself"),
        ({"size": "private", "expected_batch_size": None}, "expected_batch_size"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_spent(options, says, tmp_path):
    with pytest.raises(clipwise.BadArgument, match=says):
        clipwise.fit(network(), records(), ledger=tmp_path / "ledger.jsonl", **{**SHORT, **options})
    assert not (tmp_path / "ledger.jsonl").exists()


def test_nothing_but_an_epsilon():
    data = records(size=1000)
    done = clipwise.fit(network(), data, epsilon=3.0, method="auto", effort="quick", test=records(7), seed=0)
    said = "\n".join(done.statement.automatic)
    assert done.delta == 1e-5
    assert done.statement.expected_batch_size == 50
    assert done.history[-1]["step"] == 200
    assert done.accuracy > 0.65  # half of the records are of one class
    for word in (
        "delta 1e-05",
        "expected batch size 50",
        "10 epochs",
        "learning rate",
        "median norm",
        "Adam",
        "without it",
    ):
        assert word in said, word
    assert "## What was automatic" in done.statement.to_markdown()


def test_a_threshold_that_is_stated_clips_at_it(tmp_path):
    done, _ = events_of(tmp_path, threshold=0.5)
    assert done.method.threshold == 0.5
    assert done.method_state.threshold == 0.5


@pytest.mark.parametrize("left", [0.0, 1.0])
def test_what_the_race_left_of_the_losses_decides_whether_gradients_of_values_keep_their_sizes(monkeypatch, left):
    asked, raced = [], []
    plain = race.race
    monkeypatch.setattr(rule, "left_over", lambda *of: asked.append(of) or left)
    monkeypatch.setattr(prepare_room, "race", lambda run, *more: raced.append(run.stepper.plan) or plain(run, *more))
    done = clipwise.fit(network(out=1), values(), **SHORT)
    median = done.method.median_norm
    assert done.method.gamma == rule.gamma_for("values", median, RECORDS * PLAN.mu, left)
    assert raced[0].method.gamma == rule.gamma_for("values", median, RECORDS * PLAN.mu)
    ((counts, std, typical, best),) = asked
    assert len(counts) == rule.BINS
    assert min(counts) < 0  # with its noise
    assert std == pytest.approx(math.sqrt(2) * PLAN.histogram_noise)
    assert f"typical loss there: {typical:.3g}" in "\n".join(done.statement.automatic)
    assert f"{best:.1%}" in "\n".join(done.statement.automatic)
    assert "squared-error" in "\n".join(done.statement.automatic)


def r_squared(shift, scale):
    """Of a run that is told nothing of the unit of its targets."""
    draw, model = torch.Generator().manual_seed(0), network(out=1)
    x = torch.randn(4000, 6, generator=draw)
    y = shift + scale * (x[:, :1] + torch.sin(2 * x[:, 1:2]) + 0.3 * torch.randn(4000, 1, generator=draw)) / 1.2
    done = clipwise.fit(model, TensorDataset(x[:3000], y[:3000]), epsilon=3.0, effort="quick", seed=0)
    with torch.no_grad():
        left = (model(x[3000:]) - y[3000:]).square().mean() / y[3000:].var()
    return 1 - float(left), "\n".join(done.statement.automatic)


def test_values_are_learned_in_whatever_unit_they_are():
    """Scores of exp(-loss) gave 0.35 for 30 y and -9.5 for 100 + 30 y, where y gave 0.89."""
    plain, said = r_squared(0, 1)
    scaled, _ = r_squared(0, 30)
    moved, said_of_moved = r_squared(100, 30)
    assert plain > 0.6
    assert scaled > plain - 0.1
    assert moved > plain - 0.25
    assert "targets are far" not in said
    assert "targets are far" in said_of_moved


def test_both_histograms_of_values_are_paid_for(monkeypatch, tmp_path):
    """A record is in one bin of each: deviation sqrt(2) h, for an event of h."""
    drawn, path = Drawn(monkeypatch), tmp_path / "ledger.jsonl"
    clipwise.fit(network(out=1), values(), ledger=path, **SHORT)
    assert drawn.shapes[3] == 2 * rule.BINS
    assert drawn.stds[3] == pytest.approx(math.sqrt(2) * PLAN.histogram_noise)
    assert PLAN.histogram_noise in {event.noise_multiplier for event in Ledger.read(path).events()}


def test_a_stated_noise_measures_at_multiples_of_it(tmp_path):
    done, events = events_of(tmp_path, epsilon=None, noise_multiplier=2.0)
    noises = {e.noise_multiplier: e.count for e in events if e.sample_rate < 1}
    assert noises == {2.0: 20, 2.0 * PLAN.rounds[0].noise: RACED}
    assert done.epsilon == pytest.approx(epsilon(events, 1e-5, "best").value)


def test_without_privacy_nothing_is_measured():
    model = network()
    done = clipwise.fit(model, records(), **{**SHORT, "epsilon": math.inf, "delta": None})
    assert not done.statement.private
    assert {line["lr"] for line in done.history} == {rule.PLAIN_RATE}
    assert any("without privacy nothing is measured" in line for line in done.statement.automatic)


def test_a_private_size_is_counted_once_and_used_for_the_scores(tmp_path):
    done, events = events_of(tmp_path, size="private")
    assert sum(e.count for e in events) == done.statement.steps
    assert sum(e.count for e in events if e.sample_rate == 1) == 1 + MEASURED - RACED
    assert done.epsilon <= 3.0


# -- kills


def test_killed_while_it_races_it_begins_again_and_pays_again(monkeypatch, tmp_path):
    path = tmp_path / "ledger.jsonl"
    plain = race.total_score
    asked = []

    def die(run, task, look):
        asked.append(run)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return plain(run, task, look)

    monkeypatch.setattr(race, "total_score", die)
    model = network()
    first = weights(model)
    with pytest.raises(KeyboardInterrupt):
        clipwise.fit(model, records(), ledger=path, **SHORT)
    assert torch.equal(weights(model), first)
    lost = sum(e.count for e in Ledger.read(path).events())
    assert lost == 4 + 3 * PLAN.rounds[0].steps
    again = clipwise.fit(model, records(), ledger=path, **SHORT)
    plainly = clipwise.fit(network(), records(), **SHORT)
    assert sum(e.count for e in Ledger.read(path).events()) == lost + MEASURED + 20
    assert 2.99 < again.epsilon <= 3.0
    assert again.noise_multiplier > plainly.noise_multiplier


def test_killed_while_it_trains_it_goes_on_bit_for_bit_and_measures_nothing_again(tmp_path):
    def run(model, name, kill=None, resume=None):
        def on_step(line, _):
            if line["step"] == kill:
                raise KeyboardInterrupt

        return clipwise.fit(
            model,
            records(),
            ledger=tmp_path / f"{name}.jsonl",
            checkpoints=Keeping(tmp_path / name, every_steps=5),
            resume=resume,
            on_step=on_step,
            **SHORT,
        )

    whole, parts = network(), network()
    done = run(whole, "whole")
    with pytest.raises(KeyboardInterrupt):
        run(parts, "parts", kill=17)
    fresh = network(3)
    again = run(fresh, "parts", resume=tmp_path / "parts")
    assert torch.equal(weights(whole), weights(fresh))
    assert again.epsilon == done.epsilon
    assert again.method == done.method
    assert sum(e.count for e in Ledger.read(tmp_path / "parts.jsonl").events()) == MEASURED + 20
    assert any("not measured again" in line for line in again.statement.automatic)


def test_without_a_seed_a_resumed_run_never_has_a_smaller_epsilon(tmp_path):
    options = {**SHORT, "seed": None}
    path, kept = tmp_path / "ledger.jsonl", tmp_path / "kept"

    def on_step(line, _):
        if line["step"] == 17:
            raise KeyboardInterrupt

    keeping = Keeping(kept, every_steps=5)
    with pytest.raises(KeyboardInterrupt):
        clipwise.fit(network(), records(), ledger=path, checkpoints=keeping, on_step=on_step, **options)
    done = clipwise.fit(network(), records(), ledger=path, checkpoints=keeping, resume=kept, **options)
    events = Ledger.read(path).events()
    assert sum(e.count for e in events) == MEASURED + 20 + 2  # steps 15 and 16 again
    assert epsilon(events, 1e-5, "best").value == pytest.approx(done.epsilon)
    assert done.epsilon <= 3.0


def test_what_was_found_is_on_record(tmp_path):
    done, _ = events_of(tmp_path)
    (path,) = tmp_path.glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    opened = [line["run"] for line in lines if line["kind"] == "open"]
    assert opened[-1]["method_options"]["rate"] == done.method.rate
    notes = [line["note"]["release"] for line in lines if line["kind"] == "steps" and line["note"]]
    assert [note.split()[0] for note in notes] == [
        "histogram",
        "sum",
        "histogram",
        "histogram",
        *["scores"] * len(PLAN.rounds),
    ]


# -- losses


def test_a_loss_that_takes_a_mean_is_asked_row_by_row():
    model = network(out=1)
    loader = DataLoader(values(), batch_size=50)
    mean = of_outputs(model, nn.functional.mse_loss, loader)
    batch = next(iter(loader))
    by_hand = (model(batch[0]) - batch[1]).square().flatten()
    assert mean.kind == "values"
    assert torch.allclose(mean.row_losses(batch), by_hand)


def test_inferred_and_given_losses():
    loader = DataLoader(records(), batch_size=50)
    assert inferred(network(), loader).kind == "classes"
    assert inferred(network(out=1), DataLoader(values(), batch_size=50)).kind == "values"
    with pytest.raises(clipwise.BadArgument, match=r"loss=None.*lr="):
        inferred(network(out=3), DataLoader(values(), batch_size=50))  # outputs of another shape

    def own(model, batch):
        x, y = batch
        out = model(x)
        return nn.functional.cross_entropy(out, y, reduction="none"), (out.argmax(1) == y).float()

    assert of_batches(network(), own, loader).kind == "classes"
    with pytest.raises(clipwise.BadArgument, match="one number a row"):
        of_batches(network(), lambda model, batch: own(model, batch)[0].mean(), loader)


def test_a_delta_is_filled_in_and_said_but_not_guessed_below_the_loops():
    done = clipwise.fit(network(), records(), **{**SHORT, "method": "fixed", "delta": None})
    assert done.delta == 1e-5
    assert any("delta 1e-05" in line for line in done.statement.automatic)
    model = network()
    with pytest.raises(clipwise.BadArgument, match="delta=None"):
        Run(model, torch.optim.SGD(model.parameters(), lr=1), DataLoader(records()), **{**SHORT, "delta": None})


# -- the drop-in


def loop(private, take=None):
    for _ in private.epochs():
        for inputs, targets in private.loader:
            private.optimizer.zero_grad()
            private.backward(nn.functional.cross_entropy(private.model(inputs), targets, reduction="none"))
            private.optimizer.step()
            if private.step == take:
                return


def test_attach_with_an_epsilon_alone():
    model = network()
    private = clipwise.attach(model, loader=DataLoader(records(size=1000), batch_size=20), epsilon=3.0, seed=0)
    assert private.run.plan.expected_batch_size == 100
    assert private.run.performance.max_physical_batch == 20  # what the loader says fits into memory
    assert len(private.epochs()) == 20
    loop(private)
    last = weights(model)
    with private.averaged():
        average = weights(model)
    assert not torch.equal(last, average)
    assert torch.equal(weights(model), last)
    private.detach()
    assert torch.equal(weights(model), average)
    private.detach()
    assert torch.equal(weights(model), average)
    assert 2.99 < private.epsilon() <= 3.0
    said = "\n".join(private.statement().automatic)
    for word in ("loader's batch size, 20", "inferred", "private.detach()", "learning rate"):
        assert word in said, word
    x, y = records(7).tensors
    assert (model(x).argmax(1) == y).float().mean() > 0.65


def test_attach_and_fit_find_the_same_and_train_the_same():
    one, other = network(), network()
    done = clipwise.fit(one, records(), **SHORT)
    private = clipwise.attach(other, loader=DataLoader(records(), batch_size=100), **SHORT)
    loop(private)
    private.detach()
    assert private.run.plan.method == done.method
    assert torch.equal(weights(one), weights(other))


def test_a_resumed_loop_measures_nothing_again(tmp_path):
    def attach(model, name, **more):
        loader = DataLoader(records(), batch_size=100)
        return clipwise.attach(model, loader=loader, ledger=tmp_path / f"{name}.jsonl", **SHORT, **more)

    whole, cut, again = network(), network(), network(9)
    private = attach(whole, "whole")
    loop(private)
    private.detach()
    killed = attach(cut, "cut")
    loop(killed, take=12)
    killed.save(tmp_path / "kept")
    killed.detach()
    private = attach(again, "cut", resume=tmp_path / "kept")
    assert private.step == 12
    loop(private)
    private.detach()
    assert torch.equal(weights(whole), weights(again))
    assert sum(e.count for e in Ledger.read(tmp_path / "cut.jsonl").events()) == MEASURED + 20


def test_a_loss_that_cannot_be_inferred_is_asked_for_before_anything_is_spent(tmp_path):
    x, y = records().tensors
    named = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    loader, path = DataLoader(named, batch_size=100), tmp_path / "ledger.jsonl"
    with pytest.raises(clipwise.BadArgument, match=r"loss=.*lr="):
        clipwise.attach(network(), loader=loader, ledger=path, **SHORT)
    assert not path.exists()

    def loss(model, batch):
        output = model(batch["x"])
        right = output.argmax(1) == batch["y"]
        return nn.functional.cross_entropy(output, batch["y"], reduction="none"), right.float()

    private = clipwise.attach(network(), loader=loader, loss=loss, ledger=path, **SHORT)
    assert private.run.plan.method.rate is not None
    private.detach()


def test_attach_with_an_optimizer_of_ones_own_measures_nothing():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    private = clipwise.attach(model, optimizer, DataLoader(records(), batch_size=100), **SHORT)
    assert private.run.ledger.events() == []
    loop(private)
    last = weights(model)
    private.detach()
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert torch.equal(weights(model), last)  # nothing is averaged
    assert any("nothing was measured" in line for line in private.statement().automatic)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loader": None}, "loader="),
        ({"method": "fixed"}, "optimizer=None"),
        ({"scheduler": True}, "lr_scheduler"),
    ],
)
def test_what_attach_refuses(options, says):
    model, options = network(), {"loader": DataLoader(records(), batch_size=100), **SHORT, **options}
    if options.pop("scheduler", False):
        options["optimizer"] = torch.optim.SGD(model.parameters(), lr=1.0)
        options |= {"lr": "auto", "lr_scheduler": torch.optim.lr_scheduler.StepLR(options["optimizer"], 1)}
    with pytest.raises(clipwise.BadArgument, match=says):
        clipwise.attach(model, **options)


# -- what the statement says of it


def test_the_statement_names_what_was_stated_and_excepts_the_rate_that_was_found(tmp_path):
    done, _ = events_of(tmp_path, gamma=0.5)
    assert (
        done.statement.automatic.count(
            "stated, and so not automatic: epsilon = 3, delta = 1e-05, epochs = 5, expected_batch_size = 100, gamma = 0.5"
        )
        == 1
    )  # and not the seed
    words = done.statement.to_markdown()
    assert "hyper-parameters (other than the learning rate, whose choice epsilon covers)" in words
    assert "noise multiplier" in "\n".join(
        line for line in done.statement.automatic if "inside epsilon" in line
    )  # the price
    own, _ = events_of(tmp_path, optimizer=lambda p: torch.optim.SGD(p, lr=0.25))
    assert any(line.endswith("optimizer = SGD") for line in own.statement.automatic)
    assert "other than" not in own.statement.to_markdown()  # a rate of the user's own is not covered


# -- what a model is, and what held a run back


def test_what_is_linear_in_its_trained_parameters_is_seen_on_made_inputs():
    x, words = torch.zeros(1, 6), torch.zeros(1, 5, dtype=torch.long)
    frozen = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    assert not is_linear(frozen, x)
    frozen[0].requires_grad_(False)
    assert is_linear(frozen, x)
    assert is_linear(nn.Linear(6, 3), x)
    assert is_linear(nn.EmbeddingBag(9, 3), words)
    assert not is_linear(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), x)  # of the inputs, and not of the parameters
    assert not is_linear(nn.Sequential(nn.Linear(6, 3), nn.Tanh()), x)
    assert not is_linear(nn.Bilinear(6, 6, 3), x)  # takes more than one input: not known


def test_a_run_says_in_one_sentence_what_held_it_back():
    done = clipwise.fit(network(), records(), **SHORT)
    assert sum("the run was limited by" in line for line in done.statement.automatic) == 1
    assert any(
        "limited by noise" in line
        for line in clipwise.fit(network(), records(), **{**SHORT, "epsilon": 0.1}).statement.automatic
    )


def test_inputs_that_are_too_small_to_matter_are_said():
    """Where the first layer is one whose inputs are not scaled."""
    x, y = records().tensors
    for scale, said in ((0.01, True), (3.0, False)):
        torch.manual_seed(0)
        model = nn.Sequential(Doubled(6, 8), nn.Tanh(), nn.Linear(8, 3))
        done = clipwise.fit(model, TensorDataset(scale * x, y), **{**SHORT, "epsilon": 8.0})
        assert any("Scale inputs" in line for line in done.statement.automatic) is said


class Doubled(nn.Linear):
    """A layer of the user's own: nothing says that its outputs are linear in its inputs."""


# -- the scale of the inputs


def scaled_records(factor, seed=0, size=3000):
    x, y = records(seed, size).tensors
    return TensorDataset(factor * x, y)


@pytest.mark.parametrize(("factor", "scale"), [(1.0, None), (0.01, 64.0), (1000.0, 2.0**-10)])
def test_badly_scaled_inputs_are_trained_on_as_well(factor, scale):
    """Without it inputs x 0.01 stay where the largest class is, at one half. The model that comes back takes them as they are."""
    done = clipwise.fit(
        network(), scaled_records(factor), epsilon=3.0, effort="quick", seed=0, test=scaled_records(factor, 7)
    )
    assert done.method.input_scale == scale
    assert done.accuracy > 0.85
    assert any("badly scaled" in line for line in done.statement.automatic) is (scale is not None)
    assert not any("Scale inputs" in line for line in done.statement.automatic)
    assert not any(m._forward_pre_hooks for m in done.model.modules())
    x, y = scaled_records(factor, 7).tensors
    assert float((done.model(x).argmax(1) == y).float().mean()) == pytest.approx(done.accuracy)


def test_a_scale_in_the_weights_is_the_scale_of_the_inputs_bit_for_bit():
    model, x = network(), torch.randn(20, 6)
    scaled = Seen(model, "0", 2.0**-10)
    out = model(x)
    assert not torch.equal(out, network()(x))
    scaled.fold()
    scaled.fold()
    assert torch.equal(model(x), out)
    with seen_inputs(model, "0", 4.0):
        assert not torch.equal(model(x), out)
    assert torch.equal(model(x), out)


@pytest.mark.parametrize("assign", [False, True])
def test_weights_saved_in_the_middle_take_inputs_as_they_are(assign):
    """In another model, in the same one, and after the scale is in its weights; what was saved is not touched by a load."""
    model, fresh, x = network(), network(), torch.randn(20, 6)
    scaled = Seen(model, "0", 64.0)
    out, kept = model(x), model.state_dict()
    assert torch.equal(kept["0.weight"], 64 * model[0].weight)
    fresh.load_state_dict(kept)
    assert torch.equal(fresh(x), out)
    whole = nn.ModuleDict({"inner": model})  # saved as a part of another
    assert torch.equal(whole.state_dict()["inner.0.weight"], kept["0.weight"])
    before = copy.deepcopy(kept)
    with torch.no_grad():
        model[0].weight.zero_()
    model.load_state_dict(kept, assign=assign)
    assert all(torch.equal(kept[name], before[name]) for name in kept)
    assert torch.equal(model(x), out)
    scaled.fold()
    assert torch.equal(model(x), out)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.load_state_dict(before)
    assert torch.equal(model(x), out)


def test_a_scaled_run_goes_on_and_gives_its_weights_back_once(tmp_path):
    small = {**SHORT, "epsilon": 8.0}
    loader = DataLoader(scaled_records(0.01, size=RECORDS), batch_size=100)
    whole, model, again = network(), network(), network()
    private = clipwise.attach(whole, loader=loader, ledger=tmp_path / "whole.jsonl", **small)
    loop(private)
    with private.averaged():
        before = whole(loader.dataset.tensors[0])
        saved = network()
        saved.load_state_dict(whole.state_dict())
    assert torch.equal(saved(loader.dataset.tensors[0]), before)
    private.detach()
    assert torch.equal(whole(loader.dataset.tensors[0]), before)
    assert private.run.plan.method.input_scale == 64.0
    private = clipwise.attach(model, loader=loader, ledger=tmp_path / "cut.jsonl", **small)
    loop(private, take=12)
    private.save(tmp_path / "kept")
    private.detach()
    private = clipwise.attach(again, loader=loader, ledger=tmp_path / "cut.jsonl", resume=tmp_path / "kept", **small)
    loop(private)
    private.detach()
    assert torch.equal(weights(whole), weights(again))


def columns(seed=0, size=3000):
    """In 0..1, as the columns of a file: their mean is three times as long as what differs between records."""
    x, y = records(seed, size).tensors
    return TensorDataset((x.clamp(-3, 3) + 3) / 6, y)


def test_inputs_with_a_mean_are_centred(monkeypatch):
    """The model that comes back takes them as they are."""
    short = {"epsilon": 1.0, "effort": "quick", "seed": 0, "test": columns(7)}
    done = clipwise.fit(network(), columns(), **short)
    assert any("inputs have a mean" in line for line in done.statement.automatic)
    assert done.method.input_scale == 8  # what is left has a length of about .4
    assert not any(m._forward_pre_hooks for m in done.model.modules())
    x, y = columns(7).tensors
    assert float((done.model(x).argmax(1) == y).float().mean()) == pytest.approx(done.accuracy, abs=1e-3)
    monkeypatch.setattr(rule, "input_mean", lambda *_: None)
    assert done.accuracy > 0.05 + clipwise.fit(network(), columns(), **short).accuracy


def test_a_mean_in_the_bias_is_that_of_the_inputs():
    model, x, mean = network(), torch.rand(20, 6), torch.arange(6.0)
    seen = Seen(model, "0", 4.0, mean)
    out, kept = model(x), {name: value.clone() for name, value in model.state_dict().items()}
    assert torch.allclose(out, network()(4 * x - mean))
    fresh = network()
    fresh.load_state_dict(kept)
    assert torch.allclose(fresh(x), out, atol=1e-5)
    bias = model[0].bias.detach().clone()
    model.load_state_dict(kept)
    assert torch.allclose(model[0].bias, bias, atol=1e-5)
    seen.fold()
    seen.fold()
    assert torch.allclose(model(x), out, atol=1e-5)
    assert all(torch.allclose(value, kept[name], atol=1e-5) for name, value in model.state_dict().items())


def test_a_record_moves_the_sum_of_inputs_by_its_cut_length():
    wild = torch.tensor([[3.0, 4.0], [0.3, 0.4], [math.nan, 1.0], [math.inf, 1.0]])
    cut = torch.stack([cut_sum([(None, x[None], None)], 1, 2, 1.0) for x in wild])
    assert torch.allclose(cut, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0], [0, 0]]).double())
    assert cut_sum([(None, wild, None)], 3, 2, 1.0).tolist() == [0, 0]  # of other rows than the batch has


def test_a_centred_run_goes_on_bit_for_bit(tmp_path):
    small = {**SHORT, "epsilon": 8.0}
    loader = DataLoader(columns(size=RECORDS), batch_size=100)
    whole, model, again = network(), network(), network()
    private = clipwise.attach(whole, loader=loader, ledger=tmp_path / "whole.jsonl", **small)
    assert private.run.input_mean is not None
    loop(private)
    private.detach()
    private = clipwise.attach(model, loader=loader, ledger=tmp_path / "cut.jsonl", **small)
    loop(private, take=12)
    private.save(tmp_path / "kept")
    private.detach()
    private = clipwise.attach(again, loader=loader, ledger=tmp_path / "cut.jsonl", resume=tmp_path / "kept", **small)
    loop(private)
    private.detach()
    assert torch.equal(weights(whole), weights(again))


@pytest.mark.parametrize(
    ("model", "shape", "centred"),
    [
        (network, (6,), True),
        (lambda: nn.Linear(6, 3, bias=False), (6,), False),
        (lambda: nn.Sequential(nn.Conv1d(6, 3, 2), nn.Flatten()), (6, 2), False),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Flatten(), nn.Linear(6, 3)), (2, 6), False),
    ],
)
def test_whose_inputs_can_be_centred(model, shape, centred):
    made = model()
    loader = DataLoader(TensorDataset(torch.randn(8, *shape), torch.zeros(8, dtype=torch.long)), batch_size=4)
    task = of_outputs(made, make_loss("cross-entropy"), loader)
    assert can_be_centred(made, task, loader, first_layer(made, task, loader)) is centred


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x):
        return self.a(x.movedim(1, 0)).mean(0)


def frozen_first():
    model = network()
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "shape", "name"),
    [
        (network, (6,), "0"),
        (lambda: nn.Linear(6, 3), (6,), ""),
        (lambda: nn.Sequential(nn.Conv1d(6, 3, 2), nn.Flatten()), (6, 2), "0"),
        (frozen_first, (6,), "2"),
        (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), (6,), None),
        (lambda: nn.Sequential(Doubled(6, 3)), (6,), None),
        (Shared, (6,), None),
        (TimeFirst, (4, 6), None),
    ],
)
def test_whose_inputs_can_be_scaled(model, shape, name):
    data = TensorDataset(torch.randn(5, *shape), torch.zeros(5, dtype=torch.long))
    model, loader = model(), DataLoader(data, batch_size=5)
    task = of_outputs(model, make_loss("cross-entropy"), loader)
    assert first_layer(model, task, loader) == name
    assert not any(m._forward_hooks for m in model.modules())


def test_a_record_moves_the_histogram_of_sizes_by_one():
    layer = nn.Linear(6, 3)
    x = torch.cat(
        [10.0 ** torch.arange(-12, 13, 3)[:, None] * torch.ones(9, 6), torch.full((2, 6), math.inf), torch.zeros(1, 6)]
    )
    whole = sizes([(layer, x, layer(x))], len(x))
    assert whole.sum() == 9  # neither what is not finite nor nothing at all
    for i in range(len(x)):
        left = torch.cat([x[:i], x[i + 1 :]])
        assert torch.linalg.vector_norm(whole - sizes([(layer, left, layer(left))], len(left))) <= 1
    assert sizes([(layer, x, layer(x))], len(x) + 1).sum() == 0  # other rows than records
