"""Large batches in small parts (`opacus.utils.batch_memory_manager`): one noise draw and one charge a logical batch."""

from __future__ import annotations

from typing import Any

from clipwise import validate
from clipwise.dropin import PrivateLoader
from clipwise.types import BadArgument

__all__ = ["BatchMemoryManager"]


class BatchMemoryManager:
    def __init__(self, *, data_loader: PrivateLoader, max_physical_batch_size: int, optimizer: Any):  # noqa: ARG002
        if not isinstance(data_loader, PrivateLoader):
            raise BadArgument(
                f"data_loader={type(data_loader).__name__}: give the loader that make_private returned; any other draws its own batches"
            )
        validate.count("max_physical_batch_size", max_physical_batch_size)
        self.data_loader, self.max_physical_batch_size = data_loader, max_physical_batch_size

    def __enter__(self) -> PrivateLoader:
        return self.data_loader.in_parts(self.max_physical_batch_size)

    def __exit__(self, *error: object) -> None:
        """The loader itself was not changed."""
