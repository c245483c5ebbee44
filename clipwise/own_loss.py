"""The loss of a model that computes its own (Hugging Face's `model(**batch).loss`), taken apart: one loss a record.

    losses = clipwise.hf.row_losses(model(**inputs), labels)    # (rows,), for private.backward(losses)
    model(**batch).loss.backward()                              # the same by itself, on an attached model

Such a loss is a mean over all words of the batch, so that each record's share hangs on how many words the others have. Here a
record's loss is the mean over its *own* words, or their sum over a public number (`divide_by`); the statement says which.

On an attached model the labels are kept back from the forward pass, and `.loss` is made from its logits: a mean of row losses,
which is then proved or refused as any other loss. Which form it has is not told from the model's name. The model's own loss is
asked once, for one record and a few made-up targets, and a form is taken only if it gives those values: for a batch of one
record both mean the same. A model whose loss is something else (a term for the router of experts, a contrast of records) is refused.

Guarantee: a record's loss depends on its own logits and labels alone.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.losses import per_row
from clipwise.norms import say_of_loss
from clipwise.types import BadArgument, Unsupported

IGNORED = -100  # the label of a place that has no part in the loss, as everywhere in transformers
_LABELS = (("labels",), ("start_positions", "end_positions"))  # names of targets, and how many make one
_COUNTED = ("num_items_in_batch",)  # arguments that hold a number counted from the batch
_TARGETS = 4  # made-up ones that a form must give the model's value for
_CLOSE = {False: 1e-5, True: 1e-2}  # relative: the same numbers in another order, in float32; in half precision
_ALIKE = {False: 1e-4, True: 3e-2}  # of the largest logit: the same model, called twice
_HALF = (torch.float16, torch.bfloat16)
_APART = 3  # times as far off must every other form be
BY_HAND = (
    "Leave the labels out of the call and give one loss a record: losses = clipwise.hf.row_losses(model(**inputs), labels, kind=...), "
    "then private.backward(losses)"
)


class Kind(NamedTuple):
    """A form of loss: `each(logits, labels)` holds a value a place, `places` says which count (None: all)."""

    words: str
    fits: Callable[[Any, Any], bool]
    each: Callable[[Any, Any], tuple[Tensor, Tensor | None]]
    whole: bool = False  # `each` is the loss of a record already; there is nothing to divide


# -- forms ---------------------------------------------------------------------------------------------------------------


def _entropies(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.float() if logits.dtype in _HALF else logits
    flat = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED)
    return flat.view(labels.shape), labels != IGNORED


def _next_words(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return _entropies(logits[:, :-1].contiguous(), labels[:, 1:].contiguous())


def _classes(logits: Tensor, labels: Tensor) -> tuple[Tensor, None]:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none"), None


def _multi_label(logits: Tensor, labels: Tensor) -> tuple[Tensor, None]:
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none"), None


def _regression(logits: Tensor, labels: Tensor) -> tuple[Tensor, None]:
    return (logits - labels.to(logits.dtype).view_as(logits)).square(), None


def _span(logits: tuple[Tensor, Tensor], labels: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
    ends = []
    for own, place in zip(logits, labels, strict=True):
        places = place.flatten().clamp(0, own.shape[1])  # beyond the text: no answer, no loss
        ends.append(F.cross_entropy(own, places, reduction="none", ignore_index=own.shape[1]))
    return (ends[0] + ends[1]) / 2, None


def _per_word(logits: Any, labels: Any) -> bool:
    return _whole_numbers(labels) and labels.dim() == 2 and _shape(logits)[:-1] == labels.shape


def _per_record(logits: Any, labels: Any) -> bool:
    shape = _shape(logits)
    return _whole_numbers(labels) and len(shape) == 2 and shape[1] > 1 and labels.numel() == shape[0]


def _per_number(logits: Any, labels: Any) -> bool:
    return isinstance(labels, Tensor) and len(_shape(logits)) == 2 and labels.numel() == logits.numel()


KINDS = {
    "causal-lm": Kind(
        "next words, labels shifted by one", lambda x, y: _per_word(x, y) and y.shape[1] > 1, _next_words
    ),
    "tokens": Kind("a class for each place", _per_word, _entropies),
    "classes": Kind("one class a record", _per_record, _classes, whole=True),
    "multi-label": Kind("several labels a record", _per_number, _multi_label, whole=True),
    "regression": Kind("squared errors", _per_number, _regression, whole=True),
    "span": Kind("first and last word of an answer", lambda x, _: isinstance(x, tuple), _span, whole=True),
}
# By the class of the output, for losses that are made by hand; an output that several kinds of models have is not here.
_OF_OUTPUT = {
    "CausalLMOutput": "causal-lm",
    "CausalLMOutputWithPast": "causal-lm",
    "CausalLMOutputWithCrossAttentions": "causal-lm",
    "MaskedLMOutput": "tokens",
    "TokenClassifierOutput": "tokens",
    "Seq2SeqLMOutput": "tokens",
    "QuestionAnsweringModelOutput": "span",
}


def row_losses(output: Any, labels: Any, *, kind: str | None = None, divide_by: float | None = None) -> Tensor:
    """(rows,): the loss of each record, from a model's output (or its logits) and the labels.

    kind: "causal-lm" (shifted by one), "tokens" (masked language models, token classification, seq2seq), "classes" (of a text
        or a picture), "multi-label", "regression", "span" (labels: start and end positions). By default told from the class of
        the output, or from shapes and type where they leave one choice.
    divide_by: a public number of words a record. By default each record's words are averaged over their own number. Places
        labelled -100 (padding, words that were not masked) do not count.
    """
    own = _logits(output, labels)
    labels = _beside(labels, own)
    if kind is None:
        kind = _OF_OUTPUT.get(type(output).__name__) or _only_choice(own, labels)
    if kind not in KINDS:
        raise BadArgument(f"kind={kind!r} is none of {', '.join(map(repr, KINDS))}")
    if not KINDS[kind].fits(own, labels):
        raise BadArgument(
            f"labels: a loss of kind {kind!r} ({KINDS[kind].words}) cannot be made of logits {_dimensions(own)} and labels "
            f"{_dimensions(labels)}; give kind= one of {', '.join(map(repr, KINDS))}, or compute one loss a record yourself"
        )
    return _rows(kind, own, labels, divide_by)


def _rows(kind: str, logits: Any, labels: Any, divide_by: float | None) -> Tensor:
    form = KINDS[kind]
    values, mask = form.each(logits, labels)
    losses = per_row(values, mask, divide_by=None if form.whole else divide_by)
    share = "" if form.whole else ", each record's mean over its own" if divide_by is None else f", over {divide_by:g}"
    say_of_loss(losses, f"made row by row from the model's logits: {form.words}{share}")
    return losses


def _only_choice(logits: Any, labels: Any) -> str:
    whole = _whole_numbers(labels)
    found = [
        name
        for name, form in KINDS.items()
        if form.fits(logits, labels) and not (whole and name == "multi-label") and not (not whole and name == "classes")
    ]
    if found == ["multi-label", "regression"]:  # as transformers itself chooses
        return "regression" if _shape(logits)[1] == 1 else "multi-label"
    if len(found) != 1:
        raise BadArgument(
            f"kind=None: logits {_dimensions(logits)} and labels {_dimensions(labels)} may mean several losses ({', '.join(found) or 'none known'}); "
            f"give kind= one of {', '.join(map(repr, KINDS))}"
        )
    return found[0]


def _logits(output: Any, labels: Any) -> Any:
    if isinstance(labels, tuple) and hasattr(output, "start_logits"):
        return output.start_logits, output.end_logits
    found = output if isinstance(output, Tensor | tuple) else getattr(output, "logits", None)
    if found is None:
        raise BadArgument(
            f"output={type(output).__name__} has no logits; give the model's output, called without labels, or its logits"
        )
    return found


def _beside(labels: Any, logits: Any) -> Any:
    """The labels; where words were put before a record's own (prompt tuning), none for these."""
    if isinstance(logits, Tensor) and logits.dim() == 3 and _whole_numbers(labels) and labels.dim() == 2:
        before = logits.shape[1] - labels.shape[1]
        return F.pad(labels, (before, 0), value=IGNORED) if before > 0 else labels
    return labels


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape) if isinstance(x, Tensor) else ()


