"""The drop-in API as users meet it: the same loop, the same objects, and nothing released but noised sums."""

import copy
import fcntl
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import clipwise
from clipwise.accounting import Ledger, LedgerError
from clipwise.noise import GaussianNoise
from clipwise.types import BadArgument, BudgetExhausted, LoopMisuse, Unsupported

ROWS, FEATURES, CLASSES = 60, 6, 3


def data(rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(rows, FEATURES, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)
    )


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def attach(model=None, optimizer=None, loader=None, **options):
    model = model or network()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=12, shuffle=True) if loader is None else loader
    settings = {"method": "fixed", "noise_multiplier": 1.0, "delta": 1e-5, "epochs": 2, "seed": 7} | options
    settings = {name: value for name, value in settings.items() if value is not ...}
    return clipwise.attach(model, optimizer, loader, **settings)


def train(private, epochs=1, criterion=F.cross_entropy, scheduler=None):
    for _ in range(epochs):
        for x, y in private.loader:
            private.optimizer.zero_grad()
            criterion(private.model(x), y).backward()
            private.optimizer.step()
            if scheduler:
                scheduler.step()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


# -- the loop stays as it is
# -----------------------------------------------------------------------------------------------


def test_model_and_optimizer_stay_what_they_were():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    keys, kind = list(model.state_dict()), type(model)
    private = attach(model, optimizer)
    assert private.model is model
    assert private.optimizer is optimizer
    assert type(model) is kind
    assert isinstance(model, nn.Sequential)
    assert list(model.state_dict()) == keys
    assert all(p.requires_grad for p in model.parameters())
    assert model[0].in_features == FEATURES
    train(private)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    private.detach()


def test_detach_gives_everything_back():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = attach(model, optimizer)
    train(private)
    private.detach()
    private.detach()
    assert "forward" not in model.__dict__
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert "step" not in optimizer.__dict__
    before = weights(model)
    x, y = data()[:10]
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    assert model[0].weight.grad is not None
    optimizer.step()
    assert not torch.equal(before, weights(model))
    attach(model, optimizer).detach()  # and it can be attached again


@pytest.mark.parametrize(
    "make",
    [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam],
)
@pytest.mark.parametrize("scheduler_first", [True, False])
def test_any_optimizer_with_one_cycle(make, scheduler_first):
    model = network()
    optimizer = make(model.parameters(), lr=0.01)
    loader = DataLoader(data(), batch_size=12, shuffle=True)

    def schedule(optimizer=optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=2 * len(loader), cycle_momentum=False
        )

    scheduler = schedule() if scheduler_first else None
    private = attach(model, optimizer, loader)
    scheduler = scheduler or schedule()
    plain = make([nn.Parameter(torch.ones(1))], lr=0.01)
    plain_scheduler = schedule(plain)
    before = weights(model)
    train(private, epochs=2, scheduler=scheduler)
    assert not torch.equal(before, weights(model))
    for _ in range(2 * len(loader)):
        plain.step()
        plain_scheduler.step()
    assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    private.detach()


def test_length_is_that_of_the_users_loader():
    loader = DataLoader(data(), batch_size=7, shuffle=True)
    private = attach(loader=loader)
    assert len(private.loader) == len(loader) == math.ceil(ROWS / 7)
    private.detach()


def test_closures_work():
    private = attach()
    before = weights(private.model)
    for x, y in private.loader:

        def closure(x=x, y=y):
            private.optimizer.zero_grad()
            loss = F.cross_entropy(private.model(x), y)
            loss.backward()
            return loss

        assert private.optimizer.step(closure).isfinite()
    assert not torch.equal(before, weights(private.model))
    private.detach()


def test_a_deep_copy_is_free_of_the_engine():
    private = attach()
    x, y = data()[:5]
    average = copy.deepcopy(private.model)
    F.cross_entropy(average(x), y).backward()
    assert average[0].weight.grad is not None
    assert private.model[0].weight.grad is None
    private.detach()


# -- the released gradient is right
# ------------------------------------------------------------------------------------------


class Frozen(GaussianNoise):
    """No noise: what is left is the clipped sum."""

    def add(self, sums, std, *, step):  # noqa: ARG002
        self.std = std
        return tuple(total.clone() for total in sums)


