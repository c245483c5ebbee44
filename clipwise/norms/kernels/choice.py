"""Which kernel for which shape: by rule, so that a run can be repeated and its first step costs what the others do.

A kernel offers its ways in the order of what they take (`candidates`, by counts of multiply-adds; the factors were measured), and
the first that memory allows is taken. Until 0.2 all were timed on the first batch of a kind, and the fastest was kept: with the
rules of now that gains nothing that shows.

A private step must not need much more memory than a plain one. So per-example gradients are stored for no more rows of a
layer than a cap allows, give or take a fifth, where there is another way for the rest, or a spare one for all.
"""

from __future__ import annotations

from torch import Tensor

from clipwise.devices import policy
from clipwise.norms.kernels.kernel import Call, Part, Way, split

# Parts of the rows: direct for fewer is not worth a split, nor another way for the few that are left over. Chosen, not measured.
FEWEST, MOST = 1 / 4, 4 / 5


class Chooser:
    def part(self, call: Call, saved: tuple[Tensor, ...], b: Tensor) -> Part:
        ways = call.kernel.candidates(call, saved, b)
        if len(ways) > 1:
            ways = self._affordable(call, b, ways)
        return next(iter(ways.values()))(call, saved, b)

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

    def _fitting_rows(self, call: Call, b: Tensor) -> int:
        rows, fit = b.shape[0], policy(b.device).direct_bytes // max(1, _gradient_bytes(call, b))
        return rows if fit >= MOST * rows else fit


def _is_direct(name: str) -> bool:
    return name.startswith("direct")


def _gradient_bytes(call: Call, b: Tensor) -> int:
    """Of one example."""
    return b.element_size() * sum(p.numel() for p in call.params.values())
