"""The scale of the reduction: whether the terms of a loss are added up over the rows as was declared, a mean or a sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from math import isclose, prod

from clipwise.norms.loss.rules.state import Term, Unknown
from clipwise.types import LoopMisuse

CLOSE = 1e-9  # relative: numbers of Python's, multiplied and divided a few times; chosen far above their rounding


def matched(terms: Sequence[Term], rows: int, reduction: str) -> tuple[float, ...]:
    """The numbers that each row's loss holds, for a total that is reduced as was declared."""
    numbers: list[float] = []
    smoothed: defaultdict[int, list[Term]] = defaultdict(list)
    for term in terms:
        own = _matched(term, rows, reduction)
        if own is not None:
            numbers += own
        elif term.tag:
            smoothed[id(term.tag[1])].append(term)
        else:
            raise _wrong_scale(term, rows, reduction)
    for group in smoothed.values():
        numbers += _label_smoothing(group, rows, reduction)
    return tuple(numbers)


def _matched(term: Term, rows: int, reduction: str) -> tuple[float, ...] | None:
    base = 1 / rows if reduction == "mean" else 1.0
    other = 1.0 if reduction == "mean" else 1 / rows
    divisors = _products(term.sizes)
    folded = abs(term.factor * term.scale)
    for factor, numbers in ((folded, term.numbers), (abs(term.factor), (*term.numbers, term.scale))):
        if factor != folded and term.suspect:
            continue
        found = _divisor(factor, base, divisors)
        if found is None or (found != 1 and _divisor(factor, other, divisors) is not None):
            continue
        return numbers if found == 1 else (*numbers, float(found))
    return None


def _label_smoothing(group: list[Term], rows: int, reduction: str) -> tuple[float, ...]:
    """(1 - s) * nll + s / classes * (sum over the classes), of the same log-probabilities, is reduced as one loss."""
    kinds = {t.tag[0]: t for t in group}
    if len(group) != 2 or set(kinds) != {"nll", "all"}:
        raise _wrong_scale(group[0], rows, reduction)
    nll, rest = kinds["nll"], kinds["all"]
    classes = nll.tag[2]
    share = abs(rest.factor * rest.scale) * classes
    together = nll._replace(factor=abs(nll.factor) + share)
    own = _matched(together, rows, reduction)
    if own is None or nll.suspect or nll.sizes != rest.sizes:
        raise _wrong_scale(together, rows, reduction)
    return (*own, share / together.factor)


def _wrong_scale(term: Term, rows: int, reduction: str) -> LoopMisuse | Unknown:
    factor = abs(term.factor * term.scale)
    other = "sum" if reduction == "mean" else "mean"
    divisors = _products(term.sizes)
    for known in {factor, factor if term.suspect else abs(term.factor)}:
        if _divisor(known, 1 / rows if other == "mean" else 1.0, divisors) is not None:
            return LoopMisuse(
                f"the loss is a {other} over the batch, but loss_reduction={reduction!r} was declared; nothing was changed. "
                f"Reduce the loss the way it was declared, attach with loss_reduction={other!r}, or give one loss a row to "
                "private.backward(losses)"
            )
    return Unknown(
        f"a part of it is a multiple of the {reduction} over the batch that was declared, and whether that number depends on "
        "the records cannot be told (a number that weighs row losses, before they are reduced, is fine)"
    )


def _products(sizes: Sequence[int]) -> set[int]:
    sizes = [size for size in sizes if size != 1]
    if not sizes:
        return {1}
    return {prod(some) for n in range(len(sizes) + 1) for some in combinations(sizes, n)}


def _divisor(factor: float, base: float, divisors: set[int]) -> int | None:
    if isclose(factor, base, rel_tol=CLOSE):  # 1, the smallest of them
        return 1
    return next((d for d in sorted(divisors) if isclose(factor * d, base, rel_tol=CLOSE)), None)
