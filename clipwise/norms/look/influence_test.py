"""What a forward pass leaves behind: refused where it depends on records, however it is hidden; allowed where it does not."""

import random
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from clipwise.norms.look.probe_test import installed, recorded
from clipwise.norms.loop import squared_output
from clipwise.types import LoopMisuse, Unsupported

WIDTH = 4


class Model(nn.Module):
    """One layer, with something before or after it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)
        self.held()

    def held(self):
        pass

    def change(self, x):
        return x

    def forward(self, x):
        return self.layer(self.change(x))


# -- refused -----------------------------------------------------------------------------------------------------------


class RunningNormaliser(Model):
    def held(self):
        self.register_buffer("mean", torch.zeros(WIDTH))

    def change(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean


class NormalisedByTheLast(RunningNormaliser):
    """Uses the buffer before it is written: rows of one batch do not meet."""

    def change(self, x):
        out = x - self.mean
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return out


class ReplacedBuffer(RunningNormaliser):
    def change(self, x):
        out = x - self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return out


class WrittenThroughData(RunningNormaliser):
    def change(self, x):
        out = x - self.mean
        self.mean.data.copy_(x.mean(0))
        return out


class WrittenThroughDataOfALargeOne(RunningNormaliser):
    """Which is not compared after every run."""

    def held(self):
        self.register_buffer("mean", torch.zeros(200_000))

    def change(self, x):
        out = x - self.mean[:WIDTH]
        self.mean.data[:WIDTH].copy_(x.mean(0))
        return out


class Centre(RunningNormaliser):
    """As in self-distillation: subtracted from the output."""

    def forward(self, x):
        out = self.layer(x)
        centred = out - self.mean[:3]
        with torch.no_grad():
            self.mean[:3].mul_(0.9).add_(0.1 * out.mean(0))
        return centred


class CodeBook(Model):
    def held(self):
        self.register_buffer("codes", torch.randn(5, WIDTH))

    def change(self, x):
        nearest = torch.cdist(x, self.codes).argmin(1)
        quantised = self.codes[nearest]
        with torch.no_grad():
            self.codes.index_add_(0, nearest, 0.1 * (x - quantised))
        return x + quantised


class FrozenParameter(RunningNormaliser):
    def held(self):
        self.mean = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)


class TrainableParameter(RunningNormaliser):
    def held(self):
        self.mean = nn.Parameter(torch.zeros(WIDTH))


class Attribute(Model):
    def held(self):
        self.mean = torch.zeros(WIDTH)

    def change(self, x):
        out = x - self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return out


class NumberAttribute(Model):
    def held(self):
        self.mean = 0.0

    def change(self, x):
        out = x - self.mean
        self.mean += 0.1 * float(x.mean())
        return out


class InAList(Model):
    def held(self):
        self.kept = {"means": [torch.zeros(WIDTH)]}

    def change(self, x):
        out = x - self.kept["means"][-1]
        self.kept["means"].append(x.detach().mean(0))
        return out


class Tracker:
    def __init__(self):
        self.mean = np.zeros(WIDTH, dtype=np.float32)


class InAnObject(Model):
    def held(self):
        self.tracker = Tracker()

    def change(self, x):
        out = x - torch.from_numpy(self.tracker.mean.copy())
        self.tracker.mean[:] = x.detach().mean(0).numpy()
        return out


class Appends(Model):
    """Not used so far, but who knows."""

    def held(self):
        self.means = []

    def change(self, x):
        self.means.append(float(x.mean()))
        return x


class CountsRecords(Model):
    def held(self):
        self.register_buffer("records", torch.zeros(()))

    def change(self, x):
        self.records += len(x)
        return x


class ExtraState(Model):
    """Only the last batch, and not used: but saved."""

    def held(self):
        self.last = None

    def change(self, x):
        self.last = x.detach().mean(0)
        return x

    def get_extra_state(self):
        return self.last

    def set_extra_state(self, state):
        self.last = state


class OutsideTheModel(Model):
    seen: list = []  # noqa: RUF012

    def change(self, x):
        out = x - (self.seen[-1] if self.seen else 0)
        self.seen.append(x.detach().mean(0))
        return out


class CountsOutside(Model):
    calls: list = []  # noqa: RUF012

    def change(self, x):
        self.calls.append(1)
        return x / len(self.calls)


class OneOverRows(Model):
    def change(self, x):
        return x / len(x)


class OneOverRowsWithDropout(OneOverRows):
    def held(self):
        self.drop = nn.Dropout(0.5)

    def change(self, x):
        return self.drop(x) / len(x)


class AboveTheClamp(Model):
    def change(self, x):
        return x - x.mean(0) if x.abs().max() > 1e5 else x


class MixesWithRandom(Model):
    """Python's generator decides a detail: the look must not be put off by it."""

    def change(self, x):
        return x * (1 + random.random()) - x.mean(0)


