"""Tuning whose privacy is paid for: strategies, one file each; the registry below is all that the rest sees of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from clipwise import validate
from clipwise.lab.tuning.exponential import Exponential
from clipwise.lab.tuning.free import Public, Uncharged
from clipwise.lab.tuning.grid import GridRdp
from clipwise.lab.tuning.liu_talwar import LiuTalwar
from clipwise.lab.tuning.repeat_select import RepeatSelect
from clipwise.lab.tuning.strategy import Strategy
from clipwise.types import BadArgument

_KINDS: tuple[type[Strategy], ...] = (GridRdp, LiuTalwar, RepeatSelect, Exponential, Public, Uncharged)
STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in _KINDS}

__all__ = ["STRATEGIES", "Strategy", "make_strategy"]


def make_strategy(name: str, **options: Any) -> Strategy:
    """The strategy by its name; options that are None are left to it, others that it does not have are refused."""
    kind = STRATEGIES[validate.choice("strategy", name, STRATEGIES)]
    given = {option: value for option, value in options.items() if value is not None}
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for option, value in given.items():
        if option not in known:
            raise BadArgument(f"{option}={value!r} means nothing to strategy {name!r}; leave it out")
    return kind(**given)
