"""Audits: does the step do what its statement says? Run on the code, not on the user's data."""

from clipwise.lab.audit.run_audit import audit_run
from clipwise.lab.audit.step_audit import Finding, StepAudit, audit_step

__all__ = ["Finding", "StepAudit", "audit_run", "audit_step"]
