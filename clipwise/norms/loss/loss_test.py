# ruff: noqa: ARG005 - the cases share one signature
"""torch's losses, each in its row-wise forms, against the loop over single rows; and how the walk reads shapes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clipwise.norms.bookkeeping import Bookkeeping
from clipwise.norms.loss import rowwise
from clipwise.norms.loss.graph import reach, walk
from clipwise.norms.loss.marks import mark
from clipwise.norms.loss.rules import RULES
from clipwise.norms.loss.rules.state import NotRowWise, Rows, Unknown
from clipwise.types import LoopMisuse

ROWS = 6


class Outputs(nn.Module):
    """Two outputs a row, each of a shape; `time_first` for losses that want (T, rows, classes)."""

    def __init__(self, *shape, time_first=False):
        super().__init__()
        self.a, self.b = (nn.Linear(5, torch.Size(shape).numel()) for _ in range(2))
        self.shape, self.time_first = shape, time_first

    def forward(self, x):
        a, b = self.a(x).unflatten(1, self.shape), self.b(x.tanh()).unflatten(1, self.shape)
        return (a.transpose(0, 1), b.transpose(0, 1)) if self.time_first else (a, b)


torch.manual_seed(0)
X, T, Y = torch.randn(ROWS, 5), torch.randn(ROWS, 4), torch.arange(ROWS) % 4
P = T.softmax(1)
SIGN = T.sign()
PAIR = torch.tensor([1, -1] * 3)
GRID = torch.arange(ROWS * 4).view(ROWS, 2, 2) % 3
WORDS = torch.arange(ROWS * 5).view(ROWS, 5) % 3


def log_p(a):
    return a.log_softmax(1)


# name: (outputs, loss(a, b, i, reduction) of the rows i)
VECTOR = (4,)
LOSSES = {
    "cross_entropy": (VECTOR, lambda a, b, i, r: F.cross_entropy(a, Y[i], reduction=r)),
    "label_smoothing": (VECTOR, lambda a, b, i, r: F.cross_entropy(a, Y[i], reduction=r, label_smoothing=0.1)),
    "cross_entropy, shares": (VECTOR, lambda a, b, i, r: F.cross_entropy(a, P[i], reduction=r)),
    "label_smoothing, shares": (VECTOR, lambda a, b, i, r: F.cross_entropy(a, P[i], reduction=r, label_smoothing=0.2)),
    "cross_entropy of pixels": ((3, 2, 2), lambda a, b, i, r: F.cross_entropy(a, GRID[i], reduction=r)),
    "label_smoothing of pixels": ((3, 2, 2), lambda a, b, i, r: F.cross_entropy(a, GRID[i], reduction=r, label_smoothing=0.1)),
    "cross_entropy of words": ((5, 3), lambda a, b, i, r: F.cross_entropy(a.flatten(0, 1), WORDS[i].flatten(), reduction=r)),
    "label_smoothing of words": (
        (5, 3),
        lambda a, b, i, r: F.cross_entropy(a.flatten(0, 1), WORDS[i].flatten(), reduction=r, label_smoothing=0.1),
    ),
    "cross_entropy of words, classes first": ((5, 3), lambda a, b, i, r: F.cross_entropy(a.mT, WORDS[i], reduction=r)),
    "nll_loss": (VECTOR, lambda a, b, i, r: F.nll_loss(log_p(a), Y[i], reduction=r)),
    "mse_loss": (VECTOR, lambda a, b, i, r: F.mse_loss(a, T[i], reduction=r)),
    "mse_loss of two outputs": (VECTOR, lambda a, b, i, r: F.mse_loss(a, b, reduction=r)),
    "l1_loss": (VECTOR, lambda a, b, i, r: F.l1_loss(a, T[i], reduction=r)),
    "smooth_l1_loss": (VECTOR, lambda a, b, i, r: F.smooth_l1_loss(a, T[i], reduction=r)),
    "huber_loss": (VECTOR, lambda a, b, i, r: F.huber_loss(a, T[i], reduction=r)),
    "binary_cross_entropy": (VECTOR, lambda a, b, i, r: F.binary_cross_entropy(a.sigmoid(), (T[i] > 0).float(), reduction=r)),
    "binary_cross_entropy, weighed places": (
        VECTOR,
        lambda a, b, i, r: F.binary_cross_entropy(a.sigmoid(), (T[i] > 0).float(), weight=T[i].abs(), reduction=r),
    ),
    "binary_cross_entropy_with_logits": (
        VECTOR,
        lambda a, b, i, r: F.binary_cross_entropy_with_logits(a, (T[i] > 0).float(), reduction=r),
    ),
    "kl_div": (VECTOR, lambda a, b, i, r: F.kl_div(log_p(a), P[i], reduction="batchmean" if r == "mean" else r)),
    "kl_div, log_target": (
        VECTOR,
        lambda a, b, i, r: F.kl_div(log_p(a), P[i].log(), log_target=True, reduction="batchmean" if r == "mean" else r),
    ),
    "gaussian_nll_loss": (VECTOR, lambda a, b, i, r: F.gaussian_nll_loss(a, T[i], b.exp(), reduction=r)),
    "poisson_nll_loss": (VECTOR, lambda a, b, i, r: F.poisson_nll_loss(a, T[i].abs(), reduction=r)),
    "poisson_nll_loss, full": (
        VECTOR,
        lambda a, b, i, r: F.poisson_nll_loss(a.exp(), T[i].abs(), log_input=False, full=True, reduction=r),
    ),
    "cosine_embedding_loss": (VECTOR, lambda a, b, i, r: F.cosine_embedding_loss(a, b, PAIR[i], reduction=r)),
    "triplet_margin_loss": (VECTOR, lambda a, b, i, r: F.triplet_margin_loss(a, b, T[i], reduction=r)),
    "triplet_margin_loss, swap": (VECTOR, lambda a, b, i, r: F.triplet_margin_loss(a, b, T[i], swap=True, reduction=r)),
    "triplet_margin_with_distance_loss": (
        VECTOR,
        lambda a, b, i, r: F.triplet_margin_with_distance_loss(a, b, T[i], reduction=r),
    ),
    "multilabel_soft_margin_loss": (
        VECTOR,
        lambda a, b, i, r: F.multilabel_soft_margin_loss(a, (T[i] > 0).float(), reduction=r),
    ),
    "multilabel_margin_loss": (
        VECTOR,
        lambda a, b, i, r: F.multilabel_margin_loss(a, torch.tensor([[0, 1, -1, -1]] * len(a)), reduction=r),
    ),
    "multi_margin_loss": (VECTOR, lambda a, b, i, r: F.multi_margin_loss(a, Y[i], reduction=r)),
    "soft_margin_loss": (VECTOR, lambda a, b, i, r: F.soft_margin_loss(a, SIGN[i], reduction=r)),
    "hinge_embedding_loss": (VECTOR, lambda a, b, i, r: F.hinge_embedding_loss(a, SIGN[i], reduction=r)),
    "margin_ranking_loss": (
        VECTOR,
        lambda a, b, i, r: F.margin_ranking_loss(a[:, 0], b[:, 1], SIGN[i, 0], reduction=r),
    ),
    "ctc_loss": (
        (7, 4),
        lambda a, b, i, r: F.ctc_loss(
            a.log_softmax(2),
            torch.tensor([[1, 2]] * a.shape[1]),
            torch.full((a.shape[1],), 7),
            torch.full((a.shape[1],), 2),
            reduction=r,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_torchs_losses_go_through_and_give_each_rows_own_gradient(name, reduction):
    shape, loss = LOSSES[name]
    model = Outputs(*shape, time_first=name == "ctc_loss")
    parameters = dict(model.named_parameters())

    def total(rows):
        value = loss(*model(X[rows]), rows, reduction)
        return value if reduction != "none" else value.reshape(len(X[rows]), -1).sum(1)

    want = []
    for i in range(ROWS):
        grads = torch.autograd.grad(total(slice(i, i + 1)).sum(), list(parameters.values()), allow_unused=True)
        want.append(torch.stack([g.square().sum() for g in grads if g is not None]).sum().sqrt().double())
    engine = Bookkeeping(model, parameters, loss_reduction="mean" if reduction == "none" else reduction)
    engine.install()
    try:
        engine.open(ROWS)
        whole = total(slice(0, ROWS))
        if reduction == "none":
            engine.backward(whole)
        else:
            whole.backward()
        torch.testing.assert_close(engine.close().norms, torch.stack(want), rtol=1e-4, atol=1e-6)
    finally:
        engine.remove()


def test_every_rule_is_of_a_node_that_torch_has():
    assert [name for name in RULES if "::" not in name and not hasattr(torch._C._functions, name)] == []


class Batch:
    rows, over = ROWS, False


def where(function, *shape, dim=0):
    """Where the walk finds the rows after `function`."""
    batch, x = Batch(), torch.randn(shape, requires_grad=True) * 1
    mark(x, batch, dim)
    [row] = walk(reach([function(x).sum()], [1.0]), batch, ROWS).row_values
    return row.rows.where()


@pytest.mark.parametrize(
    ("function", "shape", "dim", "found"),
    [
        (lambda x: x, (ROWS, 4), 0, (0, 1, 1)),
        (lambda x: x.T, (ROWS, 4), 0, (1, 1, 1)),
        (lambda x: x.movedim(0, 2), (ROWS, 4, 3), 0, (2, 1, 1)),
        (lambda x: x.permute(2, 0, 1), (ROWS, 4, 3), 0, (1, 1, 1)),
        (lambda x: x.flatten(0, 1), (ROWS, 4, 3), 0, (0, 1, 4)),
        (lambda x: x.flatten(0, 1), (4, ROWS, 3), 1, (0, 4, 1)),
        (lambda x: x.flatten(), (4, ROWS, 3), 1, (0, 4, 3)),
        (lambda x: x.flatten().view(4, ROWS, 3), (4, ROWS, 3), 1, (1, 1, 1)),
        (lambda x: x.view(-1, 2), (ROWS, 4), 0, (0, 1, 2)),
        (lambda x: x.unsqueeze(0).unsqueeze(-1), (ROWS, 4), 0, (1, 1, 1)),
        (lambda x: x[:, None].squeeze(1), (ROWS, 4), 0, (0, 1, 1)),
        (lambda x: x[:, 1:, 0], (ROWS, 4, 3), 0, (0, 1, 1)),
        (lambda x: x[..., :-1, :], (ROWS, 4, 3), 0, (0, 1, 1)),
        (lambda x: x[:, [0, 2]], (ROWS, 4), 0, (0, 1, 1)),
        (lambda x: x[:, torch.tensor([[0, 1], [2, 3]])], (3, 4, ROWS), 2, (3, 1, 1)),
        (lambda x: x.amax(0), (4, ROWS), 1, (0, 1, 1)),
        (lambda x: x.norm(dim=(0, 2), keepdim=True), (4, ROWS, 3), 1, (1, 1, 1)),
        (lambda x: torch.stack([x, x], 1), (4, ROWS), 1, (2, 1, 1)),
        (lambda x: torch.cat([x, x]), (ROWS, 4), 0, (0, 2, 1)),
        (lambda x: x.chunk(2, 1)[1], (ROWS, 4), 0, (0, 1, 1)),
        (lambda x: x.unbind(1)[1], (ROWS, 4), 0, (0, 1, 1)),
        (lambda x: torch.ones(3, 1, 1) * 2.0 + x, (ROWS, 4), 0, (1, 1, 1)),
        (lambda x: x + torch.ones(2, 5, ROWS, 4), (ROWS, 4), 0, (2, 1, 1)),
    ],
)
def test_rows_are_followed_through_shapes(function, shape, dim, found):
    assert where(function, *shape, dim=dim) == found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(4, ROWS),
        lambda x: x[1:],
        lambda x: x[::2],
        lambda x: x[0],
        lambda x: x[torch.arange(ROWS).flip(0)],
        lambda x: x[torch.zeros(ROWS).long(), torch.zeros(ROWS).long()],
        lambda x: x.softmax(0),
        lambda x: x.amax(0),
        lambda x: x.flatten().softmax(0),
        lambda x: x.unbind(0)[1],
        lambda x: x.chunk(2)[1],
        lambda x: x.gather(0, torch.zeros(ROWS, 4).long()),
        lambda x: x @ x.T,
        lambda x: x - x.mean(0),
        lambda x: x / x.sum(),
        lambda x: x * x.sum(),
        lambda x: x[:, :1] - x[:, 0],
        lambda x: x[:, 0] + torch.ones(ROWS, 1),
        lambda x: x * torch.ones(4),
        lambda x: torch.where(torch.ones(4) > 0, x, 0),
        lambda x: x * (torch.ones(()) / 3) + x.square(),
        lambda x: torch.cat([x, torch.zeros(1, 4)]),
        lambda x: (x.sum(0) + x.sum()).mean(),
        lambda x: x.sum(0).square(),
        lambda x: x.sum(0) * torch.ones(4),
        lambda x: x.masked_fill(torch.ones(4) > 0, 0),
        lambda x: torch.maximum(x, torch.ones(4)),
        lambda x: x.std(),
    ],
)
def test_what_mixes_rows_or_shares_a_tensor_is_not_followed(function):
    with pytest.raises((NotRowWise, Unknown)):
        where(function, ROWS, 4)


def test_a_number_is_told_from_a_tensor():
    x = torch.randn(ROWS, 4, requires_grad=True) * 1
    for scale, suspect in ((2, False), (0.5, False), (torch.tensor(2), True), (torch.tensor(0.5).double(), True)):
        batch = Batch()
        y = x * 1
        mark(y, batch, 0)
        [term] = walk(reach([(y * scale).sum()], [1.0]), batch, ROWS).total.terms
        assert (term.scale, term.suspect) == (float(scale), suspect)


def test_rows_in_no_single_place_are_unknown():
    batch, x = Batch(), torch.randn(ROWS, 4, requires_grad=True) * 1
    mark(x, batch, None)
    with pytest.raises(Unknown, match="no dimension"):
        walk(reach([x.sum()], [1.0]), batch, ROWS)


def test_rows_know_nothing_of_a_mean_in_half_precision_of_the_loss():
    """The model is float32; its loss is taken to bfloat16 and back."""
    model = nn.Linear(5, 3)
    engine = Bookkeeping(model, dict(model.named_parameters()), loss_reduction="mean")
    engine.install()
    try:
        engine.open(ROWS)
        with pytest.raises(LoopMisuse, match="half precision"):
            model(X).bfloat16().square().mean().float().backward()
    finally:
        engine.remove()


def test_the_first_kind_of_value_is_rows():
    assert Rows(0).fixed() == Rows(0)
    assert Rows(0).times(2.0).fixed().numbers == (2.0,)


@pytest.mark.parametrize("layers", [60, 250])
def test_gradients_that_run_out_in_a_deep_network_are_no_mixture(layers):
    """Their squares leave float32 after 40 layers, they themselves after 100: rounding, which the comparison must not take for more."""
    torch.manual_seed(0)
    deep = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(16, 16), nn.ReLU())], nn.Linear(16, 10))
    engine = Bookkeeping(deep, dict(deep.named_parameters()), loss_reduction="mean")
    engine.install()
    engine.open(64)
    F.cross_entropy(deep(torch.randn(64, 16)), torch.arange(64) % 10).backward()
    assert engine.close().norms.isfinite().all()
    engine.remove()


@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e-25, 1e-33])
def test_a_part_of_another_row_is_seen_in_gradients_of_any_size(scale):
    rows = scale * torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    mixed = rows.clone()
    mixed[0] += 0.01 * rows[1]
    before, after = rowwise._lengths(rows), rowwise._lengths(mixed)
    assert rowwise._differ(before, after, torch.float32)
    assert not rowwise._differ(before, rowwise._lengths(rows.flip(1)), torch.float32)
