"""Figures of the papers that are computed and not trained for: `clipwise figures` draws them from the methods' own functions.

What is made (numbers drawn from a normal distribution) and what is looked at (gradients of public MNIST during a
run) is no release of anyone's data: these are pictures for readers of the papers.
"""

from clipwise.lab.figures.along import along_figures
from clipwise.lab.figures.made import made_figures
from clipwise.lab.figures.seen import seen_figures

__all__ = ["along_figures", "made_figures", "seen_figures"]
