"""The loop and the process around a private run: what is refused by name, what is honoured, and what stays private.

Each case was silent once: a run went on and reported an epsilon that did not hold, or left a user's code without effect.
"""

import copy
import gc
import math
import multiprocessing
import threading
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise import guards, plans
from clipwise.accounting import StepEvent, epsilon
from clipwise.accounting.ledger import Ledger
from clipwise.mechanism import Mechanism
from clipwise.plans import Counted, Facts
from clipwise.types import BadArgument, ClipwiseError, LoopMisuse, Unsupported

ROWS, FEATURES, CLASSES = 60, 6, 3


def data(rows=ROWS):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(rows, FEATURES, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)
    )


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def attach(model=None, optimizer=None, loader=None, **options):
    model = network() if model is None else model
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=12, shuffle=True) if loader is None else loader
    settings = {"method": "fixed", "noise_multiplier": 1.0, "delta": 1e-5, "epochs": 2, "seed": 7} | options
    settings = {name: value for name, value in settings.items() if value is not ...}
    return clipwise.attach(model, optimizer, loader, **settings)


def train(private, *, between=lambda: None, model=None, backward=lambda loss: loss.backward()):
    for x, y in private.loader:
        private.optimizer.zero_grad()
        backward(F.cross_entropy((model or private.model)(x), y))
        between()
        private.optimizer.step()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def trained(**options):
    """The weights after an epoch of a loop that does nothing special."""
    private = attach(**options)
    train(private)
    private.detach()
    return weights(private.model)


def unchanged(private, act, error=LoopMisuse, match=None):
    """It is refused; neither weights nor ledger move."""
    before, charged = weights(private.model), private.run.ledger.events()
    with pytest.raises(error, match=match):
        act()
    assert torch.equal(before, weights(private.model))
    assert private.run.ledger.events() == charged


# -- several processes -------------------------------------------------------------------------------------------------


def ranks(monkeypatch, number):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: number)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)


def test_a_group_that_was_made_after_attach_is_refused(monkeypatch):
    """Several processes from the start: tests/test_ranks.py."""
    private = attach()
    ranks(monkeypatch, 1)
    attach().detach()
    ranks(monkeypatch, 2)
    unchanged(private, lambda: train(private), LoopMisuse, "began with 1 process, and torch.distributed has 2 now")


def test_distributed_and_parallel_wrappers_are_refused_by_name(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(network())
        attach(wrapped).detach()  # around the whole model: tests/test_ranks.py trains with it
        with pytest.raises(Unsupported, match="'inner' is a DistributedDataParallel"):
            attach(nn.ModuleDict({"inner": wrapped}))
    finally:
        torch.distributed.destroy_process_group()
    with pytest.raises(Unsupported, match="DataParallel"):
        attach(nn.DataParallel(network()))


def in_a_fork(queue, private):
    try:
        train(private)
        queue.put("went on")
    except ClipwiseError as error:
        queue.put(f"{type(error).__name__}: {error}")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_takes_no_step_and_the_parent_goes_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    private = attach(ledger=path)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=in_a_fork, args=(queue, private))
    child.start()
    said = queue.get()
    child.join()
    assert said.startswith("LoopMisuse: this run was begun in another process")
    train(private)
    private.detach()
    assert sum(event.count for event in Ledger.read(path).events()) == len(private.loader)


# -- another run, another optimizer ------------------------------------------------------------------------------------


def around(model):
    return nn.Sequential(model, nn.Linear(CLASSES, CLASSES))


class Shares(nn.Module):
    """A wrapper as of an average of weights: not the module, but its parameters."""

    def __init__(self, model):
        super().__init__()
        self.weight, self.bias = model[0].weight, model[0].bias

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize(
    "other",
    [lambda m: m, lambda m: m[0], around, Shares, torch.compile],
    ids=["itself", "part", "around", "shares", "compiled"],
)
def test_what_shares_parameters_with_an_attached_model_is_refused(other):
    model = network()
    private = attach(model)
    other = other(model)
    with pytest.raises(BadArgument, match=r"attached already.*detach\(\)"):
        attach(other)
    with pytest.raises(BadArgument, match="attached already"):
        clipwise.fit(other, data(), noise_multiplier=1.0, epochs=1, expected_batch_size=12, method="fixed")
    train(private)  # the first run goes on
    private.detach()
    attach(model).detach()