def _whole_numbers(x: Any) -> bool:
    return isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex()


def _dimensions(x: Any) -> str:
    """No sizes: the first is the realised batch size."""
    return f"of {x.dim()} dimensions ({x.dtype})" if isinstance(x, Tensor) else f"of type {type(x).__name__}"


# -- of an attached model ------------------------------------------------------------------------------------------------


class Apart(NamedTuple):
    """A call, its labels, and the call without them."""

    given: dict[str, Any]
    labels: dict[str, Tensor]
    bare: dict[str, Any]
    as_tuple: bool  # the caller wants no dictionary

    @property
    def target(self) -> Any:
        return _target(self.labels)


class OwnLoss:
    """Of one attached model. The engine calls `kept_back` before its forward pass and `put_in` after it."""

    def __init__(self, model: nn.Module, reduction: str, divide_by: float | None = None):
        self._name, self._base = type(model).__name__, _inner(model)
        self._parameters = list(inspect.signature(type(model).forward).parameters)[1:]  # without self
        self._reduction, self._divide_by = reduction, divide_by
        self._kinds: dict[Any, str] = {}  # by type and number of dimensions of the labels

    def kept_back(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Apart | None:
        """None for a call without labels."""
        given = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        for names in _LABELS:
            if not all(isinstance(given.get(name), Tensor) for name in names):
                continue
            labels = {name: given.pop(name) for name in names}
            as_tuple = given.pop("return_dict", None) is False
            bare = {name: x for name, x in given.items() if name not in _COUNTED} | {"return_dict": True}
            if self._makes_decoder_input(bare, _target(labels)):
                bare["decoder_input_ids"] = self._shifted(_target(labels))
            if _takes(self._base, "use_cache"):
                bare.setdefault("use_cache", False)
            return Apart(given, labels, bare, as_tuple)
        return None

    def _makes_decoder_input(self, given: dict[str, Any], labels: Any) -> bool:
        there = any(given.get(name) is not None for name in ("decoder_input_ids", "decoder_inputs_embeds"))
        return _takes(self._base, "decoder_input_ids") and not there and _whole_numbers(labels) and labels.dim() == 2

    def _shifted(self, labels: Tensor) -> Tensor:
        """What a decoder is given to say these labels: the words before them."""
        made = getattr(self._base, "prepare_decoder_input_ids_from_labels", None)
        if made is not None:
            return made(labels=labels)
        start, padding = (getattr(self._base.config, f"{name}_token_id", 0) or 0 for name in ("decoder_start", "pad"))
        first = torch.full_like(labels[:, :1], start)
        return torch.cat([first, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, padding)], 1)

    def put_in(self, output: Any, apart: Apart, run: Callable[..., Any]) -> Any:
        """The output with its loss. `run(**kwargs)` is the model as it was, with nothing recorded, from the same state and
        with the same random numbers each time."""
        key = tuple((x.dtype, x.dim()) for x in apart.labels.values())
        if key not in self._kinds:
            self._kinds[key] = self._recognised(apart, run)
        logits = _logits(output, apart.target)
        losses = _rows(self._kinds[key], logits, _beside(apart.target, logits), self._divide_by)
        loss = losses.mean() if self._reduction == "mean" else losses.sum()
        output = type(output)(**{**output, "loss": loss})
        return output.to_tuple() if apart.as_tuple else output

    def _recognised(self, apart: Apart, run: Callable[..., Any]) -> str:
        """The form that gives the model's own values for one record with made-up targets."""
        rows = len(next(iter(apart.labels.values())))

        def first(x: Any) -> Any:
            return x[:1] if isinstance(x, Tensor) and x.dim() and len(x) == rows else x

        one = {name: first(x) for name, x in apart.given.items()}
        errors = dict.fromkeys(KINDS, 0.0)
        try:
            logits = _logits(run(**{name: first(x) for name, x in apart.bare.items()}), apart.target)
            for seed in range(_TARGETS):
                labels = _made_up(apart.labels, logits, seed)
                self._compare(one, labels, run, errors)
        except Unsupported:
            raise
        except Exception as problem:
            raise self._refusal(f"asked for one record, it answers {type(problem).__name__}: {problem}") from problem
        (best, error), (_, second) = sorted(errors.items(), key=lambda kind: kind[1])[:2]
        limit = _CLOSE[_all(logits)[0].dtype in _HALF]
        if error > limit or second < _APART * limit:
            raise self._refusal(
                "none of the forms of loss that are known, or more than one, gives the value that the model computes for one record"
            )
        return best

    def _compare(
        self, one: dict[str, Any], labels: dict[str, Tensor], run: Callable[..., Any], errors: dict[str, float]
    ) -> None:
        """The largest relative error of each form so far."""
        again = self.kept_back((), {**one, **labels})
        whole, bare = run(**{**one, **labels, "return_dict": True}), run(**again.bare)  # type: ignore[union-attr]
        target = _target(labels)
        logits, without = _logits(whole, target), _logits(bare, target)
        for a, b in zip(_all(logits), _all(without), strict=True):
            limit = _ALIKE[a.dtype in _HALF] * float(a.abs().nan_to_num().max())
            if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=limit, equal_nan=True):
                raise self._refusal("its logits are others when it is called without labels")
        own, target = float(whole.loss), _beside(target, logits)
        for name, form in KINDS.items():
            mine = float(_rows(name, logits, target, None).sum()) if form.fits(logits, target) else math.inf
            errors[name] = max(errors[name], abs(mine - own) / max(abs(own), 1e-6) if mine < math.inf else math.inf)

    def _refusal(self, why: str) -> Unsupported:
        return Unsupported(f"the loss that {self._name} computes cannot be taken apart by record: {why}. {BY_HAND}")


