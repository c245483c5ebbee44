"""One pass over a model's members sees every replacement; the watch sees what a step may not change."""

import pytest
import torch
from torch import nn

from clipwise.norms.look.watch import Members, Watch
from clipwise.types import LoopMisuse


def model():
    made = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())
    made[1].eval()
    return made


def replace_buffer(m):
    m[1].running_mean = m[1].running_mean.clone()


def add_buffer(m):
    m[2].register_buffer("seen", torch.zeros(1))


def replace_parameter(m):
    m[0].weight = nn.Parameter(m[0].weight.detach().clone())


def remove_parameter(m):
    m[0].bias = None


def add_module(m):
    m.append(nn.Dropout(0.1))


def replace_module(m):
    m[2] = nn.Tanh()


def add_hook(m):
    m[0].register_forward_pre_hook(lambda *_: None)


def add_backward_hook(m):
    m[0].register_full_backward_hook(lambda *_: None)


STRUCTURE = [add_module, replace_module, add_hook, add_backward_hook]
TENSORS = [replace_buffer, add_buffer, replace_parameter, remove_parameter]


@pytest.mark.parametrize("change", [*STRUCTURE, *TENSORS])
def test_members_see_what_was_replaced_added_or_removed(change):
    made = model()
    members = Members(made)
    assert members.unchanged()
    change(made)
    assert not members.unchanged()
    assert members.same_structure() == (change in TENSORS)
    assert Members(made).unchanged()


def test_a_hook_on_all_modules_is_a_change_of_each():
    members = Members(model())
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not members.same_structure()
    hook.remove()
    assert members.same_structure()


def test_modes_are_those_of_training_and_of_switches():
    class Switched(nn.Sequential):
        mixes, calls, pooling = False, 0, "mean"

        def __init__(self):
            super().__init__(nn.Linear(2, 2))
            self.mixes, self.calls, self.pooling = False, 0, "mean"

    made = Switched()
    members = Members(made)
    seen = {members.modes()}
    made.calls += 1  # a number may count calls
    assert members.modes() in seen
    for name, value in (("mixes", True), ("pooling", "max"), ("training", False)):
        setattr(made, name, value)
        assert members.modes() not in seen
        seen.add(members.modes())


def watched(steps):
    made = model()
    watch = Watch(made, {id(p) for p in made[0].parameters()})
    watch.begin()
    members = Members(made)

    def check():
        watch.check(same_members=members.unchanged())

    for _ in range(steps):
        check()
    return made, check


def write(m):
    m[1].running_mean.add_(1)


def write_frozen(m):
    with torch.no_grad():
        m[1].weight.add_(1)


@pytest.mark.parametrize("change", [replace_buffer, add_buffer, write, write_frozen])
def test_a_change_is_refused_at_its_step(change):
    made, check = watched(steps=5)  # not one after which everything is gone through
    change(made)
    with pytest.raises(LoopMisuse, match=r"running_mean|seen|weight"):
        check()


@pytest.mark.parametrize("how", ["data", "dictionary"])
def test_what_leaves_no_trace_is_seen_later(how):
    """A write past torch's counters, and a whole dictionary put in the place of torch's."""
    made, check = watched(steps=4)
    if how == "data":
        made[1].running_mean.data.add_(1)
    else:
        made[1].__dict__["_buffers"] = {k: b.clone() for k, b in made[1]._buffers.items()}
    for _ in range(3):  # up to the 7th
        check()
    with pytest.raises(LoopMisuse, match="running_mean"):
        check()
