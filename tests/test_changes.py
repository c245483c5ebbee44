"""The table "a change and what it touches" of docs/architecture.md, carried out: in one copy of the package each kind of
change is made by the files and lines that the table names, and no others, and then used. (A clipping method is added in
test_adding_a_method.py, to the letter of its page.)"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# change of the table -> files that are written, and lines that join them: (file, text, what stands there instead)
NEW = {
    "layer": {
        "clipwise/norms/layers/prelu.py": """
            import torch.nn.functional as F
            from torch import nn
            from clipwise.norms.kernels.kernel import Kernel
            from clipwise.norms.layers.registry import layer

            class PReLUKernel(Kernel):
                def direct(self, call, saved, b):
                    return {"weight": (saved[0].clamp(max=0) * b).flatten(1).sum(1, keepdim=True)}

            @layer(nn.PReLU)
            def forward(module, tap, x):
                return tap(F.prelu(x, module.weight.detach()), PReLUKernel(), {"weight": module.weight}, (x.detach(),))
        """
    },
    "sampler": {
        "clipwise/sampling/turned.py": """
            from clipwise.sampling.poisson import PoissonSampler

            class TurnedSampler(PoissonSampler):
                def draw(self, key, step):
                    return (self.size - 1 - super().draw(key, step))[::-1].copy()
        """,
        "clipwise/sampling/blocks.py": """
            import numpy as np
            from clipwise.sampling.fixed_size import FixedSizeSampler

            class BlockSampler(FixedSizeSampler):
                "Rows in their order, a block of them a step, whatever the key: it amplifies nothing."

                def draw(self, key, step):
                    return np.sort((np.arange(self.rows) + step * self.rows) % self.size)
        """,
    },
    "accountant": {
        "clipwise/accounting/double.py": """
            from clipwise.accounting.rdp import rdp_epsilon

            def double_epsilon(events, delta):
                return 2 * rdp_epsilon(events, delta)
        """
    },
    "noise": {
        "clipwise/noise/counted.py": """
            from clipwise.noise.gaussian import GaussianNoise

            class CountedNoise(GaussianNoise):
                calls = 0

                def add(self, sums, std, *, step):
                    CountedNoise.calls += 1
                    return super().add(sums, std, step=step)
        """
    },
    "data set": {
        "clipwise/data/stripes.py": """
            import numpy as np
            from clipwise.data.source import UNTUNED, Edition, Recipe, Source, Split

            def _read(_):
                x = np.random.RandomState(0).rand(300, 6).astype(np.float32)
                y = (x[:, 0] > 0.5).astype(np.int64)
                return Split(x[:240], y[:240]), Split(x[240:], y[240:])

            STRIPES = Source(
                name="stripes", summary="made up", kind="tabular", licence="none", how_to_get="comes along", shape=(6,),
                class_names=("a", "b"), recipe=Recipe(model="slope", expected_batch_size=60, epochs=2, lr=0.1), tuning=UNTUNED,
                editions=(Edition({}, _read, 240, 60),),
            )
        """
    },
    "model": {
        "clipwise/models/slope.py": """
            from torch import nn
            from clipwise.models.architecture import ANY, Architecture

            SLOPE = Architecture(
                name="slope", summary="two layers", records=ANY, typical="stripes",
                build=lambda records, _: nn.Sequential(nn.Linear(6, 4), nn.PReLU(), nn.Linear(4, records.classes)),
            )
        """
    },
    "command": {
        "clipwise/cli/greet.py": """
            import typer

            def greet() -> None:
                "Say a word."
                typer.echo("good day")
        """
    },
    "search strategy": {
        "clipwise/lab/tuning/first.py": """
            from dataclasses import dataclass
            from typing import ClassVar
            from clipwise.lab.tuning.grid import GridRdp

            @dataclass(frozen=True)
            class First(GridRdp):
                name: ClassVar[str] = "first"
                summary: ClassVar[str] = "every candidate, and the first of them"

                def select(self, scores, epsilon, uniform):
                    return 0
        """
    },
}

JOINED = {
    "layer": [("clipwise/norms/layers/__init__.py", "import attention, conv,", "import attention, conv, prelu,")],
    "sampler": [
        (
            "clipwise/plans.py",
            "SAMPLING = {\n",
            "from clipwise.sampling.turned import TurnedSampler\n"
            'SAMPLING = {\n    "turned": Pair(TurnedSampler, StepEvent, "add or remove one record", "Poisson, turned"),\n',
        ),
        ("clipwise/mechanism.py", 'sampling: Literal["poisson",', 'sampling: Literal["turned", "blocks", "poisson",'),
        # and one for which no event holds: with its own kind, its name in the ledger, its bound
        (
            "clipwise/accounting/events.py",
            'Kind = TypeVar("Kind"',
            "@dataclass(frozen=True, slots=True)\nclass BlockEvent(Event):\n    'On a block of rows; one record replaced.'\n\n\n"
            'Kind = TypeVar("Kind"',
        ),
        (
            "clipwise/accounting/book.py",
            '"fixed-size": FixedSizeEvent}',
            '"fixed-size": FixedSizeEvent, "blocks": BlockEvent}',
        ),
        ("clipwise/accounting/book.py", "events import LEAST_NOISE,", "events import BlockEvent, LEAST_NOISE,"),
        ("clipwise/accounting/bound.py", "events import Event,", "events import BlockEvent, Event,"),
        (
            "clipwise/accounting/bound.py",
            "    merged = merge(events)",
            "    events = [StepEvent(1.0, e.noise_multiplier / 2, e.count) if type(e) is BlockEvent else e for e in events]\n"
            "    merged = merge(events)",
        ),
        (
            "clipwise/plans.py",
            "from clipwise.accounting import ACCOUNTANTS,",
            "from clipwise.accounting.events import BlockEvent\nfrom clipwise.sampling.blocks import BlockSampler\n"
            "from clipwise.accounting import ACCOUNTANTS,",
        ),
        (
            "clipwise/plans.py",
            '    "fixed-size": Pair(\n',
            '    "blocks": Pair(BlockSampler, BlockEvent, "replace one record", "blocks of rows"),\n    "fixed-size": Pair(\n',
        ),
    ],
    "accountant": [
        ("clipwise/accounting/bound.py", '= {"pld":', '= {"double": double_epsilon, "pld":'),
        (
            "clipwise/accounting/bound.py",
            "from clipwise.accounting.rdp",
            "from clipwise.accounting.double import double_epsilon\nfrom clipwise.accounting.rdp",
        ),
        ("clipwise/mechanism.py", 'accountant: Literal["best",', 'accountant: Literal["double", "best",'),
    ],
    "noise": [
        ("clipwise/run.py", "noise=GaussianNoise(key)", "noise=CountedNoise(key)"),
        (
            "clipwise/run.py",
            "from clipwise.noise import",
            "from clipwise.noise.counted import CountedNoise\nfrom clipwise.noise import",
        ),
    ],
    "optimizer": [
        ("clipwise/training/options.py", 'OptimizerName = Literal["sgd",', 'OptimizerName = Literal["adagrad", "sgd",'),
        (
            "clipwise/training/resolve.py",
            '            "sgd": torch.optim.SGD,',
            '            "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD,',
        ),
    ],
    "data set": [
        ("clipwise/data/__init__.py", "        *(DIGITS,", "        *(STRIPES, DIGITS,"),
        (
            "clipwise/data/__init__.py",
            "from clipwise.data.svhn",
            "from clipwise.data.stripes import STRIPES\nfrom clipwise.data.svhn",
        ),
    ],
    "model": [
        ("clipwise/models/__init__.py", "        *(LINEAR,", "        *(SLOPE, LINEAR,"),
        (
            "clipwise/models/__init__.py",
            "from clipwise.models.shufflenet",
            "from clipwise.models.slope import SLOPE\nfrom clipwise.models.shufflenet",
        ),
    ],
    "command": [
        (
            "clipwise/cli/__init__.py",
            "_COMMANDS = (\n",
            "from clipwise.cli import greet\n_COMMANDS = (\n    greet.greet,\n",
        )
    ],
    "chart of a run": [
        (
            "clipwise/lab/report/figures.py",
            '    ("Learning rate',
            '    ("Two together", "both", ("one", "other")),\n    ("Learning rate',
        )
    ],
    "search strategy": [
        ("clipwise/lab/tuning/__init__.py", "= (GridRdp,", "= (First, GridRdp,"),
        (
            "clipwise/lab/tuning/__init__.py",
            "from clipwise.lab.tuning.free",
            "from clipwise.lab.tuning.first import First\nfrom clipwise.lab.tuning.free",
        ),
    ],
    "option of the mechanism": [
        (
            "clipwise/mechanism.py",
            "    seed: int | None = Field(",
            '    nickname: str = Field("", description="What the run is called.")\n    seed: int | None = Field(',
        ),
        (  # the code that uses it
            "clipwise/run.py",
            "self.ledger.run_id,",
            'self.ledger.run_id, "nickname": self.mechanism.nickname,',
        ),
    ],
    "part of a run with state": [],  # its own state_dict, and `run.restore`: see USE
}

USE = """
import json, warnings
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import clipwise
from clipwise.accounting import Ledger, StepEvent, epsilon
from clipwise.checkpoint import Checkpoints
from clipwise.lab.report.figures import run_figures
from clipwise.lab.tuning import make_strategy
from clipwise.noise.counted import CountedNoise