def test_a_frozen_part_may_be_shared():
    body = nn.Linear(FEATURES, 8).requires_grad_(False)
    first, second = (nn.Sequential(body, nn.Linear(8, CLASSES)) for _ in range(2))
    one, two = attach(first), attach(second)
    train(one)
    train(two)


def test_a_run_that_no_variable_holds_any_more():
    """A notebook cell that is run again: the model is still attached, and can be given back."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer)
    gc.collect()
    with pytest.raises(BadArgument, match=r"clipwise\.detach\(model\)"):
        attach(model, optimizer)
    clipwise.detach(model)
    assert "step" not in optimizer.__dict__
    assert all("forward" not in m.__dict__ for m in model.modules())
    train(attach(model, optimizer))
    with pytest.raises(BadArgument, match="no run holds it"):
        clipwise.detach(network())


def test_a_run_that_is_collected_with_its_model_holds_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    private = attach(ledger=path)
    gone, engine = weakref.ref(private.run), weakref.ref(private.run.engine)
    unwatch = private.run.engine._unwatch
    del private
    gc.collect()
    assert gone() is engine() is None
    assert not unwatch.alive  # torch's backward passes are left alone
    attach(ledger=path).detach()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_second_optimizer_on_the_same_parameters_is_refused(make):
    private = attach()
    second = make(private.model[2].parameters(), lr=0.1)
    train(private)
    private.model[2].weight.grad = torch.ones_like(private.model[2].weight)
    unchanged(private, second.step, LoopMisuse, rf"second optimizer \({make.__name__}\).*2\.weight")
    other = torch.nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    make(other.parameters(), lr=0.1).step()  # other parameters are nobody's business
    private.detach()
    second.step()


class Lookahead(torch.optim.Optimizer):
    """An optimizer that is made of another one."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__([p for group in inner.param_groups for p in group["params"]], {"lr": 0.1})

    def step(self, closure=None):  # noqa: ARG002
        self.inner.step()


def test_an_optimizer_that_is_made_of_another_one_works():
    model = network()
    private = attach(model, Lookahead(torch.optim.SGD(model.parameters(), lr=0.1)))
    train(private)
    torch.testing.assert_close(weights(model), trained())


def test_weights_may_be_clamped_between_steps():
    private = attach()

    def clamp():
        with torch.no_grad():
            for p in private.model.parameters():
                p.clamp_(-0.05, 0.05)

    train(private, between=clamp)
    clamp()
    assert weights(private.model).abs().max() <= 0.05


# -- hooks, and p.grad before the step ---------------------------------------------------------------------------------


def test_hooks_on_parameters_see_the_released_gradient():
    mask = torch.zeros(CLASSES, 8)
    mask[0] = 1
    model, seen = network(), []
    model[2].weight.register_hook(lambda g: g * mask)  # before attach
    private = attach(model)
    model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))  # and after
    before = model[2].weight.detach().clone()
    train(private)
    assert len(seen) == len(private.loader)  # once a logical step
    assert all((g[1:] == 0).all() and (g[0] != 0).all() for g in seen)
    assert torch.equal(before[1:], model[2].weight[1:])
    assert not torch.equal(before[0], model[2].weight[0])
    private.detach()
    assert len(model[2].weight._backward_hooks) == 1  # the user's own


def test_hooks_are_called_once_a_logical_step():
    model, seen = network(), []
    model[0].bias.register_hook(lambda g: seen.append(g))
    private = attach(model, max_physical_batch=2)
    train(private)
    assert len(seen) == len(private.loader)


@pytest.mark.parametrize("value", [math.inf, 3.0])
def test_hooks_without_privacy_are_torchs_own(value):
    model, seen = network(), []
    model[0].bias.register_hook(lambda g: seen.append(g) or 0 * g)
    options = {"noise_multiplier": ..., "epsilon": value}
    before = model[0].bias.detach().clone()
    private = attach(model, **options)
    train(private)
    assert len(seen) == len(private.loader)
    assert torch.equal(before, model[0].bias)


def clip(private):
    torch.nn.utils.clip_grad_norm_(private.model.parameters(), 1.0)


