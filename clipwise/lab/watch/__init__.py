"""A page to look at while a run trains: `clipwise watch RUN` and `clipwise train --serve`.

What it shows are the lines that the run writes for itself: public and released values, and figures on test data. `page.py` draws
them, `server.py` serves them.
"""

from __future__ import annotations

from clipwise.lab.watch.server import Watch

__all__ = ["Watch"]
