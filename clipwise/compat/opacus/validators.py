"""What cannot be trained privately as it is, and its replacement (`opacus.validators`)."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from clipwise.fixing import fix
from clipwise.norms import mixing_layers
from clipwise.types import Unsupported

__all__ = ["ModuleValidator"]

_Model = TypeVar("_Model", bound=nn.Module)


class ModuleValidator:
    """`clipwise.fix` and the engine's own refusals; what only a batch can show is refused in the first step."""

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[Unsupported]:
        """What would be refused of the model's layers; `strict` raises the first."""
        found = list(mixing_layers(module))
        if not module.training:
            found.append(Unsupported("model: it is in eval mode; call model.train() before training"))
        if strict and found:
            raise found[0]
        return found

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: _Model) -> _Model:
        """A copy in which nothing mixes records: GroupNorm in the place of BatchNorm (see `clipwise.fix`)."""
        return fix(copy.deepcopy(module))

    @classmethod
    def fix_and_validate(cls, module: _Model) -> _Model:
        fixed = cls.fix(module)
        cls.validate(fixed, strict=True)
        return fixed