def clip_value(private):
    torch.nn.utils.clip_grad_value_(private.model.parameters(), 1.0)


def scale(private):
    for p in private.model.parameters():
        p.grad.mul_(10)


def replace_one(private):
    private.model[0].weight.grad = torch.ones_like(private.model[0].weight)


def clear(private):
    private.optimizer.zero_grad()


def zero(private):
    private.optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("touch", [clip, clip_value, scale, replace_one, clear, zero])
def test_a_gradient_that_was_touched_before_the_step_is_noticed(touch):
    private = attach()
    unchanged(
        private, lambda: train(private, between=lambda: touch(private)), LoopMisuse, r"p\.grad.*register_step_pre_hook"
    )
    train(private)  # and the run can go on


def test_the_advice_works_clip_in_a_hook_of_the_optimizer():
    private = attach()
    norms = []

    def hook(optimizer, args, kwargs):  # noqa: ARG001
        norms.append(torch.nn.utils.clip_grad_norm_(private.model.parameters(), 1e-3))

    private.optimizer.register_step_pre_hook(hook)
    before = weights(private.model)
    train(private)
    assert all(norm > 1e-3 for norm in norms)
    assert 0 < (weights(private.model) - before).norm() <= 0.1 * 1e-3 * len(private.loader) * 1.01


def test_zero_grad_that_keeps_zeros_works():
    private = attach()
    for x, y in private.loader:
        private.optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(private.model(x), y).backward()
        assert "not released" in repr(private.model[0].weight.grad)
        private.optimizer.step()
    torch.testing.assert_close(weights(private.model), trained())


def test_a_loop_left_after_backward_leaves_no_stand_in():
    private = attach()
    for x, y in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        break
    private.detach()
    assert all(p.grad is None for p in private.model.parameters())


def test_autograd_grad_gives_no_raw_gradient_of_the_parameters():
    private = attach()
    x, y = data()[:10]
    with pytest.raises(Unsupported, match=r"private\.outside\(\)"):
        torch.autograd.grad(F.cross_entropy(private.model(x), y), list(private.model.parameters()))


# -- gradients that are not trained on ---------------------------------------------------------------------------------


def attacked(private, x, y):
    """A sign step on the inputs (FGSM)."""
    near = x.clone().requires_grad_(True)
    with private.outside():
        (direction,) = torch.autograd.grad(F.cross_entropy(private.model(near), y), near)
    return x + 0.1 * direction.sign()


def test_adversarial_examples():
    """What is trained is the adversarial batch, and nothing of the pass that found it."""
    model = network()
    private = attach(model, threshold=100.0, noise_multiplier=1e-9)
    twin = copy.deepcopy(model)
    for x, y in private.loader:
        near = x.clone().requires_grad_(True)
        (direction,) = torch.autograd.grad(F.cross_entropy(twin(near), y), near)
        want = attacked(private, x, y)
        assert torch.equal(want, x + 0.1 * direction.sign())
        private.optimizer.zero_grad()
        F.cross_entropy(model(want), y).backward()
        private.optimizer.step()
        F.cross_entropy(twin(want), y, reduction="sum").backward()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad / 12, rtol=1e-4, atol=1e-6)
        break
    assert all(p.requires_grad for p in model.parameters())
    assert "private.outside() was used" in private.statement().to_markdown()
    assert "private.outside()" not in attach().statement().to_markdown()


def test_one_record_moves_an_adversarial_step_by_the_bound():
    sums = []
    for rows in (20, 21):
        loader = DataLoader(TensorDataset(*data()[:rows]), batch_size=20)
        private = attach(loader=loader, sample_rate=1.0, expected_batch_size=20, noise_multiplier=1e-9, threshold=0.5)
        for x, y in private.loader:
            F.cross_entropy(private.model(attacked(private, x, y)), y).backward()
            private.optimizer.step()
        sums.append(torch.cat([p.grad.flatten() * 20 for p in private.model.parameters()]))
    assert 0.01 < float((sums[1] - sums[0]).norm()) <= 0.5 * (1 + 1e-4)


def test_without_outside_the_advice_names_it():
    private = attach()

    def loop():
        for x, y in private.loader:
            near = x.clone().requires_grad_(True)
            torch.autograd.grad(F.cross_entropy(private.model(near), y), near)
            F.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()

    unchanged(private, loop, LoopMisuse, r"private\.outside\(\)")