class Tally:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

data = TensorDataset(torch.randn(120, 6), torch.randint(0, 2, (120,)))
OPTIONS = dict(noise_multiplier=1.0, delta=1e-5, epochs=2, seed=1, sampling="turned", accountant="double", nickname="ours")

def trained(engine, ledger=None, resume=None, tally=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.PReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=40)
    run = clipwise.Run(model, optimizer, loader, **OPTIONS, engine=engine, ledger=ledger, resume=resume)
    run.restore(tally=tally or Tally())
    with run:
        def loss(records):
            return nn.functional.cross_entropy(model(records[0]), records[1])
        for batches in run.logical_batches(run.plan.steps - run.state.step if resume is None else 1):
            clipwise.private_step(run.stepper, batches, loss=loss)
        if ledger and resume is None:
            tally.n = 7
            run.save("kept")
        spent = run.epsilon()
    return [p.detach().clone() for p in model.parameters()], spent

fast, spent = trained("fast")
slow, _ = trained("generic")
first, again = Tally(), Tally()
trained("fast", "book.jsonl", tally=first)
facts = json.loads(json.dumps(Checkpoints("kept").newest().facts))
trained("fast", "book.jsonl", resume="kept", tally=again)
def in_blocks():
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    done = clipwise.fit(model, data, epsilon=8, delta=1e-5, epochs=2, expected_batch_size=40, method="auto-s", sampling="blocks",
                        ledger="blocks.jsonl")
    book = Ledger.read("blocks.jsonl")
    whole = [StepEvent(1.0, e.noise_multiplier / 2, e.count) for e in book.events()]
    return done.statement.epsilon, book.epsilon(1e-5).value, epsilon(whole, 1e-5).value, {type(e).__name__ for e in book.events()}

