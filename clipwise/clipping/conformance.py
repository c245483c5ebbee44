"""The conformance suite: what every clipping method must do, whatever its formula.

`check(method)` runs it all and raises `Nonconforming` with the name of the rule that was broken. Every method of the
registry joins it by being there; whoever writes one elsewhere calls `check` in their own tests. It calls nothing but
the contract.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any

import torch
from torch import Tensor

from clipwise.clipping.contract import Context, Method
from clipwise.types import ClipwiseError, Decision, Released

CONTEXT = Context(expected_batch_size=64.0, noise_multiplier=1.0, parameters=10, steps=100, sample_rate=0.5)
HOSTILE = [
    0.0,
    5e-324,
    1e-310,
    1e-38,
    1e-12,
    1e-3,
    0.01,
    0.5,
    1 - 1e-12,
    1.0,
    1 + 1e-12,
    3.0,
    10.0,
    1e6,
    1e19,
    1e30,
    1e38,
    1e300,
]
BROKEN = [math.inf, math.nan]
ROUNDING = 2.0**-40  # norms are float64 in the step


class Nonconforming(ClipwiseError, AssertionError):
    """A method breaks a rule of the clipping contract."""


def check(method: Method, context: Context = CONTEXT) -> None:
    state = method.init(context)
    for step in range(4):
        check_noise(method, state, context, step)
        check_bound(method, state)
        check_rows_are_independent(method, state)
        check_empty_batch(method, state)
        check_split_is_exact(method, state)
        check_side_queries(method, state, context)
        check_purity(method, state)
        check_state_round_trip(state)
        state = check_update(method, state, context, step)


def _norms(values: list[float] | None = None) -> Tensor:
    return torch.tensor(HOSTILE + BROKEN if values is None else values, dtype=torch.float64)


def _groups(norms: Tensor) -> Tensor:
    return torch.arange(len(norms)) % 2


def _decide(method: Method, state: Any, norms: Tensor) -> Decision:
    return method.decide(state, norms, _groups(norms))


def _need(holds: bool, rule: str, method: Method) -> None:
    if not holds:
        raise Nonconforming(f"method {method.name!r}: {rule}")


def check_bound(method: Method, state: Any) -> None:
    """weight * norm <= l2_bound for any norm; a non-finite norm gets weight 0; weights are finite and not negative."""
    norms = _norms()
    bound = method.l2_bound(state)
    _need(math.isfinite(bound) and bound > 0, "l2_bound is finite and above 0", method)
    for scale in (1.0, bound, 1 / bound):
        given = norms * scale
        weights = _decide(method, state, given).weights
        finite = given.isfinite()
        _need(weights.shape == given.shape, "one weight a row", method)
        _need(bool(weights.isfinite().all() and (weights >= 0).all()), "weights are finite and not negative", method)
        _need(bool((weights[~finite] == 0).all()), "a non-finite norm gets weight 0", method)
        _need(
            bool(((weights * given)[finite] <= bound * (1 + ROUNDING)).all()),
            "weight * norm stays within l2_bound",
            method,
        )


def check_noise(method: Method, state: Any, context: Context, step: int) -> None:
    """Noise is never scaled by less than the bound, whatever the side answers; its own path is public and falls."""
    for answer in (-1e9, 0.0, 1e9):
        sides = {query.name: torch.full((query.width,), answer) for query in method.side_queries(context)}
        scale = method.noise_scale(state, sides, context)
        _need(scale >= method.l2_bound(state), "noise_scale is never below l2_bound", method)
    _need(0 < method.noise_factor(context, step) <= 1, "noise_factor lies in (0, 1]", method)


def check_rows_are_independent(method: Method, state: Any) -> None:
    """Row i of a decision depends on row i alone: each row by itself gives the same numbers."""
    norms = _norms()
    whole = _decide(method, state, norms)
    for i in range(len(norms)):
        one = method.decide(state, norms[i : i + 1], _groups(norms)[i : i + 1])
        _need(torch.equal(whole.weights[i : i + 1], one.weights), "a weight depends on its own row alone", method)
        for name, rows in whole.rows.items():
            _need(torch.equal(rows[i : i + 1], one.rows[name]), "a side row depends on its own row alone", method)
        for name, weights in whole.gradient_rows.items():
            _need(
                torch.equal(weights[i : i + 1], one.gradient_rows[name]),
                "a gradient row depends on its own row alone",
                method,
            )


def check_empty_batch(method: Method, state: Any) -> None:
    decision = _decide(method, state, _norms([]))
    _need(decision.weights.shape == (0,), "an empty batch gives no weights", method)
    _need(all(rows.shape[0] == 0 for rows in decision.rows.values()), "an empty batch gives no side rows", method)


def check_split_is_exact(method: Method, state: Any) -> None:
    """Deciding on two halves is deciding on the whole."""
    norms = _norms()
    groups = _groups(norms)
    parts = [method.decide(state, norms[s], groups[s]) for s in (slice(0, 7), slice(7, None))]
    whole = method.decide(state, norms, groups)
    _need(
        torch.equal(torch.cat([p.weights for p in parts]), whole.weights), "splitting a batch changes no weight", method
    )
    for name, rows in whole.rows.items():
        _need(
            torch.equal(torch.cat([p.rows[name] for p in parts]), rows), "splitting a batch changes no side row", method
        )


def check_side_queries(method: Method, state: Any, context: Context) -> None:
    """Each declared query is answered, no other, and every row keeps its declared l2 bound."""
    norms = _norms()
    decision = _decide(method, state, norms)
    declared = {query.name: query for query in method.side_queries(context)}
    answered = {**decision.rows, **decision.gradient_rows}
    _need(set(declared) == set(answered), "side queries declared and answered are the same", method)
    for name, rows in decision.rows.items():
        lengths = torch.linalg.vector_norm(rows.double(), dim=1)
        _need(rows.shape == (len(norms), declared[name].width), "a side row has the declared width", method)
        _need(
            bool((lengths <= declared[name].l2_bound * (1 + ROUNDING)).all()),
            "a side row stays within its l2 bound",
            method,
        )
    for name, weights in decision.gradient_rows.items():
        finite = norms.isfinite()
        reach = (weights * norms)[finite]
        _need(
            bool((reach <= declared[name].l2_bound * (1 + ROUNDING)).all()),
            "a gradient row stays within its l2 bound",
            method,
        )
        _need(bool((weights[~finite] == 0).all()), "a non-finite norm has no gradient row", method)


def check_purity(method: Method, state: Any) -> None:
    """Deciding twice gives the same, changes neither state nor norms, and leaves nothing on the method."""
    norms = _norms()
    options = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    before_state, before_norms = copy.deepcopy(state), norms.clone()
    first = _decide(method, state, norms)
    method.decide(state, _norms([0.1, 7.0]), torch.tensor([0, 1]))
    second = _decide(method, state, norms)
    _need(torch.equal(first.weights, second.weights), "deciding twice gives the same", method)
    _need(_same(state, before_state), "decide does not change the state", method)
    _need(torch.equal(norms.nan_to_num(-1), before_norms.nan_to_num(-1)), "decide does not change the norms", method)
    _need(method.__dict__ == options, "decide leaves nothing on the method", method)


def check_state_round_trip(state: Any) -> None:
    """A state survives being written as JSON and read back."""
    plain = [value.tolist() if isinstance(value, Tensor) else value for value in state]
    again = type(state)(
        *(
            torch.tensor(r, dtype=v.dtype) if isinstance(v, Tensor) else r
            for r, v in zip(json.loads(json.dumps(plain)), state, strict=True)
        )
    )
    if not _same(state, again):
        raise Nonconforming(f"a state of type {type(state).__name__} does not survive a round trip")


def check_update(method: Method, state: Any, context: Context, step: int) -> Any:
    """The next state is a function of (state, released): the same twice, without touching its arguments or keeping
    the released memory."""
    generator = torch.Generator().manual_seed(step)
    gradient = (torch.randn(context.parameters, generator=generator),)
    sides, side_gradients = {}, {}
    for query in method.side_queries(context):
        if query.width:
            sides[query.name] = 20 * torch.randn(query.width, generator=generator, dtype=torch.float64)
        else:
            side_gradients[query.name] = (torch.randn(context.parameters, generator=generator),)
    released = Released(gradient, sides, side_gradients)
    kept = copy.deepcopy(released)
    before = copy.deepcopy(state)
    following = method.update(state, released, context, step)
    _need(
        _same(following, method.update(before, kept, context, step)),
        "update is a function of state and released values",
        method,
    )
    _need(_same(state, before), "update does not change the state it was given", method)
    for value in following:
        shared = isinstance(value, Tensor) and any(value.data_ptr() == g.data_ptr() for g in gradient)
        _need(not shared, "update copies what it keeps of the released gradient", method)
    bound = method.l2_bound(following)
    _need(math.isfinite(bound) and bound > 0, "the next l2_bound is finite and above 0", method)
    return following


def _same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, Tensor) else x == y or (x != x and y != y) for x, y in zip(a, b, strict=True)
    )
