"""Options read from a TOML or YAML file, or given by name, made into one checked value.

What ran is written to the run folder in full (see resolve.py: no option is left to a default that may change), and
`clipwise train --config` on that file repeats the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clipwise import files, validate
from clipwise.data import DATASETS
from clipwise.mechanism import make
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument


def make_config(values: Mapping[str, Any], where: str = "the options") -> TrainConfig:
    """The checked config; an unknown key is refused with the name that comes closest to it. `threshold` is short for a
    method's option, as on the command line."""
    values = dict(values)
    if "threshold" in values:
        values["method_options"] = {**(values.get("method_options") or {}), "threshold": values.pop("threshold")}
    if "method" not in values:
        # Filled in at once, unlike the rest of a recipe: what a method's options are depends on it.
        source = DATASETS.get(str(values.get("data", TrainConfig.model_fields["data"].default)))
        if source is not None:
            values["method"] = source.recipe.chosen(values.get("model")).method
    return make(TrainConfig, values, where)


def read_config(path: Path) -> dict[str, Any]:
    """The options in a .toml or .yaml file, as written; `make_config` checks them."""
    name = str(path)[-200:]
    try:
        text = files.read_bytes(path, most=files.MOST_CONFIG).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"config={name!r} cannot be read ({error}); give a .toml or .yaml file") from error
    as_yaml = path.suffix.lower() in (".yaml", ".yml")
    try:
        values = files.parse_yaml(text) if as_yaml else files.parse_toml(text)
    except ModuleNotFoundError as error:
        raise BadArgument(
            f"config={name!r} needs PyYAML; run pip install 'clipwise[yaml]', or write the file as TOML"
        ) from error
    except files.Malformed as error:
        language = "YAML" if as_yaml else "TOML"
        raise BadArgument(
            f"config={name!r} is not valid {language} ({validate.short(str(error))}); correct the file"
        ) from error
    if not isinstance(values, dict):
        raise BadArgument(f"config={str(path)!r} holds no options; write one a line, such as: epsilon: 3")
    return values
