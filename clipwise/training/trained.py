"""`clipwise.load(run)`: a finished run as a model that predicts, with all that stands between a record and the model inside.

Formal guarantee: the folder is verified first (verify.py), and each file that is used is read once and compared with the
manifest by SHA-256, so that weights, preprocessing and statement are those that the run wrote. Nothing in them is executed.
Records go through the `Preprocessing` that training used, by the same code: the same rows give the same numbers, bit for bit,
on the same machine and number of threads.

What a model predicts for a record of one's own is a function of the released weights: it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as parse_tensors
from torch import Tensor, nn

from clipwise import durable, files
from clipwise.data.preprocessing import Classes, Preprocessing, Tokens
from clipwise.data.source import Array
from clipwise.data.text import Encoder
from clipwise.loop.evaluation import outputs_of
from clipwise.models import Records, get_architecture, rebuild, text_encoder
from clipwise.training.config import make_config
from clipwise.training.folder import MANIFEST, PREPROCESSING
from clipwise.training.options import TrainConfig
from clipwise.training.verify import NotVerified, RunTampered, verify
from clipwise.types import BadArgument


@dataclass(frozen=True)
class TrainedModel:
    path: Path
    model: nn.Module = field(repr=False)
    preprocessing: Preprocessing = field(repr=False)
    statement: str = field(repr=False)  # the privacy statement, as Markdown
    epsilon: float  # infinite without privacy
    delta: float | None
    settings: TrainConfig = field(repr=False)
    encoder: Encoder | None = field(default=None, repr=False)  # of texts, that came with pre-trained weights

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names, in the order of `predict_proba`; none where a number is predicted."""
        return self.preprocessing.target.names

    def inputs(self, x: Any) -> Tensor:
        """The tensor that the model sees, of an array, a DataFrame, a tensor, a Hugging Face data set, texts or image paths."""
        inputs = self.preprocessing.inputs
        rows = inputs.apply(x, self.encoder) if isinstance(inputs, Tokens) else inputs.apply(x)
        return torch.from_numpy(rows)

    def outputs(self, x: Any) -> Array:
        """What the model gives, row by row: a score a class, before softmax, or a number of -1..1."""
        return outputs_of(self.model, self.inputs(x)).numpy()

    def predict_proba(self, x: Any) -> Array:
        """(records, classes): how probable the model holds each class."""
        self._target(Classes, "a number is predicted, which has no probabilities: use predict")
        return torch.from_numpy(self.outputs(x)).double().softmax(1).numpy()

    def predict(self, x: Any) -> Array:
        """The class of each record, by name; or the number, in the label's own units."""
        target = self.preprocessing.target
        if get_architecture(str(self.settings.model)).reconstructs:
            raise BadArgument(f"model={self.settings.model!r} gives its input back and predicts nothing; use outputs")
        if isinstance(target, Classes):
            return np.array(target.names, object)[self.outputs(x).argmax(1)]
        return target.decode(self.outputs(x)[:, 0])

    def _target(self, kind: type, otherwise: str) -> None:
        if not isinstance(self.preprocessing.target, kind) or get_architecture(str(self.settings.model)).reconstructs:
            raise BadArgument(otherwise)

    def export(self, path: str | Path, format: str = "safetensors") -> Path:
        """Write the model for others, with its preprocessing and its privacy statement: see clipwise/training/export.py."""
        from clipwise.training.export import export

        return export(self, path, format)


def load(run: str | Path) -> TrainedModel:
    """The model of a finished run, after its folder was verified; refuses one whose files do not agree."""
    found = verify(run)
    if not found.finished:
        raise NotVerified(f"{found.path} is of a run that has not ended, or failed; `clipwise resume` goes on with it")
    path = found.path
    listed = files.parse_json(files.read_bytes(path / MANIFEST, follow=False).decode())["files"]
    if PREPROCESSING not in listed:
        raise BadArgument(
            f"run={str(path)!r} has no {PREPROCESSING}: an earlier version made it, which kept no way from a record to its tensor. "
            "Train again"
        )
    weights, made, statement, config = (
        _read(path / name, listed) for name in ("model.safetensors", PREPROCESSING, "statement.md", "config.toml")
    )
    settings = make_config(files.parse_toml(config.decode()), str(path / "config.toml"))
    preprocessing = Preprocessing.from_json(made.decode(), str(path / PREPROCESSING))
    inputs, target = preprocessing.inputs, preprocessing.target
    size, padding = getattr(inputs, "size", None), getattr(inputs, "padding", None)
    records = Records(inputs.shape, len(target.names) or 1, inputs.kind, size, padding)
    model = rebuild(str(settings.model), records, settings.pretrained)
    model.load_state_dict(parse_tensors(weights))
    model.eval()
    own = isinstance(inputs, Tokens) and inputs.encoder is None
    encoder = text_encoder(str(settings.model), settings.pretrained, inputs.shape[0]) if own else None
    epsilon = math.inf if found.epsilon is None else found.epsilon
    return TrainedModel(path, model, preprocessing, statement.decode(), epsilon, found.delta, settings, encoder)


def _read(path: Path, listed: dict[str, Any]) -> bytes:
    """The file that was verified: read once more, and not another that was put there since."""
    try:
        content = files.read_bytes(path, most=int(listed[path.name]["size"]), follow=False)
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise RunTampered(f"{path} cannot be read ({error}); restore it") from error
    if durable.sha256(content) != listed.get(path.name, {}).get("sha256"):
        raise RunTampered(f"{path} is not what the run wrote: {MANIFEST} has another SHA-256; restore the file")
    return content
