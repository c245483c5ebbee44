"""The mechanism: what is private about a run, as one frozen value; and, apart from it, how fast it is to be.

`attach`, `fit`, the config file and the command line pass these two whole. An option is declared here, once: its name,
its type, its default, its check and the sentence that help and docs print for it.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from clipwise import validate
from clipwise.schedules import make_schedule
from clipwise.types import BadArgument

WITHOUT_PRIVACY = math.inf  # the epsilon that asks for a run without noise or clipping
_LARGEST_SEED = 2**63  # torch's generators take no larger one


class Options(BaseModel):
    """Named, checked and frozen; `make` below gives one error a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Mechanism(Options):
    """What is private about a run. An option that is None follows from the data or from the others (see `plans.make`)."""

    method: Any = Field("auto", description="The clipping method: a name from `clipwise methods`, or a Method.")
    method_options: dict[str, Any] = Field(default_factory=dict, description="Options of the method.")
    epsilon: float | None = Field(None, description="The budget; inf trains without privacy.")
    noise_multiplier: float | None = Field(None, description="Noise std / l2 bound, instead of an epsilon.")
    delta: float | None = Field(None, description="Below 1 / number of records.")
    epochs: int | float | None = Field(None, description="Expected passes over the data.")
    expected_batch_size: int | float | None = Field(
        None,
        validation_alias=AliasChoices("expected_batch_size", "batch"),
        serialization_alias="batch",
        description="Expected batch size, a public number: the denominator of every step.",
    )
    effort: Literal["quick", "normal", "long"] = Field(
        "normal",
        description="How much computation, where batch or epochs are not stated: quick, normal or long (10, 20 or 40 epochs).",
    )
    sample_rate: float | None = Field(
        None, description="The chance that a record joins a batch; by default expected batch size / number of records."
    )
    size: Literal["public", "private"] = Field(
        "public",
        description="The number of records: public, or private (a count with noise is charged once, and the rate and the "
        "number of steps follow from it).",
    )
    sampling: Literal["poisson", "fixed-size"] = Field(
        "poisson", description="How batches are drawn: poisson, or fixed-size (without replacement, anew each step)."
    )
    schedule: Any = Field(
        "constant",
        description="Of the noise: constant, linear, time, auto-time, step, exponential, dynamic or levels:1,0.9,...",
    )
    accountant: Literal["best", "rdp", "pld"] = Field("best", description="rdp, pld, or best (the smaller of the two).")
    allow_unsound: bool = Field(False, description="Run a method without a valid guarantee; epsilon is infinite.")
    seed: int | None = Field(None, description="For studies; without one, randomness is the system's own.")
    unit: str = Field(
        "one record (one row) of the training set",
        description="What is protected, in your words: whom one row of the data stands for.",
    )

    @property
    def private(self) -> bool:
        return self.epsilon != WITHOUT_PRIVACY

    @field_validator("method")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, str) or hasattr(value, "decide"):
            return value
        raise BadArgument(f"method={value!r}: give a name from `clipwise methods`, or a method object")

    @field_validator("epsilon")
    @classmethod
    def _budget(cls, value: float | None) -> float | None:
        if value is None or value == WITHOUT_PRIVACY:
            return value
        return validate.positive("epsilon", value, "give a budget above 0, such as 3, or inf to train without privacy")

    @field_validator("noise_multiplier")
    @classmethod
    def _not_negative(cls, value: float | None) -> float | None:
        return value if value is None else validate.non_negative("noise_multiplier", value)

    @field_validator("delta")
    @classmethod
    def _small(cls, value: float | None) -> float | None:
        remedy = "give a number well below 1 / number of records, such as 1e-5"
        return value if value is None else validate.probability("delta", value, one_allowed=False, remedy=remedy)

    @field_validator("sample_rate")
    @classmethod
    def _rate(cls, value: float | None) -> float | None:
        remedy = "it is expected_batch_size / size of the data set"
        return value if value is None else validate.probability("sample_rate", value, one_allowed=True, remedy=remedy)

    @field_validator("epochs")
    @classmethod
    def _passes(cls, value: float | None) -> float | None:
        if value is not None:
            validate.positive("epochs", value, "give the number of passes over the data that are planned")
        return value

    @field_validator("expected_batch_size")
    @classmethod
    def _rows(cls, value: float | None) -> float | None:
        if value is not None:
            validate.positive("expected_batch_size", value, "give the expected number of records in a batch")
        return value

    @field_validator("schedule", mode="before")
    @classmethod
    def _written_out(cls, value: Any) -> Any:
        """As text, except a function of the epoch: that is written down when the epochs are known."""
        return value if callable(value) else str(make_schedule(value))

    @field_validator("seed")
    @classmethod
    def _whole(cls, value: int | None) -> int | None:
        if value is not None and validate.count("seed", value, least=0) >= _LARGEST_SEED:
            raise BadArgument(f"seed={value!r} is too large; give a whole number below 2^63")
        return value

    @model_validator(mode="after")
    def _counted_once(self) -> Self:
        if self.size == "private" and self.sample_rate is not None:
            raise BadArgument(
                f"size='private' and sample_rate={self.sample_rate!r}: the rate is what the count is for. Leave one out; with sample_rate and "
                "expected_batch_size given, the number of records is not used at all"
            )
        if self.size == "private" and self.sampling == "fixed-size":
            raise BadArgument(
                "size='private' and sampling='fixed-size': its neighbours are data sets of one, public size; use sampling='poisson'"
            )
        return self

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise BadArgument(
                f"epsilon={self.epsilon!r} and noise_multiplier={self.noise_multiplier!r} were both given, and each "
                "decides the other: give exactly one, and leave one out"
            )
        if not isinstance(self.method, str) and self.method_options:
            raise BadArgument(
                f"method={self.method!r}: give a name with its options, or a method object that holds them"
            )
        return self