def test_a_generator_learns_from_a_private_discriminator():
    torch.manual_seed(0)
    judge = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 1))
    maker = nn.Linear(2, FEATURES)
    mine = torch.optim.Adam(maker.parameters(), lr=0.01)
    private = attach(judge)
    start = weights(maker)
    for x, _ in private.loader:
        made = maker(torch.randn(len(x), 2)).detach()
        private.optimizer.zero_grad()
        (F.softplus(-judge(x)) + F.softplus(judge(made))).mean().backward()
        private.optimizer.step()
        before = weights(judge)
        mine.zero_grad()
        with private.outside():
            F.softplus(-judge(maker(torch.randn(16, 2)))).mean().backward()
        mine.step()
        assert torch.equal(before, weights(judge))
    assert not torch.equal(start, weights(maker))
    assert private.run.state.step == len(private.loader)


def test_outside_works_between_forward_and_backward_and_without_a_batch():
    private = attach()
    for x, y in private.loader:
        private.optimizer.zero_grad()
        loss = F.cross_entropy(private.model(x), y)
        attacked(private, data()[:17][0], data()[:17][1])
        loss.backward()
        attacked(private, x, y)
        private.optimizer.step()
    torch.testing.assert_close(weights(private.model), trained())
    attacked(private, *data()[:9])


def test_outside_with_a_recurrent_layer_and_with_checkpoints():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.LSTM(FEATURES, 4, batch_first=True), nn.Linear(4, CLASSES)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self._run, x[:, None], use_reentrant=True)

        def _run(self, x):
            return self.outer(self.inner(x)[0][:, -1])

    private = attach(Reader())
    with private.outside():
        x = data()[:5][0].requires_grad_(True)
        private.model(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in private.model.parameters())


def test_backward_after_the_block_and_a_step_inside_it_are_refused():
    private = attach()

    def late():
        for x, y in private.loader:
            with private.outside():
                loss = F.cross_entropy(private.model(x.requires_grad_(True)), y)
            loss.backward()

    def inside():
        for x, y in private.loader:
            F.cross_entropy(private.model(x), y).backward()
            with private.outside():
                private.optimizer.step()

    unchanged(private, late, LoopMisuse, "inside the block")
    unchanged(private, inside, LoopMisuse, "after the block")


def test_without_privacy_outside_is_the_same():
    private = attach(noise_multiplier=..., epsilon=math.inf)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        F.cross_entropy(private.model(attacked(private, x, y)), y).backward()
        private.optimizer.step()
    assert private.run.state.step == len(private.loader)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_gradient_penalty_is_refused_with_advice(reduction):
    private = attach(loss_reduction=reduction)

    def loop():
        for x, y in private.loader:
            near = x.clone().requires_grad_(True)
            out = private.model(near)
            (slope,) = torch.autograd.grad(out.sum(), near, create_graph=True)
            (F.cross_entropy(out, y) + slope.square().sum()).backward()
            private.optimizer.step()

    unchanged(private, loop, LoopMisuse, r"gradient penalty.*clamp the weights")


def test_backward_in_the_block_through_a_call_before_it_is_refused():
    private = attach()

    def loop():
        for x, y in private.loader:
            loss = F.cross_entropy(private.model(x.requires_grad_(True)), y)
            with private.outside():
                loss.backward()

    unchanged(private, loop, LoopMisuse, "inside the block, too")


# -- what is refused by name -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_scripted_and_traced_modules_are_refused():
    for scripted in (torch.jit.script(network()), torch.jit.trace(network(), torch.ones(1, FEATURES))):
        with pytest.raises(Unsupported, match=r"torch\.jit.*Python module"):
            attach(scripted)
        with pytest.raises(Unsupported, match="'0' is a torch"):
            attach(nn.Sequential(scripted))


def test_complex_parameters_are_refused():
    model = nn.Linear(FEATURES, CLASSES, dtype=torch.complex64)
    with pytest.raises(Unsupported, match=r"'weight' is complex.*view_as_complex"):
        attach(model)
    model.requires_grad_(False)
    attach(nn.ModuleList([model, nn.Linear(2, 2)])).detach()  # frozen ones take no gradient


