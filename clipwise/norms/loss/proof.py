"""The verdict on the loss of one engine's batches: proved, given row by row, declared, or refused.

A pass is judged before it runs. What was proved and what was declared is remembered for the privacy statement.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from math import isclose
from typing import Any

import torch
from torch import Tensor

from clipwise.norms import modes_of_torch
from clipwise.norms.loss.certificate import Certificate, Kept
from clipwise.norms.loss.graph import Edge, Reached, Row, Walk, reach, walk
from clipwise.norms.loss.roots import OF_GRAD, Opened, run_unseen
from clipwise.norms.loss.rowwise import foreseen, mixing_layer
from clipwise.norms.loss.rules.state import (
    ClassWeights,
    Hooked,
    Leaf,
    NotRowWise,
    Rows,
    Shared,
    Term,
    Unknown,
    constant_of,
)
from clipwise.norms.loss.scale import CLOSE, matched
from clipwise.types import ClipwiseError, LoopMisuse, Unsupported

ROW_WISE = "row-wise"  # what a user may declare of a loss
_DECLARED = "declared by the user: row-wise"
_ONLY_ONCE = ("use_reentrant", "donated_buffer")  # in torch's words for graphs that run backwards once
_FOLLOWED = (
    "what the loop computed from the records of its 1st, 2nd, 4th ... batch, followed and found to keep rows apart"
)
_NOT_FOLLOWED = "targets, masks, weights and inputs of each row, taken for data of that record alone"

REMEDIES = (
    "Give one loss a row to private.backward(losses) (reduction='none'); or take a loss from clipwise.losses; or, if you know that the "
    'loss is a {reduction} of one term a row that depends on that record alone, attach(..., loss_declared="row-wise"), which the '
    "privacy statement then quotes as your word"
)


class _Distrust:
    """While a pass is judged: one that is refused takes the whole batch with it."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Any):
        self._batch = batch

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, LoopMisuse | Unsupported):
            self._batch.received = False  # whatever was recorded of this batch: the step will refuse it
            if self._batch.witness is not None:
                self._batch.witness.stop()
                self._batch.witness.forget()


def judged(roots: Sequence[Any], gradients: Sequence[Any], of_grad: bool) -> Opened:
    """Before a backward pass: raises where it must not run; else a context in which it is let into the batches that it may reach."""
    if len(roots) == 1 and _latest is not None and (proof := _latest()) and proof.is_known(roots[0], gradients[0]):
        return Opened((proof.batch,))
    reached = reach(roots, gradients)
    batches = {id(m.batch): m.batch for m in reached.marks.values() if not m.batch.over}.values()
    for batch in batches:
        try:
            batch.proof.judge(batch, reached, roots)
        except ClipwiseError as error:
            if not of_grad:
                raise
            raise type(error)(f"{error}. {OF_GRAD}") from error
    return Opened(batches)


_latest: weakref.ref[LossProof] | None = None  # of the last to have certified a pass


