"""What one of several processes does in tests/test_ranks.py: `python ranks_worker.py SCENARIO FOLDER RANK SIZE`.

Each scenario is a function of the folder; what it returns is written to FOLDER/RANK.json.
"""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import clipwise
from clipwise.clipping import make_method
from clipwise.lab.audit import audit_step
from clipwise.noise import GaussianNoise
from clipwise.ranks import RanksDisagree, World

RECORDS = 120


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(RECORDS, 5, generator=generator), torch.randint(0, 3, (RECORDS,), generator=generator)
    )


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def run(model=None, *, records=None, on_step=lambda _: None, wrap=lambda model: model, **options):
    """Two epochs of a loop; the options of `attach` over the usual ones."""
    model = network(seed=World.here().rank) if model is None else model  # other weights at first: the leader's count
    wrapped = wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    usual = {"noise_multiplier": 1.0, "delta": 1e-3, "epochs": 2, "method": "fixed", "seed": 4}
    loader = DataLoader(records or data(), batch_size=20, shuffle=True)
    private = clipwise.attach(wrapped, optimizer, loader, **{**usual, **options})
    for _ in private.epochs():
        for x, y in private.loader:
            optimizer.zero_grad()
            private.backward(nn.functional.cross_entropy(wrapped(x), y, reduction="none"))
            optimizer.step()
            on_step(private)
    private.detach()
    return private


LOOPS = {
    "fixed": {},
    "quantile": {"method": "quantile"},
    "oso": {"method": "oso"},
    "dc-sgd-e": {"method": "dc-sgd-e"},
    "physical batches": {"max_physical_batch": 3},
    "fixed size": {"sampling": "fixed-size"},
    "a falling noise": {"schedule": "linear"},
    "hardly a record": {"sample_rate": 0.002, "expected_batch_size": 1, "epochs": 0.02},
    "without privacy": {"noise_multiplier": None, "epsilon": float("inf")},
}


def loops(_):
    """Weights after each kind of loop, to be compared with those of one process."""
    return {name: weights(run(**options).model) for name, options in LOOPS.items()}


def ledger(folder):
    """A file, a private size, no seed: what every process knows at the end."""
    private = run(size="private", seed=None, ledger=folder / "ledger.jsonl", method="quantile")
    return {
        "weights": weights(private.model),
        "epsilon": private.epsilon(),
        "steps": private.step,
        "notes": private.statement().notes,
        "records": private.run.plan.counted.records,
    }


def wrapped(_):
    """Torch's own wrapper around the model, which averages again afterwards."""
    kept = []

    def wrap(model):
        kept.append(nn.parallel.DistributedDataParallel(model))
        return kept[0]

    private = run(wrap=wrap)
    return {"weights": weights(private.model), "given back": kept[0].require_backward_grad_sync}


def refusals(_):
    """What is refused, in every process, before anything is spent."""
    rank = World.here().rank
    told = {}
    model = network()
    loader = DataLoader(data(), batch_size=20, sampler=DistributedSampler(data()))
    for name, attempt in {
        "sampler": lambda: clipwise.attach(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loader, noise_multiplier=1.0, method="fixed"
        ),
        "other options": lambda: run(threshold=1.0 + rank),
        "other data": lambda: run(records=data(seed=rank)),
        "other data, no seed": lambda: run(records=data(seed=rank), seed=None),
    }.items():
        try:
            attempt()
            told[name] = "went on"
        except (clipwise.ClipwiseError, RuntimeError) as error:
            told[name] = f"{type(error).__name__}: {error}"

    def meddle(private):
        if rank == 1 and private.step == 3:
            private.optimizer.param_groups[0]["lr"] = 0.3

    model = network()
    try:
        run(model, on_step=meddle)
    except RanksDisagree as error:
        told["another rate"] = f"RanksDisagree: {error}"
    told["weights"] = weights(model)
    return told


