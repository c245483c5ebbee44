"""Clipping methods, one file each; the registry below is all that the rest of the house sees of them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from clipwise import validate
from clipwise.clipping.auto import Auto
from clipwise.clipping.auto_dp import AutoDp
from clipwise.clipping.auto_dp_sound import AutoDpSound
from clipwise.clipping.automatic import AutoS, AutoV, Nsgd
from clipwise.clipping.bounded_quantile import BoundedQuantile
from clipwise.clipping.contract import Context, Method, bounded, option
from clipwise.clipping.dc_sgd_e import DcSgdE
from clipwise.clipping.dc_sgd_p import DcSgdP
from clipwise.clipping.dpsgd_f import DpsgdF
from clipwise.clipping.dynamic import Dynamic
from clipwise.clipping.fixed import Fixed
from clipwise.clipping.global_adapt_v2 import GlobalAdaptV2
from clipwise.clipping.global_scaling import Global, GlobalAdapt
from clipwise.clipping.oso import Oso
from clipwise.clipping.psac import Psac
from clipwise.clipping.quantile import Quantile
from clipwise.clipping.unclipped import Unclipped
from clipwise.types import BadArgument

_KINDS: tuple[type[Method], ...] = (
    Auto,
    Fixed,
    AutoS,
    AutoV,
    Nsgd,
    Psac,
    Global,
    GlobalAdapt,
    GlobalAdaptV2,
    Quantile,
    BoundedQuantile,
    DcSgdP,
    DcSgdE,
    Oso,
    AutoDpSound,
    AutoDp,
    DpsgdF,
    Dynamic,
)
METHODS: dict[str, type[Method]] = {kind.name: kind for kind in _KINDS}


def make_method(name: str, **options: Any) -> Method:
    """The method by its name, with its options checked: an unknown one is refused, with the list of those it has."""
    kind = METHODS[validate.choice("method", name, METHODS)]
    known = {f.name for f in fields(kind)}
    for given in options:
        if given not in known:
            raise BadArgument(
                f"{given}={options[given]!r} is not an option of method {name!r}; it has {', '.join(sorted(known)) or 'none'}"
            )
    if not isinstance(options.get("normalise", False), bool):
        raise BadArgument(f"normalise={options['normalise']!r} is a switch; give true or false")
    return kind(**options)


def method_options(name: str) -> list[dict[str, Any]]:
    """Name, type, default and meaning of each option, for the command line and the docs."""
    kind = METHODS[validate.choice("method", name, METHODS)]
    return [
        {
            "name": f.name,
            "type": f.type if isinstance(f.type, str) else f.type.__name__,
            "default": None if f.default is MISSING else f.default,
            "help": f.metadata.get("help", ""),
        }
        for f in sorted(fields(kind), key=lambda f: f.name == "normalise")  # what all have comes last
    ]


__all__ = [
    "METHODS",
    "Auto",
    "Context",
    "Fixed",
    "Method",
    "Unclipped",
    "bounded",
    "make_method",
    "method_options",
    "option",
]
