"""Which kernel for which shape: by the clock, once for each (kernel, shape), or by rule.

On a CPU no formula predicts well which of several exact ways to the same norms is fastest, so each is tried on the
first batch of a kind and the choice is kept. `by_rule=True` takes a kernel's first candidate instead: for runs that
must be repeated bit by bit. Ways that would store per-example gradients beyond the cap are left out: a private step
must not need much more memory than a plain one.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

import torch
from torch import Tensor

from clipwise.norms.kernel import Call, Part, Way

REPEATS = 3


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
        )
        name = self._chosen.get(key)
        if name is None or name not in ways:
            name = self._chosen[key] = self._fastest(ways, call, saved, b)
        return ways[name](call, saved, b)

    def _affordable(self, call: Call, b: Tensor, ways: dict[str, Way]) -> dict[str, Way]:
        stored = b.shape[0] * b.element_size() * sum(p.numel() for p in call.params.values())
        if stored <= self._max_direct_bytes:
            return ways
        return {name: way for name, way in ways.items() if not name.startswith("direct")} or ways

    @staticmethod
    def _fastest(ways: dict[str, Way], call: Call, saved: tuple[Tensor, ...], b: Tensor) -> str:
        ones = torch.ones(b.shape[0], dtype=b.dtype, device=b.device)
        best: dict[str, float] = {}
        for _ in range(REPEATS):
            for name, way in ways.items():
                _wait(b)
                start = time.perf_counter()
                way(call, saved, b).weighted_sum(ones)
                _wait(b)
                best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
        return min(best, key=best.__getitem__)


def _wait(t: Tensor) -> None:
    if t.is_cuda:
        torch.cuda.synchronize(t.device)
