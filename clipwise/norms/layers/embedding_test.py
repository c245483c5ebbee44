"""Embeddings and bags against the loop, on shapes made by hypothesis."""

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

from clipwise import devices
from clipwise.norms import Bookkeeping
from clipwise.norms.kernels.kernel import Call
from clipwise.norms.layers import embedding
from clipwise.norms.layers.embedding import BAG, EMBEDDING, Config
from clipwise.norms.loop import assert_agrees, per_example_gradients, squared_output, sums_and_norms
from clipwise.types import Unsupported


@pytest.fixture(params=["host", "device"], scope="module", autouse=True)
def _where(request):
    """The CPU, and the CPU in the place of a device whose values are not looked at."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "device":
            patch.setattr(devices, "_HOST", devices._ACCELERATOR)
        yield


class Then(nn.Module):
    """`first`, then `after` as a function of its output, then a linear layer."""

    def __init__(self, first, after, width, time_first=False):
        super().__init__()
        self.first, self.after, self.head, self.time_first = first, after, nn.Linear(width, 2), time_first

    def forward(self, *inputs):
        if self.time_first:
            inputs = tuple(x.transpose(0, 1) for x in inputs)
        return self.head(self.after(self.first(*inputs)))


AFTER = {
    "apart": lambda x: x,
    "in place": lambda x: x.relu_(),
    "mean": lambda x: x.mean(1),
    "same at both ends": lambda x: (x * (torch.arange(x.shape[1]) % max(1, x.shape[1] - 1)).unsqueeze(1)).sum(1),
    "sum": lambda x: x.sum(1),  # its gradient is an expanded tensor: the bag inside an embedding
}


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    middle=st.lists(st.integers(1, 5), max_size=2),
    tokens=st.integers(2, 6),
    width=st.integers(1, 4),
    padding=st.sampled_from([None, 0, 1]),
    after=st.sampled_from(sorted(AFTER)),
    seed=st.integers(0, 99),
)
@example(rows=3, middle=[4], tokens=6, width=4, padding=None, after="same at both ends", seed=0)
def test_embedding(rows, middle, tokens, width, padding, after, seed):
    torch.manual_seed(seed)
    if after in ("mean", "sum", "same at both ends"):
        middle = [*middle, 3][:1]
    assume(rows == 1 or middle[:1] != [rows])  # or nothing could tell rows from places
    model = Then(nn.Embedding(tokens, width, padding_idx=padding), AFTER[after], width)
    assert_agrees(model, (torch.randint(0, tokens, (rows, *middle)),))


def test_all_middle_dimensions_summed_away():
    model = Then(nn.Embedding(5, 3), lambda x: x.sum((1, 2)), 3)
    assert_agrees(model, (torch.randint(0, 5, (4, 3, 6)),))


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 4), length=st.integers(1, 5), whole=st.booleans())
def test_time_first(rows, length, whole):
    assume(rows == 1 or whole or length != rows)  # or nothing could tell rows from places
    after = (lambda x: x.sum(0)) if whole else (lambda x: x.transpose(0, 1))
    model = Then(nn.Embedding(4, 3), after, 3, time_first=True)
    assert_agrees(model, (torch.randint(0, 4, (rows, length)),))


def test_32_bit_tokens_and_sparse_flag():
    model = Then(nn.Embedding(5, 3, sparse=True), AFTER["mean"], 3)
    model.first.sparse = False  # the reference loop cannot add sparse gradients; ours ignores the flag
    tokens = torch.randint(0, 5, (4, 6), dtype=torch.int32)
    assert_agrees(model, (tokens,))


class Twice(nn.Module):
    """A table used for two inputs and, transposed, as the output layer: three uses of one parameter."""

    def __init__(self, padding):
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=padding)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.table.weight

    def forward(self, a, b):
        return self.out(torch.tanh(self.table(a).sum(1) * self.table(b).mean(1)))


@pytest.mark.parametrize("padding", [None, 2])
def test_tied_and_called_twice(padding):
    torch.manual_seed(0)
    assert_agrees(Twice(padding), (torch.randint(0, 6, (4, 5)), torch.randint(0, 6, (4, 3))))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    length=st.integers(1, 6),
    tokens=st.integers(2, 6),
    width=st.integers(1, 4),
    mode=st.sampled_from(["sum", "mean"]),
    padding=st.sampled_from([None, 1]),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_bag(rows, length, tokens, width, mode, padding, weighted, seed):
    torch.manual_seed(seed)
    weighted = weighted and mode == "sum"
    bag = nn.EmbeddingBag(tokens, width, mode=mode, padding_idx=padding)
    first = WeightedBag(bag) if weighted else bag
    inputs = (torch.randint(0, tokens, (rows, length)),) + ((torch.randn(rows, length),) if weighted else ())
    assert_agrees(Then(first, AFTER["in place"], width), inputs)


class WeightedBag(nn.Module):
    """The weights are trained too: their gradient must pass the bag."""

    def __init__(self, bag):
        super().__init__()
        self.bag, self.scale = bag, nn.Linear(1, 1)

    def forward(self, tokens, weights):
        return self.bag(tokens, per_sample_weights=self.scale(weights.unsqueeze(2)).squeeze(2))


def test_a_bag_twice_is_added_before_the_norm():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(5, 3, mode="mean", padding_idx=0), nn.Linear(3, 2)

        def forward(self, a, b):
            return self.head(torch.tanh(self.bag(a)) * self.bag(b))

    torch.manual_seed(0)
    assert_agrees(Model(), (torch.randint(0, 5, (4, 5)), torch.randint(0, 5, (4, 3))))


def test_max_mode():
    torch.manual_seed(0)
    model = Then(nn.EmbeddingBag(5, 3, mode="max"), AFTER["apart"], 3)
    assert_agrees(model, (torch.randint(0, 5, (4, 6)),))


@pytest.mark.parametrize("kernel", [EMBEDDING, BAG])
@pytest.mark.parametrize("shape", [(3, 4), (3, 1)])
def test_a_row_with_nan_stays_alone(kernel, shape):
    """NaN in one row's gradient must reach that row's norm, and nothing once it is dropped."""
    torch.manual_seed(0)
    table = nn.Parameter(torch.zeros(5, 2))
    tokens = torch.randint(0, 5, shape)
    call = Call(kernel, {"weight": table}, Config(None))
    saved = (tokens,) if kernel is EMBEDDING else (tokens, torch.rand(shape))
    b = torch.randn(*shape, 2) if kernel is EMBEDDING else torch.randn(3, 2)
    b[1] = torch.nan
    part = kernel.sorted(call, saved, b)
    assert part.squared_norms.isnan().tolist() == [False, True, False]
    part.drop_rows(part.squared_norms.isnan())
    got = part.weighted_sum(torch.tensor([1.0, 0.0, 2.0]))["weight"]
    want = kernel.direct(call, saved, b)["weight"]
    torch.testing.assert_close(got, want[0] + 2 * want[2])


def test_nan_in_the_weights_of_a_bag_stays_alone():
    table = nn.Parameter(torch.zeros(5, 2))
    factors = torch.tensor([[1.0, 2.0], [torch.nan, 1.0]])
    call = Call(BAG, {"weight": table}, Config(None))
    part = BAG.sorted(call, (torch.tensor([[0, 1], [1, 1]]), factors), torch.ones(2, 2))
    assert part.squared_norms.isnan().tolist() == [False, True]
    part.drop_rows(part.squared_norms.isnan())
    assert part.weighted_sum(torch.tensor([1.0, 0.0]))["weight"].sum(1).tolist() == [2, 4, 0, 0, 0]


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_refused_options(kind, option):
    model = nn.Sequential(kind(5, 3, **option))
    with pytest.raises(Unsupported, match=next(iter(option))):
        Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")


class Listed(nn.Module):
    """Bags in one list: the records as rows of one length are cut to their own inside, or given so."""

    def __init__(self, bag, inside):
        super().__init__()
        self.bag, self.head, self.inside = bag, nn.Linear(3, 2), inside

    def forward(self, tokens, where, factors=None):
        if self.inside:  # rows of one length, and the length of each
            there = torch.arange(tokens.shape[1]) < where.unsqueeze(1)
            starts = nn.functional.pad(where.cumsum(0), (1, 0))
            where = starts if self.bag.include_last_offset else starts[:-1]
            tokens, factors = tokens[there], None if factors is None else factors[there]
        return self.head(self.bag(tokens, where, factors)).tanh()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    mode=st.sampled_from(["sum", "mean", "max"]),
    weighted=st.booleans(),
    padding=st.sampled_from([None, 0, 2]),
    last=st.booleans(),
    inside=st.booleans(),
    seed=st.integers(0, 99),
)
def test_bags_in_one_list(lengths, mode, weighted, padding, last, inside, seed):
    torch.manual_seed(seed)
    weighted &= mode == "sum"
    assume(len(lengths) not in (4, 5) or not inside)  # or nothing could tell rows from places
    bag = nn.EmbeddingBag(6, 3, mode=mode, include_last_offset=last, padding_idx=padding)
    model, sizes = Listed(bag, inside).double(), torch.tensor(lengths)
    tokens, factors = torch.randint(0, 6, (len(lengths), 4)), torch.randn(len(lengths), 4).double()
    rows = (tokens, sizes, factors) if weighted else (tokens, sizes)
    if inside:
        assert_agrees(model, rows)
        return
    there = torch.arange(4) < sizes.unsqueeze(1)
    starts = nn.functional.pad(sizes.cumsum(0), (1, 0))
    given = [tokens[there], starts if last else starts[:-1], *([factors[there]] if weighted else [])]
    model.inside = True
    truth = per_example_gradients(model, rows, squared_output)
    model.inside = False
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum", notify=pytest.fail)
    engine.install()
    engine.open(len(lengths))
    squared_output(model(*given)).backward()
    weights = torch.linspace(0.1, 1.7, len(lengths)).double()
    sums, norms = sums_and_norms(engine.close(), weights)
    torch.testing.assert_close(norms, torch.stack([g.flatten(1).square().sum(1) for g in truth.values()]).sum(0).sqrt())
    for got, g in zip(sums, truth.values(), strict=True):
        torch.testing.assert_close(got, torch.einsum("r,r...->...", weights, g))


@pytest.mark.parametrize(
    "mix",
    [
        lambda out, tokens, _: out + tokens.float().mean(),
        lambda out, _, starts: out * starts.diff().max(),  # the longest of the others
        lambda out, *_: out.flip(0),
    ],
)
def test_a_model_that_mixes_bags_is_refused(mix):
    class Model(Listed):
        def forward(self, tokens, starts):
            return self.head(mix(self.bag(tokens, starts), tokens, starts))

    model = Model(nn.EmbeddingBag(9, 3), inside=False)
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(3)
    with pytest.raises(Unsupported, match="mixes examples"):
        model(torch.tensor([1, 2, 3, 4, 5, 6, 7, 8]), torch.tensor([0, 3, 6]))


@pytest.mark.parametrize("cached", [1, 10**9])
@pytest.mark.parametrize("row", [0, 2, 4])
def test_one_place_that_differs_is_seen_in_whatever_row(monkeypatch, cached, row):
    monkeypatch.setattr(embedding, "in_host_memory", lambda _: True)
    monkeypatch.setattr(embedding, "CACHED_BYTES", cached)
    b = torch.randn(5, 1, 3).expand(5, 4, 3).contiguous()
    assert embedding._same_at_all_places(b)
    b[row, 1, 2] += 1e-6
    assert not embedding._same_at_all_places(b)


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("after", ["apart", "sum"])
def test_a_table_with_many_more_tokens_than_places(padding, after):
    torch.manual_seed(0)
    tokens = torch.tensor([[3, 0, 3, 99], [98, 0, 0, 3], [1, 2, 1, 1]])
    model = Then(nn.Embedding(100, 3, padding_idx=padding), AFTER[after], 3)
    assert embedding.FEW * tokens.numel() < 100
    assert_agrees(model, (tokens,))
    bag = Then(nn.EmbeddingBag(100, 3, mode="mean", padding_idx=padding), AFTER["apart"], 3)
    assert_agrees(bag, (tokens,))