def audits(_):
    """The step audit of the processes together, and of twins that are broken in ways that only several can be."""
    method = make_method("quantile")

    def own_noise(
        *args, **options
    ):  # each process draws noise of its own and adds it before the sums are added up: sqrt(world)
        private = clipwise.attach(*args, **options)
        private.run.stepper.noise = GaussianNoise(private.run.noise._key, rank=World.here().rank)
        return private

    def deaf(*args, **options):  # sums are not added up: each process trains on its own part
        private = clipwise.attach(*args, **options)
        private.run.stepper.world = World(size=1)
        return private

    def twice(
        *args, **options
    ):  # every process works on the whole sample: each record counts as often as there are processes
        private = clipwise.attach(*args, **options)
        private.run.batches._part = (0, 1)
        return private

    small = {"steps": 8, "width": 500}
    found = {"sound": [f.detail for f in audit_step(method, **small).failures]}
    for name, attach in {"own noise": own_noise, "deaf": deaf, "twice": twice}.items():
        try:
            found[name] = [f.check for f in audit_step(method, attach=attach, **small).failures]
        except RanksDisagree:
            found[name] = ["the processes do not agree"]
    return found


class Words(nn.Module):
    """A small transformer: a table, positions of its own, attention, a normalisation; nothing is a multiple of anything."""

    def __init__(self, width=10):
        super().__init__()
        self.table, self.places = nn.Embedding(11, width), nn.Parameter(0.1 * torch.randn(7, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 13, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, words):
        return self.head(self.block(self.table(words) + self.places).mean(1))


def texts():
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, 11, (RECORDS, 7), generator=generator)
    return TensorDataset(words, words[:, :3].sum(1) % 3)


SHARDED = {
    "fixed, in parts": {"max_physical_batch": 3},
    "quantile": {"method": "quantile", "epochs": 1},
    "a frozen table": {"frozen": True, "epochs": 1},
    "hardly a record": {"sample_rate": 0.002, "expected_batch_size": 1, "epochs": 0.02},
}


def of_words(*, shard, frozen=False, **options):
    """A run of the transformer, its weights cut over the processes or whole."""
    torch.manual_seed(1)
    model = Words()
    model.table.requires_grad_(not frozen)
    if shard:
        fully_shard(model.block)
        fully_shard(model)
    private = run(model, records=texts(), **options)
    if not shard:
        return weights(model)
    assert all(isinstance(p, DTensor) for p in model.parameters()), "cut as it was"
    model(texts().tensors[0][:2]).sum().backward()  # torch's own hooks are back
    assert all(isinstance(p.grad, DTensor) for p in private.run.engine.parameters)
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()]).tolist()


def sharded(folder):
    """Weights of runs whose weights are cut over the processes; and what is refused there."""
    found = {name: of_words(shard=True, **options) for name, options in SHARDED.items()}
    told = {}
    for name, options in {
        "oso": {"method": "oso"},
        "resume": {"ledger": folder / "no.jsonl", "resume": folder / "none"},
        "save": {"on_step": lambda private: private.save(folder / "kept")},
        "plain": {"noise_multiplier": None, "epsilon": float("inf")},
        "policy": {"policy": True},
    }.items():
        model = Words()
        policy = MixedPrecisionPolicy(torch.bfloat16) if options.pop("policy", False) else MixedPrecisionPolicy()
        fully_shard(model, mp_policy=policy)
        try:
            run(model, records=texts(), **options)
            told[name] = "went on"
        except clipwise.ClipwiseError as error:
            told[name] = str(error)
    return {"weights": found, "told": told}


def killed(folder):
    """Rank 1 dies in the middle of step 7; what the others hold then."""

    def on_step(private):
        if private.step == 6:
            (folder / f"weights-{World.here().rank}.json").write_text(json.dumps(weights(private.model)))
            if World.here().leads:
                private.save(folder / "kept")
            torch.distributed.barrier()
        if private.step == 7 and World.here().rank == 1:
            os._exit(9)

    model = network()
    try:
        run(model, on_step=on_step, ledger=folder / "ledger.jsonl")
    except RuntimeError as error:
        return {"error": str(error), "weights": weights(model)}
    return {"error": None}


def resumed(folder):
    """Go on from there, with as many processes as there are now."""
    private = run(ledger=folder / "ledger.jsonl", resume=folder / "kept")
    return {"weights": weights(private.model), "steps": private.step, "epsilon": private.epsilon()}


def main(scenario, folder, rank, size):
    warnings.simplefilter("ignore")
    folder, rank, size = Path(folder), int(rank), int(size)
    torch.set_num_threads(1)
    if size > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
        )
    result = {name: globals()[name](folder) for name in scenario.split(",")}
    (folder / f"{rank}.json").write_text(json.dumps(result))
    if size > 1 and scenario != "killed":
        torch.distributed.destroy_process_group()
    os._exit(0)  # a group whose member died is not taken apart


if __name__ == "__main__":
    main(*sys.argv[1:])
