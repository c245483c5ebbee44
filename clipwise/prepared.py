"""What Hugging Face's accelerate has prepared, as it was before: the torch objects that a private run is made of.

`accelerator.prepare` puts its own loader, optimizer and scheduler around torch's. The loader draws and cuts batches in its own way,
so that the run draws from the data set of the one inside; the optimizer's and the scheduler's `step` come through to those inside,
which are attached. What would change steps or gradients behind the run's back is refused by name.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from clipwise.types import Unsupported


def is_prepared(thing: Any) -> bool:
    return type(thing).__module__.startswith("accelerate.")


def as_it_was(loader: Any, optimizer: Any, lr_scheduler: Any) -> tuple[Any, Any, Any]:
    """Loader, optimizer and scheduler from inside what accelerate made of them; others are themselves."""
    if is_prepared(optimizer):
        _refuse_other_steps(optimizer)
        optimizer = optimizer.optimizer
    if is_prepared(loader) and type(loader.batch_sampler) is BatchSampler:
        loader = _made_again(loader)
    if is_prepared(lr_scheduler):
        lr_scheduler = lr_scheduler.scheduler
    return loader, optimizer, lr_scheduler


def _made_again(loader: Any) -> DataLoader[Any]:
    """A DataLoader by batch size: accelerate makes one by batches. A sampler that draws otherwise than at random stays, and is refused later."""
    batches, sampler = loader.batch_sampler, loader.batch_sampler.sampler
    shuffled = isinstance(sampler, RandomSampler) and not sampler.replacement  # accelerate's own is one, too
    return DataLoader(
        loader.dataset,
        batch_size=batches.batch_size,
        sampler=RandomSampler(loader.dataset) if shuffled else sampler,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        drop_last=batches.drop_last,
    )


def _refuse_other_steps(optimizer: Any) -> None:
    state, gradients = optimizer.accelerator_state, optimizer.gradient_state
    if state.num_processes > 1:
        raise Unsupported(
            f"optimizer: it was prepared by accelerate for {state.num_processes} processes, each with batches of its own; start the loop by torchrun, "
            "without accelerator.prepare (docs/distributed.md)"
        )
    if gradients.num_steps > 1:
        raise Unsupported(
            f"optimizer: Accelerator(gradient_accumulation_steps={gradients.num_steps}) divides losses and leaves steps out; make it without, and "
            "give attach(max_physical_batch=...) for batches that do not fit into memory"
        )
    if optimizer.scaler is not None:
        raise Unsupported(
            "optimizer: Accelerator(mixed_precision='fp16') scales losses and looks at raw gradients; use 'bf16' or no mixed precision"
        )