class MixesWithNumpy(Model):
    def change(self, x):
        return x + float(np.random.rand()) - 0.5 * x.roll(1, 0)


class Mixup(Model):
    """The partner is drawn: itself, once in three times of three rows."""

    def change(self, x):
        return 0.7 * x + 0.3 * x[torch.randperm(len(x))]


class MixupByNumpy(Model):
    def change(self, x):
        return 0.7 * x + 0.3 * x[np.random.permutation(len(x))]


class MixesOnACoin(Model):
    """One toss says nothing."""

    def change(self, x):
        return x - x.mean(0) if torch.bernoulli(torch.tensor(0.5)) else x


class SpreadsNan(Model):
    """Row by row, until a record is not finite: then all others are lost with it."""

    def change(self, x):
        return torch.eye(len(x)) @ x


class Queue(Model):
    """Of earlier records' features, to be compared with."""

    def held(self):
        self.register_buffer("queue", torch.randn(8, 3))
        self.start = 0

    def forward(self, x):
        h = self.layer(x)
        out = torch.cat([h, h @ self.queue.clone().T], 1)
        with torch.no_grad():
            self.queue[torch.arange(self.start, self.start + len(x)) % 8] = h
        self.start += len(x)
        return out


class HiddenModule(Model):
    """Not registered, because it stands in a plain list."""

    def held(self):
        self.hidden = [nn.BatchNorm1d(WIDTH)]

    def change(self, x):
        self.hidden[0](x)
        return x


class EverySecondCall(RunningNormaliser):
    calls = 0

    def change(self, x):
        self.calls += 1
        if self.calls % 2 == 0:
            self.mean.data.lerp_(x.detach().mean(0), 0.1)
        return x


class LaterMixes(Model):
    """After its third call."""

    def held(self):
        self.calls = 0

    def change(self, x):
        self.calls += 1
        return x - x.mean(0) if self.calls > 3 else x


REFUSED = {
    RunningNormaliser: "parameter 'mean'",
    NormalisedByTheLast: "parameter 'mean'",
    ReplacedBuffer: "parameter 'mean'",
    WrittenThroughData: "parameter 'mean'",
    WrittenThroughDataOfALargeOne: "parameter 'mean'",
    Centre: "parameter 'mean'",
    CodeBook: "parameter 'codes'",
    FrozenParameter: "parameter 'mean'",
    TrainableParameter: "parameter 'mean'",
    Attribute: "remembers records.*'mean'",
    NumberAttribute: "remembers records.*'mean'",
    InAList: "remembers records.*kept",
    InAnObject: "remembers records.*'tracker.mean'",
    Appends: "remembers records.*'means",
    CountsRecords: "parameter 'records'",
    ExtraState: "get_extra_state",
    OutsideTheModel: "mixes examples",
    CountsOutside: "does not repeat itself",
    OneOverRows: "number of rows",
    OneOverRowsWithDropout: "number of rows",
    AboveTheClamp: "mixes examples",
    MixesWithRandom: "mixes examples",
    MixesWithNumpy: "mixes examples",
    Mixup: "mixes examples",
    MixupByNumpy: "mixes examples",
    MixesOnACoin: "mixes examples",
    SpreadsNan: "mixes examples",
    Queue: "parameter 'queue'",
    HiddenModule: "hidden",
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("generic", [False, True])
def test_what_depends_on_records_is_refused_by_name_and_put_back(kind, generic):
    torch.manual_seed(0)
    model = kind()
    before = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in model.state_dict().items()}
    with pytest.raises(Unsupported, match=f"(?s){REFUSED[kind]}"):
        recorded(installed(model, generic=generic), model, torch.randn(6, WIDTH))
    after = model.state_dict()
    assert all(torch.equal(v, after[k]) if isinstance(v, torch.Tensor) else v is after[k] for k, v in before.items())