class Performance(Options):
    """How a run is carried out: neither the guarantee nor (but for rounding) the result depends on it."""

    max_physical_batch: int | None = Field(None, description="Records in memory at once; results are equal.")
    engine: Literal["fast", "generic"] = Field(
        "fast", description="fast, or generic (torch.func for the whole model: slower, for models that change shape)."
    )

    @field_validator("max_physical_batch")
    @classmethod
    def _at_least_one(cls, value: int | None) -> int | None:
        return value if value is None else validate.count("max_physical_batch", value)


Kind = TypeVar("Kind", bound=Options)


def make(kind: type[Kind], values: Mapping[str, Any], where: str = "the options") -> Kind:
    """The checked value; an unknown key is refused with the name that comes closest to it."""
    known = names(kind)
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            remedy = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            raise BadArgument(f"{validate.short(repr(key))} in {where} is not an option; {remedy}")
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise BadArgument(validate.short(_message(error.errors()[0]))) from error


def names(kind: type[Options]) -> list[str]:
    """Of the options, with the short names that some have in files and on the command line."""
    return [*ordered(kind), *(f.serialization_alias for f in kind.model_fields.values() if f.serialization_alias)]


def ordered(kind: type[Options]) -> list[str]:
    """The options of a kind, its own before those that it has from others."""
    own = [name for name in kind.__annotations__ if name in kind.model_fields]
    return [*own, *(name for name in kind.model_fields if name not in own)]


def split(options: Mapping[str, Any]) -> tuple[Mechanism, Performance]:
    """The keyword arguments of `attach` and `fit`: what is neither of the two belongs to the method (`threshold=1.0`)."""
    fast = {name: value for name, value in options.items() if name in Performance.model_fields}
    private = {name: value for name, value in options.items() if name in Mechanism.model_fields}
    own = {name: value for name, value in options.items() if name not in fast and name not in private}
    private["method_options"] = {**(private.get("method_options") or {}), **own}
    return make(Mechanism, private), make(Performance, fast)


def chosen(
    mechanism: Mechanism | None, performance: Performance | None, options: Mapping[str, Any]
) -> tuple[Mechanism, Performance]:
    """The two as they were given whole, or made of options; not both."""
    if mechanism is None:
        return split(options)
    if options:
        raise BadArgument(f"{', '.join(options)}: the mechanism is given whole; put its options into it")
    return mechanism, performance or Performance()


def takes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The two kinds of options in the signature and the help of a function that takes them as `**options`."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    fields = {**Mechanism.model_fields, **Performance.model_fields}
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.get_default(call_default_factory=True))
        for name, field in fields.items()
    ]
    rest = inspect.Parameter("options_of_the_method", inspect.Parameter.VAR_KEYWORD)
    function.__signature__ = signature.replace(parameters=[*own, *more, rest])  # type: ignore[attr-defined]
    lines = [f"    {name}: {field.description}" for name, field in fields.items()]
    function.__doc__ = "\n".join(
        [inspect.cleandoc(function.__doc__ or ""), "", "The mechanism, and its speed:", *lines]
    )
    return function


def _message(error: ErrorDetails) -> str:
    """One sentence with the option and its value; our own checks have written it already."""
    ours = error.get("ctx", {}).get("error")
    if isinstance(ours, BadArgument):
        return str(ours)
    return f"{'.'.join(map(str, error['loc']))}={error['input']!r} does not do: {error['msg']}"
