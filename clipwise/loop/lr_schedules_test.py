"""Each schedule's rates against torch's own scheduler, driven by hand as torch's pages say."""

import pytest
import torch
from torch.optim import lr_scheduler

from clipwise.loop.lr_schedules import KINDS, make_lr_schedule, refuse_double_rate
from clipwise.types import BadArgument

EPOCHS, STEPS, LR = 8, 5, 0.4  # epochs, steps an epoch
BY_EPOCH = {
    "step:step_size=3": lambda o: lr_scheduler.StepLR(o, 3),
    "multi-step": lambda o: lr_scheduler.MultiStepLR(o, [4, 6]),
    "multi-step:milestones=2/5,gamma=0.5": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.5),
    "constant": lambda o: lr_scheduler.ConstantLR(o),
    "linear": lambda o: lr_scheduler.LinearLR(o),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.95),
    "polynomial:power=2": lambda o: lr_scheduler.PolynomialLR(o, EPOCHS, 2.0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS),
    "cosine-restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
}
BY_STEP = {
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, LR / 10, LR, 2 * STEPS),
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, LR, EPOCHS * STEPS),
    "one-cycle:max_lr=0.7,pct_start=0.5": lambda o: lr_scheduler.OneCycleLR(o, 0.7, EPOCHS * STEPS, pct_start=0.5),
}
KINDS_OF_OPTIMIZER = {
    "sgd": lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9),
    "adam": lambda p: torch.optim.AdamW(p, lr=LR),
}


def optimizer(make=KINDS_OF_OPTIMIZER["sgd"]):
    p = torch.nn.Parameter(torch.zeros(1))
    p.grad = torch.zeros(1)
    return make([p])


def state(made):
    group = made.param_groups[0]
    return group["lr"], group.get("momentum"), group.get("betas")


def ours(text, made):
    rates = make_lr_schedule(text).start(made, epochs=EPOCHS, steps_per_epoch=STEPS)
    seen = []
    for _ in range(EPOCHS):
        for _ in range(STEPS):
            seen.append(state(made))
            made.step()
            rates.after_step()
        rates.after_epoch()
    return seen


@pytest.mark.parametrize("make", KINDS_OF_OPTIMIZER.values(), ids=KINDS_OF_OPTIMIZER)
@pytest.mark.parametrize("text", [*BY_EPOCH, *BY_STEP])
def test_rates_are_torchs(text, make):
    made = optimizer(make)
    scheduler = (BY_EPOCH | BY_STEP)[text](made)
    truth = []
    for _ in range(EPOCHS):
        for _ in range(STEPS):
            truth.append(state(made))
            made.step()
            if text in BY_STEP:
                scheduler.step()
        if text in BY_EPOCH:
            scheduler.step()
    assert len(set(truth)) > 1
    assert ours(text, optimizer(make)) == truth


def test_every_name_is_covered():
    tested = {text.partition(":")[0] for text in (*BY_EPOCH, *BY_STEP)}
    assert tested | {"none", "plateau"} == set(KINDS)
    assert len(KINDS) == 12  # Table 11's eleven, and none


def test_none_leaves_the_rate_alone():
    assert set(ours("none", optimizer())) == {(LR, 0.9, None)}
    assert make_lr_schedule(None) == make_lr_schedule("none")


def test_no_momentum_no_cycle_of_it():
    plain = optimizer(lambda p: torch.optim.RMSprop(p, lr=LR))
    assert {momentum for _, momentum, _ in ours("one-cycle", plain)} == {0}


@pytest.mark.parametrize(("higher", "figures"), [(True, [0.5, 0.4, 0.3, 0.2]), (False, [0.5, 0.6, 0.7, 0.8])])
def test_plateau_follows_the_public_figure(higher, figures):
    made = optimizer()
    schedule = make_lr_schedule("plateau:on=public-test,patience=1,factor=0.5")
    rates = schedule.start(made, epochs=4, steps_per_epoch=1, higher_is_better=higher)
    seen = []
    for figure in figures:
        made.step()
        rates.after_step()
        rates.after_epoch(figure)
        seen.append(made.param_groups[0]["lr"])
    assert seen == [LR, LR, LR / 2, LR / 2]
    assert "public" in make_lr_schedule("plateau:on=public-test").note
    with pytest.raises(BadArgument, match="give test data"):
        rates.after_epoch(None)


@pytest.mark.parametrize("text", [*BY_EPOCH, *BY_STEP, "none", "plateau:on=public-test,factor=0.5"])
def test_text_round_trip(text):
    assert make_lr_schedule(str(make_lr_schedule(text))) == make_lr_schedule(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onecycle", "choose one of constant"),
        ("one-cycle:max=1", "no option 'max'; it has max_lr"),
        ("one-cycle:max_lr=0", "max_lr=0.0"),
        ("one-cycle:pct_start=2", "at most 1"),
        ("step:step_size=0", "step_size=0"),
        ("step:step_size=1.5", "not a whole number"),
        ("multi-step:milestones=5/x", "not a whole number"),
        ("exponential:gamma=nan", "gamma=nan"),
        ("none:gamma=1", "it has none"),
        ("plateau", "plateau:on=public-test"),
        ("plateau:on=train-loss", "must be public or released"),
        ("plateau:on=public-test,factor=1.0", "below 1"),
    ],
)
def test_refused(text, message):
    with pytest.raises(BadArgument, match=message):
        make_lr_schedule(text)


def test_a_cycle_needs_two_rates():
    with pytest.raises(BadArgument, match="not below max_lr"):
        make_lr_schedule("cyclic:base_lr=0.5").start(optimizer(), epochs=1, steps_per_epoch=1)


def test_two_who_set_the_rate():
    refuse_double_rate(make_lr_schedule("none"), method="oso", optimizer=None)
    with pytest.raises(BadArgument, match="method='oso': this method sets the learning rate itself"):
        refuse_double_rate(make_lr_schedule("cosine"), method="oso", optimizer=None)
