"""Options of a run on the command line, as `clipwise/training/options.py` declares them: names, types and help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from clipwise.files import Malformed, number
from clipwise.mechanism import ordered
from clipwise.training.options import TrainConfig

_FLAGS = {"ranges": "--range", "categories": "--category", "texts": "--text", "dates": "--date"}  # one at a time
_AS_TEXT = ("classes", "image_size")  # several values in one text


def takes_run_options(
    only: Collection[str] | None = None, *, but: Collection[str] = (), help: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that takes the run's options (all, or some by name) as keywords, None where they are not given. `help`
    holds other sentences for some."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = [name for name in (ordered(TrainConfig) if only is None else only) if name not in but]
        fields = [_parameter(name, (help or {}).get(name)) for name in names]
        first = [p for p in own if p.default is inspect.Parameter.empty]
        rest = [p for p in own if p.default is not inspect.Parameter.empty]
        everything = [*first, *fields, *rest]
        command.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in everything}
        return command

    return with_options


def _parameter(name: str, help: str | None) -> inspect.Parameter:
    field = TrainConfig.model_fields[name]
    flag = _FLAGS.get(name, f"--{(field.serialization_alias or name).replace('_', '-')}")
    kind = str if name in _AS_TEXT else _type(field.annotation)
    real: dict[str, Any] = {"parser": _real, "metavar": "FLOAT"} if kind is float else {}
    option = typer.Option(flag, help=help or field.description, **real)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _real(text: str) -> float:
    """As written: `--epsilon 1e400` must not train without privacy."""
    try:
        return number(text)
    except Malformed as error:
        raise typer.BadParameter(str(error)) from error
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a valid float.") from error


def _type(annotation: Any) -> Any:
    """What the parser is to make of the words: a number for whole or real ones, text for anything that has a name, and
    several texts for a list or a table (cli/own_words.py reads them)."""
    if get_origin(annotation) in (list, dict):
        return list[str]
    if get_origin(annotation) in (Union, UnionType):
        kinds = {_type(each) for each in get_args(annotation) if each is not NoneType}
        return float if kinds == {int, float} else next(iter(kinds)) if len(kinds) == 1 else str
    if annotation in (int, float, bool):
        return annotation
    return str
