"""The laboratory: studies, paid-for tuning, reports, benches, claims and audits. It stands on the library; nothing of the
library stands on it (only the command line does)."""
