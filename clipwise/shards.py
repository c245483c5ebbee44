"""Weights that are cut over the processes of a run by torch's `fully_shard` (FSDP2): who holds which part, and when they are whole.

    gather    the weights whole in every process, for one batch
    rest      each process holds its part alone again
    scatter   the sum of everybody's sums, of which each process gets its own part

Each process has other records, and has them whole: every layer's input and output gradient of a record is in one process,
so that its norm is complete there, and only parameters are cut. While a batch is worked on nothing is sent: a process may look
at the model, or at the loss, more often than another, and nobody waits for it. Afterwards the weighted sums are
reduce-scattered, noise is added to the part that each process holds (the same numbers that one process would add there), and
the optimizer moves that part.

A parameter that was left out of `fully_shard` is whole everywhere, and its sum is added up as without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as group

from clipwise.ranks import World, in_turns
from clipwise.types import Cut, Unsupported


class Shards:
    """Of the trained parameters of one model. `whole` are those that its layers hold while it is gathered."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], world: World):
        self._modules = _sharded_modules(model)
        self._world = world
        self._cut = [hasattr(p, "placements") for p in parameters.values()]
        for (name, p), cut in zip(parameters.items(), self._cut, strict=True):
            if cut:
                _refuse_other_cuts(name, p, world)
        self._shapes = [p.shape for p in parameters.values()]
        self.parameters = list(parameters.values())
        self._hooks: list[tuple[dict[int, Any], dict[int, Any]]] = []
        self.gather()
        self.whole = {name: p for name, p in model.named_parameters() if name in parameters}
        self.rest()
        for name, p in parameters.items():
            if self.whole[name].dtype != p.dtype or self.whole[name].device != p.device:
                raise Unsupported(
                    f"model: parameter {name!r} is kept as {p.dtype} on {p.device} and used as {self.whole[name].dtype} on {self.whole[name].device} "
                    "(mp_policy or offload_policy of fully_shard); leave the policy out, and use torch.autocast for half precision"
                )

    @property
    def any(self) -> bool:
        return bool(self._modules)

    def refuse(self, *what: str) -> None:
        """Raise for what is not built for weights that are cut."""
        for words in what if self._modules else ():
            raise Unsupported(
                f"{words}: not built for weights that fully_shard has cut over processes; leave the model whole in each process, or that out "
                "(docs/distributed.md)"
            )

    def gather(self) -> None:
        """Torch's own hooks, which would put weights together and take them apart again layer by layer, rest meanwhile."""
        if self._hooks:
            return
        for module in self._modules:
            module.unshard()
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                self._hooks.append((hooks, dict(hooks)))
                for key in [
                    key for key, hook in hooks.items() if hook.__module__.startswith("torch.distributed.fsdp.")
                ]:
                    del hooks[key]

    def rest(self) -> None:
        for hooks, were in self._hooks:  # in their order, and behind them what was added meanwhile
            added = {key: hook for key, hook in hooks.items() if key not in were}
            hooks.clear()
            hooks.update(were | added)
        if self._hooks:
            self._hooks = []
            for module in self._modules:
                module.reshard()

    @property
    def copies(self) -> list[nn.Parameter]:
        """Parameters that every process has."""
        return [p for p, cut in zip(self.parameters, self._cut, strict=True) if not cut]

    @property
    def cut(self) -> Cut | None:
        """Which numbers of a sum as large as the model this process holds after `scatter`."""
        if not self._modules:
            return None
        starts = accumulate((shape.numel() for shape in self._shapes), initial=0)
        places = [start + own for start, (own, _) in zip(starts, self._spans(), strict=False)]
        return Cut(tuple(places), sum(shape.numel() for shape in self._shapes))

    def _spans(self) -> list[tuple[int, int]]:
        """(first, count) of the numbers of each parameter that this process holds: torch cuts along the first dimension, in equal
        parts but for the last ones."""
        spans = []
        for shape, cut in zip(self._shapes, self._cut, strict=True):
            whole, size = shape.numel(), _part(shape, self._world.size)
            first = min(self._world.rank * size, whole)
            spans.append((first, min(size, whole - first)) if cut else (0, whole))
        return spans

    def scatter(self, sums: list[Tensor]) -> list[Tensor]:
        """Takes the sums of the whole parameters; each is let go of as soon as it has been added up."""
        size, found = self._world.size, list[Tensor]()
        kept = [total for total, cut in zip(sums, self._cut, strict=True) if not cut]
        self._world.add_up(kept)
        waiting = [total for total, cut in zip(sums, self._cut, strict=True) if cut]
        sums.clear()
        for some in in_turns(waiting):
            flat = torch.cat([_in_parts(total, size) for total in some], 1)
            own = torch.empty_like(flat[0])
            widths = [_part(total.shape, size) for total in some]
            some.clear()
            group.reduce_scatter_tensor(own, flat.view(-1))
            found += own.split(widths)
        both = iter(found), iter(kept)
        spans = zip(self._cut, self._spans(), strict=True)
        return [next(both[0])[:count].clone() if cut else next(both[1]) for cut, (_, count) in spans]


def _part(shape: torch.Size, size: int) -> int:
    return -(-shape[0] // size) * shape[1:].numel()


def _in_parts(total: Tensor, size: int) -> Tensor:
    """(processes, numbers of a part), with zeros behind the last."""
    missing = size * _part(total.shape, size) - total.numel()
    return nn.functional.pad(total.reshape(-1), (0, missing)).view(size, -1)


def _sharded_modules(model: nn.Module) -> list[Any]:
    if not group.is_available():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _refuse_other_cuts(name: str, p: Any, world: World) -> None:
    mesh, places = p.device_mesh, p.placements
    along_the_first = len(places) == 1 and places[0].is_shard(0)
    if not along_the_first or mesh.size() != world.size or mesh.get_local_rank() != world.rank:
        raise Unsupported(
            f"model: parameter {name!r} is cut in another way ({places} over {tuple(mesh.shape)} processes) than along its first dimension "
            "over all processes of the run; use fully_shard(module) with its default mesh. Tensor parallel and hybrid sharding are not built"
        )
