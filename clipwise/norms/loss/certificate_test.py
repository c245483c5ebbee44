"""A kept proof is as good as a new one: whatever it lets through, the walk would have let through."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from clipwise.norms.loss import judged
from clipwise.norms.loss.certificate import MOST_KEPT
from clipwise.norms.loss.marks import mark
from clipwise.norms.loss.proof import LossProof
from clipwise.types import ClipwiseError

T = 4


class AtOnce(list):
    def append(self, keep):
        keep()


class Batch:
    def __init__(self, proof, rows):
        self.proof, self.rows = proof, rows
        self.over, self.received, self.passes = False, False, 0
        self.scale = self.witness = self.looked_at = None
        self.lengths, self.when_done = (), AtOnce()
        proof.batch = self

    def begin(self):
        self.looked_at = None


# Sound or not, at some numbers of rows or at all: (rows, T) to a loss.
LOSSES = {
    "mean": lambda a: a.mean(),
    "sum": lambda a: a.sum(),
    "mean of words, summed": lambda a: a.mean(1).sum(),
    "mean of rows, summed": lambda a: a.mean(0).sum(),
    "by hand": lambda a: a.sum() / len(a),
    "a constant": lambda a: a.sum() / 6,
    "a constant, times": lambda a: a.sum() * (1 / 6),
    "half": lambda a: a.sum() * 0.5,
    "double": lambda a: a.mean() * 2,
    "cross entropy": lambda a: F.cross_entropy(a, torch.arange(len(a)) % T),
    "summed": lambda a: F.cross_entropy(a, torch.arange(len(a)) % T, reduction="sum"),
    "ignoring": lambda a: F.cross_entropy(a, torch.arange(len(a)) % T, ignore_index=0),
    "weights": lambda a: F.cross_entropy(a, torch.arange(len(a)) % T, weight=torch.ones(T)),
    "smoothed": lambda a: F.cross_entropy(a, torch.arange(len(a)) % T, label_smoothing=0.1),
    "smoothed more": lambda a: F.cross_entropy(a, torch.arange(len(a)) % T, label_smoothing=0.2),
    "softmax": lambda a: a.softmax(1).square().mean(),
    "softmax over rows": lambda a: a.softmax(0).square().mean(),
    "view": lambda a: a.t().reshape(len(a), T).square().mean(),
    "view of rows": lambda a: a.view(len(a), 2, 2).square().mean(),
    "mask": lambda a: (a * torch.ones(len(a), T)).mean(),
    "mask of words": lambda a: (a * torch.ones(T)).mean(),
    "mask of one": lambda a: (a * torch.tensor(0.5)).mean(),
    "twice the same": lambda a: (a.exp() * a.exp()).mean(),
    "the same twice": lambda a: (lambda e: e * e)(a.exp()).mean(),
    "half precision": lambda a: a.bfloat16().square().float().mean(),
    "a root": lambda a: a.square().mean().sqrt(),
    "mse": lambda a: F.mse_loss(a, torch.zeros(len(a), T)),
    "mse, summed": lambda a: F.mse_loss(a, torch.zeros(len(a), T), reduction="sum"),
}
ROWS = (2, 3, 4, 6, 12)


def graph(proof, loss, rows, dtype=torch.float32):
    batch = Batch(proof, rows)
    a = torch.linspace(0.1, 1, rows * T, dtype=dtype).view(rows, T).requires_grad_() * 1
    mark(a, batch, 0)
    return loss(a)


def passes(proof, loss, rows):
    try:
        with judged([graph(proof, loss, rows)], [torch.ones(())], False):
            return True
    except ClipwiseError:
        return False


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_what_a_kept_proof_lets_through_the_walk_does(reduction):
    known = 0
    for loss, rows in product(LOSSES.values(), ROWS):
        proof = LossProof(reduction, None)
        if not passes(proof, loss, rows):
            assert not proof._certificates
            continue
        for later, more in product(LOSSES.values(), ROWS):
            if proof.is_known(graph(proof, later, more), torch.ones(())):
                known += 1
                assert passes(LossProof(reduction, None), later, more), (loss, rows, later, more)
    assert known > 50  # and they are of some use


def test_the_same_loss_is_known_again_whatever_its_rows():
    proof = LossProof("mean", None)
    assert passes(proof, LOSSES["cross entropy"], 6)
    assert proof.is_known(graph(proof, LOSSES["cross entropy"], 12), torch.ones(()))
    assert not proof.is_known(
        graph(proof, LOSSES["cross entropy"], T), torch.ones(())
    )  # as many rows as classes: asked anew
    assert not proof.is_known(graph(proof, LOSSES["cross entropy"], 12), torch.full((), 2.0))
    hooked = graph(proof, LOSSES["softmax"], 6)
    assert not proof.is_known(hooked, torch.ones(()))


def test_outputs_of_another_batch_are_not_known():
    proof = LossProof("mean", None)
    assert passes(proof, LOSSES["mean"], 6)
    old = graph(proof, LOSSES["mean"], 6)
    Batch(proof, 6)  # begins
    assert not proof.is_known(old, torch.ones(()))


def test_the_same_loss_in_half_precision_is_not_known():
    proof = LossProof("mean", None)
    assert passes(proof, LOSSES["softmax"], 6)
    assert not proof.is_known(graph(proof, LOSSES["softmax"], 6, torch.bfloat16), torch.ones(()))


def test_the_oldest_go_when_there_are_many():
    proof = LossProof("mean", None)
    for rows in range(2, MOST_KEPT + 10):
        assert passes(proof, LOSSES["by hand"], rows)  # the number of rows is in it
    assert len(proof._certificates) == MOST_KEPT
    assert proof.is_known(graph(proof, LOSSES["by hand"], rows), torch.ones(()))