*blocks, kinds = in_blocks()
event = StepEvent(0.25, 1.0, 20)
lines = [{"step": i, "one": i, "other": 2 * i} for i in range(3)]
print(json.dumps({
    "layer": max(float((a - b).abs().max()) for a, b in zip(fast, slow)),
    "accountant": [epsilon([event], 1e-5, "double").value, epsilon([event], 1e-5, "rdp").value, spent],
    "noise": CountedNoise.calls,
    "chart": [(f.title, len(f.series)) for f in run_figures(lines)],
    "strategy": make_strategy("first").select([0.1, 0.9], 1.0, None),
    "option": facts.get("nickname"),
    "state": again.n,
    "blocks": [*blocks, *kinds],
}))
"""


def changes():
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = re.search(r"^## A change and what it touches\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)[1]
    return dict(re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)[2:])


def in_copy(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the package with one change of each kind in it."""
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "clipwise", folder / "clipwise", ignore=shutil.ignore_patterns("__pycache__", "*_test.py"))
    for files in NEW.values():
        for path, text in files.items():
            assert not (folder / path).exists()
            (folder / path).write_text(re.sub(r"^ {12}", "", text.lstrip("\n"), flags=re.MULTILINE))
    for lines in JOINED.values():
        for path, old, new in lines:
            text = (folder / path).read_text()
            assert text.count(old) == 1, f"{path}: {old!r} stands there {text.count(old)} times"
            (folder / path).write_text(text.replace(old, new))
    return folder


def test_every_row_of_the_table_is_carried_out():
    assert {*NEW, *JOINED, "clipping method"} == set(changes())


def test_a_row_names_every_file_that_its_change_touches():
    for change, row in changes().items():
        touched = [path for path, _, _ in JOINED.get(change, [])]
        written = [re.sub(r"/\w+\.py$", "/NAME.py", path) for path in NEW.get(change, {})]
        if change == "option of the mechanism":
            touched = ["clipwise/mechanism.py"]  # and the code that uses it, wherever that is
        short = {"clipwise/mechanism.py": "Mechanism."} if change in ("sampler", "accountant") else {}
        for path in (*touched, *written):
            assert short.get(path, path) in row, f"{change}: the table does not name {path}"


def test_what_was_added_works_from_python(house):
    (house / "use.py").write_text(USE)
    said = json.loads(in_copy(house, "use.py").splitlines()[-1])
    assert said["layer"] < 1e-5  # against torch.func, which knows no rule for the layer
    doubled, plain, spent = said["accountant"]
    assert doubled == 2 * plain
    assert spent > 0
    assert said["noise"] == 4 * 6 + 1  # one call a step: four runs of six, and one step after going on
    assert ["Two together", 2] in said["chart"]
    assert (said["strategy"], said["option"], said["state"]) == (0, "ours", 7)
    stated, read, whole, kind = said["blocks"]
    assert kind == "BlockEvent"  # in the ledger too, from its file
    assert 0 < read == whole <= stated <= 8


def test_what_was_added_works_from_the_command_line(house):
    words = "--data stripes --model slope --sampling turned --accountant double --optimizer adagrad --nickname ours --epsilon 8"
    out = in_copy(house, "-m", "clipwise.cli", "train", *words.split(), "--seed", "1", "--out", "run", "--json")
    assert json.loads(out)["epsilon"] <= 8
    told = json.loads((house / "run" / "result.json").read_text())
    assert "slope" in json.dumps(told)
    assert "good day" in in_copy(house, "-m", "clipwise.cli", "greet")
