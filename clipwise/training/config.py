"""The options of a training run as one checked value, read from TOML or YAML and written back as TOML.

What ran is written to the run folder in full (`resolved`: no option is left to a default that may change), and
`clipwise train --config` on that file repeats the run.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from clipwise import validate
from clipwise.data import DATASETS, DataSet, is_file, mean_and_deviation
from clipwise.data.text import in_full
from clipwise.loop.lr_schedules import make_lr_schedule, refuse_double_rate
from clipwise.schedules import make_schedule
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer

OptimizerName = Literal["sgd", "adam", "adamw", "rmsprop", "adam-wosm"]
_HAS_MOMENTUM = ("sgd", "rmsprop")
# Adaptive optimizers divide by the size of the gradient, or of its noise, so that one rate serves most models.
_RATES = {"adam": 2e-3, "adamw": 2e-3, "rmsprop": 2e-3, "adam-wosm": 1e-3}


class TrainConfig(BaseModel):
    """One training run. An option that is None takes the data set's recommended value (see `resolved`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str = "digits"
    label: str | None = None  # of a .csv file
    classes: int | None = None  # of a file of one's own
    ranges: dict[str, list[float]] = Field(default_factory=dict)  # column, or "*" for all -> [low, high], public
    test_fraction: float = 0.2  # of a file without a test part
    standardize: list[float] | None = None  # of images: mean and standard deviation of pixels, public
    vocabulary: str | None = None  # of texts: hashed, training or the path of a public text, perhaps with a size
    model: str | None = None
    method: str = "fixed"  # of a registered data set, the recommended one
    method_options: dict[str, Any] = Field(default_factory=dict)
    epsilon: float | None = None  # inf trains without privacy
    noise_multiplier: float | None = None
    delta: float | None = None
    schedule: str = "constant"  # of the noise
    group_by: str = "class"  # or a grouping of the data set, or a column that holds group numbers
    group_counts: float | None = None  # noise multiplier of accuracy by group on training records, from the budget
    clipped_counts: float | None = None  # and of the clipped share by group
    unsafe_diagnostics: bool = False  # exact figures on training records, outside any guarantee
    allow_unsound: bool = False
    epochs: int | None = None
    batch: int | None = None  # expected batch size
    lr: float | None = None
    optimizer: OptimizerName = "sgd"
    momentum: float | None = None
    weight_decay: float = 0.0
    loss: str | None = None  # the model's own by default
    lr_schedule: str = "none"
    average_weights: float | None = None  # decay of the moving average that is released; 0: the last weights
    pretrained: str | None = None  # a file, a folder or an installed package of weights
    freeze: str | None = None  # the model's own by default
    seed: int | None = None
    accountant: Literal["best", "rdp", "pld"] = "best"
    max_physical_batch: int | None = None
    tensorboard: bool | str | None = None  # true: events in the run folder; text: in a folder of the run's name there
    out: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _recommended_method(cls, values: Any) -> Any:
        """Filled in at once, unlike the rest of a recipe: what a method's options are depends on it."""
        if not isinstance(values, Mapping) or "method" in values:
            return values
        source = DATASETS.get(str(values.get("data", cls.model_fields["data"].default)))
        return values if source is None else {**values, "method": source.recipe.chosen(values.get("model")).method}

    @field_validator("noise_multiplier", "weight_decay")
    @classmethod
    def _not_negative(cls, value: float | None, info: Any) -> float | None:
        return value if value is None else validate.non_negative(info.field_name, value)

    @field_validator("lr", "group_counts", "clipped_counts")
    @classmethod
    def _positive(cls, value: float | None, info: Any) -> float | None:
        return value if value is None else validate.positive(info.field_name, value)

    @field_validator("epochs", "batch", "max_physical_batch")
    @classmethod
    def _at_least_one(cls, value: int | None, info: Any) -> int | None:
        return value if value is None else validate.count(info.field_name, value)

    @field_validator("classes")
    @classmethod
    def _at_least_two(cls, value: int | None) -> int | None:
        return value if value is None else validate.count("classes", value, least=2)

    @field_validator("standardize")
    @classmethod
    def _mean_and_deviation(cls, value: list[float] | None) -> list[float] | None:
        return value if value is None else list(mean_and_deviation(value))

    @field_validator("seed")
    @classmethod
    def _whole(cls, value: int | None) -> int | None:
        if value is not None and validate.count("seed", value, least=0) >= 2**63:
            raise BadArgument(f"seed={value!r} is too large; give a whole number below 2^63")
        return value

    @field_validator("schedule", mode="before")
    @classmethod
    def _written_out(cls, value: Any) -> str:
        return str(make_schedule(value))

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, value: str | None) -> str | None:
        if value is None:
            return None
        from clipwise.losses import make_loss  # imports torch

        return str(make_loss(value))

    @field_validator("lr_schedule")
    @classmethod
    def _known_lr_schedule(cls, value: str) -> str:
        return str(make_lr_schedule(value))

    @field_validator("epsilon")
    @classmethod
    def _budget(cls, value: float | None) -> float | None:
        if value is None or value == math.inf:
            return value
        return validate.positive("epsilon", value, "give a budget above 0, such as 3, or inf to train without privacy")

    @field_validator("delta")
    @classmethod
    def _probability(cls, value: float | None) -> float | None:
        remedy = "give a number well below 1 / number of records, such as 1e-5"
        return value if value is None else validate.probability("delta", value, one_allowed=False, remedy=remedy)

    @field_validator("test_fraction", "momentum", "average_weights")
    @classmethod
    def _below_one(cls, value: float | None, info: Any) -> float | None:
        if value is not None and not 0 <= value < 1:
            raise BadArgument(f"{info.field_name}={value!r} must lie in [0, 1); give 0 for none")
        return value

    @field_validator("ranges")
    @classmethod
    def _low_high(cls, value: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, bounds in value.items():
            if len(bounds) != 2 or not (all(map(math.isfinite, bounds)) and bounds[0] < bounds[1]):
                raise BadArgument(f"ranges: {name}={bounds!r} is not a range; give two finite numbers, low before high")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise BadArgument(
                f"epsilon={self.epsilon!r} and noise_multiplier={self.noise_multiplier!r} were both given, and each "
                "decides the other; leave one out"
            )
        if self.optimizer == "adam-wosm" and (self.weight_decay or self.epsilon == math.inf):
            raise BadArgument(
                f"optimizer='adam-wosm' sets its rate by the noise and has no weight decay; leave "
                f"{'weight_decay out' if self.weight_decay else 'epsilon=inf to another optimizer'}"
            )
        for name, value in (("group_counts", self.group_counts), ("clipped_counts", self.clipped_counts)):
            if value is not None and self.epsilon == math.inf:
                raise BadArgument(
                    f"{name}={value!r} with epsilon=inf: training without privacy keeps no ledger to pay from; leave it out"
                )
        if self.optimizer == "adam-wosm":
            refuse_double_rate(make_lr_schedule(self.lr_schedule), method=None, optimizer=self.optimizer)
        if self.momentum is not None and self.optimizer not in _HAS_MOMENTUM:
            raise BadArgument(
                f"momentum={self.momentum!r} means nothing to optimizer={self.optimizer!r}; leave it out, or use sgd"
            )
        return self

    def resolved(self, dataset: DataSet) -> TrainConfig:
        """Every option filled in, from the data set's recipe and its number of records (a public figure)."""
        records, recipe = len(dataset.train), dataset.recipe.chosen(self.model)
        delta = self.delta if self.delta is not None else min(1e-5, 10.0 ** -(math.floor(math.log10(records)) + 1))
        if delta >= 1 / records:
            raise BadArgument(
                f"delta={delta!r} is not below 1 / {records}, the number of records: publishing one record outright "
                f"would pass as private; give a smaller one, such as {0.1 / records:.0e}"
            )
        batch = self.batch or recipe.expected_batch_size
        if batch > records:
            raise BadArgument(f"batch={batch!r} is above the number of records, {records}; give {records} or less")
        from clipwise.clipping import METHODS, method_options  # imports torch
        from clipwise.loop.fit import rate_setting_method
        from clipwise.losses import make_loss
        from clipwise.models import get_architecture, weights_source

        options = {option["name"]: option["default"] for option in method_options(self.method)}
        options = {name: value for name, value in options.items() if value is not None} | self.method_options
        if METHODS[self.method].needs_groups:
            options["number_of_groups"] = self._number_of_groups(dataset)
        sgd = self.optimizer == "sgd"
        refuse_double_rate(make_lr_schedule(self.lr_schedule), method=rate_setting_method(self.method), optimizer=None)
        architecture = get_architecture(self.model or recipe.model)
        loss = make_loss(self.loss or architecture.loss)
        if loss.wants_classes == architecture.reconstructs:
            raise BadArgument(
                f"loss={str(loss)!r} does not go with model={architecture.name!r}, which gives "
                f"{'its input back: leave loss out' if architecture.reconstructs else 'classes: use cross-entropy or focal'}"
            )
        by_group = (self.group_counts, self.clipped_counts, self.unsafe_diagnostics or None)
        if architecture.reconstructs and by_group != (None, None, None):
            raise BadArgument(
                f"group_counts={self.group_counts!r}, clipped_counts={self.clipped_counts!r}, "
                f"unsafe_diagnostics={self.unsafe_diagnostics!r}: these count right answers or gradients by class, "
                f"and model={architecture.name!r} gives none; leave them out"
            )
        if architecture.reconstructs and self.standardize is not None:
            raise BadArgument(
                f"standardize={self.standardize!r}: model={architecture.name!r} is to give its input back, pixels from 0 to 1; leave it out"
            )
        loss.check_classes(dataset.classes)
        words = dataset.kind == "text" and not architecture.weights.encoder
        if self.vocabulary and architecture.weights.encoder:
            raise BadArgument(
                f"vocabulary={self.vocabulary!r}: model={architecture.name!r} brings its own tokeniser; leave it out"
            )
        return self.model_copy(
            update={
                "data": str(Path(self.data).resolve()) if is_file(self.data) else self.data,
                "vocabulary": in_full(self.vocabulary, dataset.vocabulary_size or 0) if words else None,
                "model": architecture.name,
                "pretrained": weights_source(architecture.name, self.pretrained),
                "freeze": self.freeze or architecture.default_freeze,
                "loss": str(loss),
                "method_options": options,
                "epsilon": 3.0 if self.epsilon is None and self.noise_multiplier is None else self.epsilon,
                "delta": delta,
                "epochs": self.epochs or recipe.epochs,
                "batch": batch,
                "lr": self.lr or _RATES.get(self.optimizer, recipe.lr),
                "momentum": 0.9 if sgd and self.momentum is None else self.momentum,
                "average_weights": recipe.average_weights if self.average_weights is None else self.average_weights,
            }
        )

    def _number_of_groups(self, dataset: DataSet) -> int:
        """As many as `group_by` has: with fewer, the last ones would be treated as one group without a word."""
        from clipwise.fairness.grouping import find_grouping

        number = len(find_grouping(dataset, self.group_by).names)
        given = self.method_options.get("number_of_groups", number)
        if given != number:
            raise BadArgument(
                f"number_of_groups={given!r}: group_by={self.group_by!r} has {number} groups in {dataset.name}; leave it out"
            )
        return number

    def make_optimizer(self, parameters: Iterable[Parameter]) -> Optimizer:
        """The torch optimizer that the (resolved) options name."""
        import torch

        if self.optimizer == "adam-wosm":
            from clipwise.optim import AdamWOSM

            return AdamWOSM(parameters, lr=float(self.lr or 0))
        kind = {
            "sgd": torch.optim.SGD,
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
            "rmsprop": torch.optim.RMSprop,
        }[self.optimizer]
        momentum = {} if self.momentum is None else {"momentum": self.momentum}
        return kind(parameters, lr=self.lr, weight_decay=self.weight_decay, **momentum)

    def to_toml(self) -> str:
        """The file that repeats this run; `out` is left out, since a run folder is never written twice."""
        values = self.model_dump(exclude_none=True, exclude={"out"})
        plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
        tables = {key: value for key, value in values.items() if isinstance(value, dict) and value}
        lines = ["# Repeat this run: clipwise train --config THIS_FILE"]
        if self.seed is None:
            lines.append("# No seed was given: sampling, noise and first weights came from the system's entropy,")
            lines.append("# so a repeat draws them afresh.")
        lines += [f"{key} = {_toml(value)}" for key, value in plain.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{_toml(key)} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


def make_config(values: Mapping[str, Any], where: str = "the options") -> TrainConfig:
    """The checked config; an unknown key is refused with the name that comes closest to it. `threshold` is short for a
    method's option, as on the command line."""
    if "threshold" in values:
        values = dict(values)
        values["method_options"] = {**(values.get("method_options") or {}), "threshold": values.pop("threshold")}
    for key in values:
        if key not in TrainConfig.model_fields:
            close = difflib.get_close_matches(str(key), TrainConfig.model_fields, n=1, cutoff=0.5)
            remedy = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(TrainConfig.model_fields)}"
            raise BadArgument(f"{key!r} in {where} is not an option; {remedy}")
    try:
        return TrainConfig.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadArgument(_message(first)) from error


def read_config(path: Path) -> dict[str, Any]:
    """The options in a .toml or .yaml file, as written; `make_config` checks them."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"config={str(path)!r} cannot be read ({error}); give a .toml or .yaml file") from error
    if path.suffix.lower() in (".yaml", ".yml"):
        values = _read_yaml(path, text)
    else:
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise BadArgument(f"config={str(path)!r} is not valid TOML ({error}); correct the file") from error
    if not isinstance(values, dict):
        raise BadArgument(f"config={str(path)!r} holds no options; write one a line, such as: epsilon: 3")
    return values


def _read_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise BadArgument(
            f"config={str(path)!r} needs PyYAML; run pip install 'clipwise[yaml]', or write the file as TOML"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadArgument(f"config={str(path)!r} is not valid YAML ({error}); correct the file") from error


def _message(error: ErrorDetails) -> str:
    """One sentence with the option and its value; our own checks have written it already."""
    ours = error.get("ctx", {}).get("error")
    if isinstance(ours, BadArgument):
        return str(ours)
    return f"{'.'.join(map(str, error['loc']))}={error['input']!r} does not do: {error['msg']}"


def _toml(value: Any) -> str:
    """A value as TOML, for the kinds an option can have: text, booleans, numbers and lists of these."""
    if isinstance(value, str):
        # JSON's escapes are TOML's, save that TOML also wants the delete character escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    raise BadArgument(f"{value!r} has no place in a config file; give text, a number, true, false or a list of these")