@pytest.mark.parametrize(
    ("kind", "calls", "message"), [(LaterMixes, 3, "mixes examples"), (EverySecondCall, 1, "parameter 'mean'")]
)
def test_a_model_that_counts_is_looked_at_again_at_the_next_power_of_two(kind, calls, message):
    torch.manual_seed(0)
    model = kind()
    engine = installed(model)
    for _ in range(calls):
        recorded(engine, model, torch.randn(6, WIDTH))
    with pytest.raises(Unsupported, match=message):
        recorded(engine, model, torch.randn(6, WIDTH))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.SystemRandom().random(),
        lambda: float(np.random.default_rng().random()),
        lambda: time.perf_counter() % 1e-3 * 1e3,
    ],
)
def test_what_cannot_be_repeated_is_refused_with_a_remedy(draw):
    class Unsteady(Model):
        def change(self, x):
            return x * (1 + draw())

    model = Unsteady()
    with pytest.raises(Unsupported, match=r"does not repeat itself.*attribute of a module"):
        recorded(installed(model), model, torch.randn(6, WIDTH))


# -- allowed -----------------------------------------------------------------------------------------------------------


class Jitters(Model):
    def change(self, x):
        return x * (1 + random.random()) + float(np.random.rand()) + torch.randn(())


class OwnGenerators(Model):
    def held(self):
        self.ours = {"torch": torch.Generator().manual_seed(1), "numpy": np.random.default_rng(1)}
        self.third = random.Random(1)

    def change(self, x):
        return (
            x + torch.randn(x.shape, generator=self.ours["torch"]) + self.ours["numpy"].random() + self.third.random()
        )


class StepCounter(Model):
    def held(self):
        self.register_buffer("num_batches_tracked", torch.tensor(0))
        self.calls = 0

    def change(self, x):
        self.num_batches_tracked += 1
        self.calls += 1
        return x * (1 + 1 / self.calls) + self.num_batches_tracked


class LooksAtItsLast(Model):
    """Keeps the last activations for whoever wants to look; they do not come back."""

    def change(self, x):
        self.last = x.detach() * 2
        return x


class Cache(Model):
    """By shape, made when it is first needed."""

    def held(self):
        self.cache = {}
        self.signs = None

    def change(self, x):
        if self.signs is None:
            self.signs = torch.ones(x.shape[1])
        mask = self.cache.setdefault(len(x), torch.ones(len(x), 1))
        return x * mask * self.signs


class HooksOnDemand(Model):
    """Registers a hook at its first call, notes that it has, and lets it hand over what a layer gave: as transformers does for
    output_hidden_states. Were the note alone put back, there would be a hook more at every look."""

    def held(self):
        self.hooked, self.before = False, nn.Linear(WIDTH, WIDTH)

    def change(self, x):
        found = []
        if not self.hooked:
            self.before.register_forward_hook(lambda module, _, out: module.catch(out))
            self.hooked = True
        self.before.catch = found.append
        self.before(x)
        del self.before.catch
        (out,) = found
        return x + out


