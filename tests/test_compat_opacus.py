"""Scripts for Opacus run with another import; their epsilon is that of Opacus' own accountants; what is unsound is refused."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clipwise.accounting import epsilon as bound
from clipwise.compat.opacus import BatchMemoryManager, ModuleValidator, PrivacyEngine
from clipwise.compat.opacus.accountants.utils import get_noise_multiplier
from clipwise.compat.opacus.schedulers import (
    ExponentialGradClip,
    ExponentialNoise,
    LambdaGradClip,
    LambdaNoise,
    StepNoise,
)
from clipwise.types import BadArgument, BudgetExhausted, LoopMisuse, Unsupported

SCRIPTS = sorted((Path(__file__).parent / "opacus_scripts").glob("*.py"))


def run_script(path, library):
    """The script with the library's name in its import lines, and no other change."""
    code = re.sub(r"^from opacus", f"from {library}", path.read_text(), flags=re.MULTILINE)
    torch.manual_seed(0)
    names: dict = {"__name__": "script"}
    exec(compile(code, str(path), "exec"), names)
    return names


@pytest.fixture
def loop():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(300, 6), torch.randint(0, 3, (300,)))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": DataLoader(data, batch_size=64, shuffle=True),
    }


def train(model, optimizer, loader, epochs=1):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_changes_its_import_and_nothing_else(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = run_script(script, "clipwise.compat.opacus")
    assert ours["accuracy"] > 0.7
    engine = ours["privacy_engine"]
    statement = engine.statement()
    if statement.delta is not None:  # a script that states its noise names delta only as it asks for epsilon
        assert statement.epsilon == ours["epsilon"]
    engine.detach()


@pytest.mark.filterwarnings("ignore")  # Opacus' own
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_epsilon_is_that_of_opacus_own_accountant(script, tmp_path, monkeypatch):
    pytest.importorskip("opacus")
    from opacus.accountants import PRVAccountant, create_accountant

    monkeypatch.chdir(tmp_path)
    ours, theirs = run_script(script, "clipwise.compat.opacus"), run_script(script, "opacus")
    if "noise" in ours:  # the script states its noise: the same releases, in the same order
        for one, other in zip(sorted(ours["history"]), sorted(theirs["history"]), strict=True):
            assert one == pytest.approx(other)
    else:  # it was calibrated, by each library to its own tolerance
        assert ours["history"][0] == pytest.approx(theirs["history"][0], rel=0.02)
    own = create_accountant(ours["privacy_engine"].accountant.mechanism())
    own.history = ours["history"]
    assert ours["epsilon"] == pytest.approx(own.get_epsilon(ours["DELTA"]), abs=0.02)
    prv = PRVAccountant()
    prv.history = ours["history"]
    least, _, _ = prv._get_dprv(eps_error=0.01, delta_error=1e-8).compute_epsilon(ours["DELTA"], 1e-8, 0.01)
    assert ours["epsilon"] >= least  # never below the truth


def test_each_step_is_charged_with_the_noise_that_its_scheduler_set(loop):
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(**loop, noise_multiplier=1.0, max_grad_norm=2.0)
    noise, clip = ExponentialNoise(optimizer, gamma=0.5), ExponentialGradClip(optimizer, gamma=0.5)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        train(model, optimizer, loader)
        noise.step()
        clip.step()
    assert sorted(engine.accountant.history) == [(0.5, 0.2, 5), (1.0, 0.2, 5)]
    assert engine.get_epsilon(1e-5) > bound(engine._events()[:1], 1e-5, "pld").value
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (0.25, 0.5)
    assert "script's word" in engine.statement().to_markdown()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    engine.detach()
    assert type(optimizer) is torch.optim.SGD
    assert not hasattr(model, "_module")


def test_the_noise_and_the_norm_that_are_set_are_those_that_are_drawn(loop):
    """Without noise one record's step is the clipped gradient: a norm that is set bounds it from then on."""
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(**loop, noise_multiplier=0.0, max_grad_norm=1.0)
    optimizer.max_grad_norm = 1e-6
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, loader)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.noise_multiplier, optimizer.max_grad_norm = 1e6, 1.0
    train(model, optimizer, loader)
    assert all((a - b).abs().mean() > 100 for a, b in zip(before, model.parameters(), strict=True))
    engine.detach()


def test_other_schedulers(loop):
    engine = PrivacyEngine()
    _, optimizer, _ = engine.make_private(**loop, noise_multiplier=2.0, max_grad_norm=1.0)
    StepNoise(optimizer, step_size=1, gamma=0.5).step()
    assert optimizer.noise_multiplier == 1.0
    LambdaNoise(optimizer, noise_lambda=lambda epoch: 1 + epoch).step()
    LambdaGradClip(optimizer, scheduler_function=lambda epoch: 0.1**epoch).step()
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (2.0, 0.1)
    with pytest.raises(BadArgument, match="make_private returned"):
        StepNoise(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), step_size=1, gamma=0.5)
    engine.detach()


def test_a_target_stops_training_and_its_noise_cannot_be_lowered(loop):
    engine = PrivacyEngine(accountant="rdp")
    target = {"target_epsilon": 2.0, "target_delta": 1e-4, "epochs": 2}
    model, optimizer, loader = engine.make_private_with_epsilon(**loop, **target, max_grad_norm=1.0)
    train(model, optimizer, loader, epochs=2)
    assert 1.9 < engine.get_epsilon(1e-4) <= 2.0
    with pytest.raises(Unsupported, match="calibrated for target_epsilon"):
        ExponentialNoise(optimizer, gamma=0.5).step()
    with pytest.raises(BudgetExhausted):
        train(model, optimizer, loader)
    engine.detach()
    wanted = get_noise_multiplier(target_epsilon=2.0, target_delta=1e-4, sample_rate=0.2, epochs=2, accountant="rdp")
    assert engine.accountant.history == [(pytest.approx(wanted), 0.2, 10)]