class LossProof:
    """`declared`: None, or ROW_WISE, the user's word."""

    def __init__(self, reduction: str, declared: str | None):
        self.reduction, self.declared = reduction, declared
        self._numbers: dict[tuple[str, ...], tuple[float, ...]] = {}  # by the graph's signature
        self._unproved = 0  # passes from row losses that the graph did not prove
        self._verified: set[tuple[str, ...]] = set()
        self._generator = torch.Generator().manual_seed(0)  # of gradients that are sent and forgotten
        self._forms: dict[str, None] = {}  # in order
        self._witnessed = False
        self._certificates = Kept()
        self.batch: Any = None  # the open one
        self.dummy: Tensor | None = None

    def wants_witness(self, batches: int) -> bool:
        """Of the batch of this number. Until one was followed; then of the 2nd, 4th, 8th ..."""
        return self.declared is None and (not self._witnessed or batches & (batches - 1) == 0)

    def is_known(self, root: Any, gradient: Any) -> bool:
        """Whether the loss of the open batch has a graph that reads as one that was proved. Else it has to be judged."""
        batch = self.batch
        if not self._certificates or batch is None or not isinstance(root, Tensor) or root.dim():
            return False
        if not self._is_certified(batch, root, of_rows=False) or constant_of(gradient) != 1:
            return False
        batch.begin()
        with _Distrust(batch):
            self._set_scale(batch, float(batch.rows) if self.reduction == "mean" else 1.0)
            self._hear_witness(batch, (root,), proved=True)
        return True

    def _is_certified(self, batch: Any, root: Tensor, *, of_rows: bool) -> bool:
        if batch.lengths or batch.rows == 1 or modes_of_torch.of_operations():
            return False
        return self._certificates.hold(root, batch, of_rows=of_rows)

    def _certify(self, batch: Any, reached: Reached, walked: Walk | None, *, of_rows: bool) -> None:
        """Of a pass that was judged, and may run."""
        global _latest
        if walked is not None and not batch.lengths and Certificate.possible(reached, walked):
            made = Certificate(reached, walked, batch.rows)
            batch.when_done.append(partial(self._certificates.keep, made, of_rows=of_rows))
            _latest = weakref.ref(self)

    def judge(self, batch: Any, reached: Reached, roots: Sequence[Any]) -> None:
        """Raises unless the pass from these roots may reach the taps of `batch`."""
        batch.begin()
        with _Distrust(batch):
            if batch.rows == 1:  # the loss is this record's own, whatever it is
                self._set_scale(batch, 1.0)
                return
            walked, values = self._proved(batch, reached)
            self._hear_words(reached)
            self._set_scale(batch, float(batch.rows) if self.reduction == "mean" else 1.0)
            self._verify(batch, (self.reduction, *reached.signature), values, reached.roots if walked else None)
            self._hear_witness(batch, roots, proved=walked is not None)
            if constant_of(reached.roots[0][1]) == 1:
                self._certify(batch, reached, walked, of_rows=False)

    def backward(self, batch: Any, losses: Tensor) -> None:
        """From one loss a row: the sum of them, after a check that they are."""
        batch.begin()
        with _Distrust(batch):
            self._refuse_shape(batch, losses)
            self._set_scale(batch, 1.0)
            if self._is_certified(batch, losses, of_rows=True):
                self._hear_witness(batch, (losses,), proved=True)
            else:
                self._judge_rows(batch, losses)
            self._forms["given row by row (private.backward), and verified to keep rows apart"] = None
        with Opened([batch]):
            run_unseen(
                (losses,), (torch.ones_like(losses),), False, False, (), allow_unreachable=True, accumulate_grad=True
            )

    def _judge_rows(self, batch: Any, losses: Tensor) -> None:
        reached = reach([losses], [1.0])
        if not _own(reached, batch):
            raise LoopMisuse(
                "private.backward(losses): no output of the model for this batch has a part in these losses; nothing was changed"
            )
        self._hear_words(reached)
        if batch.rows > 1:
            walked, mixes = self._refuse_shared(batch, reached)
            edge = reached.roots[0][0]
            if (
                walked is None
            ):  # the gradients alone speak for it, and the next graph of these operations may do something else
                self._unproved += 1
                if mixes or self._unproved & (self._unproved - 1) == 0:
                    self._verified.discard(("rows", *reached.signature))
            values = [Row(edge, (batch.rows,), Rows(0))]
            self._verify(batch, ("rows", *reached.signature), values, reached.roots if walked else None)
            self._hear_witness(batch, [losses], proved=walked is not None)
            self._certify(batch, reached, walked, of_rows=True)

    def _refuse_shape(self, batch: Any, losses: Any) -> None:
        if not isinstance(losses, Tensor) or not losses.is_floating_point() or losses.grad_fn is None:
            what = (
                f"a tensor of {losses.dtype} without a graph" if isinstance(losses, Tensor) else type(losses).__name__
            )
            raise LoopMisuse(
                f"private.backward(losses) wants a tensor of losses made from the model's output, and got {what}; nothing was changed"
            )
        if losses.shape != (batch.rows,):
            advice = "Reduce each row's own values first: losses.flatten(1).mean(1), say"
            if losses.dim() == 0:
                advice = "Leave the reduction to Clipwise: reduction='none' in torch's losses, or no .mean() or .sum() at the end"
            elif losses.shape[0] != batch.rows:
                advice = "One row a record, in the order of the batch; rows that are merged with their words: losses.view(rows, -1).mean(1)"
            raise LoopMisuse(
                f"private.backward(losses) wants one loss a row, of shape (rows,), and got a tensor of {losses.dim()} dimensions that is not that; nothing was "
                f"changed. {advice}"
            )

    def _refuse_shared(self, batch: Any, reached: Reached) -> tuple[Walk | None, bool]:
        """As much as the graph tells: a loss over a figure of the whole batch keeps rows apart, and is none of theirs alone. The
        proof, if there is one; and whether the graph looks as if it mixed rows."""
        try:
            walked = walk(reached, batch, batch.rows)
            terms = walked.total.terms
            if any(term.suspect for term in terms):
                raise Shared("a tensor that all rows share scales them, and may have been counted from the batch")
            _refuse_lengths(batch, terms)
            numbers = [n for term in terms for n in (*term.numbers, term.factor, term.scale)]
            self._refuse_other_numbers(("rows", *reached.signature), (*numbers, *walked.numbers))
            return walked, False
        except (Shared, Hooked, Length, OtherNumbers) as problem:
            if self.declared != ROW_WISE:
                raise self._refusal(problem) from None
            self._forms[_DECLARED] = None
            return None, False
        except (NotRowWise, Unknown) as problem:
            # The gradients themselves decide, but for a length of the batch that they cannot show.
            shapes = [reached.shape(edge) for edge, _ in _own(reached, batch)]
            if self.declared != ROW_WISE and any(size in batch.lengths for shape in shapes for size in shape):
                raise self._refusal(
                    Length("what it does with outputs as long as the longest record cannot be told")
                ) from None
            if isinstance(problem, Unknown):
                self._forms[f"{problem}: verified to send no gradient from row to row, taken to read no other row"] = (
                    None
                )
            return None, isinstance(problem, NotRowWise)

    def _hear_words(self, reached: Reached) -> None:
        for words in reached.words:
            self._forms[words] = None

    def _hear_witness(self, batch: Any, roots: Sequence[Any], *, proved: bool) -> None:
        witness = batch.witness
        if witness is None:
            return
        if witness.used is not None:
            raise self._refusal(Unknown("a number in it was read from the records of the batch"))
        found = witness.finds_mixing(roots, self._generator, proved=proved)
        if found:
            raise self._refusal(
                NotRowWise(
                    "what arrives at one row's output, or what the model was given for it, changes with the values of other rows (a target, "
                    "mask, weight, input or detached figure that was computed from several records)"
                )
            )
        self._witnessed = True
        self._forms[_FOLLOWED if found is False else _NOT_FOLLOWED] = None

    def _proved(self, batch: Any, reached: Reached) -> tuple[Walk | None, list[Row]]:
        """The proof, and where there is one value a row, for a loss that is proved or declared."""
        try:
            if self.reduction == "mean" and reached.half:
                raise LoopMisuse(
                    "a mean over the batch in half precision: one record more would round all the others' gradients in another way; "
                    "nothing was changed. Reduce the loss by a sum, and attach with loss_reduction='sum' (steps are as long as before), or "
                    "give one loss a row to private.backward(losses)"
                )
            found = walk(reached, batch, batch.rows)
            _refuse_lengths(batch, found.total.terms)
            numbers = matched(found.total.terms, batch.rows, self.reduction)
            self._refuse_other_numbers(reached.signature, (*numbers, *found.numbers))
        except (NotRowWise, Unknown) as problem:
            if self.declared != ROW_WISE:
                raise self._refusal(problem) from None
            self._forms[_DECLARED] = None
            return None, [Row(edge, reached.shape(edge), Rows(dim)) for edge, dim in _own(reached, batch)]
        self._forms[f"proved row-wise from the graph of each backward pass: a {self.reduction} over the rows"] = None
        return found, found.row_values

    def _set_scale(self, batch: Any, scale: float) -> None:
        if batch.scale is not None and batch.scale != scale:
            raise LoopMisuse(
                "two backward passes through one batch reduce its rows in different ways; nothing was changed. Add the row losses, and "
                "call private.backward(losses) once"
            )
        batch.scale = scale

    def _verify(self, batch: Any, signature: tuple[str, ...], values: list[Row], proved: Sequence[Any] | None) -> None:
        """`proved`: the roots of a graph that was."""
        known = signature in self._verified and not modes_of_torch.of_operations()  # which may do other things now
        if known or self.dummy is None or not values:
            return
        try:
            if proved and len(values) == 1:  # several may lie on one way: what comes to one comes to the next as well
                batch.foreseen = foreseen(batch, values, proved, self.dummy, self._generator)
                name = batch.foreseen.mixed
            else:
                name = mixing_layer(batch, values, self.dummy, self._generator)
        except RuntimeError as error:
            if not any(word in str(error) for word in _ONLY_ONCE):
                raise
            raise LoopMisuse(
                "the loss cannot be run backwards twice, which shows whether it keeps the records apart; nothing was changed. Use "
                "use_reentrant=False in torch.utils.checkpoint, or set torch._functorch.config.donated_buffer = False before torch.compile"
            ) from error
        if name is not None:
            raise mixed_at(name)
        batch.when_done.append(partial(self._verified.add, signature))

    def _refuse_other_numbers(self, signature: tuple[str, ...], numbers: tuple[float, ...]) -> None:
        known = self._numbers.setdefault(signature, numbers)
        if known is numbers:
            return
        if len(known) != len(numbers) or not all(
            isclose(a, b, rel_tol=CLOSE) for a, b in zip(known, numbers, strict=True)
        ):
            raise OtherNumbers(
                "a number in it, or a length that it divides by, is not that of earlier batches: if it hangs on the records (how "
                "many, how long), one record changes all the others' shares. Divide by a public constant, or per record; a weight that follows "
                "a public schedule is for you to declare"
            )

    def _refusal(self, problem: Exception) -> LoopMisuse | Unsupported:
        if isinstance(problem, Leaf):
            return Unsupported(f"{problem}; nothing was changed")
        if isinstance(problem, ClassWeights):
            sound = "clipwise.losses has class weights, ignore_index and padding in a sound form. "
        else:
            sound = ""
        verb = "mixes the records" if isinstance(problem, NotRowWise) else "is not known to keep the records apart"
        return LoopMisuse(
            f"the loss {verb}: {problem}; nothing was changed. {sound}{REMEDIES.format(reduction=self.reduction)}"
        )

    def statement(self) -> str:
        """What the privacy statement says of the loss."""
        return "; ".join(self._forms) or "no backward pass was made"


def _own(reached: Reached, batch: Any) -> list[tuple[Edge, int]]:
    """The marks of this batch, and where their rows are."""
    return [
        (edge, m.dim)
        for edge, m in reached.marks.items()
        if m.batch is batch and m.dim is not None and reached.shape(edge)[m.dim] == batch.rows
    ]


def mixed_at(name: str) -> LoopMisuse:
    return LoopMisuse(
        f"the gradient that arrives at layer {name!r} for one row depends on other rows: the loss, the model or a hook on a "
        "gradient mixes records; nothing was changed. Each record's loss must depend on that record alone"
    )


class OtherNumbers(Unknown):
    """A number in it is not that of earlier batches."""


class Length(NotRowWise):
    """A row's loss hangs on how long the longest record is."""


def _refuse_lengths(batch: Any, terms: Sequence[Term]) -> None:
    """A mean over a dimension that is padded to the longest record divides every row's loss by that record's length."""
    for term in terms:
        for length in term.lengths:
            if any(length % size == 0 for size in batch.lengths if size > 1):
                raise Length(
                    "a mean is taken over a dimension that is padded to the longest record of the batch, so that this record scales all the "
                    "others' losses; divide by each record's own length or by a public constant, or give attach(..., pad_to=LENGTH)"
                )
