"""What clipping does to each group: by hand, against a loop over single records for every method, and degenerate groups."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from clipwise.clipping import METHODS, Context, make_method
from clipwise.fairness.gradients import clipped_records, gradients_by_group
from clipwise.fairness.metrics import NO_MEMBERS, Measure
from clipwise.norms.loop import per_example_gradients
from clipwise.types import BadArgument

CONTEXT = Context(expected_batch_size=8.0, noise_multiplier=1.0, parameters=2, steps=10, sample_rate=0.1)


def of_probe(x, groups, method="fixed", *, state=None, number=2, most_records=500, **options):
    """On `Linear` without bias and the loss <w, x>, a record's gradient is the record itself."""
    model = nn.Linear(x.shape[1], 1, bias=False)
    made = make_method(method, **options)
    return gradients_by_group(
        model,
        TensorDataset(x, torch.zeros(len(x))),
        loss=lambda output, target: (output.squeeze(1) + target).mean(),
        groups=torch.tensor(groups),
        number_of_groups=number,
        method=made,
        state=made.init(CONTEXT) if state is None else state,
        most_records=most_records,
        rows=3,
    )


def test_by_hand():
    """Group 0: (3, 0) and (0, 4) are clipped to length 1, so that their mean turns from atan(4/3) to 45 degrees. Group 1 is
    short enough. Group 2 has nobody."""
    x = torch.tensor([[3.0, 0], [0, 4], [0.5, 0], [0, 0.5], [0.1, 0]])
    long, short, empty = of_probe(x, [0, 0, 1, 1, 1], number=3, threshold=1.0)
    assert long.records == 2
    assert long.clipped == Measure(1.0)
    assert long.direction_error.value == pytest.approx(math.degrees(math.atan(4 / 3)) - 45, abs=1e-5)
    assert long.kept.value == pytest.approx(math.sqrt(2) / 5, rel=1e-6)
    assert (short.records, short.clipped, short.kept) == (3, Measure(0.0), Measure(1.0))
    assert short.direction_error.value == pytest.approx(0.0, abs=1e-5)
    assert empty == (0, *[Measure(None, NO_MEMBERS)] * 3)
    assert empty.to_dict()["note"] == NO_MEMBERS


@pytest.mark.parametrize(
    ("method", "options", "clipped"),
    [
        ("fixed", {"threshold": 1.0}, [0, 0, 1]),
        ("global", {"upper": 3.0}, [0, 0, 1]),  # dropped; a scale of all gradients is no clipping
        ("global-adapt", {"upper": 3.0}, [0, 0, 1]),
        ("global-adapt-v2", {}, [0, 0, 1]),  # z = 3
        ("auto-s", {}, [1, 1, 1]),  # normalised, every one
        ("auto-v", {}, [1, 1, 1]),
    ],
)
def test_what_counts_as_clipped(method, options, clipped):
    x = torch.tensor([[0.01, 0], [0, 0.9], [5, 0]])
    found = of_probe(x, [0, 1, 2], method, number=3, **options)
    assert [one.clipped.value for one in found] == clipped


def test_a_threshold_for_each_group():
    method = make_method("dpsgd-f")
    state = method.init(CONTEXT)._replace(thresholds=torch.tensor([1.0, 4.0]))
    tight, loose = of_probe(torch.tensor([[2.0, 0], [2, 0]]), [0, 1], "dpsgd-f", state=state)
    assert (tight.clipped.value, loose.clipped.value) == (1.0, 0.0)
    assert tight.kept.value == pytest.approx(0.5)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_against_a_loop(name):
    """On a small network: per-example gradients one by one, weighted by hand with what the method decides."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    x, y, groups = 3 * torch.randn(12, 1, 4, 4), torch.randint(0, 3, (12,)), torch.arange(12) % 2
    data = TensorDataset(x, y, groups)
    method = make_method(name)
    state = method.init(CONTEXT)
    loss = nn.functional.cross_entropy
    arguments = {"loss": loss, "method": method, "state": state}
    found = gradients_by_group(model, data, groups=groups, number_of_groups=2, rows=5, **arguments)

    each = []
    for i in range(12):
        grads = per_example_gradients(model, (x[i : i + 1],), lambda out, i=i: loss(out, y[i : i + 1]))
        each.append(torch.cat([g.flatten() for g in grads.values()]).double())
    each = torch.stack(each)
    norms = each.norm(dim=1)
    weights = method.decide(state, norms, groups).weights.double()
    tiny = method.decide(state, torch.full_like(norms, 1e-12), groups).weights
    flags = weights < tiny * (1 - 1e-9)
    kept = []
    for group, one in enumerate(found):
        mine = groups == group
        plain, weighted = each[mine].sum(0), (weights[mine, None] * each[mine]).sum(0)
        assert one.clipped.value == pytest.approx(float(flags[mine].double().mean()))
        cosine = float(plain @ weighted / plain.norm() / weighted.norm())
        assert math.cos(math.radians(one.direction_error.value)) == pytest.approx(cosine, abs=1e-5)
        kept.append(float(weighted.norm() / plain.norm()))
    assert [one.kept.value for one in found] == pytest.approx([k / max(kept) for k in kept], rel=1e-4)
    rows, own = clipped_records(model, data, lambda batch: batch[2], rows=5, **arguments)
    assert rows.tolist() == flags.tolist()
    assert own.tolist() == groups.tolist()


def test_degenerate_groups_are_named():
    zero, dropped = of_probe(torch.tensor([[0.0, 0], [9, 0], [0, 9]]), [0, 1, 1], "global", upper=2.0)
    assert zero.direction_error == zero.kept == Measure(None, "the mean gradient is 0")
    assert zero.clipped == Measure(0.0)
    assert dropped.direction_error == Measure(None, "every gradient was dropped")
    assert (dropped.clipped, dropped.kept) == (Measure(1.0), Measure(0.0))
    x = torch.tensor([[math.nan, 0], [2, 0], [math.inf, 1], [1, 0]])
    broken, sane = of_probe(x, [0, 0, 0, 1])
    assert broken.clipped == (1.0, "gradients that are not finite: 2")
    assert broken.direction_error.value == pytest.approx(0.0, abs=1e-5)
    assert broken.to_dict()["note"] == "gradients that are not finite: 2"
    assert sane.clipped.value == 0.0


def test_a_large_group_is_looked_at_evenly():
    x = torch.arange(10.0)[:, None].repeat(1, 2)
    (one,) = of_probe(x, [0] * 10, number=1, most_records=5, threshold=1.0)
    assert one.records == 5
    assert one.clipped.value == pytest.approx(0.8)  # 0, 2, 4, 6, 8: all but the first


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    method = make_method("fixed")
    data = TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))
    arguments = {"loss": nn.functional.cross_entropy, "groups": torch.zeros(4, dtype=torch.long), "method": method}
    arguments |= {"number_of_groups": 1, "state": method.init(CONTEXT)}
    first = gradients_by_group(model, data, **arguments)
    assert first == gradients_by_group(model, data, **arguments)  # dropout is off
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert "forward" not in model[0].__dict__

    def broken(output, target):  # noqa: ARG001
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        gradients_by_group(model, data, **{**arguments, "loss": broken})
    assert model.training
    assert "forward" not in model[0].__dict__


@pytest.mark.parametrize(
    ("groups", "number", "match"),
    [([0], 2, "groups: shape"), ([0, 2, 1], 2, r"outside 0\.\.1"), ([0, 0, 0], 0, "number")],
)
def test_bad_arguments(groups, number, match):
    with pytest.raises(BadArgument, match=match):
        of_probe(torch.ones(3, 2), groups, number=number)
