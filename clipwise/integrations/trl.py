"""TRL's trainers for language models, made private: `PrivateSFTTrainer` and `PrivateDPOTrainer`, with an epsilon, in the places of
`SFTTrainer` and `DPOTrainer`. All that trainer.py says of PrivateTrainer holds here.

| trainer | a record | its loss |
| --- | --- | --- |
| SFT | a row of the prepared data set: one text or conversation | the mean over its own words that count (own_loss.py) |
| DPO | a pair: prompt, chosen and rejected answer | TRL's, of the two log-ratios against the reference |

Both answers of a pair go through the model as rows of their own two passes, so that a pair's gradient is one, and clipped once. The
reference (the frozen copy, the model without its adapter, or log-probabilities that TRL computed before) looks at each pair alone.

Guarantee: a record's loss depends on that record alone. What would join records in a row (packing, padding-free batches), sort or
pool them (`aot`), or add a term of the batch (a router's balance) is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipwise.integrations.trainer import PrivateTrainer
from clipwise.norms import say_of_loss
from clipwise.types import BadArgument, Unsupported

try:
    import trl
    from trl.models.utils import disable_gradient_checkpointing
    from trl.trainer.utils import use_adapter
except ModuleNotFoundError as error:
    raise BadArgument("clipwise.hf: TRL's trainers need trl; run pip install trl") from error

_SIDES = ("chosen", "rejected")
_REFERENCE = tuple(f"ref_{side}_logps" for side in _SIDES)


def _refuse(trainer: Any, found: Mapping[str, tuple[Any, str]]) -> None:
    for name, (there, remedy) in found.items():
        if there:
            raise Unsupported(f"{name}: {type(trainer).__name__} cannot honour it: {remedy}")


class PrivateSFTTrainer(PrivateTrainer, trl.SFTTrainer):
    """`trl.SFTTrainer`, with an epsilon: every argument of it, and those of `PrivateTrainer`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        settings: Any = self.args
        _refuse(
            self,
            {
                "packing": (
                    settings.packing,
                    "it joins several records in a row, whose gradients cannot be told apart; leave it out",
                ),
                "padding_free": (self.padding_free, "it joins all records of a batch in one row; leave it out"),
                "loss_type": (settings.loss_type != "nll", "override loss_of: one loss a record"),
                "router_aux_loss_coef": (
                    self.aux_loss_enabled,
                    "the balance of experts is one of the whole batch; set it to 0.0",
                ),
            },
        )


# The loss of a pair, of beta times the log-ratios of its two answers and of the smoothing of its label.
LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "sigmoid": lambda chosen, rejected, _: -F.logsigmoid(chosen - rejected),
    "hinge": lambda chosen, rejected, _: torch.relu(1 - (chosen - rejected)),
    "robust": lambda chosen, rejected, flipped: (
        (flipped * F.logsigmoid(rejected - chosen) - (1 - flipped) * F.logsigmoid(chosen - rejected))
        / (1 - 2 * flipped)
    ),
    "bco_pair": lambda chosen, rejected, _: -F.logsigmoid(chosen) - F.logsigmoid(-rejected),
    "apo_zero": lambda chosen, rejected, _: 1 - torch.sigmoid(chosen) + torch.sigmoid(rejected),
    "apo_down": lambda chosen, rejected, _: torch.sigmoid(chosen) + 1 - torch.sigmoid(chosen - rejected),
}


class _Pairs:
    """TRL's batches hold all chosen answers and then all rejected ones: here a row a pair, and a field a side."""

    def __init__(self, collate: Any):
        self._collate = collate

    def __call__(self, records: list[Any]) -> dict[str, Any]:
        given = self._collate(records)
        reference = {name: given.pop(name) for name in _REFERENCE if name in given}
        halves = {name: x.chunk(2) for name, x in given.items()}
        return {f"{side}_{name}": x[i] for name, x in halves.items() for i, side in enumerate(_SIDES)} | reference


class PrivateDPOTrainer(PrivateTrainer, trl.DPOTrainer):
    """`trl.DPOTrainer`, with an epsilon: every argument of it, and those of `PrivateTrainer`. A record is a pair."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        settings: Any = self.args
        unknown = [name for name in self.loss_types if name not in LOSSES]
        known = f"known as a loss of each pair are {', '.join(LOSSES)}"
        _refuse(
            self,
            {
                "loss_type": (unknown, f"{', '.join(unknown)} is not; {known}"),
                "use_weighting": (self.use_weighting, "leave it out"),
                "ld_alpha": (self.ld_alpha is not None, "leave it out"),
                "f_divergence_type": (self.f_divergence_type != "reverse_kl", "leave it out"),
                "sync_ref_model": (
                    settings.sync_ref_model,
                    "a run that goes on would not have that reference; leave it out",
                ),
                "router_aux_loss_coef": (
                    self.aux_loss_enabled,
                    "the balance of experts is one of the whole batch; set it to 0.0",
                ),
                "train_dataset": (self._is_vision_dataset, "pairs with pictures are not built"),
            },
        )

    def collate(self) -> Any:
        return _Pairs(self.data_collator)

    def loss_of(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        sides = [
            {name: inputs[f"{side}_{name}"] for name in ("input_ids", "attention_mask", "completion_mask")}
            for side in _SIDES
        ]
        known = all(name in inputs for name in _REFERENCE)
        reference = [inputs[name] for name in _REFERENCE] if known else self._of_reference(sides)
        ratios = [self.beta * (log_probability(model, side) - own) for side, own in zip(sides, reference, strict=True)]
        losses = [LOSSES[name](ratios[0], ratios[1], self.label_smoothing) for name in self.loss_types]
        total = torch.stack([weight * loss for weight, loss in zip(self.loss_weights, losses, strict=True)]).sum(0)
        say_of_loss(
            total,
            f"DPO ({', '.join(self.loss_types)}), one loss a pair of answers, against a reference that is not trained",
        )
        return total

    def _of_reference(self, sides: list[dict[str, Tensor]]) -> list[Tensor]:
        model: Any = self.model
        again: Any = self.args.gradient_checkpointing_kwargs
        with torch.no_grad(), disable_gradient_checkpointing(model, again):
            if self.ref_model is not None:
                return [log_probability(self.ref_model, side) for side in sides]
            adapted = self.accelerator.unwrap_model(model)
            with use_adapter(adapted, adapter_name="ref" if "ref" in adapted.peft_config else None):
                return [log_probability(adapted, side) for side in sides]


def log_probability(model: nn.Module, side: Mapping[str, Tensor]) -> Tensor:
    """(rows,): of each record's answer, after its prompt."""
    words, mask = side["input_ids"][:, 1:], side["completion_mask"][:, 1:]
    out = model(input_ids=side["input_ids"], attention_mask=side["attention_mask"], use_cache=False)
    logits = out.logits[:, -words.shape[1] - 1 : -1].float()  # of a prompt's virtual words: none
    each = -F.cross_entropy(logits.transpose(1, 2), words, reduction="none")
    return (each * mask).sum(1)
