"""Studies: a grid of training runs from one file, run side by side, resumable, and shown as tables."""

from clipwise.lab.results import read_results
from clipwise.lab.study.definition import FILES, About, Study, located, make_study, read_study
from clipwise.lab.study.runner import Outcome, Watcher, accuracy_so_far, run_study
from clipwise.lab.study.table import Cell, summarise, to_markdown
from clipwise.lab.study.trial import Trial

__all__ = [
    "FILES",
    "About",
    "Cell",
    "Outcome",
    "Study",
    "Trial",
    "Watcher",
    "accuracy_so_far",
    "located",
    "make_study",
    "read_results",
    "read_study",
    "run_study",
    "summarise",
    "to_markdown",
]
