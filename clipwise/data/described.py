"""What a user says of an own file, as options: declared here once, for config files, the command line and Python.

Whatever is needed beyond the file itself (a range, a list of categories, a rule for gaps) is stated as public, learned with
noise from the budget, or declared public by name; nothing is read off the records in silence.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, field_validator

from clipwise import validate
from clipwise.mechanism import Options
from clipwise.types import BadArgument

EVERY_COLUMN = "*"
_MOST_TOKENS = 4096  # of a text: longer records than any model here is meant for


class OwnData(Options):
    """An own file, in its user's words. All of it is public."""

    label: str | None = Field(None, description="The label column of your own file.")
    classes: int | list[str] | None = Field(
        None, description="Classes of your own file, as public figures: their number, or their names, no,yes."
    )
    ranges: dict[str, list[float]] = Field(
        default_factory=dict,
        description="Public range of the features, LOW:HIGH or COLUMN=LOW:HIGH, mapped to 0..1; of the label, for a number.",
    )
    categories: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="A column of categories: COLUMN=hashed:32, or a public list, COLUMN=red,green.",
    )
    texts: list[str] = Field(
        default_factory=list, description="A column of free text, whose words are hashed (or see --vocabulary)."
    )
    dates: dict[str, list[str]] = Field(
        default_factory=dict,
        description="A column of ISO dates, in parts: COLUMN=year:1990:2030,month,day,weekday,hour.",
    )
    missing: dict[str, str | float] = Field(
        default_factory=dict,
        description="What stands for gaps: COLUMN=flag (a column of its own) or COLUMN=NUMBER; without COLUMN=, everywhere.",
    )
    drop: list[str] = Field(default_factory=list, description="A column to leave out.")
    learn_ranges: bool = Field(
        False, description="Learn ranges that are not stated from the records, with noise, from the same budget."
    )
    learn_categories: list[str] = Field(
        default_factory=list,
        description="A column whose frequent categories are learned with noise, from the same budget.",
    )
    public_ranges: list[str] = Field(
        default_factory=list, description="A column whose range is read off the records and which you declare public."
    )
    public_categories: list[str] = Field(
        default_factory=list,
        description="A column (also the label) whose values are read off the records and which you declare public.",
    )
    text_length: int = Field(128, description="Words of a text of your own that are read, a public figure.")
    image_size: list[int] = Field(
        default_factory=lambda: [3, 32, 32],
        description="Of a folder of images: CHANNELSxHEIGHTxWIDTH that all are made, 1 channel for grey.",
    )
    test_fraction: float = Field(0.2, description="Held out of your own file for testing.")

    @property
    def given(self) -> dict[str, Any]:
        """What was said, by name: the options that are not at their defaults."""
        return {
            name: value
            for name in OwnData.model_fields
            if (value := getattr(self, name)) != OwnData.model_fields[name].get_default(call_default_factory=True)
        }

    @field_validator("classes")
    @classmethod
    def _at_least_two(cls, value: int | list[str] | None) -> int | list[str] | None:
        if isinstance(value, list):
            if len(value) < 2 or len(set(value)) < len(value) or not all(value):
                raise BadArgument(f"classes={value!r}: give two names or more, each once")
            return value
        return value if value is None else validate.count("classes", value, least=2)

    @field_validator("ranges")
    @classmethod
    def _low_high(cls, value: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, bounds in value.items():
            if len(bounds) != 2 or not (all(map(math.isfinite, bounds)) and bounds[0] < bounds[1]):
                raise BadArgument(f"ranges: {name}={bounds!r} is not a range; give two finite numbers, low before high")
        return value

    @field_validator("missing")
    @classmethod
    def _rules(cls, value: dict[str, str | float]) -> dict[str, str | float]:
        for name, rule in value.items():
            if rule != "flag" and (isinstance(rule, str) or not math.isfinite(rule)):
                raise BadArgument(
                    f"missing: {name}={rule!r} is no rule; give flag, or the number that stands for a gap"
                )
        return value

    @field_validator("test_fraction")
    @classmethod
    def _below_one_share(cls, value: float) -> float:
        if not 0 <= value < 1:
            raise BadArgument(f"test_fraction={value!r} must lie in [0, 1); give 0 for none")
        return value

    @field_validator("text_length")
    @classmethod
    def _words(cls, value: int) -> int:
        if validate.count("text_length", value) > _MOST_TOKENS:
            raise BadArgument(f"text_length={value!r} is above {_MOST_TOKENS}; give fewer words of each text")
        return value

    @field_validator("image_size")
    @classmethod
    def _three(cls, value: list[int]) -> list[int]:
        if len(value) != 3:
            raise BadArgument(f"image_size={value!r}: give channels, height and width, such as 3x32x32")
        return value
