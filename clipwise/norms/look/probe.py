"""A look at the model before it is trusted with the first private batch.

A few tiny batches, of two and of three rows, go through the model. From them the engine learns, instead of guessing:

- which dimension of each layer's input is the batch (the one that grew), or that there is none (then it is spread);
- whether any example's output depends on another example, by gradients here and by values in influence.py, where what a
  pass leaves behind is looked at as well (then the model is refused);
- whether a parameter is used past its layer's tap (then its parent is run generically), or vmap fails (then rows are
  looped over);
- whether spreading changes what the model computes, or sends a row's gradient to another row (then nothing is spread).

The parameters are replaced by slightly different ones meanwhile: weights that start at zero would hide everything
before them. Everything that the model holds is put back before each run, and afterwards. Nothing is released: the outcome
depends on the model's code, not on the values of the records, which are only borrowed for shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from clipwise.devices import with_generators
from clipwise.norms.kernels.kernel import Kernel
from clipwise.norms.layers.registry import NotByRule
from clipwise.norms.look.influence import Runs, grown, mixing, refuse_influence, refuse_padding
from clipwise.norms.look.ragged import Bags, Cut, has_packed
from clipwise.norms.look.small_batch import first, is_float, second, small_batch, ways_to_cut
from clipwise.norms.loss.roots import gradients_of
from clipwise.norms.record.units import (
    NDIMS,
    SPREADABLE,
    Args,
    Forward,
    Kwargs,
    Unit,
    signature,
    spread_shape,
    swapped,
    tensor_shapes,
)
from clipwise.randomness import held, seed_all
from clipwise.types import Padding, Unsupported

NO_BATCH = "its input has no batch dimension of its own"
COINCIDENCE = (
    "The first batch has, by chance, as many records as its second dimension is long; if that is all that is wrong, say which dimension "
    "of the model's arguments has the records: attach(..., batch_dim=0), or 1. Nothing was released"
)
_NOISES = 4099  # a prime, so that no two rows of a weight get the same; chosen
_MEASURED = 2**16  # numbers of a parameter, spread over it, that say how large its numbers are; chosen, not measured
NOT_SPREAD = "a parameter of its own cannot be given one value a row"
OUTSIDE = "a parameter is used outside its layer's forward"
_OTHERWISE = "it uses its parameters otherwise than the layer that it is made from"
PACKED = "it has no fast rule, and takes or returns a PackedSequence"  # whoever packs it may be run row by row


class Probe:
    """Stands in for the engine's recording while the probe runs: notes shapes, output gradients and what was tapped."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.shapes: defaultdict[str, list[tuple[list[torch.Size], list[torch.Size]]]] = defaultdict(list)
        self.signatures: defaultdict[str, list[Any]] = defaultdict(list)
        self.gradients: list[
            tuple[str, int, int | None, Tensor]
        ] = []  # unit, which output, its batch dimension if told, b
        self.tapped: set[int] = set()  # parameters, by id
        self.inside: list[torch.Size] = []  # shapes that reached the functions inside a unit
        self.dummy = torch.zeros((), requires_grad=True)

    def run(self, unit: Unit, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        given = tensor_shapes((args, kwargs))
        if unit.layer is not None:
            self.inside = []
            try:
                out = unit.layer.forward(unit.module, self._tap(unit), *args, **kwargs)
            except NotByRule:
                raise _Promote(unit, _OTHERWISE) from None
            if unit.layer.through:
                given = self.inside
        elif unit.own:
            out = self._run_own(unit, original, args, kwargs)
        else:
            with swapped(unit.module.modules(), lambda p: p.detach()):
                out = original(*args, **kwargs)
            if has_packed((args, kwargs)) or (unit.name and has_packed(out)):
                raise _Promote(unit, PACKED)
            leaves, spec = tree_flatten(out)
            places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
            for output, i in enumerate(places):
                if is_float(leaves[i]):
                    leaves[i] = self._watch(leaves[i], unit, output=output)
            out = tree_unflatten(leaves, spec)
        self.shapes[unit.name].append((given, tensor_shapes(out)))
        self.signatures[unit.name].append(signature(args, kwargs))
        return out

    def _run_own(self, unit: Unit, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        own = {id(p) for p in unit.parameters()}

        def spread(p: Tensor) -> Tensor | None:
            shape = unit.own_shape(p, self.rows, args, kwargs)
            return self._spread(p.detach(), unit, shape) if id(p) in own else None

        try:
            with swapped(unit.holders(), spread):
                out = original(*args, **kwargs)
            if not any(True for _ in unit.module.children()):
                with torch.no_grad():
                    _refuse_difference(out, original(*args, **kwargs))
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as problem:
            raise _Promote(unit, NOT_SPREAD) from problem
        return out

    def _watch(self, out: Tensor, unit: Unit, dim: int | None = None, output: int = 0) -> Tensor:
        watched: Tensor = _Watch.apply(out, self.dummy, self, (unit.name, output, dim), None)  # type: ignore[no-untyped-call]
        return watched

    def _spread(self, value: Tensor, unit: Unit, shape: torch.Size | None = None) -> Tensor:
        shape = shape or spread_shape(value, self.rows)
        spread: Tensor = _Watch.apply(value, self.dummy, self, (unit.name, 0, 0), shape)  # type: ignore[no-untyped-call]
        return spread

    def _tap(self, unit: Unit) -> Callable[..., Tensor]:
        def tap(
            out: Tensor,
            kernel: Kernel,  # noqa: ARG001
            params: Mapping[str, Tensor | None],
            saved: tuple[Tensor, ...],
            config: Hashable = None,  # noqa: ARG001
            rows_dim: int | None = None,
            pieces: Mapping[str, slice] | None = None,  # noqa: ARG001
        ) -> Tensor:
            self.tapped.update(id(p) for p in params.values())
            self.inside += [x.shape for x in saved[:1]]
            if not unit.spread:
                return self._watch(out, unit, rows_dim)
            if out.requires_grad:
                raise _Promote(unit, NO_BATCH)  # what it is made from needs a gradient, and could not get one a row
            return self._spread(out, unit)

        return tap


class Bare:
    """In the place of a `Probe`: the layers run as they will, and nothing is noted."""

    rows = 0

    def __init__(self) -> None:
        self._dummy = torch.zeros((), requires_grad=True)

    def run(self, unit: Unit, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        if unit.layer is None:
            with swapped(unit.module.modules(), lambda p: p.detach()):
                return original(*args, **kwargs)
        try:
            return unit.layer.forward(unit.module, self._tap, *args, **kwargs)
        except NotByRule:
            raise _Promote(unit, _OTHERWISE) from None

    def _tap(self, out: Tensor, *_: Any, **__: Any) -> Tensor:
        return out + self._dummy  # which asks for a gradient, as it will


class _Watch(torch.autograd.Function):
    """Identity, or (with a shape) the same value seen from every row, as the engine would do it."""

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        dummy: Tensor,  # noqa: ARG004
        look: Probe,
        origin: tuple[str, int, int | None],
        shape: torch.Size | None,
    ) -> Tensor:
        ctx.look, ctx.origin = look, origin
        return out.clone() if shape is None else out.expand(shape)

    @staticmethod
    def backward(ctx: Any, b: Tensor) -> tuple[Any, ...]:
        ctx.look.gradients.append((*ctx.origin, b))
        return b if ctx.needs_input_grad[0] else None, None, None, None, None


class _Promote(Exception):
    """This unit cannot be handled as it is; run its parent generically."""

    def __init__(self, unit: Unit, why: str):
        super().__init__(why)
        self.unit, self.why = unit, why


_ROUNDS_ALIKE = (
    "clipwise: the model computes in half precision on batches that are padded to their longest record. How all records are rounded changes a "
    "little with that one (of 128 texts in bfloat16 the sum moved by up to 1.02 times its bound), and epsilon does not count that. pad_to=LENGTH, a public "
    "number, or float32 takes it away"
)


class Found(NamedTuple):
    """What the look has shown."""

    units: list[Unit]  # as they must be run
    may_move: set[str]  # parameters and buffers that a forward pass changes, in the same way whatever the records are
    varies: bool  # whether the model may do something else later: it changes a number or a buffer, or draws
    half: bool = False  # whether the model computes in half precision, where padding was asked about
    last: bool = True  # whether the batch has shown enough; if not, the next one is looked at too


class _Call(NamedTuple):
    """How the model was called, and which dimension of each argument is the batch, or what cuts it."""

    args: Args
    kwargs: Kwargs
    cuts: list[Cut]
    padding: Padding | None

    def rows(self, *rows: Any) -> tuple[Args, Kwargs]:
        return small_batch(self.args, self.kwargs, self.cuts, rows)


def probe(
    model: nn.Module,
    units: list[Unit],
    without_spreading: list[Unit],
    parameters: list[nn.Parameter],
    rows: int,
    args: Args,
    kwargs: Kwargs,
    attempt: Callable[..., Any],
    notify: Callable[[str], None],
    padding: Padding | None = None,
    seed: int = 0,
    batch_dim: int | None = None,
    bags: Mapping[int, Bags] = {},
) -> Found:
    """`attempt(units, look, *args, **kwargs)` calls the model with its units replaced. `seed`: of what is drawn in this look.
    `batch_dim`: the user's word for where the rows are; `bags`: arguments in which they have no dimension (ragged.py)."""
    devices = with_generators(parameters)

    def settle(cuts: list[Cut]) -> tuple[Found, list[str]]:
        call = _Call(args, kwargs, cuts, padding)
        with held(devices), torch.enable_grad(), _unsettled(model, parameters, attempt, seed) as runs:
            with suppress(Exception):  # what is wrong may be the spreading: without it the truth comes out
                return _settle(model, units, parameters, call, runs, may_spread=True)
            return _settle(model, without_spreading, parameters, call, runs, may_spread=False)

    found, notices = _read(settle, ways_to_cut(args, kwargs, rows, batch_dim, bags), rows)
    generic = [u for u in found.units if u.is_generic]
    if generic:
        names = ", ".join(f"{u.name or 'the whole model'} ({type(u.module).__name__})" for u in generic)
        why = f" Why: {'; '.join(notices)}." if notices else ""
        notify(
            f"clipwise: no fast rule for {names}: its per-example gradients are exact, but slower (torch.func).{why}"
        )
    if found.half:
        notify(_ROUNDS_ALIKE)
    return found


@contextmanager
def _unsettled(
    model: nn.Module, parameters: list[nn.Parameter], attempt: Callable[..., Any], seed: int
) -> Iterator[Runs]:
    """Other values in the parameters; and afterwards everything as it was."""
    values = [p.data for p in parameters]
    seed_all(0)
    try:
        for p in parameters:
            p.data = _near(p.data)
        runs = Runs(model, attempt, seed)
        try:
            yield runs
        except BaseException:
            runs.state.restore(whole=True)
            raise
        runs.put_back()
    finally:
        for p, value in zip(parameters, values, strict=True):
            p.data = value


def _near(value: Tensor) -> Tensor:
    """Each number a little off, by noise that repeats itself after some thousands: to draw as many as there are takes longer than
    all the rest of a look."""
    n = value.numel()
    some = value.reshape(-1)[:: 1 + n // _MEASURED].float()
    size = float(torch.linalg.vector_norm(some) / max(1, len(some)) ** 0.5)
    noise = torch.randn(min(_NOISES, n), dtype=value.dtype, device=value.device) * (0.1 * size or 0.02)
    if not value.is_contiguous():
        return value + noise.repeat(-(-n // _NOISES))[:n].view_as(value)
    near, whole = torch.empty_like(value), n - n % _NOISES
    was, now = value.view(-1), near.view(-1)
    if whole:
        torch.add(was[:whole].view(-1, _NOISES), noise, out=now[:whole].view(-1, _NOISES))
    torch.add(was[whole:], noise[: n - whole], out=now[whole:])
    return near


def _settle(
    model: nn.Module, units: list[Unit], parameters: list[nn.Parameter], call: _Call, runs: Runs, *, may_spread: bool
) -> tuple[Found, list[str]]:
    """What works, and why some units had to be made generic."""
    notices: list[str] = []
    while True:
        try:
            settled = _look(units, parameters, call, runs)
            if not runs.have_written_unseen():
                return Found(settled, runs.may_move, runs.varies, runs.half), notices
        except Unsupported:
            if not runs.have_written_unseen():
                raise
        except _Promote as problem:
            unit = problem.unit
            later = [n for n in NDIMS if unit.ndim is None or n < unit.ndim]
            if problem.why == NOT_SPREAD and later:
                units = [replace(u, ndim=later[0]) if u.name == unit.name else u for u in units]
            elif may_spread and problem.why == NO_BATCH and isinstance(unit.module, SPREADABLE) and not unit.spread:
                units = [replace(u, spread=True) if u.name == unit.name else u for u in units]
            else:
                notices.append(f"{unit.name or type(unit.module).__name__}: {problem.why}")
                units = _promoted(model, units, problem, notices)


def _look(units: list[Unit], parameters: list[nn.Parameter], call: _Call, runs: Runs) -> list[Unit]:
    looks, batches = {n: Probe(n) for n in (2, 3)}, {2: call.rows(first, second), 3: call.rows(first, second, first)}
    outs = {n: runs(batches[n], units, looks[n]) for n in (2, 3)}
    if has_packed(outs[3]):
        raise Unsupported(
            "the model returns a PackedSequence, of which no dimension is the batch; unpack it in forward by "
            "torch.nn.utils.rnn.pad_packed_sequence(..., total_length=...)"
        )
    calls = list(looks[2].shapes)  # in the order of the first calls: what comes later may depend on what comes before
    in_order = sorted(units, key=lambda u: calls.index(u.name) if u.name in calls else len(calls))
    settled = [
        _settled(u, looks[2].shapes[u.name], looks[3].shapes[u.name], looks[3].signatures[u.name]) for u in in_order
    ]
    trainable = {id(p) for p in parameters}
    for unit in settled:
        called = unit.layer is not None and unit.name in calls
        if called and any(id(p) in trainable - looks[2].tapped for p in unit.parameters()):
            raise _Promote(unit, "its rule leaves a parameter out")
    _refuse_mixing(settled, parameters, looks[3], outs)

    plain, bare = [replace(u, spread=False, own=()) for u in settled], Bare()

    def run(batch: Any, **how: Any) -> Any:
        return runs(batch, plain, bare, **how)

    if any(u.spread or u.own for u in settled):
        for n, batch in batches.items():
            _refuse_difference(outs[n], run(batch))
    refuse_influence(runs, run, call.rows, outs[2], outs[3])
    if call.padding is not None:
        refuse_padding(run, call.args, call.kwargs, call.cuts, call.padding)
    return settled


def _refuse_difference(out: Any, plain: Any) -> None:
    leaves, plain_leaves = tree_flatten(out)[0], tree_flatten(plain)[0]
    for a, b in zip(leaves, plain_leaves, strict=True):
        if is_float(a):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.detach().abs().max()), equal_nan=True)


def _settled(unit: Unit, two: list[Any], three: list[Any], signatures: list[Any]) -> Unit:
    """The unit with its batch dimensions filled in."""
    if len(two) != len(three):
        raise _Promote(unit, "it is called more often for larger batches")
    kinds = {
        (
            tuple(grown(a, b) for a, b in zip(args2, args3, strict=True)),
            tuple(grown(a, b) for a, b in zip(outs2, outs3, strict=True)),
        )
        for (args2, outs2), (args3, outs3) in zip(two, three, strict=True)
        if len(args2) == len(args3) and len(outs2) == len(outs3)
    }
    if not two or unit.own:
        return unit  # no dimensions to be told; or not used in this model's forward, so that its gradient is zero
    if unit.layer is not None:
        firsts = {args[0] if args else None for args, _ in kinds}
        if unit.spread and firsts == {None}:
            return unit
        first = firsts.pop() if len(firsts) == 1 else None
        if unit.spread or first is None or first < 0:
            raise _Promote(unit, NO_BATCH)
        return replace(unit, batch_dim=first)
    if len(kinds) != 1 or any(each != signatures[0] for each in signatures):
        raise _Promote(unit, "it is called with inputs of different layouts")
    args, outs = kinds.pop()
    if -1 in args or not {-1, None}.isdisjoint(outs) or not any(d is not None for d in args):
        raise _Promote(unit, "the batch dimension of its input or output cannot be told")
    return replace(unit, arg_dims=list(args), out_dims=list(outs), signature=signatures[0])


def _refuse_mixing(units: list[Unit], parameters: list[nn.Parameter], look: Probe, outs: dict[int, Any]) -> None:
    """Send a gradient back from one example's output, for each in turn: it must reach this example's rows only."""
    outputs: list[tuple[Tensor, int]] = []
    for two, three in zip(tree_flatten(outs[2])[0], tree_flatten(outs[3])[0], strict=True):
        if is_float(three) and three.requires_grad:
            dim = grown(two.shape, three.shape)
            if dim is None or dim < 0:
                raise Unsupported(
                    f"the model's output has shape {tuple(two.shape)} for 2 rows and {tuple(three.shape)} for 3: no dimension is the "
                    "batch. Return one output a row, and reduce it in the loss (clipwise.hf.row_losses makes one loss a record of an output of "
                    "transformers)"
                )
            outputs.append((three, dim))
    if not outputs:
        raise Unsupported(
            "no output of the model depends on a trainable parameter; unfreeze a layer, or check the forward"
        )
    by_name = {u.name: u for u in units}
    stray: set[int] = set()
    for row in range(look.rows):
        look.gradients.clear()
        # Not the plain sum: that of a softmax or of a normalised output is constant, and would send nothing back.
        own = [out.select(dim, row) for out, dim in outputs]
        scalar = torch.stack([(x * torch.randn_like(x)).sum() for x in own]).sum()
        try:
            grads = gradients_of(scalar, [look.dummy, *parameters])[1:]
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            raise Unsupported(
                "the model uses checkpoint(..., use_reentrant=True), whose backward pass hides its layers; use use_reentrant=False"
            ) from error
        stray |= {id(p) for p, g in zip(parameters, grads, strict=True) if g is not None}
        for name, output, dim, b in look.gradients:
            dims = by_name[name].out_dims if by_name[name].layer is None else None
            at = dim if dim is not None else (dims[output] if dims else by_name[name].batch_dim)
            b = b.nan_to_num(0.0)  # 0 * inf, of a record that is not finite
            if at is not None and b.count_nonzero() > b.select(at, row).count_nonzero():
                raise mixing(f"the output for one row depends on what other rows do at {name or 'its root'!r}")
    for unit in units:
        if any(id(p) in stray for p in unit.parameters()):
            raise _Promote(unit, OUTSIDE)


def _promoted(model: nn.Module, units: list[Unit], problem: _Promote, notices: list[str]) -> list[Unit]:
    """Units with the problem's parent run generically (or the unit itself, if it was run by a rule)."""
    name = problem.unit.name
    if problem.unit.is_generic:
        if not name:
            packing = ". Give the model a padded tensor and its lengths, and pack these in forward"
            raise Unsupported(
                f"the model cannot be trained privately as it is: {'; '.join(notices)}{packing if problem.why == PACKED else ''}"
            )
        name = name.rpartition(".")[0]
    elif problem.unit.layer is not None and problem.why in (OUTSIDE, NO_BATCH):
        name = name.rpartition(".")[0]
    inside = f"{name}." if name else ""
    kept = [u for u in units if u.name != name and not u.name.startswith(inside)] if name else []
    return [*kept, Unit(name, model.get_submodule(name), None)]


def _with_an_argument_left_whole(settle: Callable[[list[Cut]], Any], cuts: list[Cut], problem: Exception) -> Any:
    """Perhaps one argument is no batch but as long as one: a mask, say, of the length of the texts."""
    cut = [i for i, dim in enumerate(cuts) if dim is not None]
    for i in cut if len(cut) > 1 else []:
        with suppress(Exception):
            return settle([None if j == i else dim for j, dim in enumerate(cuts)])
    raise problem


def _read(settle: Callable[[list[Cut]], Any], possible: list[list[Cut]], rows: int) -> tuple[Found, list[str]]:
    """What the first way to cut each argument shows. A square one (a batch as large as its texts are long) can be read in two
    ways, and the model must make sense for the first alone, or places might be taken for examples; but one record alone is
    measured right either way, and the next batch will tell more."""
    cuts, others = ([dims[i] if dims else None for dims in possible] for i in (0, -1))
    square, short = cuts != others, any(isinstance(cut, Bags) and cut.few for cut in cuts)
    try:
        found, notices = settle(cuts)
    except Exception as problem:
        if square and rows == 1:
            found, notices = settle(others)
            return found._replace(last=False), notices
        if isinstance(problem, Unsupported):
            if square:
                problem.add_note(COINCIDENCE)
            raise
        found, notices = _with_an_argument_left_whole(settle, cuts, problem)
    either = square and _makes_sense(settle, others)
    if either and rows > 1:
        raise Unsupported(f"the model would take either of the first two dimensions for the batch. {COINCIDENCE}")
    return found._replace(last=not (either or short)), notices


def _makes_sense(settle: Callable[[list[Cut]], Any], cuts: list[Cut]) -> bool:
    try:
        settle(cuts)
    except Exception:
        return False
    return True
