"""Several processes that train one model together: who this one is, and the three things that they say to each other.

    told      the leader's bytes, to all (the key of the noise, what the ledger holds)
    agree     every process has the same value, or all of them stop
    add_up    the sum of everybody's sums, the same bits for all

Every process draws the *same* sample from the same key and works on its part of it, so that there is one sample at the stated
rate whatever their number; sums are added up once a logical step, and every process then adds the same noise, drawn from the same
key at the same step: one draw in total, and the same released gradient everywhere. The first rank leads: it alone writes the
ledger and the checkpoints, and it takes part in `add_up` only after it has charged the step, so that nobody holds a sum of all
records that is not on record.

The processes are torch's own (torchrun, torch.distributed); one that dies ends the others' collective calls by an error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as group
from torch.nn.parallel import DistributedDataParallel

from clipwise.types import BadArgument, ClipwiseError

_NUMBERS_AT_ONCE = (
    1 << 22
)  # in one call: enough that latency does not count, and little memory beside the sums themselves
# How long a process waits for the others. Torch's own default is half an hour; a step takes seconds, and a process that was
# killed is noticed at once where its connection breaks.
PATIENCE = timedelta(seconds=60)


class RanksDisagree(ClipwiseError, RuntimeError):
    """Processes that train together hold different values; no update was made."""


@dataclass(frozen=True)
class World:
    """The processes that train together; one alone has nobody to talk to, and every call returns at once."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # of the values that go between them

    @staticmethod
    def here(device: torch.device | None = None) -> World:
        """As torch.distributed has it now."""
        if not (group.is_available() and group.is_initialized()):
            return World()
        return World(group.get_rank(), group.get_world_size(), device or torch.device("cpu"))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def told(self, content: bytes) -> bytes:
        """What the leader gives, to all."""
        if self.size == 1:
            return content
        length = torch.tensor([len(content)], device=self.device)
        group.broadcast(length, 0)
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8) if self.leads and content else None
        if values is None:
            values = torch.zeros(int(length), dtype=torch.uint8)
        values = values.to(self.device)
        if values.numel():
            group.broadcast(values, 0)
        return values.cpu().numpy().tobytes()

    def agree(self, what: str, value: bytes) -> None:
        """Raise, in every process, where the values are not all the same."""
        if self.size == 1:
            return
        digest = int.from_bytes(hashlib.sha256(value).digest()[:7], "big")
        ends = torch.tensor([digest, -digest], dtype=torch.int64, device=self.device)
        group.all_reduce(ends, group.ReduceOp.MAX)
        largest, smallest = ends.tolist()
        if largest != -smallest:
            raise RanksDisagree(
                f"the {self.size} processes of this run do not have the same {what}; no update was made. Start all of them with the same "
                "script, options, data and library versions, and change nothing on one of them alone"
            )

    def any(self, flag: bool) -> bool:
        """Whether it is so anywhere."""
        if self.size == 1:
            return flag
        found = torch.tensor([int(flag)], device=self.device)
        group.all_reduce(found, group.ReduceOp.MAX)
        return bool(found)

    def add_up(self, sums: Sequence[Tensor]) -> None:
        """The sums of all processes, in the place of this one's."""
        if self.size == 1:
            return
        for some in in_turns(sums):
            flat = torch.cat([t.reshape(-1) for t in some])
            group.all_reduce(flat)
            parts = flat.split([t.numel() for t in some])
            torch._foreach_copy_(list(some), [part.view_as(t) for part, t in zip(parts, some, strict=True)])

    def share_weights(self, model: nn.Module) -> None:
        """The leader's weights and buffers, in all. Weights that are cut over the processes are there once."""
        if self.size > 1:
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    if not hasattr(tensor, "placements"):
                        group.broadcast(tensor.data, 0)


def in_turns(sums: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, so many that a call is worth it."""
    some: list[Tensor] = []
    for t in sums:
        if some and (t.dtype != some[0].dtype or sum(x.numel() for x in some) + t.numel() > _NUMBERS_AT_ONCE):
            yield some
            some = []
        some.append(t)
    if some:
        yield some


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch's DistributedDataParallel; any other is itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def at_rest(model: nn.Module) -> Callable[[], None]:
    """Lets such a wrapper's own averaging of gradients rest, since the private step adds up instead; what is returned lets it work
    again."""

    def let(work: bool) -> None:
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = model.require_forward_param_sync = work

    let(False)
    return lambda: let(True)


def _meeting() -> dict[str, Any]:
    """Where the processes find each other. Torchrun keeps its store when it starts them again (torch 2.13), and with it the
    addresses of those that died, at which gloo would wait for them in vain: so each attempt has names of its own."""
    store, rank, size = next(group.rendezvous("env://", timeout=PATIENCE))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return {"store": group.PrefixStore(f"attempt {attempt}", store), "rank": rank, "world_size": size}


@contextmanager
def joined() -> Iterator[World]:
    """The processes that torchrun started, as a group, for as long as the block lasts; alone without torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1 or group.is_initialized():
        yield World.here()
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise BadArgument(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} without {', '.join(missing)}: start the processes by "
            "`torchrun --nproc-per-node N -m clipwise train ...`, or unset WORLD_SIZE"
        )
    on_gpu = torch.cuda.is_available() and group.is_nccl_available()
    group.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE, **_meeting())
    try:
        yield World.here(torch.device("cuda", torch.cuda.current_device()) if on_gpu else None)
    finally:
        group.destroy_process_group()
