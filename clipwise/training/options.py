"""The options of a training run as one checked value: the mechanism's and the performance's, and those of data, model,
optimizer and folder. Each is declared once, with its check and the sentence that `clipwise train --help` prints.

Light on purpose (no torch, no data set): the command line reads it to know its own options.
"""

from __future__ import annotations

import json
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from clipwise import validate
from clipwise.data.described import OwnData
from clipwise.loop.lr_schedules import make_lr_schedule, refuse_double_rate
from clipwise.mechanism import Mechanism, Performance
from clipwise.types import BadArgument

OptimizerName = Literal["sgd", "adam", "adamw", "rmsprop", "adam-wosm"]
_HAS_MOMENTUM = ("sgd", "rmsprop")


class TrainConfig(Mechanism, Performance, OwnData):
    """One training run. An option that is None takes the data set's recommended value (see resolve.py)."""

    data: str = Field("digits", description="A name from `clipwise data`, or a file or folder of your own.")
    records: int | None = Field(
        None, description="Train on this many records of a data set by name, the same in every run; default: all."
    )
    standardize: list[float] | None = Field(
        None, description="Of images: MEAN:DEVIATION of the pixels, as public figures."
    )
    vocabulary: str | None = Field(
        None,
        description="Of texts: hashed, training (not private), or a public text file; perhaps with a size, hashed:8192.",
    )
    model: str | None = Field(None, description="A name from `clipwise models`.")
    pretrained: str | None = Field(
        None, description="Public weights to start from: a file, a folder or an installed package."
    )
    views: int | None = Field(
        None,
        description="Of images: so many random crops and flips of each record in a step, their gradients averaged before they are clipped.",
    )
    freeze: str | None = Field(
        None, description="What is not trained: none, features, ... or but:NAME,NAME (see docs/models.md)."
    )
    loss: str | None = Field(
        None,
        description="cross-entropy or focal:gamma=2,alpha=0.25 for classes, squared-error or huber:delta=1 for a number.",
    )
    group_by: str = Field(
        "class", description="Groups to report on: class, one that the data set has, or a column of numbers."
    )
    group_counts: float | None = Field(
        None,
        description="Release accuracy by group on training records with this noise std, from the same budget.",
    )
    clipped_counts: float | None = Field(
        None, description="Release how many training records of each group are clipped, in the same way."
    )
    unsafe_diagnostics: bool = Field(False, description="Print exact figures on training records: not private.")
    lr: float | None = Field(None, description="Learning rate; method auto finds it.")
    lr_schedule: str = Field(
        "none",
        description="none, step, multi-step, constant, linear, exponential, polynomial, cosine, cosine-restarts, cyclic, "
        "one-cycle or plateau; with options, one-cycle:max_lr=0.01.",
    )
    optimizer: OptimizerName | None = Field(
        None,
        description="sgd, adam, adamw, rmsprop or adam-wosm; by default adam with method auto, sgd with any other.",
    )
    momentum: float | None = Field(None, description="Of sgd or rmsprop.")
    weight_decay: float = Field(0.0, description="L2 penalty.")
    average_weights: float | None = Field(
        None,
        description="Release a moving average of the weights with this decay, such as 0.99: it costs no privacy.",
    )
    tensorboard: bool | str | None = Field(
        None, description="Also log for TensorBoard, public and released values only: in the run folder, or in DIR."
    )
    log_to: Literal["mlflow", "wandb"] | None = Field(
        None, description="Also log to MLflow or Weights & Biases, public and released values only: mlflow or wandb."
    )
    after: list[str] = Field(
        default_factory=list, description="An earlier run on the same data, whose charges count in this budget."
    )
    out: str | None = Field(None, description="The run folder; it must not exist yet.")

    @field_validator("data", "pretrained", "vocabulary", "tensorboard", "out", "after")
    @classmethod
    def _paths(cls, value: Any, info: Any) -> Any:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                validate.path(info.field_name, text)
        return value

    @field_validator("weight_decay")
    @classmethod
    def _zero_or_more(cls, value: float) -> float:
        return validate.non_negative("weight_decay", value)

    @field_validator("lr", "group_counts", "clipped_counts")
    @classmethod
    def _above_zero(cls, value: float | None, info: Any) -> float | None:
        return value if value is None else validate.positive(info.field_name, value)

    @field_validator("epochs")
    @classmethod
    def _passes(cls, value: float | None) -> int | None:
        return value if value is None else validate.count("epochs", value)

    @field_validator("expected_batch_size")
    @classmethod
    def _rows(cls, value: float | None) -> int | None:
        return value if value is None else validate.count("batch", value)

    @field_validator("records", "views")
    @classmethod
    def _some(cls, value: int | None, info: Any) -> int | None:
        return value if value is None else validate.count(info.field_name, value)

    @field_validator("standardize")
    @classmethod
    def _mean_and_deviation(cls, value: list[float] | None) -> list[float] | None:
        return value if value is None else list(validate.mean_and_deviation("standardize", value))

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

    @field_validator("momentum", "average_weights")
    @classmethod
    def _below_one(cls, value: float | None, info: Any) -> float | None:
        if value is not None and not 0 <= value < 1:
            raise BadArgument(f"{info.field_name}={value!r} must lie in [0, 1); give 0 for none")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.optimizer == "adam-wosm":
            self._check_adam_wosm()
        for name, value in (("group_counts", self.group_counts), ("clipped_counts", self.clipped_counts)):
            if value is not None and not self.private:
                raise BadArgument(
                    f"{name}={value!r} with epsilon=inf: training without privacy keeps no ledger to pay from; leave it out"
                )
        automatic = self.optimizer is None  # which is sgd with most methods: resolve.py looks again
        if self.momentum is not None and not automatic and self.optimizer not in _HAS_MOMENTUM:
            raise BadArgument(
                f"momentum={self.momentum!r} means nothing to optimizer={self.optimizer!r}; leave it out, or use sgd"
            )
        return self

    def _check_adam_wosm(self) -> None:
        if self.weight_decay or not self.private:
            raise BadArgument(
                f"optimizer='adam-wosm' sets its rate by the noise and has no weight decay; leave "
                f"{'weight_decay out' if self.weight_decay else 'epsilon=inf to another optimizer'}"
            )
        refuse_double_rate(make_lr_schedule(self.lr_schedule), method=None, optimizer="adam-wosm")

    @property
    def mechanism(self) -> Mechanism:
        return Mechanism(**{name: getattr(self, name) for name in Mechanism.model_fields})

    @property
    def own(self) -> dict[str, Any]:
        """What is said of an own file, by name: the words that `clipwise.data.load` takes."""
        return OwnData.model_validate({name: getattr(self, name) for name in OwnData.model_fields}).given

    @property
    def performance(self) -> Performance:
        return Performance(**{name: getattr(self, name) for name in Performance.model_fields})

    def to_toml(self) -> str:
        """The file that repeats this run; `out` is left out, since a run folder is never written twice."""
        values = self.model_dump(exclude_none=True, exclude={"out"}, by_alias=True)
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