def clipped_mean(model, x, y, threshold, expected):
    """By hand: each example's own gradient, clipped, summed, over the expected batch size."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        grads = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        norm = torch.stack([g.norm() for g in grads]).norm()
        for t, g in zip(total, grads, strict=True):
            t += g * min(1.0, float(threshold / norm))
    return [t / expected for t in total]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("most", [None, 1, 2, 7])
@pytest.mark.parametrize("engine", ["fast", "generic"])
@pytest.mark.filterwarnings("ignore:clipwise")
def test_gradient_is_the_clipped_sum_over_the_expected_batch_size(reduction, most, engine):
    model = network()
    twin = copy.deepcopy(model)
    private = attach(model, loss_reduction=reduction, max_physical_batch=most, threshold=0.5, engine=engine)
    private.run.stepper.noise = Frozen(private.run.noise._key)
    seen = []
    for x, y in private.loader:
        private.optimizer.zero_grad()
        F.cross_entropy(model(x), y, reduction=reduction).backward()
        private.optimizer.step()
        seen.append((x, y))
        if private.stepped:
            break
    want = clipped_mean(twin, torch.cat([x for x, _ in seen]), torch.cat([y for _, y in seen]), 0.5, expected=12)
    for p, g in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-6)
    assert private.run.noise.std == pytest.approx(0.5)
    private.detach()


@pytest.mark.parametrize("most", [1, 2, 7, 12, 60])
def test_virtual_batches_are_exact(most):
    """The same weights whatever the split: one noise draw and one ledger line a logical step."""
    whole, split = attach(), attach(max_physical_batch=most)
    train(whole, epochs=2)
    train(split, epochs=2)
    torch.testing.assert_close(weights(whole.model), weights(split.model), rtol=1e-5, atol=1e-6)
    assert whole.run.ledger.events() == split.run.ledger.events()
    assert split.run.state.step == 2 * len(split.loader)


def test_a_loop_left_in_the_middle_of_a_logical_batch_leaves_nothing_behind():
    clean, broken = attach(), attach(max_physical_batch=3)
    before = weights(broken.model)
    for x, y in broken.loader:
        broken.optimizer.zero_grad()
        F.cross_entropy(broken.model(x), y).backward()
        broken.optimizer.step()
        assert not broken.stepped
        break
    assert torch.equal(before, weights(broken.model))
    assert broken.run.ledger.events() == []
    assert broken.epsilon() == 0
    train(clean)
    train(broken)
    torch.testing.assert_close(weights(clean.model), weights(broken.model), rtol=1e-5, atol=1e-6)


def test_a_scheduler_moves_once_a_logical_step():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    private = attach(model, optimizer, max_physical_batch=2, lr_scheduler=scheduler)
    train(private, scheduler=scheduler)
    assert optimizer.param_groups[0]["lr"] == 0.5 ** len(private.loader)
    private.detach()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5 ** (1 + len(private.loader))


def test_a_scheduler_that_was_not_handed_over_gets_a_warning():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    private = attach(model, optimizer, max_physical_batch=2)
    with pytest.warns(UserWarning, match="lr_scheduler"):
        train(private, scheduler=scheduler)


def test_noise_has_the_stated_std():
    """Released minus clipped sum, over many steps: the chi-square test sees 3 % of missing noise."""
    from scipy import stats

    model = nn.Linear(400, 5, bias=False)
    nn.init.zeros_(model.weight)
    loader = DataLoader(
        TensorDataset(torch.zeros(50, 400), torch.zeros(50, dtype=torch.long)), batch_size=10, shuffle=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    private = attach(model, optimizer, loader, noise_multiplier=1.3, threshold=0.7, epochs=12)
    drawn = []
    for _ in range(12):
        for x, y in private.loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            drawn.append(model.weight.grad.flatten().clone() * 10 / (1.3 * 0.7))
    values = torch.cat(drawn).double()
    low, high = stats.chi2(len(values)).ppf([1e-6, 1 - 1e-6])
    assert low < float(values.square().sum()) < high
    assert not low < float((0.97 * values).square().sum()) < high
    stacked = torch.stack(drawn)
    assert torch.corrcoef(stacked).fill_diagonal_(0).abs().max() < 0.12


def test_empty_batches_release_noise_and_are_charged():
    loader = DataLoader(data(), batch_size=12, shuffle=True)
    private = attach(loader=loader, sample_rate=1e-9, expected_batch_size=12, epochs=...)
    before = weights(private.model)
    for steps, (x, y) in enumerate(private.loader):
        assert len(x) == 1
        private.optimizer.zero_grad()
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
        assert private.model[0].weight.grad.abs().max() > 0
        if steps == 4:
            break
    assert not torch.equal(before, weights(private.model))
    assert sum(event.count for event in private.run.ledger.events()) == 5
    private.run.stepper.noise = Frozen(private.run.noise._key)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
        break
    assert all(p.grad.count_nonzero() == 0 for p in private.model.parameters())


# -- hostile records
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38, 1e20])
@pytest.mark.parametrize("most", [None, 1])
def test_a_hostile_record_contributes_at_most_the_bound(value, most):
    """Same batch with and without the record: the sums differ by at most the bound, by nothing at all if it is not
    finite."""
    clean = data(20)
    x = torch.cat([clean.tensors[0], torch.full((1, FEATURES), value)])
    hostile = TensorDataset(x, torch.cat([clean.tensors[1], torch.tensor([1])]))
    sums = []
    for dataset in (clean, hostile):
        private = attach(
            loader=DataLoader(dataset, batch_size=20, shuffle=True),
            sample_rate=1.0,
            max_physical_batch=most,
            threshold=0.5,
        )
        private.run.stepper.noise = Frozen(private.run.noise._key)
        for bx, by in private.loader:
            private.optimizer.zero_grad()
            F.cross_entropy(private.model(bx), by).backward()
            private.optimizer.step()
        sums.append(torch.cat([p.grad.flatten() * 20 for p in private.model.parameters()]))
        assert weights(private.model).isfinite().all()
    assert float((sums[1] - sums[0]).norm()) <= 0.5 * (1 + 1e-5)
    if not math.isfinite(value):
        torch.testing.assert_close(sums[1], sums[0], rtol=1e-5, atol=1e-6)


def test_training_goes_on_through_a_batch_of_nothing_but_nan():
    loader = DataLoader(
        TensorDataset(torch.full((30, FEATURES), math.nan), torch.zeros(30, dtype=torch.long)), batch_size=10
    )
    private = attach(loader=loader)
    train(private, epochs=2)
    assert weights(private.model).isfinite().all()
    assert private.run.state.step == 6


# -- misuse: a clear error, nothing changed
# ------------------------------------------------------------------------------------


def step_once(private):
    for x, y in private.loader:
        private.optimizer.zero_grad()
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
        return


def misuse_step_twice(private):
    private.optimizer.step()


def misuse_no_backward(private):
    for x, _ in private.loader:
        private.model(x)
        private.optimizer.step()


def misuse_backward_twice(private):
    for x, y in private.loader:
        loss = F.cross_entropy(private.model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()


def misuse_backward_twice_then_step(private):
    for x, y in private.loader:
        loss = F.cross_entropy(private.model(x), y)
        loss.backward(retain_graph=True)
        with pytest.raises(LoopMisuse):
            loss.backward()
        private.optimizer.step()


def misuse_skip(private):
    for _ in private.loader:
        continue


def misuse_create_graph(private):
    for x, y in private.loader:
        F.cross_entropy(private.model(x), y).backward(create_graph=True)


def misuse_part_of_a_batch(private):
    for x, y in private.loader:
        F.cross_entropy(private.model(x), y)
        F.cross_entropy(private.model(x[:2]), y[:2]).backward()


def misuse_parameter_added(private):
    for x, y in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
        private.optimizer.step()


def misuse_parameter_added_to_the_model(private):
    for x, y in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        private.model.extra = nn.Parameter(torch.ones(3))
        private.optimizer.step()


def misuse_parameter_frozen(private):
    for x, y in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        private.model[0].weight.requires_grad_(False)
        private.optimizer.step()


def misuse_stale_batch(private):
    for x, y in private.loader:
        loss = F.cross_entropy(private.model(x), y)
        break
    loss.backward()
    private.optimizer.step()


@pytest.mark.parametrize(
    "misuse",
    [
        misuse_step_twice,
        misuse_no_backward,
        misuse_backward_twice,
        misuse_backward_twice_then_step,
        misuse_skip,
        misuse_create_graph,
        misuse_part_of_a_batch,
        misuse_parameter_added,
        misuse_parameter_added_to_the_model,
        misuse_parameter_frozen,
        misuse_stale_batch,
    ],
)
@pytest.mark.filterwarnings("ignore:Using backward")
def test_misuse_is_refused_and_changes_nothing(misuse):
    private = attach()
    step_once(private)
    own = [(p, p.detach().clone()) for p in private.model.parameters()]
    charged = private.run.ledger.events()
    with pytest.raises(LoopMisuse, match=r"[Cc]all|attach|batch"):
        misuse(private)
    assert all(torch.equal(p, was) for p, was in own)
    assert private.run.ledger.events() == charged


@pytest.mark.parametrize("declared", ["mean", "sum"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y, how: F.cross_entropy(out, y, reduction=how),
        lambda out, y, how: getattr(F.cross_entropy(out, y, reduction="none"), how)(),
        lambda out, y, how: F.mse_loss(out, F.one_hot(y, CLASSES).float(), reduction=how),
    ],
)
def test_a_wrongly_declared_reduction_is_refused(declared, loss):
    private = attach(loss_reduction=declared)
    train(private, criterion=lambda out, y: loss(out, y, declared))
    with pytest.raises(LoopMisuse, match=f"loss_reduction='{declared}'"):
        train(private, criterion=lambda out, y: loss(out, y, {"mean": "sum", "sum": "mean"}[declared]))


def test_gradients_past_the_layers_are_refused_and_never_seen():
    private = attach()
    for x, y in private.loader:
        penalty = private.model[0].weight.square().sum()
        with pytest.raises(Unsupported, match="weight_decay"):
            (F.cross_entropy(private.model(x), y) + penalty).backward()
        break
    assert private.model[0].weight.grad is None


def test_training_on_data_outside_the_loader_is_refused():
    private = attach()
    x, y = data()[:5]
    with pytest.raises(Unsupported, match=r"private\.loader"):
        F.cross_entropy(private.model(x), y).backward()
    assert all(p.grad is None for p in private.model.parameters())


def test_evaluation_in_the_middle_of_training_is_fine():
    private = attach()
    for x, y in private.loader:
        private.optimizer.zero_grad()
        loss = F.cross_entropy(private.model(x), y)
        with torch.no_grad():
            private.model.eval()
            private.model(data()[:17][0])
            private.model.train()
        loss.backward()
        private.optimizer.step()
    assert private.run.state.step == len(private.loader)


def test_budget_stops_before_the_step_that_would_exceed_it():
    private = attach(epsilon=2.0, noise_multiplier=..., epochs=2)
    train(private, epochs=2)
    spent, before = private.epsilon(), weights(private.model)
    assert 1.9 < spent <= 2.0
    with pytest.raises(BudgetExhausted, match="epsilon=2"):
        train(private)
    assert private.epsilon() == spent
    assert torch.equal(before, weights(private.model))


def test_a_ledger_that_goes_on_counts_what_it_holds(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = attach(epsilon=2.0, noise_multiplier=..., epochs=2, ledger=path)
    train(first, epochs=2)
    spent = first.epsilon()
    first.detach()
    second = attach(epsilon=2.0, noise_multiplier=..., epochs=2, ledger=path)
    assert second.epsilon() == pytest.approx(spent)
    with pytest.raises(BudgetExhausted):
        train(second)


def test_noise_is_fresh_on_resume_even_with_a_seed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    released = []
    for _ in range(2):
        private = attach(ledger=path)
        step_once(private)
        released.append(private.model[0].weight.grad.clone())
        private.detach()
    assert not torch.isin(released[0], released[1]).any()


def test_a_cell_that_is_run_again_goes_on_with_the_ledger(tmp_path):
    """Nobody called detach: the earlier run is closed when the later one asks for its file, and can no longer step."""
    path = tmp_path / "ledger.jsonl"
    first = attach(ledger=path)
    step_once(first)
    second = attach(ledger=path)
    assert second.epsilon() == first.epsilon() > 0
    with pytest.raises(LedgerError, match="opened again in this process"):
        step_once(first)
    step_once(second)
    second.detach()
    assert sum(event.count for event in Ledger.read(path).events()) == 2


@pytest.mark.parametrize("late", ["clipwise.run.Stepper", "clipwise.dropin.Private"])
def test_an_attach_that_fails_late_leaves_ledger_and_model_free(tmp_path, monkeypatch, late):
    path, model = tmp_path / "ledger.jsonl", network()

    def fail(*_, **__):
        raise BadArgument("too late")

    monkeypatch.setattr(late, fail)
    with pytest.raises(BadArgument, match="too late") as kept:  # as a notebook keeps the last traceback
        attach(model, ledger=path)
    monkeypatch.undo()
    if path.exists():  # a new ledger without a charge may be gone
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    attach(model, ledger=path).detach()
    del kept


def test_a_method_that_can_not_start_leaves_no_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(BadArgument, match="epochs"):
        attach(method="dynamic", epochs=None, ledger=path)
    assert not path.exists()


# -- bad arguments
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0}, "threshold=0"),
        ({"threshold": math.nan}, "threshold=nan"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
        ({"delta": 0.0}, r"delta=0\.0"),
        ({"delta": 1.0}, r"delta=1\.0"),
        ({"delta": 0.02}, "below 1 / 60"),
        ({"epsilon": 1.0}, "exactly one"),
        ({"noise_multiplier": ...}, "exactly one"),
        ({"epsilon": 0.0, "noise_multiplier": ...}, r"epsilon=0\.0"),
        ({"epsilon": -2, "noise_multiplier": ...}, "epsilon=-2"),
        ({"epsilon": math.nan, "noise_multiplier": ...}, "epsilon=nan"),
        ({"epsilon": 1.0, "noise_multiplier": ..., "epochs": ...}, "epochs=None"),
        ({"method": "unknown"}, "method='unknown'"),
        ({"colour": "red"}, "colour='red'"),
        ({"loss_reduction": "none"}, "loss_reduction='none'"),
        ({"loss_declared": "mean"}, "loss_declared='mean'"),
        ({"max_physical_batch": 0}, "max_physical_batch=0"),
        ({"accountant": "gdp"}, "accountant='gdp'"),
        ({"sample_rate": 1.5}, r"sample_rate=1\.5"),
        ({"expected_batch_size": 100}, "expected_batch_size=100"),
        ({"expected_batch_size": -1}, "expected_batch_size=-1"),
        ({"engine": "slow"}, "engine='slow'"),
        ({"seed": -3}, "seed=-3"),
    ],
)
def test_bad_arguments_name_argument_value_and_remedy(options, message):
    model = network()
    before = weights(model)
    with pytest.raises(BadArgument, match=message):
        attach(model, **options)
    assert torch.equal(before, weights(model))
    attach(model).detach()  # a refused model can still be attached


class Stream(IterableDataset):
    def __iter__(self):
        return iter(data())


class Empty(Dataset):
    def __len__(self):
        return 0

    def __getitem__(self, i):
        raise IndexError(i)


def test_loaders_that_cannot_be_honoured():
    with pytest.raises(Unsupported, match="IterableDataset"):
        attach(loader=DataLoader(Stream(), batch_size=4))
    with pytest.raises(Unsupported, match="WeightedRandomSampler"):
        attach(loader=DataLoader(data(), batch_size=4, sampler=WeightedRandomSampler([1.0] * ROWS, ROWS)))
    with pytest.raises(Unsupported, match="batch_size=None"):
        attach(loader=DataLoader(data(), batch_size=None))
    with pytest.raises(BadArgument, match="empty"):
        attach(loader=DataLoader(Empty(), batch_size=4))
    with pytest.raises(BadArgument, match="DataLoader"):
        attach(loader=[1, 2])
    with pytest.warns(UserWarning, match="drop_last"):
        attach(loader=DataLoader(data(), batch_size=12, drop_last=True))


def test_models_that_cannot_be_trained_privately():
    with pytest.raises(Unsupported, match=r"clipwise\.fix"):
        attach(nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES)))
    model = network()
    with pytest.raises(Unsupported, match="LBFGS"):
        attach(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(BadArgument, match=r"2\.bias"):
        attach(model, torch.optim.SGD([model[0].weight, model[0].bias, model[2].weight], lr=0.1))
    with pytest.raises(BadArgument, match="not the model's"):
        attach(model, torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1))
    private = attach(model)
    with pytest.raises(BadArgument, match="attached already"):
        attach(model)
    private.detach()
    model.requires_grad_(False)
    with pytest.raises(BadArgument, match="unfreeze"):
        attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def fine_tuned():
    """Batch norm with the statistics of other data, in eval mode."""
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    model(torch.randn(50, FEATURES))
    return model


@pytest.mark.parametrize("frozen", [True, False])
def test_batch_norm_in_eval_mode_is_allowed_and_stays_as_it_is(frozen):
    model = fine_tuned()
    model[1].eval().requires_grad_(not frozen)
    statistics = model[1].running_mean.clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    private = attach(model, optimizer)
    train(private)
    assert torch.equal(model[1].running_mean, statistics)
    model.train()  # the usual line at the head of an epoch
    with pytest.raises(Unsupported, match=r"layer '1' \(BatchNorm1d\).*after each model.train"):
        train(private)
    model[1].eval()
    train(private)


def test_batch_norm_without_running_statistics_is_refused_in_any_mode():
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, CLASSES))
    with pytest.raises(Unsupported, match=r"clipwise\.fix"):
        attach(model.eval())


def test_a_buffer_that_the_loop_writes_records_into_stops_it():
    """A centre of features, as in self-distillation, moved by the loop itself."""
    model = network()
    model.register_buffer("centre", torch.zeros(CLASSES))
    private = attach(model)

    def loop():
        for x, y in private.loader:
            private.optimizer.zero_grad()
            out = model(x)
            F.cross_entropy(out, y).backward()
            private.optimizer.step()
            model.centre.lerp_(out.detach().mean(0), 0.1)

    with pytest.raises(LoopMisuse, match="'centre'"):
        loop()
    assert sum(event.count for event in private.run.ledger.events()) == 1
    private.detach()
    private = attach(model)
    for _ in range(2):
        train(private)
        model.centre.fill_(0.5)  # between epochs: public, says the user


class MixesRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        h = self.inner(x)
        return h - h.mean(0)


def test_a_model_that_mixes_rows_is_refused_at_the_first_batch():
    private = attach(MixesRows())
    with pytest.raises(Unsupported, match="mixes examples"):
        train(private)
    assert private.run.ledger.events() == []


def test_fix_replaces_batch_norm():
    model = nn.Sequential(
        nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm1d(4)), nn.Linear(4, CLASSES)
    )
    with torch.no_grad():
        model[1].weight.fill_(3.0)
    fixed = clipwise.fix(model)
    assert fixed is model
    assert isinstance(model[1], nn.GroupNorm)
    assert isinstance(model[2][0], nn.GroupNorm)
    assert (model[1].weight == 3).all()
    private = attach(model)
    train(private)


def test_workers_and_collate_are_the_users_own():
    loader = DataLoader(data(), batch_size=12, shuffle=True, num_workers=1, collate_fn=collate_with_mark)
    private = attach(loader=loader)
    seen = 0
    for x, y, mark in private.loader:
        assert mark == "mine"
        private.optimizer.zero_grad()
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
        seen += 1
    assert seen == len(private.loader) == private.run.state.step


def collate_with_mark(records):
    return torch.stack([x for x, _ in records]), torch.stack([y for _, y in records]), "mine"


def test_statement_says_what_is_public():
    private = attach(epsilon=3.0, noise_multiplier=...)
    text = private.statement().to_markdown()
    for needed in ("treated as public", "add or remove one record", "Poisson", "seed", "threshold", "not counted"):
        assert needed in text
    assert private.statement().size_is_public
    other = attach(sample_rate=0.2, expected_batch_size=12)
    assert "not used" in other.statement().to_markdown()
    assert private.epsilon() == 0


def test_epsilon_at_another_delta():
    private = attach()
    train(private)
    assert private.epsilon(1e-7) > private.epsilon(1e-5) > private.epsilon(1e-3) > 0
    with pytest.raises(BadArgument, match="delta="):
        private.epsilon(0.5)
    nameless = attach(delta=...)
    with pytest.raises(BadArgument, match="delta=None"):
        nameless.epsilon()


def test_no_warning_on_the_fast_path():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(attach())


def test_a_loop_left_in_the_middle_whose_iterator_is_still_held():
    """What it had summed must not be counted a second time."""
    model = nn.Linear(4, 1)
    records = TensorDataset(torch.ones(8, 4))
    private = attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        DataLoader(records, batch_size=8),
        noise_multiplier=1e-9,
        sample_rate=1.0,
        expected_batch_size=8,
        max_physical_batch=4,
    )

    def step(batch):
        private.optimizer.zero_grad()
        (5 * model(batch[0])).mean().backward()
        private.optimizer.step()

    held = iter(private.loader)
    step(next(held))
    for batch in private.loader:
        step(batch)
    assert torch.cat([p.grad.flatten() for p in model.parameters()]).norm() * 8 == pytest.approx(8, rel=1e-4)


def test_a_scheduler_can_be_saved_and_is_given_back(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    private = attach(model, optimizer, lr_scheduler=scheduler, max_physical_batch=5)
    assert isinstance(scheduler, torch.optim.lr_scheduler.StepLR)
    train(private, scheduler=scheduler)
    torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
    assert scheduler.last_epoch == private.run.state.step
    private.detach()
    assert type(scheduler) is torch.optim.lr_scheduler.StepLR


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lr_scheduler": 3}, "lr_scheduler=int"),
        ({"groups": 3}, "groups=3"),
        ({"method": "quantile", "noise_multiplier": 9.0}, "expected_batch_size=12"),
    ],
)
def test_what_is_refused_leaves_the_model_free(options, match):
    model = network()
    with pytest.raises(BadArgument, match=match):
        attach(model, **options)
    attach(model).detach()


def test_a_rate_that_follows_a_loss_gets_a_word_of_warning():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="public data"):
        attach(model, optimizer, lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))


def test_a_run_cannot_be_copied():
    private = attach()
    with pytest.raises(LoopMisuse, match="cannot be copied"):
        copy.deepcopy(private)


def test_a_fork_draws_no_noise(monkeypatch):
    private = attach()
    monkeypatch.setattr("clipwise.noise.gaussian.os.getpid", lambda: -1)
    with pytest.raises(LoopMisuse, match="another process"):
        train(private)


def test_fix_leaves_something_of_small_layers_and_replaces_every_place():
    model = clipwise.fix(nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)))
    assert model[1].num_groups == 2
    assert model(torch.randn(50, 6)).std(0).min() > 0.05
    shared = nn.BatchNorm1d(4)
    places = clipwise.fix(nn.ModuleList([shared, shared]))
    assert isinstance(places[1], nn.GroupNorm)
    assert places[0] is places[1]
    assert clipwise.fix(nn.BatchNorm2d(64)).num_groups == 32


def test_an_old_ledger_is_named_where_it_leaves_no_room(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = attach(ledger=path, epsilon=1.0, noise_multiplier=...)
    train(first, epochs=2)
    first.detach()
    again = attach(ledger=path, epsilon=1.0, noise_multiplier=...)
    with pytest.raises(BudgetExhausted, match="charges of earlier runs"):
        train(again)


def test_a_frozen_parameter_that_begins_to_train_is_refused_though_the_optimizer_does_not_hold_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), batch_size=10)
    private = clipwise.attach(model, optimizer, loader, noise_multiplier=1.0)
    batches = iter(private.loader)
    for step in range(3):
        optimizer.zero_grad()
        x, y = next(batches)
        nn.functional.cross_entropy(model(x), y).backward()
        if step < 2:
            optimizer.step()
    model[0].bias.requires_grad_(True)
    with pytest.raises(LoopMisuse, match="frozen or unfrozen"):
        optimizer.step()
    private.detach()


def test_a_private_loop_is_shown_in_a_line():
    model = nn.Linear(8, 2)
    data = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = clipwise.attach(model, optimizer, DataLoader(data, 16), method="fixed", epsilon=3.0, delta=1e-3, epochs=2)
    assert "method fixed, step 0 of 8" in repr(private)
    private.detach()
