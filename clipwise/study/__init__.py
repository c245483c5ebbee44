"""Studies: a grid of training runs from one file, run side by side, resumable, and shown as tables."""

from clipwise.study.definition import About, Study, Trial, make_study, read_study
from clipwise.study.runner import Outcome, Watcher, accuracy_so_far, read_results, run_study
from clipwise.study.table import Cell, summarise, to_markdown

__all__ = [
    "About",
    "Cell",
    "Outcome",
    "Study",
    "Trial",
    "Watcher",
    "accuracy_so_far",
    "make_study",
    "read_results",
    "read_study",
    "run_study",
    "summarise",
    "to_markdown",
]
