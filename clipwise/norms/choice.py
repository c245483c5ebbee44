"""Which kernel for which shape: by the clock, once for each (kernel, shape), or by rule.

On a CPU no formula predicts well which of several exact ways to the same norms is fastest, so each is tried on the
first batch of a kind and the choice is kept. `by_rule=True` takes a kernel's first candidate instead: for runs that
must be repeated bit by bit.

A private step must not need much more memory than a plain one. So per-example gradients are stored for no more rows of a
layer than a cap allows, where there is another way for the rest; and what a way keeps until the sums are taken counts as
time, about what the system takes to hand out that much memory.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

import torch
from torch import Tensor

from clipwise.norms.kernel import Call, Part, Way, split

REPEATS = 3
SECONDS_PER_BYTE = 0.1 / 2**30  # page faults take 0.2 to 2 s a GB; most memory has been handed out before
FEWEST = 4  # direct for less than one row in so many is not worth a split
SPLIT_SHARE = 0.75  # of the cap, for a layer over it: it is split anyway, and a little lower costs little more


class Chooser:
    def __init__(self, *, by_rule: bool, max_direct_bytes: int):
        self._by_rule = by_rule
        self._max_direct_bytes = max_direct_bytes
        self._chosen: dict[Hashable, str] = {}

    def part(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        ways = self._affordable(call, b, call.kernel.candidates(call, saved, b))
        if len(ways) == 1 or self._by_rule:
            return next(iter(ways.values()))(call, saved, b)
        # Poisson batches vary in size: one decision serves all sizes of the same power of two.
        key = (
            call.kernel,
            call.config,
            tuple(call.params),
            b.shape[0].bit_length(),
            b.shape[1:],
            *(s.shape[1:] for s in saved),
            tuple(ways),
        )
        name = self._chosen.get(key)
        if name is None:
            name = self._chosen[key] = self._cheapest(ways, call, saved, b)
        return ways[name](call, saved, b)

    def _affordable(self, call: Call, b: Tensor, ways: dict[str, Way]) -> dict[str, Way]:
        """The ways, those named direct for as many rows as fit under the cap, and another for the rest."""
        rows, fit = b.shape[0], self._stored_rows(call, b)
        others = [way for name, way in ways.items() if not _is_direct(name)]
        if others and FEWEST * fit < rows:
            return {name: way for name, way in ways.items() if not _is_direct(name)}
        if others and fit < rows:
            ways = {name: split(way, others[0], fit) if _is_direct(name) else way for name, way in ways.items()}
        return {name: way for name, way in ways.items() if name not in call.kernel.spares}

    def _stored_rows(self, call: Call, b: Tensor) -> int:
        """How many rows a way named direct may store."""
        rows, size = b.shape[0], max(1, _gradient_bytes(call, b))
        return rows if rows * size <= self._max_direct_bytes else int(SPLIT_SHARE * self._max_direct_bytes) // size

    def _cheapest(self, ways: dict[str, Way], call: Call, saved: tuple[Tensor, ...], b: Tensor) -> str:
        ones = torch.ones(b.shape[0], dtype=b.dtype, device=b.device)
        best: dict[str, float] = {}
        for _ in range(REPEATS):
            for name, way in ways.items():
                _wait(b)
                start = time.perf_counter()
                way(call, saved, b).weighted_sum(ones)
                _wait(b)
                best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
        return min(best, key=lambda name: best[name] + SECONDS_PER_BYTE * self._kept_bytes(name, call, saved, b))

    def _kept_bytes(self, name: str, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> int:
        rows, size = b.shape[0], _gradient_bytes(call, b)
        stored = self._stored_rows(call, b) if _is_direct(name) else 0
        return stored * size + (rows - stored) * (b.nbytes + sum(s.nbytes for s in saved)) // rows


def _is_direct(name: str) -> bool:
    return name.startswith("direct")


def _gradient_bytes(call: Call, b: Tensor) -> int:
    """Of one example."""
    return b.element_size() * sum(p.numel() for p in call.params.values())


def _wait(t: Tensor) -> None:
    if t.is_cuda:
        torch.cuda.synchronize(t.device)
