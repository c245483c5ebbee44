"""Reports: what a run may say of itself."""

from clipwise.report.statement import Statement

__all__ = ["Statement"]