def own_loss(model: nn.Module, reduction: str, divide_by: float | None = None) -> OwnLoss | None:
    """For a model of transformers, or one of peft around it; None for any other."""
    transformers = sys.modules.get("transformers")
    known = transformers is not None and isinstance(_inner(model), transformers.PreTrainedModel)
    return OwnLoss(model, reduction, divide_by) if known and _takes(_inner(model), "labels", *_LABELS[1]) else None


def _inner(model: nn.Module) -> Any:
    """Of a model of peft: the one that it changes."""
    peft = sys.modules.get("peft")
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


def _takes(model: nn.Module, *names: str) -> bool:
    return not inspect.signature(type(model).forward).parameters.keys().isdisjoint(names)


def _target(labels: dict[str, Tensor]) -> Any:
    values = tuple(labels.values())
    return values[0] if len(values) == 1 else values


def _all(logits: Any) -> tuple[Tensor, ...]:
    return logits if isinstance(logits, tuple) else (logits,)


def _made_up(labels: dict[str, Tensor], logits: Any, seed: int) -> dict[str, Tensor]:
    """A target for one record that says nothing of any: of the labels' shape and type."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for place, (name, x) in enumerate(labels.items()):
        if x.is_floating_point():
            made[name] = torch.rand(x[:1].shape, generator=generator).to(x)
            continue
        own = _all(logits)[place]
        most = own.shape[-1] if own.shape[-1] > 1 else 2
        made[name] = torch.randint(0, most, x[:1].shape, generator=generator).to(x)
        if x.dim() == 2:
            made[name][:, 2::3] = IGNORED
    return made
