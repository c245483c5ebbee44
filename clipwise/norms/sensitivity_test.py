"""What one record adds to a clipped sum is at most the bound in floating point too: where its terms cancel, where squares
underflow, in half precision. All in the parameters' own float32, on records made to break it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clipwise.norms import Bookkeeping
from clipwise.types import LoopMisuse

BOUND = 1.0


class Nth:
    """One way for every layer that has it."""

    def __init__(self, way):
        self.way, self.found = way, False

    def part(self, call, saved, b):
        ways = call.kernel.candidates(call, saved, b)
        self.found |= self.way in ways
        return ways.get(self.way, next(iter(ways.values())))(call, saved, b)


def clipped_sum(model, tensors, loss, way=None, bound=BOUND):
    """By a fixed threshold, as the step does it; in float64 from there on."""
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", notify=lambda _: None)
    if way:
        engine._chooser = Nth(way)
    engine.install()
    engine.open(len(tensors[0]))
    loss(model, *tensors).backward()
    tape = engine.close()
    engine.remove()
    assert not way or engine._chooser.found, way

    def clip(norms, _):
        return {"all": (bound / norms.clamp_min(bound)) * (1 - tape.slack)}

    sums = tape.weighted_sums(clip)["all"]
    assert all(s.dtype == torch.float32 for s in sums)
    return torch.cat([s.double().flatten() for s in sums])


def moved(model, others, record, loss, **how):
    """How far the record moves the sum over the others."""
    half = len(others[0]) // 2
    together = tuple(torch.cat([a[:half], b, a[half:]]) for a, b in zip(others, record, strict=True))
    return float((clipped_sum(model, together, loss, **how) - clipped_sum(model, others, loss, **how)).norm())


class Amounts(nn.Module):
    """Tokens with amounts: terms of both signs meet in one row of the table."""

    def __init__(self, bag=False):
        super().__init__()
        self.table = (nn.EmbeddingBag(10, 4, mode="sum") if bag else nn.Embedding(10, 4)).requires_grad_()
        self.out, self.bag = nn.Linear(4, 1), bag

    def forward(self, tokens, amounts):
        if self.bag:
            return self.out(self.table(tokens, per_sample_weights=amounts))
        return self.out((self.table(tokens) * amounts.unsqueeze(-1)).sum(1))


def sse(model, *tensors):
    *inputs, y = tensors
    return F.mse_loss(model(*inputs), y, reduction="sum")


@pytest.mark.parametrize("amount", [1e6, 1e8, 1e9, 1e10, 1e12, 1e14])
@pytest.mark.parametrize("bag", [False, True])
def test_amounts_of_one_token_that_cancel(bag, amount):
    torch.manual_seed(0)
    model = Amounts(bag)
    record = (torch.full((1, 100), 7), amount * torch.randn(1, 50).repeat(1, 2), torch.full((1, 1), 0.3))
    record[1][:, 50:] *= -1
    others = (torch.randint(0, 10, (32, 100)), torch.randn(32, 100), torch.randn(32, 1))
    assert clipped_sum(model, record, sse).norm() <= 1.001 * BOUND
    assert moved(model, others, record, sse) <= 1.001 * BOUND


@pytest.mark.parametrize("amount", [1e6, 1e8, 1e9, 1e10, 1e11])
@pytest.mark.parametrize("way", ["ghost", "in blocks"])
def test_places_of_a_linear_layer_that_cancel(way, amount):
    torch.manual_seed(0)
    model = nn.Linear(64, 64)

    def loss(model, x, place, y):
        return ((model(x) * place.unsqueeze(2)).sum((1, 2)) - y).square().sum()

    place = torch.zeros(1, 8)
    place[0, 0], place[0, 5] = amount, -amount
    record = (torch.zeros(1, 8, 64), place, torch.ones(1))
    others = (torch.zeros(16, 8, 64), torch.ones(16, 8), torch.randn(16))
    assert moved(model, others, record, loss, way=way) <= 1.001 * BOUND


@pytest.mark.parametrize("amount", [1e6, 1e8, 1e9, 1e10])
@pytest.mark.parametrize("groups", [1, 2])
def test_places_of_a_convolution_that_cancel(groups, amount):
    torch.manual_seed(0)
    model = nn.Conv1d(16, 16, 3, groups=groups)

    def loss(model, x, place, y):
        return ((model(x) * place.unsqueeze(1)).sum((1, 2)) - y).square().sum()

    place = torch.zeros(1, 8)
    place[0, 0], place[0, 5] = amount, -amount
    record = (torch.ones(1, 16, 10), place, torch.ones(1))
    others = (torch.randn(16, 16, 10), torch.randn(16, 8), torch.randn(16))
    for way in ("direct", "in blocks", *(("ghost", "ghost, summed by torch") if groups == 1 else ())):
        assert moved(model, others, record, loss, way=way) <= 1.001 * BOUND, way


@pytest.mark.parametrize("bound", [1e-3, 1e-2, 1.0])
@pytest.mark.parametrize(
    ("places", "width", "ways"), [(1, 1, ["ghost"]), (5, 1, ["ghost", "direct"]), (5, 40, ["ghost", "in blocks"])]
)
def test_squares_that_underflow(places, width, ways, bound):
    """Inputs whose squares are zero in float32, output gradients that make up for it."""
    model = nn.Linear(784, width, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.full((1, 784), 2.6e-23) if places == 1 else torch.full((1, places, 784), 2.6e-23)
    y = torch.full((1, 1), 9e18)

    def loss(model, x, y):
        return F.mse_loss(model(x).flatten(1).sum(1, keepdim=True), y, reduction="sum")

    for way in ways:
        assert clipped_sum(model, (x, y), loss, way=way, bound=bound).norm() <= 1.001 * bound, way


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_half_precision_models_are_not_rounded(dtype):
    """Identical records: one more moves the sum by exactly its share, also where bfloat16 counts by fours."""
    model = nn.Linear(8, 1, bias=False).to(dtype)
    x, y = torch.full((1001, 8), 3.0, dtype=dtype), torch.full((1001, 1), -9.0, dtype=dtype)
    assert moved(model, (x[1:], y[1:]), (x[:1], y[:1]), sse) == pytest.approx(BOUND, rel=1e-3)


def test_a_mean_in_half_precision_is_refused():
    """The batch's size would round every row's gradient in another way."""
    model = nn.Linear(16, 1, bias=False)
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="mean")
    engine.install()
    engine.open(10)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(torch.ones(10, 16))
    with pytest.raises(LoopMisuse, match="loss_reduction='sum'"):
        F.mse_loss(out.float(), torch.ones(10, 1)).backward()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.sqrt, "sqrt"),
        (torch.log, "log"),
        (lambda loss: loss.clamp(max=100), "clamp"),
        (lambda loss: 2 * loss**0.5 + 1, "pow"),
        (lambda loss: loss * loss, "a product"),
    ],
)
def test_a_function_of_the_whole_loss_is_refused(function, name):
    model = nn.Linear(4, 1)
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="mean")
    engine.install()
    engine.open(6)
    loss = F.mse_loss(model(torch.randn(6, 4)), torch.ones(6, 1))
    with pytest.raises(LoopMisuse, match=f"backward.. was called on {name}"):
        function(loss).backward()
    engine.open(6)  # sums of losses are fine, and multiples of row losses
    out = model(torch.randn(6, 4))
    (F.mse_loss(out, torch.ones(6, 1)) + (F.l1_loss(out, torch.ones(6, 1), reduction="none") / 3).mean()).backward()
    engine.close()


class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x):
        return self.out(self.norm(self.first(x))).sum(1)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 32), nn.Linear(32, 4)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.out(self.layer(self.embed(x)).sum(1))


AUTOCAST = {
    "dense": (lambda: nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 4)), (30,)),
    "images": (lambda: nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4)), (1, 8, 8)),
    "places": (Places, (5, 32)),
    "words": (Words, (12,)),
}


@pytest.mark.parametrize("everything", [False, True], ids=["forward", "forward and backward"])
@pytest.mark.parametrize("kind", AUTOCAST)
@pytest.mark.parametrize("record", ["like the others", "large", "huge", "small", "cancels", "weighs much", "infinite"])
def test_a_hostile_record_under_autocast_moves_the_sum_by_no_more_than_the_bound(kind, record, everything):
    """The model computes in bfloat16, whose rounding of one record must not depend on the others, and what is clipped is what is
    summed. 255 records, so that one more changes how products are blocked."""
    torch.manual_seed(0)
    model, shape = AUTOCAST[kind][0](), AUTOCAST[kind][1]
    x = torch.randint(0, 9, (256, *shape)) if kind == "words" else torch.randn(256, *shape)
    one, weight = x[255:], torch.ones(256)
    if record == "weighs much" or kind == "words":  # words are not large
        weight[255] = {"large": 1e4, "huge": 1e18, "small": 1e-12, "infinite": torch.inf}.get(record, 1e9)
    elif record == "cancels":
        one[..., ::2], one[..., 1::2] = 1e4, -1e4
    else:
        one *= {"large": 1e4, "huge": 1e18, "small": 1e-12, "infinite": torch.inf}.get(record, 1.0)

    def loss(model, x, weight):
        with torch.autocast("cpu", torch.bfloat16):
            return (model(x).float().tanh().sum(1) * weight).sum()

    def of_all(model, *tensors):
        engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", notify=lambda _: None)
        engine.install()
        engine.open(len(tensors[0]))
        value = loss(model, *tensors)
        with torch.autocast("cpu", torch.bfloat16, enabled=everything):
            value.backward()
            tape = engine.close()
            (sums,) = tape.weighted_sums(lambda n, _: {"all": BOUND / n.clamp_min(BOUND) * (1 - tape.slack)}).values()
        engine.remove()
        return torch.cat([s.double().flatten() for s in sums])

    with_it, without = of_all(model, x, weight), of_all(model, x[:255], weight[:255])
    # Sums over 256 records are rounded to float32: 1e-5 of the bound, which the slack of every other test here allows as well.
    assert (with_it - without).norm() <= (1 + 1e-5) * BOUND
    assert with_it.isfinite().all()