def test_sparse_adam_is_refused():
    model = network()
    with pytest.raises(Unsupported, match=r"SparseAdam.*use Adam"):
        attach(model, torch.optim.SparseAdam(list(model.parameters())))


def test_a_gradient_scaler_is_refused_by_name():
    private = attach(loss_reduction="sum")
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def loop():
        for x, y in private.loader:
            F.cross_entropy(private.model(x), y, reduction="sum").backward()
            scaler.scale(torch.ones(()))
            scaler.step(private.optimizer)

    unchanged(private, loop, LoopMisuse, "Leave clip_grad_norm_ and GradScaler out")


# -- threads -----------------------------------------------------------------------------------------------------------


def elsewhere(act):
    """The error that it raises in another thread."""
    found = []

    def run():
        try:
            act()
        except ClipwiseError as error:
            found.append(error)

    thread = threading.Thread(target=run, name="another")
    thread.start()
    thread.join()
    return found[0] if found else None


def test_two_threads_do_not_share_a_batch():
    private = attach()
    for x, y in private.loader:
        before = weights(private.model)
        F.cross_entropy(private.model(x), y).backward()
        error = elsewhere(private.optimizer.step)
        assert isinstance(error, LoopMisuse)
        assert "'another'" in str(error)
        assert "'MainThread'" in str(error)
        assert isinstance(elsewhere(lambda: train(private)), LoopMisuse)  # nor a loop of its own
        assert torch.equal(before, weights(private.model))
        private.optimizer.step()  # the batch is as it was
    torch.testing.assert_close(weights(private.model), trained())
    assert elsewhere(lambda: train(private)) is None  # one after the other


def test_threads_that_all_train_at_once_take_no_step_twice():
    """Whatever they do, each step is charged and drawn once, or refused."""
    private = attach(epochs=...)
    errors = []

    def loop():
        for _ in range(5):
            try:
                train(private)
            except ClipwiseError as error:
                errors.append(error)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors
    assert sum(event.count for event in private.run.ledger.events()) == private.run.state.step > 0


# -- an attach that fails late -----------------------------------------------------------------------------------------


def as_before(model, optimizer, scheduler, kind):
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert "step" not in optimizer.__dict__ or scheduler is not None
    assert type(scheduler) is kind
    assert all(not (p._backward_hooks or {}) for p in model.parameters())


def broken_collate(records):  # noqa: ARG001
    raise ZeroDivisionError("in the user's collate function")


@pytest.mark.parametrize("old", [False, True])
def test_a_collate_function_that_fails_lets_the_ledger_go(tmp_path, old):
    path, model = tmp_path / "ledger.jsonl", network()
    if old:
        attach(ledger=path).detach()
    with pytest.raises(ZeroDivisionError):
        attach(model, loader=DataLoader(data(), batch_size=12, collate_fn=broken_collate), ledger=path)
    assert path.exists() == old
    attach(model, ledger=path).detach()


class Rigid(torch.optim.lr_scheduler.StepLR):
    def __setattr__(self, name, value):
        if name == "__class__" and value is not Rigid:
            raise TypeError("no other class for me")
        super().__setattr__(name, value)


def test_an_attach_that_fails_at_its_last_line_leaves_all_as_it_was(tmp_path):
    path, model = tmp_path / "ledger.jsonl", network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = Rigid(optimizer, 1)
    step = optimizer.step
    model[0].weight.grad = torch.ones_like(model[0].weight)
    with pytest.raises(TypeError, match="no other class"):
        attach(model, optimizer, lr_scheduler=scheduler, ledger=path)
    as_before(model, optimizer, scheduler, Rigid)
    assert optimizer.step == step
    assert (model[0].weight.grad == 1).all()
    attach(model, optimizer, ledger=path).detach()


def test_a_fit_that_fails_early_lets_the_ledger_go(tmp_path):
    path, model = tmp_path / "ledger.jsonl", network()
    options = {"method": "fixed", "noise_multiplier": 1.0, "epochs": 1, "expected_batch_size": 12, "ledger": path}
    with pytest.raises(BadArgument, match="base_lr"):
        clipwise.fit(model, data(), lr_schedule="cyclic:base_lr=1,max_lr=0.1", **options)
    clipwise.fit(model, data(), **options)


