"""docs/architecture.md: its loop runs, its table points to what is there, and its words are those of the code."""

import re
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.accounting import ACCOUNTANTS
from clipwise.clipping import METHODS
from clipwise.data import DATASETS
from clipwise.lab.tuning import STRATEGIES
from clipwise.mechanism import Mechanism
from clipwise.models import MODELS
from clipwise.norms.layers import LAYERS
from clipwise.plans import SAMPLING

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]


def changes():
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", section("A change and what it touches"), re.MULTILINE)
    return rows[2:]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def data():
    torch.manual_seed(1)
    return TensorDataset(torch.randn(200, 8), torch.randint(0, 3, (200,)))


OPTIONS = {"noise_multiplier": 1.0, "delta": 1e-5, "epochs": 2, "method": "quantile", "seed": 3}


def own_loop(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(data(), batch_size=40)
    with clipwise.Run(model, optimizer, loader, **OPTIONS, **options) as run:
        for batches in run.logical_batches(run.plan.steps):
            clipwise.private_step(run.stepper, batches, loss=lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
    return run


# -- private_step


def test_the_loop_of_the_page_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", section("A loop of your own"), re.DOTALL)
    exec(compile(code, "architecture.md", "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out
    assert re.search(r"epsilon (2\.9|3\.0)\d* after 20 steps", printed)
    assert "Privacy statement" in printed


@pytest.mark.parametrize("most", [None, 7])
def test_it_takes_the_steps_of_the_drop_in(most):
    """Bit for bit, with one seed: there is one step, and three ways to call it."""
    own, model = network(), network()
    run = own_loop(own, max_physical_batch=most)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = clipwise.attach(model, optimizer, DataLoader(data(), batch_size=40), **OPTIONS, max_physical_batch=most)
    for _ in range(2):
        for x, y in private.loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), model.parameters(), strict=True))
    assert run.epsilon() == private.epsilon()
    assert run.state.method == private.run.state.method
    private.detach()


def test_the_block_gives_the_model_back_also_by_an_error():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with (
        pytest.raises(ZeroDivisionError),
        clipwise.Run(model, optimizer, DataLoader(data(), batch_size=40), **OPTIONS) as run,
    ):
        clipwise.private_step(run.stepper, next(run.logical_batches(1)), loss=lambda _: 1 / 0)
    assert run.epsilon() == 0  # the step that failed was not charged: no noise of it exists
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert own_loop(model).state.step == 10  # the model is free again


def test_a_mechanism_may_be_given_whole_but_not_twice():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mechanism = clipwise.Mechanism(noise_multiplier=1.0, epochs=1, seed=0, method="fixed")
    loader = DataLoader(data(), batch_size=40)
    with clipwise.Run(model, optimizer, loader, mechanism, clipwise.Performance(max_physical_batch=9)) as run:
        assert (run.mechanism, run.performance.max_physical_batch) == (mechanism, 9)
    with pytest.raises(clipwise.BadArgument, match="epsilon: the mechanism is given whole"):
        clipwise.Run(model, optimizer, loader, mechanism, epsilon=3.0)


# -- the table


@pytest.mark.parametrize(("change", "file", "line"), changes(), ids=lambda text: text[:20])
def test_a_change_touches_what_the_table_says(change, file, line):
    """Every file of the table is there (NAME stands for the new one), and every name stands in the file it is said to."""
    for path in re.findall(r"`(clipwise/[\w/]+(?:\.py)?)`", f"{file} {line}"):
        place = ROOT / path.replace("NAME.py", "")
        assert place.exists(), f"{change}: {path}"
    for name, path in re.findall(
        r"`([^`]+)`(?: above the function,.*?| in| and the import in) `(clipwise/[\w/]+\.py)`", f"{file} {line}"
    ):
        text = (ROOT / path).read_text()
        word = re.split(r"[(=. ]", name.lstrip("@"))[0]
        assert re.search(rf"\b{word}\b", text), f"{change}: {name} is not in {path}"


def test_the_table_has_every_kind_of_change():
    asked = "method layer sampler accountant noise optimizer data model command chart strategy"
    assert [word for word in asked.split() if not any(word in row[0] for row in changes())] == []


def test_registries_and_the_names_of_options_are_the_same():
    """So that a new entry cannot be there and out of reach, or named and missing."""
    fields = Mechanism.model_fields
    assert set(get_args(fields["sampling"].annotation)) == set(SAMPLING)
    assert set(get_args(fields["accountant"].annotation)) == set(ACCOUNTANTS)
    for registry in (METHODS, DATASETS, MODELS, STRATEGIES):
        assert all(entry.name == name for name, entry in registry.items())
    assert LAYERS[nn.Linear]


def test_the_map_shows_every_room():
    from test_imports import LAYER

    drawn = set(re.findall(r"`(\w+)/?`", section("The map")))
    assert {room.removeprefix("lab.") for room in LAYER} - {"results", "processes"} <= drawn
