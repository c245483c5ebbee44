"""scipy's functions, imported when the first is asked for: its import takes a third of that of `clipwise.attach` beyond torch's own (0.2 s
of 0.6), and a program that only reads a ledger never asks."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Later:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._name), name)
        setattr(self, name, found)
        return found


special, fft = _Later("scipy.special"), _Later("scipy.fft")
