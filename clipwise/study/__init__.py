"""Studies: a grid of training runs from one file, run side by side, resumable, and shown as tables."""

from clipwise.study.definition import Study, Trial, read_study
from clipwise.study.runner import Outcome, run_study
from clipwise.study.table import Cell, summarise, to_markdown

__all__ = ["Cell", "Outcome", "Study", "Trial", "read_study", "run_study", "summarise", "to_markdown"]
