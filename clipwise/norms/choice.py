"""Which kernel for which shape: by the clock, once for each (kernel, shape), or by rule.

On a CPU no formula predicts well which of several exact ways to the same norms is fastest, so each is tried on the
first batch of a kind and the choice is kept. `by_rule=True` takes a kernel's first candidate instead: for runs that
must be repeated bit by bit.

A private step must not need much more memory than a plain one. So per-example gradients are stored for no more rows of a
layer than a cap allows, give or take a fifth, where there is another way for the rest, or a spare one for all; and what a
way keeps until the sums are taken counts as time, about what the system takes to hand out that much memory.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from clipwise.norms.kernel import Call, Part, Way, split

REPEATS = 3  # timings of a way, of which the least counts; chosen: one alone met a busy moment at times
CLOSE = 1.25  # times the best: such ways are timed again. Chosen after wrong choices were seen, not measured
SECONDS_PER_BYTE = 0.3 / 2**30  # page faults took 0.2 to 2 s a GB; most memory has been handed out before
# Parts of the rows: direct for fewer is not worth a split, nor another way for the few that are left over. Chosen, not measured.
FEWEST, MOST = 1 / 4, 4 / 5


class Chooser:
    def __init__(self, *, by_rule: bool, max_direct_bytes: int):
        self._by_rule = by_rule
        self._max_direct_bytes = max_direct_bytes
        self._chosen: dict[tuple[Hashable, ...], str] = {}
        self._preset: Mapping[str, str] = {}

    @property
    def ways(self) -> dict[str, str]:
        """The choices so far, in words, for another process to repeat (`repeat`)."""
        return {_in_words(key): name for key, name in self._chosen.items()}

    def repeat(self, ways: Mapping[str, str]) -> None:
        self._preset = ways

    def part(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        ways = call.kernel.candidates(call, saved, b)
        if len(ways) > 1:
            ways = self._affordable(call, b, ways)
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
            name = self._preset.get(_in_words(key)) or self._cheapest(ways, call, saved, b)
            self._chosen[key] = name
        return ways[name](call, saved, b)

    def _affordable(self, call: Call, b: Tensor, ways: dict[str, Way]) -> dict[str, Way]:
        """The ways, those named direct for as many rows as fit under the cap, and another for the rest."""
        rows, fit, spares = b.shape[0], self._fitting_rows(call, b), call.kernel.spares
        others = {name: way for name, way in ways.items() if not _is_direct(name)}
        if others and (fit < FEWEST * rows or (fit < rows and spares & others.keys())):
            return others
        if others and fit < rows:
            rest = next(iter(others.values()))
            ways = {name: split(way, rest, fit) if _is_direct(name) else way for name, way in ways.items()}
        return {name: way for name, way in ways.items() if name not in spares}

    def _cheapest(self, ways: dict[str, Way], call: Call, saved: tuple[Tensor, ...], b: Tensor) -> str:
        ones = torch.ones(b.shape[0], dtype=b.dtype, device=b.device)
        cost = dict.fromkeys(ways, float("inf"))
        for _ in range(2):  # the second time among those that are close
            for _ in range(REPEATS):
                for name in cost:
                    _wait(b)
                    start = time.perf_counter()
                    ways[name](call, saved, b).weighted_sum(ones)
                    _wait(b)
                    took = time.perf_counter() - start
                    cost[name] = min(cost[name], took + SECONDS_PER_BYTE * self._kept_bytes(name, call, saved, b))
            cost = {name: seconds for name, seconds in cost.items() if seconds <= CLOSE * min(cost.values())}
            if len(cost) == 1:
                break
        return min(cost, key=cost.__getitem__)

    def _fitting_rows(self, call: Call, b: Tensor) -> int:
        rows, fit = b.shape[0], self._max_direct_bytes // max(1, _gradient_bytes(call, b))
        return rows if fit >= MOST * rows else fit

    def _kept_bytes(self, name: str, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> int:
        rows, size = b.shape[0], _gradient_bytes(call, b)
        stored = self._fitting_rows(call, b) if _is_direct(name) else 0
        return stored * size + (rows - stored) * (b.nbytes + sum(s.nbytes for s in saved)) // rows


def _in_words(key: tuple[Hashable, ...]) -> str:
    return f"{type(key[0]).__name__} {key[1:]}"


def _is_direct(name: str) -> bool:
    return name.startswith("direct")


def _gradient_bytes(call: Call, b: Tensor) -> int:
    """Of one example."""
    return b.element_size() * sum(p.numel() for p in call.params.values())


def _wait(t: Tensor) -> None:
    if t.is_cuda:
        torch.cuda.synchronize(t.device)
