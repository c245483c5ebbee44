"""A trained model for others: its weights in a form that other tools read, and beside them, always, how a record becomes a tensor
(preprocessing.json) and the privacy statement.

| format        | what is written                                                                           |
| ------------- | ----------------------------------------------------------------------------------------- |
| safetensors   | a folder: model.safetensors, model.json (architecture, shapes, classes)                   |
| huggingface   | the same as a folder for the Hub: config.json, and README.md, a model card with the statement |
| torch         | one file, a torch ExportedProgram (`torch.export.load`); the rest is in its extra files   |
| onnx          | one file; the rest is in its metadata. Needs `pip install 'clipwise[onnx]'`               |

The programs (torch, onnx) take the tensor that preprocessing.json describes, any number of records at once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from clipwise import __version__, durable, validate
from clipwise.statement import shown_epsilon
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.training.trained import TrainedModel

FORMATS = ("safetensors", "huggingface", "torch", "onnx")
_SUFFIX = {"torch": ".pt2", "onnx": ".onnx"}
_ROWS = 2  # of the example that a program is made from: 1 would be taken for a constant


def export(trained: TrainedModel, path: str | Path, format: str) -> Path:
    """Write it there; what exists is never overwritten."""
    validate.choice("format", format, FORMATS)
    out = Path(validate.path("path", str(path)))
    if _SUFFIX.get(format, out.suffix) != out.suffix:
        raise BadArgument(f"path={str(out)!r}: a file of format {format!r} is to be called NAME{_SUFFIX[format]}")
    if os.path.lexists(out):
        raise BadArgument(f"path={str(out)!r} exists already; name another")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if format in ("safetensors", "huggingface"):
            out.mkdir()
            _folder(trained, out, card=format == "huggingface")
        elif format == "torch":
            _program(trained, out)
        else:
            _onnx(trained, out)
    except OSError as error:
        raise BadArgument(f"path={str(out)!r} cannot be written ({error}); name another") from error
    return out


def _about(trained: TrainedModel) -> dict[str, Any]:
    inputs, target = trained.preprocessing.inputs, trained.preprocessing.target
    return {
        "architecture": trained.settings.model,
        "pretrained": trained.settings.pretrained,
        "inputs": {"kind": inputs.kind, "shape": list(inputs.shape), "vocabulary_size": getattr(inputs, "size", None)},
        "classes": list(target.names) or None,
        "epsilon": None if trained.epsilon == float("inf") else trained.epsilon,
        "delta": trained.delta,
        "clipwise": __version__,
    }


def _folder(trained: TrainedModel, out: Path, *, card: bool) -> None:
    tensors = {name: value.contiguous() for name, value in trained.model.state_dict().items()}
    durable.write(out / "model.safetensors", save(tensors))
    durable.write(out / "preprocessing.json", trained.preprocessing.to_json())
    about = _about(trained)
    if not card:
        durable.write(out / "statement.md", trained.statement)
        durable.write(out / "model.json", json.dumps(about, indent=1) + "\n")
        return
    names = dict(enumerate(trained.classes))
    config = {"model_type": "clipwise", **about, "id2label": names, "label2id": {name: n for n, name in names.items()}}
    durable.write(out / "config.json", json.dumps(config, indent=1, ensure_ascii=False) + "\n")
    durable.write(out / "README.md", _card(trained))


def _card(trained: TrainedModel) -> str:
    """A model card: what the Hub reads of it, how to use the model, and the privacy statement whole."""
    spent = (
        "trained without privacy"
        if trained.delta is None
        else f"epsilon {shown_epsilon(trained.epsilon)} at delta {trained.delta:g}"
    )
    inputs, target = trained.preprocessing.inputs, trained.preprocessing.target
    what = f"one of {len(target.names)} classes" if target.names else "a number"
    lines = [
        "---",
        "library_name: clipwise",
        "tags: [differential-privacy, clipwise]",
        "---",
        "",
        f"# {trained.settings.model}, {spent}",
        "",
        f"Predicts {what} from records of kind {inputs.kind} (a tensor of shape {list(inputs.shape)} each). `preprocessing.json` says how a "
        "record becomes that tensor, and names the classes; `model.safetensors` holds the weights, `config.json` the architecture's "
        "name in Clipwise.",
        "",
        trained.statement.replace("\n# ", "\n## ").replace("# Privacy statement", "## Privacy statement", 1),
    ]
    return "\n".join(lines)


def _example(trained: TrainedModel) -> torch.Tensor:
    inputs = trained.preprocessing.inputs
    kind = torch.int64 if inputs.kind in ("text", "sequence") else torch.float32
    return torch.zeros((_ROWS, *inputs.shape), dtype=kind)


def _program(trained: TrainedModel, out: Path) -> None:
    rows = {0: torch.export.Dim("records", min=1)}
    program = torch.export.export(trained.model, (_example(trained),), dynamic_shapes=(rows,))
    extra = {"preprocessing.json": trained.preprocessing.to_json(), "statement.md": trained.statement}
    with out.open("wb") as file:
        torch.export.save(program, file, extra_files=extra)


def _onnx(trained: TrainedModel, out: Path) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise BadArgument("format='onnx' needs onnx and onnxscript; run pip install 'clipwise[onnx]'") from error
    rows = {0: torch.export.Dim("records", min=1)}
    made = torch.onnx.export(
        trained.model,
        (_example(trained),),
        dynamo=True,
        input_names=["records"],
        output_names=["outputs"],
        dynamic_shapes=(rows,),
        verbose=False,
    )
    if made is None:
        raise RuntimeError("torch.onnx.export gave nothing")
    proto = made.model_proto
    for key, value in (("preprocessing.json", trained.preprocessing.to_json()), ("statement.md", trained.statement)):
        onnx.helper.set_model_props(proto, {**{p.key: p.value for p in proto.metadata_props}, key: value})
    durable.write(out, proto.SerializeToString())
