"""What the models of token numbers share: which places hold a token, and what is made of the places of a record.

Padding is the tail that fills a record up to its fixed length. It never decides an output: places are averaged, or the
last one taken, over tokens alone. A record without a token counts as one place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clipwise.models.architecture import Records, refuse_unless


def refuse_tokens(name: str, records: Records) -> None:
    """Token numbers are names, not sizes: a model that multiplies them would learn nothing from their order."""
    refuse_unless(records.vocabulary_size is None, name, "features, not token numbers", records, "'bow' or 'lstm'")


def is_token(tokens: Tensor, padding: int | None) -> Tensor:
    """(rows, places), bool; a record of nothing but padding keeps its first place."""
    there = torch.ones_like(tokens, dtype=torch.bool) if padding is None else tokens != padding
    first = torch.zeros_like(there)
    first[:, 0] = True
    return there | (first & ~there.any(1, keepdim=True))


def mean_of_tokens(states: Tensor, there: Tensor) -> Tensor:
    """(rows, width) from states (rows, places, width)."""
    weights = there.to(states.dtype)
    return (states * weights.unsqueeze(2)).sum(1) / weights.sum(1, keepdim=True)


def last_token(states: Tensor, there: Tensor) -> Tensor:
    """(rows, width): the state at each record's last token."""
    places = torch.arange(there.shape[1], device=there.device)
    last = torch.where(there, places, -1).amax(1)
    return states.gather(1, last.view(-1, 1, 1).expand(-1, 1, states.shape[2])).squeeze(1)
