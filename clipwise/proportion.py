"""The interval of a share, without torch: reports and `clipwise ledger` answer at once."""

from __future__ import annotations

import math


def wilson(share: float, size: int, z: float = 1.959963984540054) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval of a share of `size` independent trials (Wilson 1927); none for what is no share."""
    if not 0 <= share <= 1:
        return None, None
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size)) / (1 + z * z / size)
    return max(0.0, middle - half), min(1.0, middle + half)
