"""Ctrl-C and SIGTERM during training: the step that runs is finished, the state is kept, then the run ends.

A second Ctrl-C ends it at once; its steps stay charged, and the last checkpoint is there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequests:
    """Whether a signal has asked the run to stop, and which."""

    number: int | None = None

    def __call__(self) -> str | None:
        if self.number is None:
            return None
        return f"stopped by {signal.Signals(self.number).name}; what was trained is kept"

    def receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Hears the two signals meanwhile (in the main thread: elsewhere Python allows no handlers)."""
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    before: dict[int, Any] = {n: signal.signal(n, requests.receive) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
