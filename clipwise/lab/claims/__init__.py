"""Claims: the privacy figures that four papers publish, recomputed by the papers' own formulas, beside honest ones.

**Nothing here is a guarantee.** The closed forms are the papers', with their errors; a test keeps every other part of
the package, except the command that prints this table, from importing them. Honest figures come from
`clipwise.accounting`, with every step counted. One file a paper, each with `PAPER`, `TITLE`, `introduction()` and
`rows()`; a row is a function, so that a command can show its progress.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from clipwise import validate
from clipwise.lab.claims import auto_dp_sgd, dc_sgd, global_adapt_v2, oso_dpsgd
from clipwise.lab.claims.claim import Claim

PAPERS: dict[str, ModuleType] = {each.PAPER: each for each in (auto_dp_sgd, global_adapt_v2, dc_sgd, oso_dpsgd)}


def rows(paper: str | None = None) -> list[Callable[[], Claim]]:
    """A function for each claim of one paper ("000".."003"), or of all."""
    chosen = PAPERS if paper is None else [validate.choice("paper", paper, PAPERS)]
    return [row for each in chosen for row in PAPERS[each].rows()]


__all__ = ["PAPERS", "Claim", "rows"]
