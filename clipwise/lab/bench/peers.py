"""The methods that are compared. Each takes the same weights, batch and optimizer, and offers one whole training
step.

`step` is what is timed. `prepare` before it and `tidy` after it are not: they hold what belongs to the loop and not
to the step (asking the loader for a batch), and free what a method keeps on its parameters, so that no method
computes in the memory that another one left full.

A new peer is one class and one line in `METHODS`.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from clipwise.lab.bench.workloads import Workload

LEARNING_RATE = 0.01  # this and the two below are the same for every peer; no time depends on them
NOISE_MULTIPLIER = 1.0  # noise std / l2 bound
THRESHOLD = 1.0  # l2 norm of a gradient


class Peer:
    """The plain step: no clipping, no noise."""

    parts = 1  # physical batches of a step: so often is a step prepared and taken

    def __init__(self, workload: Workload):
        self.model: nn.Module = workload.model()
        self.batch = workload.batch()
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.steps = 0

    def prepare(self) -> None: ...

    def step(self) -> None:
        x, y = self.batch
        self.optimizer.zero_grad()
        self.loss(self.model(x), y).backward()
        self.optimizer.step()

    def tidy(self) -> None:
        self.steps += 1
        self.optimizer.zero_grad(set_to_none=True)

    def loss(self, out: Tensor, y: Tensor) -> Any:
        return F.cross_entropy(out, y)

    def close(self) -> None: ...

    def facts(self) -> dict[str, Any]:
        """What a reader should know of this method on this workload; `note` goes into the table."""
        return {"steps": self.steps}


class Clipwise(Peer):
    """Our step through the public drop-in, as a user would run it: noise from AES, ledger on disk.

    A data set of exactly the batch, sampled at rate 1, makes every Poisson batch the whole of it, so that the size is
    fixed and the code is that of any other run.
    """

    def __init__(self, workload: Workload, **options: Any):
        from clipwise import attach

        super().__init__(workload)
        self.parts = -(-workload.rows // (workload.part or workload.rows))
        whole = self.batch

        def collate(records: list) -> Any:
            # Without a copy, where the look at collate, which swaps records, does not ask for as many.
            return list(whole) if len(records) == workload.rows >= 64 else default_collate(records)

        loader = DataLoader(TensorDataset(*whole), batch_size=workload.rows, shuffle=True, collate_fn=collate)
        self._folder = tempfile.TemporaryDirectory(prefix="clipwise-bench-")
        self.notices: list[str] = []
        self.private = attach(
            self.model,
            self.optimizer,
            loader,
            noise_multiplier=NOISE_MULTIPLIER,
            epochs=1_000_000,  # so that the ledger reserves steps in blocks, as in any planned run
            ledger=Path(self._folder.name, "ledger.jsonl"),
            max_physical_batch=workload.part,
            **(options or {"method": "fixed", "threshold": THRESHOLD}),
        )
        self._batches = self._forever()

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.private.loader

    def prepare(self) -> None:
        self.batch = next(self._batches)

    def step(self) -> None:
        if self.steps:
            super().step()
            return
        with warnings.catch_warnings(record=True) as caught:  # the engine looks at the model now, and may speak
            warnings.simplefilter("always")
            super().step()
        self.notices = [str(w.message) for w in caught if str(w.message).startswith("clipwise")]

    def close(self) -> None:
        self.private.detach()
        self._folder.cleanup()

    def facts(self) -> dict[str, Any]:
        charged = sum(event.count for event in self.private.run.ledger.events())
        facts: dict[str, Any] = {"steps": self.steps, "ledger_steps": charged}
        if self.notices:
            facts["note"] = " ".join(self.notices)
        return facts


class Unsplit(Clipwise):
    """Our step on the whole of a batch that the others split."""

    def __init__(self, workload: Workload):
        super().__init__(replace(workload, part=None))


class OpacusHooks(Peer):
    """Opacus with stored per-example gradients, its default. Its noise comes from torch's generator, not from a
    cryptographic one."""

    mode = "hooks"

    def __init__(self, workload: Workload):
        from opacus import PrivacyEngine
        from opacus.validators import ModuleValidator

        super().__init__(workload)
        split = [x.split(workload.part or workload.rows) for x in self.batch]
        self._batches = list(zip(*split, strict=True))
        self.parts, self._part = len(self._batches), 0
        own = {type(m).__name__ for m in self.model.modules()}
        # Layers that Opacus cannot handle become its own: nn.LSTM DPLSTM, attention DPMultiheadAttention.
        model = ModuleValidator.fix(self.model)
        new = {type(m).__name__ for m in model.modules()} - own
        self._replaced = sorted({"DPLSTM", "DPGRU", "DPRNN", "DPMultiheadAttention"} & new)
        model.train()
        made = PrivacyEngine(accountant="rdp").make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
            data_loader=DataLoader(TensorDataset(*self.batch), batch_size=workload.rows),
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=THRESHOLD,
            poisson_sampling=False,
            grad_sample_mode=self.mode,
        )
        self.model, self.optimizer = made[0], made[1]
        self._criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()

    def prepare(self) -> None:
        self.batch = self._batches[self._part]
        self._part = (self._part + 1) % self.parts
        if self.parts > 1:  # what its BatchMemoryManager says of each part
            self.optimizer.signal_skip_step(do_skip=self._part != 0)

    def loss(self, out: Tensor, y: Tensor) -> Any:
        return self._criterion(out, y)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"steps": self.steps}
        if self._replaced:
            facts["note"] = f"with its own {', '.join(self._replaced)}"
        return facts


class OpacusGhost(OpacusHooks):
    """Opacus with ghost norms and a second backward pass."""

    mode = "ghost"


METHODS: dict[str, type[Peer]] = {
    "plain": Peer,
    "clipwise": Clipwise,
    "unsplit": Unsplit,
    "opacus-hooks": OpacusHooks,
    "opacus-ghost": OpacusGhost,
}
FAMILIES = {"plain": ("plain",), "opacus": ("opacus-hooks", "opacus-ghost")}
