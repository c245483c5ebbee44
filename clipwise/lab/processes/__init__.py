"""Python modules side by side, each in a process of its own that ends with this one."""

from clipwise.lab.processes.side_by_side import Ended, run_module, side_by_side

__all__ = ["Ended", "run_module", "side_by_side"]