def test_what_was_spent_after_a_checkpoint_counts_when_it_is_loaded(loop, tmp_path):
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(**loop, noise_multiplier=1.0, max_grad_norm=1.0)
    train(model, optimizer, loader)
    more = {"checkpoint_dict": {"epoch": 1}}
    engine.save_checkpoint(path=tmp_path / "kept.pt", module=model, optimizer=optimizer, **more)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, optimizer, loader, epochs=2)
    again = engine.load_checkpoint(path=tmp_path / "kept.pt", module=model, optimizer=optimizer)
    assert again["epoch"] == 1
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert len(engine.accountant) == 15
    spent = engine.get_epsilon(1e-5)
    engine.detach()

    other = PrivacyEngine()
    model, optimizer, loader = other.make_private(**loop, noise_multiplier=1.0, max_grad_norm=1.0)
    other.load_checkpoint(path=tmp_path / "kept.pt", module=model)
    assert other.get_epsilon(1e-5) == pytest.approx(spent)
    train(model, optimizer, loader)
    assert len(other.accountant) == 20
    other.detach()


def test_a_checkpoint_without_its_ledger_is_refused(loop, tmp_path):
    engine = PrivacyEngine()
    model, _, _ = engine.make_private(**loop, noise_multiplier=1.0, max_grad_norm=1.0)
    engine.save_checkpoint(path=tmp_path / "kept.pt", module=model)
    engine.detach()
    for ledger in tmp_path.glob("*.jsonl"):
        ledger.unlink()
    with pytest.raises(BadArgument, match=r"ledger .* is gone"):
        PrivacyEngine().load_checkpoint(path=tmp_path / "kept.pt", module=model)
    torch.save({"module_state_dict": model.state_dict()}, tmp_path / "theirs.pt")
    with pytest.raises(BadArgument, match="not written by"):
        PrivacyEngine().load_checkpoint(path=tmp_path / "theirs.pt", module=model)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"clipping": "per_layer", "max_grad_norm": [1.0, 1.0]}, "sqrt"),
        ({"max_grad_norm": [1.0, 1.0]}, "sqrt"),
        ({"clipping": "adaptive"}, "quantile"),
        ({"poisson_sampling": False}, "fixed-size"),
        ({"noise_generator": torch.Generator()}, "take the noise off"),
        ({"grad_sample_mode": "ghost_fsdp"}, "ghost_fsdp"),
        ({"wrap_model": False}, "leave it out"),
        ({"alphas": [2.0]}, "alphas"),
        ({"nois_multiplier": 1.0}, "nois_multiplier"),
    ],
)
def test_what_would_not_be_private_is_refused_by_name(loop, named, words):
    engine = PrivacyEngine()
    with pytest.raises((Unsupported, BadArgument), match=words):
        engine.make_private(**{**loop, "noise_multiplier": 1.0, "max_grad_norm": 1.0, **named})
    assert engine.get_epsilon(1e-5) == 0  # and nothing has begun


def test_other_refusals(loop):
    with pytest.raises(Unsupported, match="gdp"):
        PrivacyEngine(accountant="gdp")
    engine = PrivacyEngine()
    model, optimizer, criterion, loader = engine.make_private(
        **loop, noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost"
    )
    assert isinstance(criterion, nn.CrossEntropyLoss)
    with pytest.raises(BadArgument, match="how many records were drawn"):
        optimizer.expected_batch_size = 63
    with pytest.raises(BadArgument, match="publishing one random record"):
        engine.get_epsilon(1 / 5)  # one over the number of batches, as some scripts have it
    with pytest.raises(BadArgument, match="alphas"):
        engine.accountant.get_epsilon(1e-5, alphas=[2.0])
    with pytest.raises(LoopMisuse, match="already"):
        engine.make_private(**loop, noise_multiplier=1.0, max_grad_norm=1.0)
    with pytest.raises(BadArgument, match="make_private returned"):
        BatchMemoryManager(data_loader=loop["data_loader"], max_physical_batch_size=4, optimizer=optimizer)
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        with pytest.raises(LoopMisuse, match="middle of a batch"):
            optimizer.noise_multiplier = 2.0
        with pytest.raises(LoopMisuse, match="middle of a batch"):
            engine.save_checkpoint(path="nowhere.pt", module=model)
        optimizer.step()
    engine.detach()


def test_validator():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Embedding(3, 3, max_norm=1.0))
    assert len(ModuleValidator.validate(model)) == 2
    with pytest.raises(Unsupported, match="mixes the examples"):
        ModuleValidator.validate(model, strict=True)
    fixed = ModuleValidator.fix(model)
    assert isinstance(model[1], nn.BatchNorm2d)  # a copy was changed
    assert isinstance(fixed[1], nn.GroupNorm)
    assert not ModuleValidator.is_valid(nn.Linear(2, 2).eval())
    assert PrivacyEngine().is_compatible(module=nn.Linear(2, 2))


def test_nothing_is_warned_of(loop):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = PrivacyEngine(secure_mode=True)
        train(*engine.make_private(**loop, noise_multiplier=1.0, max_grad_norm=1.0, batch_first=True))
    engine.detach()