# -- a private size ----------------------------------------------------------------------------------------------------


def test_delta_is_not_compared_with_a_size_that_is_not_used():
    """Whether delta=0.02 passes would tell whether there are more than 50 records."""
    for rows in (40, 60):
        loader = DataLoader(data(rows), batch_size=12)
        private = attach(loader=loader, sample_rate=0.2, expected_batch_size=12, delta=0.02)
        assert len(private.loader) == 5
        assert private.epsilon(0.021) == 0
        assert "follow from the rate" in private.statement().to_markdown()
        train(private)
        assert private.epsilon(0.021) > 0
    with pytest.raises(BadArgument, match="below 1 / 60"):
        attach(delta=0.02)
    with pytest.raises(BadArgument, match="below 1 / 60"):
        attach(delta=1e-5).epsilon(0.02)


@pytest.mark.parametrize("ledger", [None, "ledger.jsonl"])
@pytest.mark.parametrize("budget", [{"epsilon": 3.0, "noise_multiplier": ...}, {"noise_multiplier": 1.5}])
def test_a_private_size_is_counted_with_noise_and_charged_once(tmp_path, ledger, budget):
    path = None if ledger is None else tmp_path / ledger
    rows = 600
    private = attach(loader=DataLoader(data(rows), batch_size=30), size="private", ledger=path, delta=0.01, **budget)
    plan = private.run.plan
    count, event = plan.counted
    assert plan.sample_rate == 30 / count
    assert plan.expected_batch_size == 30
    assert plan.steps == 2 * math.ceil(count / 30)
    assert abs(count - rows) < 6 * event.noise_multiplier
    assert private.run.ledger.events() == [event]  # before the first step
    assert private.epsilon() == pytest.approx(epsilon([event], 0.01).value)
    for _ in range(2):
        train(private)
    spent = [event, StepEvent(30 / count, plan.noise_multiplier, plan.steps)]
    assert private.epsilon() == pytest.approx(epsilon(spent, 0.01).value)
    if "epsilon" in budget:
        assert 2.9 < private.epsilon() <= 3.0
        assert epsilon([event], 0.01).value <= plans.COUNT_SHARE * 3.0
    statement = private.statement()
    assert not statement.size_is_public
    assert (statement.steps, statement.planned_steps) == (plan.steps + 1, plan.steps + 1)
    assert f"released once, {count} " in statement.to_markdown()
    private.detach()
    if path is not None:
        assert sum(e.count for e in Ledger.read(path).events()) == plan.steps + 1
        assert f'"records":{count}' in path.read_text()


def test_the_count_has_the_stated_noise_and_the_plan_nothing_else_of_the_size():
    """Over many seeds: mean and deviation of the count. Two sizes with the same noisy count give the same plan."""
    drawn = torch.tensor([float(counted(200, seed)) for seed in range(400)])
    assert abs(drawn.mean() - 200) < 4 * plans.COUNT_NOISE / 20
    assert drawn.std() == pytest.approx(plans.COUNT_NOISE, rel=0.15)
    mechanism = Mechanism(size="private", epsilon=2.0, delta=1e-5, epochs=3, expected_batch_size=20)
    released = Counted(210, plans.count_event(mechanism))
    one, two = (
        plans.make(mechanism, Facts(size=size, parameters=10, counted=released), spent=[released.event])
        for size in (150, 230)
    )
    assert (one.sample_rate, one.noise_multiplier, one.steps) == (two.sample_rate, two.noise_multiplier, two.steps)


def counted(rows, seed):
    private = attach(nn.Linear(FEATURES, 1), loader=DataLoader(data(rows), batch_size=20), size="private", seed=seed)
    private.detach()
    return private.run.plan.counted.records


def test_a_count_below_the_batch_size_samples_everyone():
    mechanism = Mechanism(size="private", noise_multiplier=1.0, epochs=1, expected_batch_size=50)
    for records in (1, 30):
        plan = plans.make(mechanism, Facts(size=40, parameters=3, counted=Counted(records, StepEvent(1.0, 20.0))))
        assert (plan.sample_rate, plan.steps, plan.expected_batch_size) == (1.0, 1, 50)