class Spectral(Model):
    def held(self):
        self.layer = nn.utils.parametrizations.spectral_norm(self.layer)


class Dropped(Model):
    def change(self, x):
        return checkpoint(lambda h: nn.functional.dropout(h, 0.5, self.training), x, use_reentrant=False)


class SkipsLayers(Model):
    def held(self):
        self.more = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def change(self, x):
        for layer in self.more:
            if not self.training or random.random() > 0.5:
                x = x + layer(x)
        return x


class Timed(Model):
    def held(self):
        self.seconds = 0.0

    def change(self, x):
        self.seconds += time.perf_counter()
        return x


@pytest.mark.parametrize(
    "kind",
    [Jitters, OwnGenerators, StepCounter, LooksAtItsLast, Cache, HooksOnDemand, Spectral, Dropped, SkipsLayers, Timed],
)
@pytest.mark.filterwarnings("ignore:clipwise")
def test_what_does_not_depend_on_records_goes_through(kind):
    torch.manual_seed(0)
    model = kind()
    engine = installed(model)
    for _ in range(5):
        recorded(engine, model, torch.randn(6, WIDTH))
    engine.remove()  # one of a model that keeps its last graph in an attribute (spectral_norm) would stay


def test_the_look_gives_generators_and_counters_back():
    def drawn(look):
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        model = StepCounter()
        if look:
            engine = installed(model)
            engine.open(6)
            model(torch.ones(6, WIDTH))
        return model.calls, torch.rand(()), np.random.rand(), random.random()

    (zero, *plain), (one, *looked) = drawn(False), drawn(True)
    assert (zero, one) == (0, 1)
    assert plain == looked


# -- while training ------------------------------------------------------------------------------------------------------


class Later(RunningNormaliser):
    """Writes only when it is told to, in a way that the first look cannot see."""

    write = None

    def change(self, x):
        if self.write:
            self.write(x.detach().mean(0))
        return x


@pytest.mark.parametrize(
    "write",
    [
        lambda model: model.mean.copy_,
        lambda model: lambda mean: setattr(model, "mean", mean),
        lambda model: lambda mean: model.scale.lerp_(mean, 0.5),
        lambda model: lambda mean: model.register_buffer("other", mean),
    ],
)
def test_a_buffer_that_changes_in_a_step_stops_the_loop(write):
    model = Later()
    model.scale = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
    engine = installed(model)
    recorded(engine, model, torch.randn(6, WIDTH))
    model.write = write(model)
    engine.open(6)
    squared_output(model(torch.randn(6, WIDTH))).backward()
    with pytest.raises(LoopMisuse, match=r"'(mean|scale|other)' .*changed"):
        engine.close()


def test_a_write_past_the_version_counter_is_seen_at_the_end_of_the_epoch():
    model = Later()
    engine = installed(model)
    engine.begin_epoch()
    for _ in range(2):
        recorded(engine, model, torch.randn(6, WIDTH))
    model.write = lambda mean: model.mean.data.copy_(mean)
    recorded(engine, model, torch.randn(6, WIDTH))
    with pytest.raises(LoopMisuse, match="'mean'"):
        engine.end_epoch()
    model.write = None
    model.mean.fill_(3.0)  # between epochs: the user's own business
    engine.begin_epoch()
    recorded(engine, model, torch.randn(6, WIDTH))
    engine.end_epoch()


def test_a_picture_of_one_channel_is_not_run_twice_where_it_has_no_second_half():
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(1, 2, 3)

        def forward(self, x):
            seen.append(x.detach().clone())
            return self.layer(x).flatten(1)

    seen = []
    model = Seen()
    engine = installed(model)
    recorded(engine, model, torch.randn(4, 1, 5, 5))
    engine.remove()
    same = [x for x in seen if len(x) == 3 and torch.equal(x[0], x[1]) and torch.equal(x[1], x[2])]
    assert len(same) == 2  # of each record once
    assert not torch.equal(*same)
