"""`clipwise.check`: which parameters are private, frozen, slow, left out or refused; and a step that does nothing is seen."""

import pytest
import torch
from torch import nn

import clipwise
from clipwise.checking import Moved
from clipwise.types import BadArgument


class Parts(nn.Module):
    """A layer with a rule, one that is frozen, one that is never called, and a parameter that only its parent's code knows."""

    def __init__(self):
        super().__init__()
        self.rule, self.frozen, self.unused = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.odd = Odd()
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.odd(self.frozen(self.rule(x)))


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 2, 4))  # as long in no dimension as a batch: no rule, and not spread

    def forward(self, x):
        return torch.einsum("abc,nc->nab", self.weight, x)


def test_every_parameter_has_a_way():
    model = Parts()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    batch = torch.randn(4, 3)
    generator = torch.get_rng_state()
    found = clipwise.check(model, batch)
    assert found.of("fast") == ["rule.weight", "rule.bias"]
    assert found.of("slow") == ["odd.weight"]
    assert found.of("frozen") == ["frozen.weight", "frozen.bias"]
    assert found.of("left out") == ["unused.weight", "unused.bias"]
    assert not found.ok
    text = str(found)
    assert "56 of 82 numbers are trained privately" in text
    assert "noise alone would move it" in text
    assert "no fast rule for odd (Odd)" in text
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert "forward" not in model.rule.__dict__


def test_without_a_batch_it_is_told_by_the_layers():
    model = Parts()
    model.unused.requires_grad_(False)
    found = clipwise.check(model)
    assert (found.of("slow"), found.of("left out"), found.ok) == (["odd.weight"], [], True)
    assert "check(model, batch) looks at the model's code too" in str(found)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "clipwise.fix"),
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(0)), "depends on"),
    ],
)
def test_what_mixes_records_is_refused_with_its_reason(model, word):
    found = clipwise.check(model, torch.randn(4, 3))
    assert len(found.of("refused")) == len(list(model.parameters()))
    assert word in str(found)
    assert not found.ok


def test_it_needs_records_and_a_free_model():
    with pytest.raises(BadArgument, match="two records"):
        clipwise.check(nn.Linear(3, 2), torch.randn(1, 3))
    with pytest.raises(BadArgument, match=r"not a torch\.nn\.Module"):
        clipwise.check("model")
    assert not clipwise.check(nn.Linear(3, 2).requires_grad_(False)).ok


@pytest.mark.filterwarnings("ignore")
def test_adapters_are_fast_and_the_rest_is_frozen():
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=30, **small))
    model = peft.get_peft_model(bert, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
    words = torch.randint(1, 30, (4, 6))
    found = clipwise.check(model, {"input_ids": words, "labels": torch.tensor([0, 1, 0, 1])})
    assert found.ok
    assert found.of("slow") == []
    assert len(found.of("fast")) == 4  # A, B, and the classifier's weight and bias
    assert {p.name for p in found.parameters if p.way == "fast"} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }


def test_a_parameter_that_stays_is_named():
    parameters = {"large": nn.Parameter(torch.full((3,), 256.0).bfloat16()), "fine": nn.Parameter(torch.ones(3))}
    moved = Moved(parameters)

    def step(rate):
        moved.begin([rate])
        for p in parameters.values():
            p.data -= rate
        moved.end()

    step(0.0)  # a warm-up that begins at nothing says nothing
    with pytest.warns(UserWarning, match=r"1 trained parameters did not move in the first step \(large\)"):
        step(1e-3)
    step(1e-3)  # once