def test_a_private_size_goes_on_without_another_count(tmp_path):
    options = {"size": "private", "ledger": tmp_path / "ledger.jsonl", "loader": DataLoader(data(), batch_size=12)}
    first = attach(**options)
    train(first)
    first.save(tmp_path / "kept")
    plan = first.run.plan
    first.detach()
    again = attach(resume=tmp_path / "kept", **options)
    assert again.run.plan.counted == plan.counted
    assert again.run.plan.sample_rate == plan.sample_rate
    train(again)
    events = again.run.ledger.events()
    assert sum(event.count for event in events if event.sample_rate == 1) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"size": "secret"}, "size='secret'"),
        ({"size": "private", "sample_rate": 0.2}, "sample_rate=0.2"),
        ({"size": "private", "sampling": "fixed-size"}, "sampling='poisson'"),
        ({"size": "private", "noise_multiplier": ..., "epsilon": 1.0, "delta": ...}, "delta=None"),
        ({"size": "private", "noise_multiplier": ..., "epsilon": 1.0, "epochs": ...}, "epochs=None"),
        ({"size": "private", "method": "unknown"}, "method='unknown'"),
    ],
)
def test_what_does_not_go_with_a_private_size_is_refused_before_the_count(tmp_path, options, match):
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(BadArgument, match=match):
        attach(ledger=path, **options)
    assert not Path(path).exists()


def test_fit_with_a_private_size():
    done = clipwise.fit(
        network(), data(), epsilon=3.0, delta=1e-3, epochs=2, expected_batch_size=12, size="private", method="fixed"
    )
    assert 2.5 < done.epsilon <= 3.0
    assert "private: a count with noise" in done.statement.to_markdown()


def test_guards_keep_nothing_alive():
    private = attach()
    claim = weakref.ref(private.run._claim)
    del private
    gc.collect()
    assert claim() is None
    assert claim not in guards._claims


# -- after the first batch (each attack is in clipwise/lab/audit/edges/later.py) --------------------------------------


def annealed(private):
    for step, (x, y) in enumerate(private.loader):
        private.optimizer.zero_grad()
        private.backward((step + 1) * F.cross_entropy(private.model(x), y, reduction="none"))
        private.optimizer.step()


def test_a_weight_that_changes_is_declared_or_refused():
    with pytest.raises(LoopMisuse, match="is not that of earlier batches"):
        annealed(attach())
    declared = attach(loss_declared="row-wise")
    annealed(declared)
    assert "declared by the user: row-wise" in str(declared.statement())


def test_a_node_hook_that_looks_on_changes_nothing_and_one_elsewhere_may():
    def with_hooks(loss):
        loss.grad_fn.register_hook(lambda *_: None)
        loss.backward()

    private = attach()
    train(private, backward=with_hooks)
    assert torch.equal(weights(private.model), trained())
    x = torch.ones(3, requires_grad=True)
    loss = (2 * x).sum()
    loss.grad_fn.register_prehook(lambda g: (5 * g[0],))
    loss.backward()  # none of a private batch
    assert torch.equal(x.grad, torch.full((3,), 10.0))
    private.detach()
    gc.collect()
    assert "_register_hook" not in vars(torch.autograd.Function) or guards._claims


def test_functions_of_ones_own_in_row_losses_are_said():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return 2 * x

        @staticmethod
        def backward(ctx, g):  # noqa: ARG004
            return 2 * g

    private = attach()
    for x, y in private.loader:
        private.backward(Twice.apply(F.cross_entropy(private.model(x), y, reduction="none")))
        private.optimizer.step()
        private.optimizer.zero_grad()
    assert "taken to read no other row" in str(private.statement())


def test_inputs_made_by_another_modules_parameters_are_refused():
    before, private = nn.Linear(FEATURES, FEATURES), attach()
    x, y = next(iter(private.loader))
    unchanged(private, lambda: F.cross_entropy(private.model(before(x)), y), Unsupported, "not its own")
    private.detach()
    private, frozen = attach(), before.requires_grad_(False)
    for x, y in private.loader:  # inputs that need gradients are no parameters
        private.optimizer.zero_grad()
        F.cross_entropy(private.model(frozen(x.requires_grad_())), y).backward()
        private.optimizer.step()
