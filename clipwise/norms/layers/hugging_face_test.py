"""Layers as other libraries write them, against the loop; and which way they take."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clipwise.norms import Bookkeeping
from clipwise.norms.layers.registry import find_layer
from clipwise.norms.loop import assert_agrees

WIDTH = 6


class Norm(nn.Module):
    """RMSNorm as Llama has it; as Gemma does where `plus` is 1."""

    def __init__(self, plus=0.0):
        super().__init__()
        self.weight, self.plus = nn.Parameter(torch.randn(WIDTH)), plus

    def forward(self, x):
        return (self.plus + self.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Scale(nn.Module):
    """A number, a vector that scales a layer inside, and vectors in a dictionary, as IA3 has them."""

    def __init__(self):
        super().__init__()
        self.number, self.vectors = nn.Parameter(torch.tensor(0.7)), nn.ParameterDict({"a": torch.randn(WIDTH)})
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.number * self.inner(x) * self.vectors["a"]


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 3.0


class Positions(nn.Embedding):
    """As BART's: it is given the words, and looks up their places."""

    def forward(self, ids):
        return super().forward(torch.arange(ids.shape[1]).unsqueeze(0) + 2)


class Turned(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Masked(nn.Linear):
    """No rule of its parent's: the weight is another."""

    def forward(self, x):
        return F.linear(x, self.weight * 2, self.bias)


class Twice(nn.Linear):
    """The parent's function, and the weight once more beside it."""

    def forward(self, x):
        return super().forward(x) + (x * self.weight[:1]).sum(-1, keepdim=True)


def places(module, *before):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *before, module)


@pytest.mark.parametrize("shape", [(4, WIDTH), (4, 3, WIDTH), (4, 2, 3, WIDTH), (1, 3, WIDTH)])
@pytest.mark.parametrize("make", [Norm, lambda: Norm(plus=1.0), Scale])
def test_vectors_of_any_module(make, shape):
    torch.manual_seed(0)
    assert_agrees(places(make()), (torch.randn(shape),))


def test_a_vector_of_a_model_that_counts_time_first_is_right_too():
    torch.manual_seed(0)
    assert_agrees(
        places(Norm()), (torch.randn(3, 4, WIDTH),), rows_dim=1, allow_generic=True, loss=lambda out: out.pow(3).sum()
    )


class Words(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, ids):
        return sum(layer(ids) for layer in self.layers)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Words(Scaled(9, WIDTH)),
        lambda: Words(Scaled(9, WIDTH, padding_idx=0), Positions(9, WIDTH)),
    ],
)
def test_subclasses_of_embeddings_keep_the_rule(make):
    torch.manual_seed(0)
    ids = torch.randint(0, 9, (4, 5))
    model = make()
    assert_agrees(model, (ids,))
    assert all(find_layer(layer).through for layer in model.layers)


def test_subclasses_of_other_layers():
    torch.manual_seed(0)
    assert_agrees(places(Turned(3)), (torch.randn(4, 3, WIDTH),))
    for kind in (Masked, Twice):
        assert_agrees(places(kind(WIDTH, 2)), (torch.randn(4, 3, WIDTH),), allow_generic=True)


def test_a_subclass_that_turns_to_something_else_later_is_refused():
    class Later(nn.Linear):
        more = False

        def forward(self, x):
            return super().forward(x) * (self.weight.sum() if self.more else 1)

    torch.manual_seed(0)
    model, x = places(Later(WIDTH, 2)), torch.randn(4, WIDTH)
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="sum")
    engine.install()
    engine.open(4)
    model(x)
    model[1].more = True
    engine.open(4)
    with pytest.raises(Exception, match="uses its parameters otherwise"):
        model(x)
    engine.remove()


@pytest.mark.parametrize("shape", [(4, WIDTH), (4, 3, WIDTH), (3, 40, WIDTH)])
@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
def test_conv1d_of_gpt2(shape, frozen):
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    model = places(pytorch_utils.Conv1D(20, WIDTH))
    with torch.no_grad():
        model[1].bias.normal_()
    if frozen:
        getattr(model[1], frozen).requires_grad_(False)
    assert_agrees(model, (torch.randn(shape),))
