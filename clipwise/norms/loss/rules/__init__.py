"""What each operation of the graph does to rows: a table, node name -> rule.

The value at an edge of the graph is one of two kinds:

    Rows      one slice a row along a dimension; slice i is a function of row i alone
    Reduced   a sum over the rows: each term is a factor times the sum of one value a row

Elementwise operations and those along other dimensions keep Rows; a sum or mean over the rows turns them into Reduced;
on Reduced only linear operations follow, with numbers that are known. Everything else raises NotRowWise (it mixes rows)
or Unknown. A dimension of `outer * rows * inner` numbers holds rows that were merged with others by a view (texts of T
words as rows * T words: inner = T).

Constants: a tensor without gradient that has one slice a row is data of these rows. A number on Rows is a part of each
row's loss, and must be the same in every batch (`numbers`); one that stands between the last function of the row and
the sum (`scale`) may be a part of the reduction instead. Any other tensor is shared by all rows and may have been made
from them: its value must be accounted for by the reduction (`suspect`).
"""

from __future__ import annotations

from clipwise.norms.loss.rules.dimensions import along, mean_over, over, over_all, sum_over
from clipwise.norms.loss.rules.elementwise import (
    add,
    combined,
    divide,
    divided,
    elementwise,
    linear,
    masked_fill,
    multiply,
    negative,
    scaled,
    subtract,
)
from clipwise.norms.loss.rules.losses import ctc, loss_of_numbers, loss_of_rows, nll
from clipwise.norms.loss.rules.shapes import (
    batch_product,
    cat,
    expand,
    gather,
    index,
    layer_norm,
    matrix_product,
    part,
    permute,
    select,
    squeeze,
    stack,
    transpose,
    transpose_last,
    unsqueeze,
    view,
)
from clipwise.norms.loss.rules.state import Leaf, Op, Rows, Rule, State


def _named(rule: Rule, names: str) -> dict[str, Rule]:
    """`Name` stands for NameBackward0, `Name:1` for NameBackward1."""
    pairs = (name.partition(":") for name in names.split())
    return {f"{name}Backward{number or 0}": rule for name, _, number in pairs}


def leaf(op: Op) -> State:
    """A tensor of the user's own that asks for a gradient: the batch itself, or nothing that is known."""
    op.once = True
    shape = tuple(op.node.variable.shape)
    if not shape or shape[0] != op.rows:
        raise Leaf(
            f"the loss takes a tensor of shape {shape} that asks for a gradient past the model's layers: a penalty on its weights (use "
            "the optimizer's weight_decay), or a parameter outside the model (put it into the model)"
        )
    return Rows(0)


RULES: dict[str, Rule] = {
    "torch::autograd::AccumulateGrad": leaf,
    **_named(
        elementwise,
        "Relu Sigmoid Tanh Exp Exp2 Expm1 Log Log1P Log2 Log10 Sqrt Rsqrt Abs Sgn Pow Pow:2 Clamp:1 ClampMin ClampMax Softplus LogSigmoid "
        "Gelu Silu Elu LeakyRelu Hardtanh Hardsigmoid Hardswish Mish Threshold Erf Erfc Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh "
        "Atanh Reciprocal NanToNum Lgamma Digamma Logit Sinc NativeDropout",
    ),
    **_named(linear, "ToCopy Clone Alias Add:1 Sub:1"),
    **_named(negative, "Neg Rsub:1"),
    **_named(scaled, "Mul:1"),
    **_named(divided, "Div:1"),
    **_named(add, "Add"),
    **_named(subtract, "Sub"),
    **_named(multiply, "Mul"),
    **_named(divide, "Div"),
    **_named(combined("self", "other"), "Maximum Minimum Fmax Fmin Atan2 Xlogy Logaddexp Hypot"),
    **_named(combined("self", "exponent"), "Pow:1"),
    **_named(combined("condition"), "Where"),
    **_named(combined("min", "max"), "Clamp ClampMin:1 ClampMax:1"),
    **_named(masked_fill, "MaskedFill"),
    **_named(along, "LogSoftmax Softmax Cumsum Cumprod Logcumsumexp Sort Topk Kthvalue Glu"),
    **_named(over, "Logsumexp Max Min Amax Amin Norm:1 Norm:3 LinalgVectorNorm Var Std Prod:1 Median:1 Mode"),
    **_named(over_all, "Max:1 Min:1 Median Norm Norm:2 Prod"),
    **_named(sum_over, "Sum Sum:1"),
    **_named(mean_over, "Mean Mean:1"),
    **_named(view, "View UnsafeView ReshapeAlias"),
    **_named(permute, "Permute"),
    **_named(transpose, "Transpose"),
    **_named(transpose_last, "T"),
    **_named(squeeze, "Squeeze Squeeze:1 Squeeze:2"),
    **_named(unsqueeze, "Unsqueeze"),
    **_named(expand, "Expand"),
    **_named(select, "Select Unbind"),
    **_named(part, "Slice Split SplitWithSizes"),
    **_named(gather, "Gather IndexSelect"),
    **_named(layer_norm, "NativeLayerNorm"),
    **_named(index, "Index"),
    **_named(cat, "Cat"),
    **_named(stack, "Stack"),
    **_named(batch_product, "Bmm"),
    **_named(matrix_product, "Mm Addmm Mv Dot Addmv Linear"),
    **_named(
        loss_of_numbers,
        "MseLoss SmoothL1Loss HuberLoss BinaryCrossEntropy BinaryCrossEntropyWithLogits SoftMarginLoss",
    ),
    **_named(loss_of_rows, "MultiMarginLoss MultilabelMarginLoss"),
    **_named(nll, "NllLoss NllLoss2D"),
    **_named(ctc, "CtcLoss"),
}
