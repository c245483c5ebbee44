"""The book-keeping engine: per-example gradient norms and weighted sums from one ordinary forward and backward pass.

While it records, each unit's forward runs with its parameters detached, so that autograd forms no weight gradients;
the output passes through a *tap*, an identity whose backward hands the output gradient to the layer's kernel (Bu et
al. 2022, "book-keeping"). The model keeps its class, its state_dict and its parameters' requires_grad; only the
units' instance attribute `forward` is replaced, and
`remove` gives it back.

Guarantee: after `close`, every trainable parameter's per-example gradient is on the tape exactly once for each use,
or an error was raised. A gradient that reaches a parameter past the taps is refused, never released.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from clipwise.devices import refuse_without_wide_type, with_generators
from clipwise.norms.kernels.choice import Chooser
from clipwise.norms.kernels.kernel import HALF, PER_EXAMPLE, Call, Direct, Kernel, widened_for
from clipwise.norms.layers import registry as layers
from clipwise.norms.look.influence import grown
from clipwise.norms.look.probe import Bare, Probe, probe
from clipwise.norms.look.ragged import bags_of, has_packed, leaves_of
from clipwise.norms.look.refuse import refuse_mixing_layers, refuse_trained_inputs, refuse_transforms
from clipwise.norms.look.state import State
from clipwise.norms.look.watch import Members, Watch
from clipwise.norms.loss import LossProof, Witness, judged, mark, mixed_at, unwatch, watch
from clipwise.norms.record.recording import Pass, Receive, SpreadNode, Tap, TapNode, can_hook, hook_on
from clipwise.norms.record.tape import Tape
from clipwise.norms.record.units import (
    Args,
    Forward,
    Kwargs,
    Unit,
    find_units,
    run_generic,
    signature,
    spread_shape,
    swapped,
    tensor_shapes,
    untrained,
)
from clipwise.norms.record.unreleased import HeldBack
from clipwise.randomness import held, seed_all
from clipwise.types import LoopMisuse, Padding, Unsupported

OTHER_PARAMETERS = (
    "the trainable parameters of model or optimizer are not those that were attached (one was added, replaced, frozen or unfrozen); "
    "nothing was changed. Call detach(), make the change, and attach again: the ledger file can be the same"
)


class Bookkeeping:
    """`open(rows)`, the user's forward and backward, `close()`: one physical batch."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        *,
        loss_reduction: str,
        loss_declared: str | None = None,
        generic: bool = False,
        own_loss: Any = None,
        batch_dim: int | None = None,
        whole: Mapping[str, nn.Parameter] | None = None,
        notify: Callable[[str], None] = warnings.warn,
    ):
        """`loss_declared` is None, or "row-wise": the user's word for a loss that cannot be proved so (loss/proof.py). `generic` runs the whole model under torch.func, for models that change shape from call to call, or for
        comparison. `own_loss` makes the loss of a model that computes its own (own_loss.py). `batch_dim` is the user's word for the
        dimension of the model's arguments that has the records, where shapes could mean two. `whole`: what the layers hold in a pass, where that is not
        `parameters` themselves, which are cut over processes (shards.py)."""
        refuse_mixing_layers(model)
        refuse_without_wide_type(parameters.values())
        self._model = model
        whole = whole or parameters
        self._names = {id(p): name for each in (parameters, whole) for name, p in each.items()}
        self.parameters = list(parameters.values())  # in the order of the tape's sums
        self._parameters = list(whole.values())
        self.loss = LossProof(loss_reduction, loss_declared)
        self._chooser = Chooser()
        self._notify = notify
        self._own_loss, self._batch_dim = own_loss, batch_dim
        self._units = [Unit("", model, None)] if generic else find_units(model, self._names)
        self._without_spreading = self._units if generic else find_units(model, self._names, spread=False)
        self._originals: dict[int, tuple[nn.Module, Forward, bool]] = {}
        self._dummy = self.loss.dummy = torch.zeros((), requires_grad=True)
        self._output_shapes: dict[
            int, list[torch.Size]
        ] = {}  # of the model, by the rows of the batches that it was looked at with
        self._output_dims: list[tuple[int, int | None]] = []
        self._square: list[int] = []  # arguments that are as long as the batch in both of their first dimensions
        self._unwatch: Callable[[], Any] | None = None
        self._pass: Pass | None = None
        self._probing: Probe | Bare | None = None
        self._probed: set[Hashable] = set()  # layouts of inputs that the units have been settled for
        self._probed_modes: set[tuple[Any, ...]] = set()  # of the members
        self._probed_as: Any = None  # the signature of the last call that was probed
        self._padding: Padding | None = None  # of the open batch
        self._padding_probed = False
        self._watch = Watch(model, self._names)
        self._members = Members(model)
        self._frozen = self._now_frozen()
        self._changed = False  # whether the model was found to be made of other objects since the last step
        self._fast = False  # whether one look is enough for inputs of any layout
        self._varies = False  # whether the model changes a number or a buffer of its own from call to call, or draws
        self._calls = self._looked_at = 0  # private batches so far; that at the last look
        self._unsure_at: int | None = None  # the batch of a look that was not enough
        self._told: set[str] = set()
        self._in_root = False
        self._outside = 0  # blocks of `outside` that are open
        self._held_back = HeldBack(self.parameters, self._names)
        self._hooks: list[Any] = []

    @property
    def units(self) -> list[Unit]:
        """What is tapped, and how; as the last look at the model settled it."""
        return list(self._units)

    @property
    def used(self) -> set[int]:
        """Ids of the parameters that forward passes of the open batch have used."""
        return set() if self._pass is None else set(self._pass.uses)

    # -- in and out of the model ---------------------------------------------------------------------------------------

    def install(self) -> None:
        for p in self._parameters:
            self._hooks.append(p.register_hook(self._stray_hook(p)))  # autograd.grad meets it too
        self._replace_forwards()
        if self._unwatch is None:
            watch(judged)
            self._unwatch = weakref.finalize(self, unwatch)  # of a run that is dropped without a word, too

    def remove(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._restore_forwards()
        self._over()

    def _replace_forwards(self) -> None:
        units = {id(u.module): u for u in self._units}
        for module in [self._model, *(u.module for u in self._units if u.module is not self._model)]:
            own = "forward" in module.__dict__
            self._originals[id(module)] = (module, module.forward, own)
            unit = units.get(id(module))
            run = self._run_root if module is self._model else self._run_unit
            module.forward = MethodType(_recording_forward(self, run, unit, module.forward), module)

    def _restore_forwards(self) -> None:
        for module, original, own in self._originals.values():
            if own:
                module.forward = original
            else:
                module.__dict__.pop("forward", None)
        self._originals.clear()

    def knows(self, module: nn.Module) -> bool:
        return id(module) in self._originals and self._originals[id(module)][0] is module

    # -- one physical batch --------------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Buffers and frozen parameters may have been changed since the last epoch; from here on they may not."""
        self._watch.begin()
        if not self._members.unchanged():
            self._note_change()

    def end_epoch(self) -> None:
        self._watch.end()

    def open(
        self, rows: int, padding: Padding | None = None, records: Any = None, lengths: tuple[int, ...] = ()
    ) -> None:
        """A physical batch of so many rows begins; what an unfinished one left is dropped. `padding`: of a batch that was
        padded to its longest record. What the loop does with the `records` of the 1st, 2nd, 4th ... is followed (loss/witness.py)."""
        self._watch.begin_once()
        self._over()
        self._pass = self.loss.batch = Pass(rows, self.loss, lengths)
        self._padding = padding
        self._calls += 1
        if records is not None and rows > 1 and self.loss.wants_witness(self._calls):
            self._pass.witness = Witness(rows, records, self._batch_dim)
            self._pass.witness.start()
            weakref.finalize(self._pass, self._pass.witness.leave)  # of a run that is given up in the middle

    def backward(self, losses: Tensor) -> None:
        """The backward pass of the open batch from one loss a row, whatever reduction was declared."""
        if self._pass is None:
            raise LoopMisuse("private.backward(losses) came without a batch of private.loader; nothing was changed")
        self.loss.backward(self._pass, losses)

    def _over(self) -> None:
        if self._pass is not None:
            self._pass.over = True
            if self._pass.witness is not None:
                self._pass.witness.leave()
        self._pass = self.loss.batch = None
        self._held_back.clear()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Passes in this block are none of the open batch's: no parameter takes a gradient from them."""
        self._outside += 1
        try:
            with untrained([*self._parameters, *self.parameters]):
                yield
        finally:
            self._outside -= 1

    @property
    def received(self) -> bool:
        """Whether a backward pass has reached the open batch."""
        return self._pass is not None and self._pass.received

    def close(self) -> Tape:
        """The tape of the open batch. A backward pass must have reached it."""
        done = self._pass
        if done is None or not done.received:
            raise LoopMisuse(
                "optimizer.step() came without a new loss.backward() on a batch of private.loader; nothing was changed. "
                "Call loss.backward() once, then step() once, for each batch that the loader gives"
            )
        self._held_back.take()
        self._over()
        self._watch.check(same_members=self._refuse_changed_model())
        for keep in done.when_done:
            keep()
        # Taken, not copied: the user's loss keeps the graph alive, and the graph its taps, and they this pass.
        parts, done.parts = done.parts, []
        for p, total in done.shared.values():
            parts.append((Call(PER_EXAMPLE, {"shared": p}), Direct({"shared": total})))
        done.shared = {}
        if done.scale is None:
            raise RuntimeError("a batch was recorded whose loss was not judged")
        return Tape(self._parameters, parts, done.rows, scale=done.scale)

    def _refuse_changed_model(self) -> bool:
        """Whether the model is made of the same objects, each trained or not as it was. Raises where others are trained."""
        same = not self._changed and self._members.same_tensors()  # of modules the forward pass has seen it
        trained = all([p.requires_grad for p in self.parameters]) and not any([p.requires_grad for p in self._frozen])
        if not (same and trained):
            if {id(p) for p in self._model.parameters() if p.requires_grad} != set(map(id, self.parameters)):
                raise LoopMisuse(OTHER_PARAMETERS)
            self._members, self._frozen, self._changed = Members(self._model), self._now_frozen(), False
            self._probed_modes.clear()
        return same

    def _note_change(self) -> None:
        self._members, self._changed = Members(self._model), True
        self._probed_modes.clear()  # so that it is looked at again

    def _now_frozen(self) -> list[nn.Parameter]:
        return [p for p in self._model.parameters() if not p.requires_grad]

    # -- while recording -----------------------------------------------------------------------------------------------

    def _run_root(self, unit: Unit | None, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        trains = self._pass is not None and not self._in_root and not self._outside
        apart = self._own_loss.kept_back(args, kwargs) if trains and self._own_loss is not None else None
        if apart is None:
            return self._run_watched(unit, original, args, kwargs)
        out = self._run_watched(unit, original, (), apart.bare)
        return self._own_loss.put_in(out, apart, lambda **given: self._run_plain(original, (), given))

    def _run_plain(self, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        """The model as it was: nothing is recorded, all that it holds is put back, and it draws alike every time."""
        state = State(self._model)
        witness = None if self._pass is None else self._pass.witness
        with held(with_generators(self._parameters)), torch.no_grad():
            seed_all(0)
            if witness is not None:
                witness.pause(())
            try:
                return original(*args, **kwargs)
            finally:
                state.restore()
                if witness is not None:
                    witness.go_on([])

    def _run_watched(self, unit: Unit | None, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        witness = None if self._pass is None or self._in_root else self._pass.witness
        if witness is None:
            return self._run_model(unit, original, args, kwargs)
        witness.pause((args, kwargs), lost=bool(self._outside))
        out = self._run_model(unit, original, args, kwargs)
        witness.go_on([] if self._outside else self._outputs_with_rows(out))
        return out

    def _run_model(self, unit: Unit | None, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        if self._outside:
            return self._run_outside(original, args, kwargs)
        if self._pass is None and self._probing is None:
            return original(*args, **kwargs)  # no private batch is open: any backward will be refused at the parameters
        if not self._in_root and self._probing is None:
            refuse_transforms()
        if self._probing is None and self._is_new(args, kwargs):
            refuse_mixing_layers(self._model)
            self._refuse_other_rows(args, kwargs)
            self._run_probe(args, kwargs)
            return self._model.forward(*args, **kwargs)  # the probe may have replaced the units
        outer, self._in_root = self._in_root, True
        if self._pass is not None and not outer and _need_gradients(args, kwargs):
            refuse_trained_inputs(_tensors((args, kwargs)))
            self._pass.inputs_need_gradients = True
        try:
            out = original(*args, **kwargs) if unit is None else self._run_unit(unit, original, args, kwargs)
        finally:
            self._in_root = outer
        if not outer:
            self._note_outputs(out, args, kwargs)
        return out

    def _note_outputs(self, out: Any, args: Args, kwargs: Kwargs) -> None:
        """Where the rows are in each output: the dimension that grew from two rows to three when the model was looked at."""
        if isinstance(self._probing, Bare):
            return
        leaves = _tensors(out)
        if self._probing is not None:
            n, given = self._probing.rows, leaves_of((args, kwargs))[0]
            if all(given[i].shape[0] == n for i in self._square):  # not the other reading of a square argument
                self._output_shapes[n] = [x.shape for x in leaves]
            return
        for x, dim in self._with_rows(leaves):
            mark(x, self._pass, dim)

    def _with_rows(self, leaves: list[Tensor]) -> list[tuple[Tensor, int | None]]:
        known = self._output_dims
        if len(known) != len(leaves):
            return [(x, None) for x in leaves]
        return [(x, dim if x.dim() == dims else None) for x, (dims, dim) in zip(leaves, known, strict=True)]

    def _dims_of_outputs(self) -> list[tuple[int, int | None]]:
        """Of each output of the model: how many dimensions it has, and which of them grew with the rows."""
        two, three = (self._output_shapes.get(n, []) for n in (2, 3))
        if len(two) != len(three):
            return []
        grew = [grown(a, b) for a, b in zip(two, three, strict=True)]
        return [(len(a), None if dim is None or dim < 0 else dim) for a, dim in zip(two, grew, strict=True)]

    def _outputs_with_rows(self, out: Any) -> list[tuple[Tensor, int]]:
        leaves = _tensors(out)
        return [(x, dim) for x, dim in self._with_rows(leaves) if dim is not None]

    def _run_outside(self, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        def refuse_late(_: Tensor) -> None:
            if not self._outside:
                raise LoopMisuse(
                    "backward() came after the block of private.outside() in which the model was called; nothing was changed. Call it inside the "
                    "block, too"
                )

        out = original(*args, **kwargs)
        for x in tree_flatten(out)[0]:
            if isinstance(x, Tensor) and x.requires_grad:
                # A checkpoint that is run again later would take the open batch for its own.
                x.register_hook(refuse_late)
        return out

    def _is_new(self, args: Args, kwargs: Kwargs) -> bool:
        """One look is enough, except that what is spread broadcasts otherwise against dimensions of size 1, 2 or 3; that what
        runs generically must know each of its arguments; that padding is looked at where there is some; and that a model
        which counts its calls, or draws, may do something else later: it is looked at again at the 2nd, 4th, 8th ... batch. A batch
        that did not show enough (one record of one word) is followed by another look. So is a change of what the model is made of."""
        if not self._members.same_structure():
            self._note_change()
        if self._members.modes() not in self._probed_modes or (self._padding is not None and not self._padding_probed):
            return True
        if self._unsure_at is not None and self._calls > self._unsure_at:
            return True
        if self._varies and self._calls > self._looked_at and self._calls & (self._calls - 1) == 0:
            return True
        if self._fast:
            return False
        if any(u.is_generic for u in self._units) and signature(args, kwargs) != self._probed_as:
            return True
        return any(u.spread or u.own for u in self._units) and self._layout(args, kwargs) not in self._probed

    def _layout(self, args: Args, kwargs: Kwargs) -> Hashable:
        shapes = (x.shape for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor))
        return self._model.training, tuple(tuple(min(size, 4) for size in shape) for shape in shapes)

    def _refuse_other_rows(self, args: Args, kwargs: Kwargs) -> None:
        rows = self._pass.rows if self._pass else -1
        leaves = leaves_of((args, kwargs))[0]
        if has_packed((args, kwargs)):
            return
        if not any(isinstance(x, Tensor) and not {rows, rows + 1}.isdisjoint(x.shape[:2]) for x in leaves):
            raise Unsupported(
                "the model was called with no tensor that has the batch from private.loader in its first or second dimension. Give it each "
                "batch whole, as padded tensors with one row a record; evaluate other data under torch.no_grad()"
            )

    def _run_unit(self, unit: Unit, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        if self._outside:
            return self._run_outside(original, args, kwargs)
        if kwargs:
            kwargs = dict(sorted(kwargs.items()))
        if self._probing is not None:
            return self._probing.run(unit, original, args, kwargs)
        current = self._pass
        if current is None:
            return original(*args, **kwargs)
        if (
            not self._in_root and torch._C._current_graph_task_id() == -1
        ):  # nor an activation checkpoint, in the backward pass
            raise Unsupported(
                f"layer {unit.name or type(unit.module).__name__!r} was called from outside the model that was attached; "
                "call the model itself (move the code into its forward), so that Clipwise can see the whole computation"
            )
        if unit.own:
            return self._run_own(current, unit, original, args, kwargs)
        if unit.layer is None:
            return run_generic(
                unit,
                lambda p: self._spread(current, p, torch.Size((current.rows, *p.shape))),
                _rows_of(unit, args, kwargs, current.rows),
                original,
                args,
                kwargs,
            )

        batch_dim = _dim_of_rows(unit, args, kwargs, current.rows) if unit.batch_dim is None else unit.batch_dim

        return unit.layer.forward(unit.module, self._tapping(current, unit, batch_dim), *args, **kwargs)

    def _tapping(self, current: Pass, unit: Unit, batch_dim: int) -> layers.Tap:
        """What a layer's rule hands its output to."""

        def tap(
            out: Tensor,
            kernel: Kernel,
            params: Mapping[str, Tensor | None],
            saved: tuple[Tensor, ...],
            config: Hashable = None,
            rows_dim: int | None = None,
            pieces: Mapping[str, slice] | None = None,
        ) -> Tensor:
            wanted = {role: p for role, p in params.items() if isinstance(p, nn.Parameter) and id(p) in self._names}
            if not wanted:
                return out
            call = Call(kernel, wanted, config, pieces or {})
            kept = [s.detach() for s in saved]
            if unit.spread:
                receive = self._receiver(current, call, 0, unit.name)
                out = SpreadNode.apply(out, self._dummy, kept, receive, spread_shape(out, current.rows))  # type: ignore[no-untyped-call]
                mark(out, current, 0)
                return out
            if out._is_view():
                # F.linear on three dimensions ends in a view, and autograd writes the gradient of a view that is marked
                # dirty four times over. This alias is no view; nothing upstream keeps a layer's output.
                out = torch.ops.aten._unsafe_view(out, out.shape)
            dim = batch_dim if rows_dim is None else rows_dim
            if can_hook(out) and not current.inputs_need_gradients:
                hook_on(out, self._receiver(current, call, dim, unit.name, kept))
            else:
                receive = self._receiver(current, call, dim, unit.name)
                out = TapNode.apply(out, self._dummy, kept, receive)  # type: ignore[no-untyped-call]
            mark(out, current, dim)
            return out

        return tap

    def _run_own(self, current: Pass, unit: Unit, original: Forward, args: Args, kwargs: Kwargs) -> Any:
        def spread(p: nn.Parameter) -> Tensor | None:
            return self._spread(current, p, unit.own_shape(p, current.rows, args, kwargs))

        with swapped(unit.holders(), spread):
            return original(*args, **kwargs)

    def _spread(self, current: Pass, p: nn.Parameter, shape: torch.Size) -> Tensor | None:
        if id(p) not in self._names:
            return None
        receive = self._receiver(current, Call(PER_EXAMPLE, {"parameter": p}), 0, self._names[id(p)])
        out: Tensor = SpreadNode.apply(p.detach(), self._dummy, [], receive, shape)  # type: ignore[no-untyped-call]
        mark(out, current, 0)
        return out

    def _receiver(self, current: Pass, call: Call, dim: int, name: str, saved: list[Tensor] | None = None) -> Receive:
        """`saved`: where it is the tap that keeps what the kernel needs, and not the graph."""
        current.note(call)
        tap = Tap(current, call, dim, name)
        if saved is not None:
            tap.keep(saved)
        return partial(self._receive, tap)

    def _receive(self, tap: Tap, b: Tensor, saved: tuple[Tensor, ...] | None) -> None:
        """The gradient of a tapped output arrives, in the backward pass."""
        current, call, dim = tap.current, tap.call, tap.dim
        if current.trial is not None:
            current.trial.arrive(id(tap), tap.name, b.movedim(dim, 0))
            return
        shared = current.is_shared(call)
        self._refuse_gradient(tap, b, shared)
        if current.foreseen is not None and not current.foreseen.keeps(id(tap), b.movedim(dim, 0)):
            current.received = False
            raise mixed_at(tap.name)
        if not current.received:
            self._held_back.put()
        tap.used = current.received = True
        if saved is None:
            saved = tap.take()
        if dim:
            b, saved = b.movedim(dim, 0), tuple(s.movedim(dim, 0) for s in saved)
        # What is measured and summed must not be rounded to half precision again, or the bound would not hold.
        p = next(iter(call.params.values()))
        b, saved = widened_for(p, b), tuple([widened_for(p, s) for s in saved])
        with current.exact_products(b.device):
            if shared:
                current.add_shared(call, call.kernel.direct(call, saved, b))
            else:
                current.parts.append((call, self._chooser.part(call, saved, b)))
                current.alone.update(map(id, call.params.values()))

    def _refuse_gradient(self, tap: Tap, b: Tensor, shared: bool) -> None:
        """Raise where this gradient must not be taken."""
        current = tap.current
        why = None
        if tap.used or current is not self._pass:
            why = (
                "loss.backward() ran twice through the same batch, or on a batch that is over; nothing was changed. "
                "Call it once for each batch that the loader gives; gradients that are not trained on (adversarial examples) belong into "
                "a block of private.outside()"
            )
        elif self._outside:
            why = (
                "backward() in a block of private.outside() went through a call of the model that came before the block; nothing was changed. "
                "Call the model inside the block, too"
            )
        elif torch.is_grad_enabled():
            why = (
                "backward(create_graph=True), which a gradient penalty needs, would differentiate through clipping; call loss.backward() without "
                "it. Instead of a penalty, clamp the weights after optimizer.step() under torch.no_grad(), which costs no privacy; second "
                "derivatives that are not trained on belong into a block of private.outside()"
            )
        elif b.shape[tap.dim] != current.rows:
            why = (
                f"layer {tap.name!r} was run on another number of rows than the batch from private.loader has; "
                "use each batch whole, and evaluate other data under torch.no_grad()"
            )
        elif not current.passes:
            why = (
                "a backward pass reached the model that Clipwise could not see from its beginning; nothing was changed. Start it by "
                "loss.backward() or private.backward(losses)"
            )
        elif current.looked_at is not None and id(tap) not in current.looked_at:
            why = (
                f"a gradient came to layer {tap.name!r} by a way that was not seen when the loss was looked at; nothing was changed. Give the "
                "model inputs that need no gradient (detach them), or keep what needs one inside private.outside()"
            )
        elif shared and current.measured_apart(tap.call):
            why = (
                "the batch went through the model and loss.backward() twice before optimizer.step(); nothing was changed. Add the "
                "losses and call backward() once; gradients that are not trained on (adversarial examples) belong into a block of "
                "private.outside()"
            )
        elif current.scale != 1 and b.dtype in HALF:
            why = (
                "a mean over the batch in half precision: one record more would round all the others' gradients in another way; "
                "nothing was changed. Reduce the loss by a sum, and attach with loss_reduction='sum' (steps are as long as before)"
            )
        if why is not None:
            current.received = False  # whatever was recorded of this batch: the step will refuse it
            raise LoopMisuse(why)

    def _stray_hook(self, p: nn.Parameter) -> Callable[[Tensor | None], None]:
        def hook(gradient: Tensor | None) -> None:
            if gradient is not None and self._probing is None:  # the probe looks for such gradients itself
                self._refuse_stray_gradient(p)

        hook.of_the_engine = True  # type: ignore[attr-defined]  # none of the user's, which see released gradients
        return hook

    def _refuse_stray_gradient(self, p: nn.Parameter) -> None:
        p.grad = None  # not even the last step's, which it would have been added to
        if self._pass is not None:
            self._pass.received = False
        raise Unsupported(
            f"parameter {self._names.get(id(p), '?')!r} got a gradient past its layer: it is used outside the model's forward (a weight "
            "penalty in the loss?) or the backward pass ran on data that did not come from private.loader. Use the optimizer's "
            "weight_decay for penalties, torch.no_grad() for other data, and a block of private.outside() for gradients that are not "
            "trained on"
        )

    # -- the first batch
    # ------------------------------------------------------------------------------------------------

    def _run_probe(self, args: Args, kwargs: Kwargs) -> None:
        current = self._pass
        if current is None:
            raise RuntimeError("the probe needs an open batch")

        def attempt(units: list[Unit], look: Probe | Bare, *given: Any, **named: Any) -> Any:
            self._probing, self._pass = look, None
            if units is not self._units:
                self._restore_forwards()
                self._units = units
                self._replace_forwards()
            return self._model(*given, **named)

        leaves = leaves_of((args, kwargs))[0]
        both = (current.rows, current.rows) if self._batch_dim is None else None
        self._square = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.shape[:2] == both]
        bags = bags_of(self._model, lambda: self._run_plain(self._model, args, kwargs), leaves, current.rows)
        try:
            found = probe(
                self._model,
                self._units,
                self._without_spreading,
                self._parameters,
                current.rows,
                args,
                kwargs,
                attempt,
                self._tell,
                self._padding,
                self._calls,
                self._batch_dim,
                bags,
            )
            self._units, self._varies, self._looked_at = found.units, self._varies or found.varies, self._calls
            self._fast = not any(u.is_generic or u.spread or u.own for u in found.units)
            self._unsure_at = None if found.last else self._calls
            self._watch.may_move |= found.may_move
            self._padding_probed |= self._padding is not None
            self._probed.add(self._layout(args, kwargs))
            self._probed_as = signature(args, kwargs)
            self._probed_modes.add(self._members.modes())
            self._output_dims = self._dims_of_outputs()
        finally:
            self._restore_forwards()
            self._replace_forwards()
            self._probing, self._pass = None, current

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._notify(message)


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):  # most outputs: flattening takes longer than a layer
        return [tree]
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def _need_gradients(args: Args, kwargs: Kwargs) -> bool:
    if (
        not kwargs and len(args) == 1 and isinstance(args[0], Tensor)
    ):  # most calls: flattening takes longer than a layer
        return args[0].requires_grad
    return any(isinstance(x, Tensor) and x.requires_grad for x in tree_flatten((args, kwargs))[0])


def _dim_of_rows(unit: Unit, args: Args, kwargs: Kwargs, rows: int) -> int:
    """For a layer that no batch has gone through before (a branch that was not taken): by its length, where that is
    clear."""
    shapes = tensor_shapes((args, kwargs))
    found = [d for d, size in enumerate(shapes[0][:2]) if size == rows] if shapes else []
    if len(found) != 1 and not unit.spread:
        raise Unsupported(
            f"layer {unit.name!r} was not called for the first batch, and which dimension of its input is the batch cannot be told now. "
            "Let the model call it for every batch"
        )
    return found[0] if found else 0


def _rows_of(unit: Unit, args: Args, kwargs: Kwargs, otherwise: int) -> int:
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    for x, dim in zip(tensors, unit.arg_dims or [], strict=False):
        if dim is not None:
            return x.shape[dim]
    return otherwise


def _recording_forward(engine: Bookkeeping, run: Forward, unit: Unit | None, original: Forward) -> Forward:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # A deep copy of the model (an average of weights, say) carries this function along, and is none of our
        # business.
        if not engine.knows(self):
            return type(self).forward(self, *args, **kwargs)
        if not torch.is_grad_enabled():
            return original(*args, **kwargs)
        return run(unit, original, args, kwargs)

    forward.is_recording = True  # type: ignore[attr-defined]
    # A compiled graph would fold the taps away, or keep those of its first batch: what is between them may be compiled.
    uncompiled: Forward = torch.compiler.disable(forward)
    return uncompiled
