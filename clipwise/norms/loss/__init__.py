"""Is the loss row-wise? Proved from the graph, verified by numbers, or declared; else refused.

    roots.py     every backward pass of the process is seen before it runs, with its roots
    marks.py     where the model's outputs and the taps of a batch stand in the graph
    graph.py     the walk from the roots to those marks
    rules/       what each operation does to rows: the table
    certificate.py  a proof as what it was read from, so that the next graph that reads the same is not walked
    proof.py     the verdict, for one engine
    rowwise.py   the same asked of the gradients themselves, on the first batch and on each new graph
    witness.py   what the loop does with the records of the 1st, 2nd, 4th ... batch, where no graph holds it

Guarantee: no gradient reaches a tap but from a pass whose loss is, as a function of the model's outputs, a sum (or mean)
over the rows of one term a row, scaled as was declared; or whose user said so by name. What the graph cannot show
(targets, masks and weights without gradient that have one row a record) is taken for data of that row, after a check of
how the loop made it of its 1st, 2nd, 4th ... batch.
"""

from clipwise.norms.loss.marks import mark, say_of_loss
from clipwise.norms.loss.proof import ROW_WISE, LossProof, judged, mixed_at
from clipwise.norms.loss.roots import unwatch, watch
from clipwise.norms.loss.rowwise import Trial
from clipwise.norms.loss.witness import Witness

__all__ = ["ROW_WISE", "LossProof", "Trial", "Witness", "judged", "mark", "mixed_at", "say_of_loss", "unwatch", "watch"]
