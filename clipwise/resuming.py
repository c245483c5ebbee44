"""A run that goes on: which checkpoint, on which ledger, with how much noise.

Guarantee: a state is loaded only if the ledger has it on record, on the same data and with the same method. Steps that are
redone are charged once only where everything that decides them is the same (`plan_fingerprint`); otherwise they draw noise of
their own, are charged again, and what is left of the budget decides the noise of the steps that remain.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from clipwise import plans
from clipwise.accounting import AnyLedger, Ledger, within
from clipwise.accounting.book import Mark
from clipwise.accounting.ledger import LedgerExists, block_of
from clipwise.checkpoint import Checkpoint, CheckpointCorrupt
from clipwise.facts import public_facts
from clipwise.mechanism import Mechanism, Performance
from clipwise.noise.gaussian import STREAM
from clipwise.plans import Facts, Plan
from clipwise.types import BadArgument, BudgetExhausted


def check_resume(folder: str | Path, saved: Checkpoint | None, plan: Plan, data: str) -> Checkpoint:
    if saved is None:
        raise BadArgument(f"resume={str(folder)!r} holds no checkpoint; give the folder that the run was saved to")
    if saved.facts.get("data") != data:
        raise BadArgument(
            f"resume={str(folder)!r}: the checkpoint is of a run on other data; go on with the same data, or start a new run"
        )
    mine, theirs = public_facts(plan), saved.facts["run"]
    for name in ("method", "method_options", "sampling"):
        if theirs.get(name) != json.loads(json.dumps(mine[name])):
            raise BadArgument(
                f"resume={str(folder)!r}: the run had {name}={theirs.get(name)!r}, and {mine[name]!r} is asked for; resume "
                "with the same method, or start a new run"
            )
    return saved


def plan_fingerprint(
    plan: Plan,
    mechanism: Mechanism,
    performance: Performance,
    parameters: Mapping[str, nn.Parameter],
    optimizer: Optimizer,
    loader: DataLoader[Any],
    data: str,
    processes: int,
) -> str | None:
    """Of everything that a redone step must share with the first one to be the same release, bit for bit; None where it
    cannot be: without a seed the noise is lost, and workers or a device draw and add in an order of their own."""
    device = next(iter(parameters.values())).device
    repeatable = device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    if mechanism.seed is None or loader.num_workers or not repeatable:
        return None
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    facts = {
        **public_facts(plan),
        "seed": mechanism.seed,
        "performance": performance.model_dump(),
        "parameters": {name: [*p.shape, str(p.dtype)] for name, p in parameters.items()},
        "optimizer": [type(optimizer).__name__, settings],
        "data": data,
        "machine": [str(device), torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()],
        "versions": [torch.__version__, np.__version__, STREAM],
        **({"processes": processes} if processes > 1 else {}),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=repr).encode()).hexdigest()


def open_ledger(
    path: str | Path | None,
    plan: Plan,
    earlier: Sequence[Ledger],
    saved: Checkpoint | None,
    fingerprint: str | None,
) -> Ledger:
    """In memory, or a file: a new one, or an old one that goes on (its charges stay, and count)."""
    facts, block = public_facts(plan), block_of(plan.steps)
    if path is None:
        if saved is not None and plan.private:
            raise BadArgument("ledger=None: a run that goes on needs the ledger it was charged to; give its file")
        return Ledger.in_memory(run=facts, after=earlier, block=block)
    if saved is None:
        with suppress(LedgerExists):
            return Ledger.create(path, run=facts, plan_fingerprint=fingerprint, after=earlier, block=block)
    elif not Path(path).exists():
        raise BadArgument(f"ledger={str(path)!r} does not exist; give the ledger that the run was charged to")
    else:
        _refuse_unmarked(saved, path)
    replays = saved is not None and fingerprint is not None
    return Ledger.open(
        path,
        run=facts,
        plan_fingerprint=fingerprint,
        resumes=(saved.step, saved.digest) if saved is not None and replays else None,
        must_contain=None if saved is None else saved.facts["ledger_head"],
        after=earlier if saved is None else (),  # a run that goes on has them in its ledger
        block=block,
    )


def _refuse_unmarked(saved: Checkpoint, ledger: str | Path) -> None:
    """A state that the ledger did not see kept: changed since, with its manifest, or of another run."""
    book = Ledger.read(ledger, must_contain=saved.facts["ledger_head"]).book
    if not any(Mark(saved.step, saved.digest) in segment.marks for segment in book.segments):
        raise CheckpointCorrupt(
            f"{saved.path} is not a state that {ledger} has on record: it was changed after it was kept; remove it to go on from "
            "the one before"
        )


def with_what_is_left(plan: Plan, mechanism: Mechanism, facts: Facts, book: AnyLedger, taken: int) -> Plan:
    """The plan with as much more noise as the steps that were charged in vain make necessary."""
    if plan.target_epsilon is None or plan.delta is None or plan.steps is None or not plan.method.sound:
        return plan
    spent, left = book.events(), max(0, plan.steps - taken)
    coming = [*(plan.coming(taken, left) if left else ()), *plan.after]
    if not coming or within([*spent, *coming], plan.delta, plan.target_epsilon, plan.accountant):
        return plan
    try:
        if not left:
            raise BadArgument("the releases that follow the last step were charged before, and would be again")
        again = plans.make(mechanism, facts._replace(before=()), spent=spent, taken=taken)  # what was measured is spent
        return dataclasses.replace(again, before=plan.before, prepared=plan.prepared)
    except BadArgument as error:
        book.close()
        raise BudgetExhausted(
            f"the {left} steps that are left do not fit into epsilon={plan.target_epsilon:g} any more ({error}); state a larger "
            "epsilon, or end the run with the weights as they are (clipwise resume --finish, or fit(finish=True))"
        ) from error
