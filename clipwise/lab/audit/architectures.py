"""Every architecture of the installed transformers, made small from its own configuration: is it trained on the fast path,
generically, or refused; and are its per-example gradients those of a loop over single records?

    for found in survey(): print(found.task, found.name, found.verdict)

A model is made with random weights and widths of about 16, in double precision and without dropout; three records go through
the engine with the model's own loss (clipwise/own_loss.py), and one by one through plain autograd. "fast" and "generic" are
said only where norms and sums agree.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clipwise.norms import Bookkeeping
from clipwise.norms.loop import sums_and_norms
from clipwise.own_loss import OwnLoss
from clipwise.types import ClipwiseError

ROWS, WORDS, VOCABULARY, CLASSES, PIXELS = (
    3,
    7,
    48,
    2,
    32,
)  # of the records: small, and no two alike where that would hide a dimension
_TOLERANCE = 1e-6  # relative, in double precision; a guard against cancellation may make a norm larger by about 1e-12
# Parameters of a model that is still small; others could not be made small by their configuration, and would take minutes.
_MOST_NUMBERS = 3_000_000
FAST, GENERIC, REFUSED, WRONG, NOT_MADE = "fast", "generic", "refused", "wrong", "not made"

# What configurations call their sizes, and small values for them. Whatever a configuration has of these is set.
_SMALL: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim", "emb_dim", "word_embed_proj_dim"), 16
    ),
    **dict.fromkeys(("embedding_size", "projection_dim", "encoder_hidden_size", "decoder_hidden_size", "n_embed"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 24),
    **dict.fromkeys(("ffn_hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 2),
    **dict.fromkeys(("decoder_attention_heads", "num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"), 40),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k"), 2),
    **dict.fromkeys(("mamba_d_ssm",), 32),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_n_groups", "mamba_ngroups", "n_groups"), 2),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    "rotary_dim": 4,
    "window_size": 2,
    "vocab_size": VOCABULARY,
    "image_size": PIXELS,
    "patch_size": 8,
    "num_channels": 3,
    "num_labels": CLASSES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}
_LISTS = {  # of one size a stage
    "hidden_sizes": 8,
    "depths": 1,
    "embed_dims": 8,
    "num_heads": 2,
    "num_attention_heads": 2,
}
TASKS = {
    "causal LM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked LM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "text classes": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "image classes": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}


class Survey(NamedTuple):
    task: str
    name: str  # the model type, as transformers spells it
    cls: str
    verdict: str
    why: str
    seconds: float


def architectures() -> Iterator[tuple[str, str, str]]:
    """(task, model type, class), each model type once, under the first task that it has."""
    from transformers.models.auto import modeling_auto

    seen: set[str] = set()
    for task, mapping in TASKS.items():
        for name, cls in getattr(modeling_auto, mapping).items():
            if name not in seen:
                seen.add(name)
                yield task, name, cls if isinstance(cls, str) else cls[0]


def survey(only: Callable[[str], bool] = lambda _: True) -> Iterator[Survey]:
    for task, name, cls in architectures():
        if only(name):
            yield look_at(task, name, cls)


def look_at(task: str, name: str, cls: str) -> Survey:
    start = time.monotonic()

    def said(verdict: str, why: Any = "") -> Survey:
        return Survey(task, name, cls, verdict, " ".join(str(why).split())[:300], time.monotonic() - start)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = make(name, cls)
            batch = _batch(task)
            with torch.no_grad():
                if not model(**batch).loss.isfinite():
                    raise ValueError("its loss is not finite")
        except Exception as problem:  # of transformers, on its own
            return said(NOT_MADE, f"{type(problem).__name__}: {problem}")
        notices: list[str] = []
        try:
            error = disagreement(model, batch, notices.append)
        except ClipwiseError as refusal:
            return said(REFUSED, refusal)
        except Exception as problem:
            return said(WRONG, f"{type(problem).__name__}: {problem}")
    if error > _TOLERANCE:
        return said(WRONG, f"off by {error:.1e}")
    return said(GENERIC if notices else FAST, notices[0] if notices else "")


def make(name: str, cls: str) -> nn.Module:
    """A small model, without dropout, in double precision."""
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name)
    _shrink(config)
    if getattr(config, "is_encoder_decoder", False):
        config.decoder_start_token_id = 0
    config._experts_implementation = "eager"  # the other ones do not take double precision
    model = getattr(transformers, cls)(config)
    numbers = sum(p.numel() for p in model.parameters())
    if numbers > _MOST_NUMBERS:
        raise ValueError(f"its configuration leaves it {numbers:,} parameters")
    for p in model.parameters():
        if p.requires_grad and p.dim() < 2:  # weights that start at 0 or 1 would hide which is which
            p.data.add_(0.1 * torch.randn_like(p))
    return model.double().eval()


def _shrink(config: Any) -> None:
    for key, value in _SMALL.items():
        if hasattr(config, key) and not isinstance(getattr(config, key), list | tuple | dict):
            _set(config, key, value)
    for key, value in _LISTS.items():
        old = getattr(config, key, None)
        if isinstance(old, list | tuple) and old and all(isinstance(x, int) for x in old):
            _set(config, key, [value * (1 if value < 8 else i + 1) for i in range(len(old))])
    for key in list(vars(config)):
        value = getattr(config, key)
        if ("dropout" in key or "drop_rate" in key or "drop_path" in key) and isinstance(value, float):
            _set(config, key, 0.0)
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _shrink(value)
    layers = getattr(config, "layer_types", None)
    if isinstance(layers, list) and layers:
        _set(config, "layer_types", [layers[0], layers[-1]])


def _set(config: Any, key: str, value: Any) -> None:
    try:
        setattr(config, key, value)
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return  # a property of others that are set


def _batch(task: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(3, VOCABULARY, (ROWS, WORDS), generator=generator)
    mask = torch.ones(ROWS, WORDS, dtype=torch.long)
    classes = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    if task == "image classes":
        pixels = torch.randn(ROWS, 3, PIXELS, PIXELS, generator=generator, dtype=torch.float64)
        return {"pixel_values": pixels, "labels": classes}
    if task == "text classes":
        return {"input_ids": words, "attention_mask": mask, "labels": classes}
    labels = words.clone()
    labels[0, :2] = labels[1, 4:] = -100
    return {"input_ids": words, "attention_mask": mask, "labels": labels}


def disagreement(model: nn.Module, batch: dict[str, Tensor], notify: Callable[[str], None]) -> float:
    """The largest relative error of norms and of a weighted sum, against the loop over single records."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = list(named.values())
    each = []
    for row in range(ROWS):
        loss = model(**{key: x[row : row + 1] for key, x in batch.items()}).loss
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        each.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)])
    engine = Bookkeeping(model, named, loss_reduction="mean", own_loss=OwnLoss(model, "mean"), notify=notify)
    engine.install()
    try:
        engine.open(ROWS)
        model(**batch).loss.backward()
        tape = engine.close()
    finally:
        engine.remove()
    weights = torch.linspace(0.3, 1.7, ROWS, dtype=torch.float64)
    sums, norms = sums_and_norms(tape, weights)
    truth = torch.stack([torch.stack([g.square().sum() for g in row]).sum().sqrt() for row in each])
    wanted = [sum(w * g for w, g in zip(weights, column, strict=True)) for column in zip(*each, strict=True)]
    scale = float(torch.stack([s.square().sum() for s in wanted]).sum().sqrt())
    off = [float((a - b).norm()) / max(scale, 1e-300) for a, b in zip(sums, wanted, strict=True)]
    return max([*off, float(((norms - truth).abs() / truth).max())])
